//! What requests and watches cost the API server on one core: requests in this process, without sockets and TLS.
//!
//! One thread does everything, so what is told as time is time of one core. Each answer is read to its end.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, missing_docs, reason = "a benchmark may panic")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::{pin::Pin, time::Instant};

use apiserver_server::Body;
use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use http_body_util::BodyExt;
use serde_json::json;
use support::{Client, meta};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const OBJECTS: usize = 500;
const WATCHERS: usize = 1000;
const CHANGES: usize = 100;
const ROUNDS: usize = 5;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let server = support::server().await;
    let client = Client::new(&server, "one");
    for n in 0..OBJECTS {
        let body = json!({
            "metadata": {"name": format!("object-{n}"), "labels": {"app": "web", "n": n.to_string(), "part": (n % 50).to_string()}},
            "data": {"text": "0123456789abcdef".repeat(48)},
        });
        client.post(MAPS, &body).await.ok();
    }
    let bytes = client.get(MAPS).await.bytes.len() / OBJECTS;
    println!("objects of {bytes} bytes\n\n| what | time of a core | a second |\n|---|---|---|");
    requests(&client, "GET", &format!("{MAPS}/object-77"), 20_000).await;
    requests(&client, "LIST of 500", MAPS, 400).await;
    requests(&client, "LIST of 500, by a label that all have", &format!("{MAPS}?labelSelector=app%3Dweb"), 40).await;
    requests(&client, "LIST of 10 of 500 by a label", &format!("{MAPS}?labelSelector=part%3D7"), 400).await;
    requests(&client, "LIST of 499 of 500 by a field", &format!("{MAPS}?fieldSelector=metadata.name!%3Dobject-7"), 40)
        .await;
    fan_out(&client, "watched by 1,000", WATCHERS, |_| String::new()).await;
    fan_out(&client, "watched by 1,000 by a label", WATCHERS, |_| "&labelSelector=app%3Dweb".into()).await;
    fan_out(&client, "watched by one of 1,000 by a label", 1, |n| format!("&labelSelector=n%3D{}", n + 77)).await;
}

async fn requests(client: &Client, what: &str, path: &str, count: usize) {
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        for _ in 0..count {
            assert_eq!(client.get(path).await.code, 200);
        }
        rounds.push(start.elapsed().as_secs_f64() / count as f64);
    }
    tell(what, rounds);
}

/// Changes of one object, each told to all watchers whom it concerns, the first `concerned`, before the next; the time of
/// one telling, or of one watcher that is told or not.
async fn fan_out(client: &Client, what: &str, concerned: usize, selector: impl Fn(usize) -> String) {
    let item = format!("{MAPS}/object-77");
    let from = meta(&client.get(&format!("{MAPS}?limit=1")).await.ok(), "resourceVersion").to_owned();
    let mut bodies: Vec<Pin<Box<Body>>> = Vec::new();
    for n in 0..WATCHERS {
        let path = format!("{MAPS}?watch=1&resourceVersion={from}{}", selector(n));
        bodies.push(Box::pin(client.response("GET", &path, "", Bytes::new()).await.into_body()));
    }
    // All are live once each has waited for something once.
    bodies.iter_mut().for_each(|body| assert!(body.frame().now_or_never().is_none()));
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let mut told = 0.0;
        for change in 0..CHANGES {
            let mut waiting = bodies.iter_mut().map(|body| body.frame()).collect::<FuturesUnordered<_>>();
            // Each waits for this change when it is made.
            assert!(!tells_now(&mut waiting));
            let patch = json!({"data": {"n": format!("{round}-{change}")}});
            client.merge(&item, &patch).await.ok();
            let start = Instant::now();
            for _ in 0..concerned {
                let frame = waiting.next().await.unwrap().unwrap().unwrap();
                assert!(frame.into_data().unwrap().len() > 100);
            }
            // The others look at it.
            assert!(!tells_now(&mut waiting));
            told += start.elapsed().as_secs_f64();
        }
        rounds.push(told / (CHANGES * WATCHERS) as f64);
    }
    tell(&format!("an event, {what}: each"), rounds);
}

/// Whether one of them has something to tell, when all have looked.
fn tells_now<F: Future>(waiting: &mut FuturesUnordered<F>) -> bool {
    matches!(tokio::task::unconstrained(waiting.next()).now_or_never(), Some(Some(_)))
}

fn tell(what: &str, mut rounds: Vec<f64>) {
    rounds.sort_by(f64::total_cmp);
    let median = rounds[ROUNDS / 2];
    println!("| {what} | {:.2} us | {:.0} |", median * 1e6, 1.0 / median);
}
