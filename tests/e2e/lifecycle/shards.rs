//! Shards come, go and move by a change of `gateway.yaml`, while requests and watches run.

use std::{
    net::{SocketAddr, TcpListener},
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use futures_util::StreamExt;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::{
    config,
    gateway::{Ca, PATIENCE, Serve},
    load::{Balancer, Load, client},
    shard::{self, Clusters, Counters},
    started,
};

fn shard(clusters: Clusters) -> (SocketAddr, Counters) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    (listener.local_addr().unwrap(), shard::serve(listener, clusters))
}

async fn answers(ca: &Ca, gateway: &Serve, cluster: &str, want: u16) {
    let (client, deadline) = (client(&ca.pem, None, true), Instant::now() + PATIENCE);
    loop {
        let answer = client.get(format!("{}/clusters/{cluster}/api/v1/pods", gateway.url)).send().await.unwrap();
        let got = answer.status().as_u16();
        if got == want {
            return;
        }
        assert!(Instant::now() < deadline, "{cluster} stays {got}, not {want}: {}", answer.text().await.unwrap());
        sleep(Duration::from_millis(20)).await;
    }
}

/// Workspaces of a shard that is added are found, those of one that is removed are unknown; what runs there goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_come_and_go() {
    let ca = Ca::new("ca");
    let ((root, _), (amber, counters)) = (shard(Some(&["one"])), shard(Some(&["two"])));
    let (volume, gateway) = started(&ca, root, "").await;
    answers(&ca, &gateway, "one", 200).await;
    answers(&ca, &gateway, "two", 403).await;
    volume.rename("gateway.yaml", &config(&[root, amber], 50, ""));
    let shows = gateway.generation(2).await;
    assert_eq!(
        (&shows["changes"][0]["field"], &shows["needsRestart"]),
        (&json!("shards[amber]"), &json!([])),
        "{shows}"
    );
    answers(&ca, &gateway, "two", 200).await;
    let series = "fairgate_shard_seats{shard=\"amber\"} 50";
    gateway.becomes("/metrics", "its metrics", |_, text| text.contains(series)).await;
    gateway.becomes("/readyz?verbose", "it is known", |_, text| text.contains("[+]shard/amber ok")).await;

    let url = format!("{}/clusters/two/api/v1/pods", gateway.url);
    let (slow, watching) = (client(&ca.pem, None, true), client(&ca.pem, None, true));
    let watch = watching.get(format!("{url}?watch=true")).timeout(PATIENCE).send().await.unwrap();
    let mut events = watch.bytes_stream();
    events.next().await.unwrap().unwrap();
    let running = tokio::spawn({
        let url = format!("{url}?slow=3000");
        async move { slow.get(url).send().await.unwrap().status().as_u16() }
    });
    let deadline = Instant::now() + PATIENCE;
    while counters.running.load(SeqCst) == 0 {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(5)).await;
    }
    volume.rename("gateway.yaml", &config(&[root], 50, ""));
    gateway.generation(3).await;
    answers(&ca, &gateway, "two", 403).await;
    answers(&ca, &gateway, "one", 200).await;
    gateway.becomes("/metrics", "no metrics", |_, text| !text.contains(series)).await;
    assert!(!gateway.admin("/readyz?verbose").await.unwrap().1.contains("amber"));
    assert_eq!(running.await.unwrap(), 200, "what runs finishes");
    for _ in 0..3 {
        events.next().await.expect("the watch goes on").unwrap();
    }
    // Another one of that name.
    volume.rename("gateway.yaml", &config(&[root, amber], 7, ""));
    answers(&ca, &gateway, "two", 200).await;
    gateway.becomes("/metrics", "others", |_, text| text.contains("fairgate_shard_seats{shard=\"amber\"} 7")).await;
}

/// A shard that is found under another address serves its workspaces from there as soon as it has told which; nobody is
/// refused meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_moves_and_no_request_fails() {
    const HELD: Clusters = Some(&["team-a", "team-0", "team-1", "team-2", "team-3"]);
    let ca = Ca::new("ca");
    let (first, old) = shard(HELD);
    let (volume, gateway) = started(&ca, first, "").await;
    answers(&ca, &gateway, "team-a", 200).await;
    let url = gateway.url.clone();
    let balancer: Balancer = Arc::new(move || url.clone());
    let mut load = Load::new();
    for n in 0..4 {
        load.requests(n, client(&ca.pem, None, n % 2 == 0), &balancer, false);
        load.watch(n, client(&ca.pem, None, n % 2 == 0), &balancer);
    }
    let mut last = old;
    for generation in 2..=4 {
        let (next, new) = shard(HELD);
        volume.rename("gateway.yaml", &config(&[next], 50, ""));
        let shows = gateway.generation(generation).await;
        assert_eq!(shows["changes"][0]["field"], "shards[root].url", "{shows}");
        let deadline = Instant::now() + PATIENCE;
        // The lists of the index are requests too, one after the other.
        while new.most.load(SeqCst) < 3 {
            assert!(Instant::now() < deadline, "nothing is sent to the new address");
            sleep(Duration::from_millis(10)).await;
        }
        let more = async |by: usize| {
            let before = load.good();
            while load.good() < before + by {
                assert!(Instant::now() < deadline, "answers stand still");
                sleep(Duration::from_millis(10)).await;
            }
        };
        // Those that were on their way there.
        more(50).await;
        last.most.store(0, SeqCst);
        more(100).await;
        assert_eq!(last.most.load(SeqCst), 0, "the old address is asked no more");
        last = new;
    }
    let book = load.stop().await;
    assert!(book.failed.is_empty(), "{:#?}", &book.failed[..book.failed.len().min(5)]);
    assert_eq!((book.refused.len(), book.ended), (0, 0), "watches go on where they began");
}

/// With a shard that has no logical clusters every path is for it, whatever its name: another one would get none, and is
/// refused. It may move.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_without_logical_clusters_stays_alone() {
    let ca = Ca::new("ca");
    let ((root, _), (amber, counters)) = (shard(None), shard(None));
    let (volume, gateway) = started(&ca, root, "").await;
    answers(&ca, &gateway, "any", 200).await;
    volume.rename("gateway.yaml", &config(&[root, amber], 50, ""));
    gateway.becomes("/configz", "refused", |_, text| text.contains("the only one serves no logical clusters")).await;
    answers(&ca, &gateway, "any", 200).await;
    assert_eq!(counters.most.load(SeqCst), 0);
    volume.rename("gateway.yaml", &config(&[amber], 50, ""));
    gateway.generation(2).await;
    answers(&ca, &gateway, "any", 200).await;
    assert!(counters.most.load(SeqCst) > 0);
}
