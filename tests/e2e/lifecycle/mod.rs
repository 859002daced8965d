//! The life of a gateway under load, with the real binary: reload, rotation of certificates, drain, shards that are away.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

mod gateway;
mod load;
mod reload;
mod shard;
mod shards;

use std::{
    net::TcpListener,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    time::{Instant, sleep},
};

use self::{
    gateway::{Ca, PATIENCE, Serve, Volume},
    load::{Balancer, Load, client},
};

/// A gateway.yaml for one or two shards, with room for what a test adds.
pub(crate) fn config(shards: &[std::net::SocketAddr], seats: u32, rest: &str) -> String {
    let shards = ["root", "amber"]
        .iter()
        .zip(shards)
        .map(|(name, address)| format!("- {{ name: {name}, url: 'http://{address}', seats: {seats} }}\n"));
    format!(
        "apiVersion: fairgate.dev/v1alpha1\nkind: GatewayConfiguration\nworkers: 2\n\
         listen: {{ address: '127.0.0.1:0', tls: {{ certificateFile: tls.crt, keyFile: tls.key }} }}\n\
         admin: {{ address: '127.0.0.1:0' }}\nauthentication: {{ anonymous: true }}\nshards:\n{}{rest}",
        shards.collect::<String>()
    )
}

/// A gateway before one plain shard.
async fn started(ca: &Ca, shard: std::net::SocketAddr, rest: &str) -> (Volume, Serve) {
    let (certificate, key) = ca.issue("door");
    let files = [("gateway.yaml", &*config(&[shard], 50, rest)), ("tls.crt", &certificate), ("tls.key", &key)];
    let volume = Volume::new(&files);
    let gateway = Serve::start(&volume.path("gateway.yaml"));
    gateway.becomes("/readyz", "ready", |code, _| code == 200).await;
    (volume, gateway)
}

/// PX-07, PX-08: two gateways behind a load balancer that reads `/readyz`; one of them is told to end. Every request has
/// one answer, all watches end in good order, and nobody is refused before readiness has been down for the delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_under_load_fails_no_request() {
    const DELAY: Duration = Duration::from_secs(2);
    let ca = Ca::new("ca");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    shard::serve(listener, None);
    let rest = "shutdown: { delay: 2s, grace: 6s }\n";
    let (_first_volume, mut first) = started(&ca, address, rest).await;
    let (_second_volume, second) = started(&ca, address, rest).await;

    let is_ready = Arc::new(AtomicBool::new(true));
    let (a, b) = (first.url.clone(), second.url.clone());
    let balancer: Balancer = {
        let (is_ready, a, b) = (is_ready.clone(), a.clone(), b.clone());
        Arc::new(move || if is_ready.load(SeqCst) { a.clone() } else { b.clone() })
    };
    // Does not notice: the worst load balancer there is.
    let stubborn: Balancer = Arc::new(move || a.clone());
    let mut load = Load::new();
    for n in 0..4 {
        load.requests(n, client(&ca.pem, None, n % 2 == 0), &balancer, false);
        load.requests(10 + n, client(&ca.pem, None, n % 2 == 0), &stubborn, true);
    }
    for n in 0..12 {
        load.watch(n, client(&ca.pem, None, n % 2 == 0), &balancer);
    }
    let mut silent = TcpStream::connect(first.address()).await.unwrap();
    let deadline = Instant::now() + PATIENCE;
    while load.good() < 500 || load.events() < 100 {
        assert!(Instant::now() < deadline, "the load does not run");
        sleep(Duration::from_millis(20)).await;
    }

    let told = Instant::now();
    first.signal("TERM");
    first.becomes("/readyz", "readiness down", |code, text| code == 503 && text.contains("shutting down")).await;
    let down = Instant::now();
    assert_eq!(first.admin("/livez").await.unwrap().0, 200);
    // A load balancer needs a moment to notice.
    sleep(Duration::from_millis(300)).await;
    is_ready.store(false, SeqCst);
    // Connections are accepted for as long as the delay lasts.
    let late = client(&ca.pem, None, false).get(format!("{}/clusters/x/api", first.url)).send().await;
    if told.elapsed() < DELAY {
        assert_eq!(late.unwrap().status(), 200);
    }
    assert_eq!(first.ended().await.code(), Some(0));
    assert_eq!(silent.read(&mut [0]).await.unwrap_or(0), 0, "a silent connection holds nobody up");
    let before = load.good();
    let deadline = Instant::now() + PATIENCE;
    while load.good() < before + 200 {
        assert!(Instant::now() < deadline, "the second does not take over");
        sleep(Duration::from_millis(20)).await;
    }
    let sent = load.sent();
    assert!(sent > 0);
    let book = load.stop().await;
    println!(
        "good {:?}, refused {}, failed {}, watches ended {}",
        book.good,
        book.refused.len(),
        book.failed.len(),
        book.ended
    );
    assert!(book.failed.is_empty(), "{:#?}", &book.failed[..book.failed.len().min(5)]);
    assert_eq!(book.ended, 12, "every watch of the first ended once, and none of the second");
    for (at, target) in &book.refused {
        assert_eq!(*target, first.url, "only the one that ends refuses");
        assert!(*at >= told + DELAY, "{:?} after the signal", *at - told);
    }
    assert!(down >= told && book.good[&second.url] > 200);
}

/// The second signal is obeyed at once, whatever runs.
#[tokio::test]
async fn the_second_signal_ends_at_once() {
    let ca = Ca::new("ca");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    shard::serve(listener, None);
    let (_volume, mut gateway) = started(&ca, address, "shutdown: { delay: 10m, grace: 1h }\n").await;
    let url = format!("{}/clusters/a/api/v1/pods?watch=true", gateway.url);
    let watch = client(&ca.pem, None, true).get(url).send().await.unwrap();
    assert_eq!(watch.status(), 200);
    gateway.signal("TERM");
    gateway.becomes("/readyz", "readiness down", |code, _| code == 503).await;
    gateway.signal("INT");
    assert_eq!(gateway.ended().await.code(), Some(0));
}

/// Queued and running requests finish in the grace; who comes later is told to go elsewhere, in words.
#[tokio::test]
async fn what_runs_finishes_and_what_is_new_is_refused() {
    let ca = Ca::new("ca");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let counters = shard::serve(listener, None);
    let (_volume, mut gateway) = started(&ca, address, "shutdown: { delay: 0s, grace: 30s }\n").await;
    let url = format!("{}/clusters/a/api/v1/pods/x?slow=3000", gateway.url);
    let slow = client(&ca.pem, None, true);
    let running = tokio::spawn(async move { slow.get(url).send().await });
    let deadline = Instant::now() + PATIENCE;
    while counters.running.load(SeqCst) == 0 {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(5)).await;
    }
    gateway.signal("TERM");
    gateway.becomes("/readyz", "readiness down", |code, _| code == 503).await;
    // The signal's next step follows at once, but by another thread.
    let (mut refused, deadline) = (None, Instant::now() + PATIENCE);
    while refused.is_none() {
        assert!(Instant::now() < deadline);
        let answer = client(&ca.pem, None, false).get(format!("{}/clusters/a/api", gateway.url)).send().await.unwrap();
        refused = (answer.status() == 503).then_some(answer);
    }
    let refused = refused.unwrap();
    assert_eq!(
        (&refused.headers()["retry-after"], &refused.headers()["connection"]),
        (&"1".parse().unwrap(), &"close".parse().unwrap())
    );
    assert!(refused.text().await.unwrap().contains("this gateway is shutting down"));
    assert_eq!(running.await.unwrap().unwrap().status(), 200);
    assert_eq!(gateway.ended().await.code(), Some(0));
}

/// CF-04: a gateway starts without its shards, says so, serves those that are there, and finds the others when they come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shard_that_is_away_at_the_start_is_found_when_it_comes() {
    let ca = Ca::new("ca");
    let (certificate, key) = ca.issue("door");
    let ((root, root_address), (amber, amber_address)) = (shard::place(), shard::place());
    let text = config(&[root_address, amber_address], 10, "");
    let volume = Volume::new(&[("gateway.yaml", &text), ("tls.crt", &certificate), ("tls.key", &key)]);
    let gateway = Serve::start(&volume.path("gateway.yaml"));
    let client = client(&ca.pem, None, true);
    let ask = async |cluster: &str| {
        let answer = client.get(format!("{}/clusters/{cluster}/api/v1/pods", gateway.url)).send().await.unwrap();
        let again = answer.headers().contains_key("retry-after");
        (answer.status().as_u16(), again, answer.text().await.unwrap())
    };
    // Nobody is there.
    let text = gateway
        .becomes("/readyz", "both are tried", |code, text| {
            code == 503 && text.matches("unreachable since").count() == 2
        })
        .await;
    for line in ["[-]index failed: ", "[!]shard/root impaired: unreachable since ", "[!]shard/amber", "[+]process ok"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert_eq!(gateway.admin("/livez").await.unwrap().0, 200);
    let open = client.get(format!("{}/readyz", gateway.url)).send().await.unwrap();
    assert_eq!(open.status(), 503);
    let open = open.text().await.unwrap();
    assert!(open.contains("[!]shard/amber impaired: reason withheld"), "{open}");
    let (code, again, text) = ask("one").await;
    assert_eq!((code, again), (503, true), "{text}");
    assert!(text.contains("2 of 2 are missing"), "{text}");
    // One comes.
    root.listen(64).unwrap();
    shard::serve(root.into(), Some(&["one"]));
    gateway.becomes("/readyz", "one shard is enough", |code, _| code == 200).await;
    assert_eq!(ask("one").await.0, 200);
    let (code, again, text) = ask("two").await;
    assert_eq!((code, again), (503, true), "{text}");
    assert!(text.contains("1 of 2 are missing"), "{text}");
    let (_, verbose) = gateway.admin("/readyz?verbose").await.unwrap();
    for line in ["[+]shard/root ok", "[!]shard/amber impaired: unreachable since ", "readyz check passed"] {
        assert!(verbose.contains(line), "{line}: {verbose}");
    }
    // The other comes.
    amber.listen(64).unwrap();
    shard::serve(amber.into(), Some(&["two"]));
    gateway.becomes("/readyz?verbose", "both are there", |_, text| text.contains("[+]shard/amber ok")).await;
    assert_eq!(ask("two").await.0, 200);
    assert_eq!(ask("three").await.0, 403, "now it is certain");
}
