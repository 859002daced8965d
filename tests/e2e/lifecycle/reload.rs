//! `gateway.yaml` and certificates change under load.

use std::{net::TcpListener, sync::Arc, time::Duration};

use tokio::time::{Instant, sleep};

use super::{
    config,
    gateway::{Ca, PATIENCE, Serve, Volume},
    load::{Balancer, Load, client},
    shard,
};

/// The common name of the certificate that a new connection is shown.
async fn shown(ca: &Ca, gateway: &Serve) -> String {
    let answer = client(&ca.pem, None, true).get(format!("{}/livez", gateway.url)).send().await.unwrap();
    let info = answer.extensions().get::<reqwest::tls::TlsInfo>().unwrap();
    let (_, certificate) = x509_parser::parse_x509_certificate(info.peer_certificate().unwrap()).unwrap();
    certificate.subject().iter_common_name().next().unwrap().as_str().unwrap().to_owned()
}

async fn becomes_shown(ca: &Ca, gateway: &Serve, name: &str) {
    let deadline = Instant::now() + PATIENCE;
    while shown(ca, gateway).await != name {
        assert!(Instant::now() < deadline, "{name} is not shown");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn grows(what: &str, count: impl Fn() -> usize, by: usize) {
    let (before, deadline) = (count(), Instant::now() + PATIENCE);
    while count() < before + by {
        assert!(Instant::now() < deadline, "{what} stand still");
        sleep(Duration::from_millis(10)).await;
    }
}

/// Everything that can change does, in every way a file can, right and wrong, while requests and watches run: every
/// request has its good answer, no watch ends, seats are never exceeded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reload_under_load_fails_no_request() {
    let ca = Ca::new("ca");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let counters = shard::serve(listener, None);
    let with = |seats: u32, rest: &str| config(&[address], seats, rest);
    let pair = ca.issue("door-0");
    let mut volume = Volume::new(&[("gateway.yaml", &with(20, "")), ("tls.crt", &pair.0), ("tls.key", &pair.1)]);
    let mut gateway = Serve::start(&volume.path("gateway.yaml"));
    gateway.becomes("/readyz", "ready", |code, _| code == 200).await;
    let url = gateway.url.clone();
    let balancer: Balancer = Arc::new(move || url.clone());
    let mut load = Load::new();
    for n in 0..6 {
        load.requests(n, client(&ca.pem, None, n % 2 == 0), &balancer, false);
    }
    for n in 0..8 {
        load.watch(n, client(&ca.pem, None, n % 2 == 0), &balancer);
    }
    grows("answers", || load.good(), 200).await;
    let mut generation = 1;
    for round in 1..=12 {
        let pair = ca.issue(&format!("door-{round}"));
        let text = with(10 + round % 5, &format!("shutdown: {{ delay: 0s, grace: {}s }}\n", 30 + round));
        volume.swap(&[("gateway.yaml", &text), ("tls.crt", &pair.0), ("tls.key", &pair.1)]);
        if round % 3 == 0 {
            gateway.signal("HUP");
        }
        generation += 1;
        let shows = gateway.generation(generation).await;
        generation = shows["generation"].as_u64().unwrap();
        becomes_shown(&ca, &gateway, &format!("door-{round}")).await;
        let wrong = [
            "a: [",
            "kind: Pod\n",
            &with(0, ""),
            &with(9, "shutdown: { grace: 0s }\n"),
            &text.replace("tls.key", "tls.crt"),
        ];
        volume.write("gateway.yaml", wrong[round as usize % wrong.len()]);
        gateway.becomes("/configz", "refused", |_, text| text.contains("\"faults\"")).await;
        grows("answers", || load.good(), 50).await;
    }
    grows("events", || load.events(), 50).await;
    let text = gateway.becomes("/metrics", "metrics", |code, _| code == 200).await;
    let refused =
        text.lines().find(|l| l.starts_with("fairgate_config_reloads_total{file=\"gateway\",outcome=\"refused\"}"));
    // Each wrong content once; what is written in place may be seen half, and be refused as well.
    let count = refused.and_then(|line| line.rsplit(' ').next()?.parse::<u32>().ok());
    assert!(count.is_some_and(|n| n >= 12), "{refused:?}");
    // The settings of the last good file hold, although a wrong one has followed: it may take 42 seconds.
    let book = load.stop().await;
    println!("good {:?}, events {}, generation {generation}", book.good, book.events);
    assert!(book.failed.is_empty(), "{:#?}", &book.failed[..book.failed.len().min(5)]);
    assert_eq!((book.refused.len(), book.ended), (0, 0));
    assert!(counters.most.load(std::sync::atomic::Ordering::SeqCst) <= 20);
    gateway.signal("TERM");
    assert_eq!(gateway.ended().await.code(), Some(0));
}

/// What a new content changes is told, with what needs a restart; what is wrong changes nothing and says why.
#[tokio::test]
async fn what_changed_and_what_needs_a_restart_is_told() {
    let ca = Ca::new("ca");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    shard::serve(listener, None);
    let text = config(&[address], 20, "");
    let pair = ca.issue("door");
    let volume = Volume::new(&[("gateway.yaml", &text), ("tls.crt", &pair.0), ("tls.key", &pair.1)]);
    let gateway = Serve::start(&volume.path("gateway.yaml"));
    gateway.becomes("/readyz", "ready", |code, _| code == 200).await;
    let code = async || {
        let url = format!("{}/clusters/a/api/v1/pods", gateway.url);
        client(&ca.pem, None, true).get(url).send().await.unwrap().status().as_u16()
    };
    assert_eq!(code().await, 200);
    let shows = gateway.config().await;
    assert_eq!((&shows["generation"], &shows["changes"]), (&1.into(), &serde_json::json!([])));
    // By rename: it is no longer a link.
    volume.rename(
        "gateway.yaml",
        &text
            .replace("workers: 2", "workers: 3")
            .replace("anonymous: true", "anonymous: false")
            .replace("seats: 20", "seats: 7"),
    );
    let shows = gateway.generation(2).await;
    let field = |list: &str, n: usize| {
        let change = &shows[list][n];
        [&change["field"], &change["from"], &change["to"]].map(|v| v.as_str().unwrap_or_default().to_owned())
    };
    assert_eq!(field("changes", 0), ["authentication.anonymous", "true", "false"]);
    assert_eq!(field("changes", 1), ["shards[root].seats", "20", "7"]);
    assert_eq!(field("needsRestart", 0), ["workers", "2", "3"]);
    assert_eq!((shows["changes"].as_array().unwrap().len(), shows["needsRestart"].as_array().unwrap().len()), (2, 1));
    assert_eq!(code().await, 401, "at once");
    gateway.becomes("/metrics", "seats", |_, text| text.contains("fairgate_shard_seats{shard=\"root\"} 7")).await;
    // A wrong one says what and where, and changes nothing.
    volume.write("gateway.yaml", &text.replace("seats: 20", "seets: 20"));
    let page = gateway.becomes("/configz", "refused", |_, text| text.contains("is no known key")).await;
    assert!(page.contains("gateway.yaml:8:"), "{page}");
    assert_eq!(code().await, 401);
    let (status, verbose) = gateway.admin("/readyz?verbose").await.unwrap();
    assert!(
        status == 200 && verbose.contains("[!]configuration impaired: the latest content of gateway.yaml"),
        "{verbose}"
    );
    // Back to the first: nothing is left that needs a restart.
    volume.write("gateway.yaml", &text);
    let shows = gateway.generation(3).await;
    assert_eq!((&shows["needsRestart"], &shows["lastError"]), (&serde_json::json!([]), &serde_json::Value::Null));
    assert_eq!(code().await, 200);
    // A limit, on a connection that is open.
    let (open, url) = (client(&ca.pem, None, true), format!("{}/clusters/a/api/v1/pods", gateway.url));
    let post = async || open.post(&url).body("x".repeat(3000)).send().await.unwrap().status().as_u16();
    assert_eq!(post().await, 200);
    volume.write("gateway.yaml", &format!("{text}limits: {{ bodyBytes: 2000 }}\n"));
    assert_eq!(gateway.generation(4).await["changes"][0]["field"], "limits.bodyBytes");
    assert_eq!(post().await, 413);
}

/// OP-07: certificates are renewed on disk alone, gateway.yaml stays as it is; a pair that does not match is refused.
/// Clients that a new authority has signed are let in at once, those of the old one are not.
#[tokio::test]
async fn certificates_alone_may_change() {
    let (ca, old_clients, new_clients) = (Ca::new("ca"), Ca::new("old"), Ca::new("new"));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    shard::serve(listener, None);
    let text = config(&[address], 20, "")
        .replace("keyFile: tls.key", "keyFile: tls.key, clientCAFile: clients.crt")
        .replace("anonymous: true", "anonymous: false");
    let first = ca.issue("first");
    let files = |pair: &(String, String), clients: &Ca| {
        [
            ("gateway.yaml", text.clone()),
            ("tls.crt", pair.0.clone()),
            ("tls.key", pair.1.clone()),
            ("clients.crt", clients.pem.clone()),
        ]
    };
    let start = files(&first, &old_clients);
    let mut volume = Volume::new(&start.each_ref().map(|(n, t)| (*n, t.as_str())));
    let gateway = Serve::start(&volume.path("gateway.yaml"));
    gateway.becomes("/readyz", "ready", |code, _| code == 200).await;
    let (old, new) = (old_clients.issue("alice"), new_clients.issue("alice"));
    let code = async |client: &reqwest::Client| {
        let answer = client.get(format!("{}/clusters/a/api/v1/pods", gateway.url)).send().await;
        answer.map_or(0, |answer| answer.status().as_u16())
    };
    let kept = client(&ca.pem, Some(&old), true);
    assert_eq!(code(&kept).await, 200);
    assert_eq!(code(&client(&ca.pem, Some(&new), true)).await, 0, "not yet trusted");
    // A key of another certificate: the old pair stays.
    let second = ca.issue("second");
    let mut mixed = files(&(second.0.clone(), first.1.clone()), &old_clients);
    volume.swap(&mixed.each_ref().map(|(n, t)| (*n, t.as_str())));
    gateway.becomes("/configz", "refused", |_, text| text.contains("\"faults\"")).await;
    assert_eq!(shown(&ca, &gateway).await, "first");
    // Now it matches, and the clients' authority is another one.
    mixed = files(&second, &new_clients);
    volume.swap(&mixed.each_ref().map(|(n, t)| (*n, t.as_str())));
    becomes_shown(&ca, &gateway, "second").await;
    let shows = gateway.generation(2).await;
    let fields: Vec<_> = shows["changes"].as_array().unwrap().iter().map(|c| c["field"].as_str().unwrap()).collect();
    assert!(fields.len() == 3 && fields.contains(&"listen.tls.clientCAFile"), "{fields:?}");
    assert_eq!(code(&client(&ca.pem, Some(&new), true)).await, 200);
    assert_eq!(code(&client(&ca.pem, Some(&old), true)).await, 0, "no longer trusted");
    // The connection from before has been asked to end, so the client makes a new one, which is refused.
    let deadline = Instant::now() + PATIENCE;
    while code(&kept).await == 200 {
        assert!(Instant::now() < deadline, "an old connection goes on for ever");
        sleep(Duration::from_millis(20)).await;
    }
}

/// A fairness file that is newly named is judged with `gateway.yaml`: when it was wrong and is mended, both come into force.
#[tokio::test]
async fn a_fairness_file_that_is_named_and_wrong_is_looked_at_again_when_it_is_mended() {
    let ca = Ca::new("ca");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    shard::serve(listener, None);
    let (volume, gateway) = super::started(&ca, address, "").await;
    // In a directory of its own, which nobody watches yet.
    std::fs::create_dir(volume.path("rules")).unwrap();
    volume.write("rules/fairness.yaml", "kind: Pod\n");
    volume.rename("gateway.yaml", &config(&[address], 33, "fairness: { file: rules/fairness.yaml }\n"));
    gateway.becomes("/configz", "refused", |_, text| text.contains("rules/fairness.yaml:1:")).await;
    assert_eq!(gateway.config().await["generation"], 1);
    let class = |name: &str| {
        format!(
            "apiVersion: fairgate.dev/v1alpha1\nkind: WorkspaceClass\nmetadata: {{ name: {name} }}\n\
             spec: {{ match: {{ paths: ['*'] }}, nominalConcurrencyShares: 5 }}\n"
        )
    };
    volume.write("rules/fairness.yaml", &class("all"));
    let shows = gateway.generation(2).await;
    assert_eq!((&shows["lastError"], &shows["generation"]), (&serde_json::Value::Null, &2.into()));
    gateway.becomes("/metrics", "seats", |_, text| text.contains("fairgate_shard_seats{shard=\"root\"} 33")).await;
    let page = gateway.becomes("/configz", "its rules", |_, text| text.contains("rules/fairness.yaml")).await;
    let before = serde_json::from_str::<serde_json::Value>(&page).unwrap()["fairness"]["sha256"].clone();
    // And it is followed from now on, alone.
    volume.write("rules/fairness.yaml", &class("other"));
    gateway
        .becomes("/configz", "followed", |_, text| {
            let shown: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
            shown["fairness"]["sha256"].is_string() && shown["fairness"]["sha256"] != before
        })
        .await;
    assert_eq!(gateway.config().await["generation"], 2);
}

/// OP-07: a broken `gateway.yaml` does not keep the certificates of the one in force from being renewed.
#[tokio::test]
async fn certificates_are_renewed_while_the_file_is_broken() {
    let ca = Ca::new("ca");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    shard::serve(listener, None);
    let first = ca.issue("first");
    let good = config(&[address], 20, "");
    let start = [("gateway.yaml", &*good), ("tls.crt", &first.0), ("tls.key", &first.1)];
    let mut volume = Volume::new(&start);
    let gateway = Serve::start(&volume.path("gateway.yaml"));
    gateway.becomes("/readyz", "ready", |code, _| code == 200).await;
    let refused = "fairgate_config_reloads_total{file=\"gateway\",outcome=\"refused\"} ";
    for (broken, name) in [("a: [".to_owned(), "second"), (good.replace("seats: 20", "seats: 0"), "third")] {
        let pair = ca.issue(name);
        volume.swap(&[("gateway.yaml", &broken), ("tls.crt", &pair.0), ("tls.key", &pair.1)]);
        becomes_shown(&ca, &gateway, name).await;
        assert!(!gateway.config().await["lastError"].is_null(), "it is still refused");
    }
    let text = gateway.admin("/metrics").await.unwrap().1;
    assert!(text.contains(&format!("{refused}2")), "each content is refused once: {text}");
    assert_eq!(gateway.config().await["generation"], 1);
}
