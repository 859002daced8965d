//! Seats at the door: who waits, who is refused, and when seats come back.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use crate::support::{
    rules::{self, QUEUE, REJECT, one_level},
    *,
};
use bytes::Bytes;
use config::FairnessConfig;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use proxy::{Body, Gateway, GatewayOptions, ShardOptions};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::mpsc::UnboundedSender,
    task::JoinHandle,
};

/// A shard whose answers the test writes: begun at once, ended when their sender is dropped.
#[derive(Clone, Default)]
struct Held {
    answers: Arc<Mutex<Vec<UnboundedSender<Bytes>>>>,
    arrived: Arc<AtomicUsize>,
}

impl Held {
    fn shard(&self, seats: u32) -> ShardOptions {
        let held = self.clone();
        let shard = local(move |request: Request<Body>| {
            let (sender, body) = channel();
            if request.uri().path().ends_with("/quick") {
                sender.send("ok".into()).unwrap();
            } else {
                held.answers.lock().unwrap().push(sender);
            }
            held.arrived.fetch_add(1, SeqCst);
            let mut response = Response::new(body);
            let theirs = HeaderValue::from_static("the-shards-own");
            response.headers_mut().insert("x-kubernetes-pf-flowschema-uid", theirs);
            std::future::ready(response)
        });
        ShardOptions { seats, ..shard }
    }

    fn end_one(&self) {
        self.answers.lock().unwrap().remove(0);
    }
}

/// Two requests at a shard with one seat; the other's end is a task.
async fn one_runs_and_one_waits(
    gateway: &Gateway,
) -> (Response<Incoming>, JoinHandle<hyper::Result<Response<Incoming>>>) {
    let first = h1(gateway).await.send_request(get("/clusters/a/api/v1/pods")).await.unwrap();
    let mut second = h1(gateway).await;
    let second = tokio::spawn(async move { second.send_request(get("/clusters/a/api/v1/pods")).await });
    metric_becomes(gateway, WAITING, 1.0).await;
    (first, second)
}

const WAITING: &str = "apiserver_flowcontrol_current_inqueue_requests";
const IN_USE: &str = "apiserver_flowcontrol_current_executing_seats";

#[tokio::test]
async fn a_seat_is_held_to_the_last_byte_and_the_next_request_waits_for_it() {
    let held = Held::default();
    let gateway = fair(held.shard(1), one_level(QUEUE));
    let mut first = h1(&gateway).await.send_request(get("/clusters/a/api/v1/pods")).await.unwrap();
    assert_eq!(metric(&gateway, IN_USE).await, 1.0);
    let mut second = h2(&gateway).await;
    let second = tokio::spawn(async move { second.send_request(get_h2("/clusters/b/api/v1/pods")).await.unwrap() });
    metric_becomes(&gateway, WAITING, 1.0).await;
    assert_eq!(held.arrived.load(SeqCst), 1);
    held.answers.lock().unwrap()[0].send("x".into()).unwrap();
    assert!(first.body_mut().frame().await.unwrap().is_ok());
    assert_eq!(held.arrived.load(SeqCst), 1, "the answer has begun, not ended");
    held.end_one();
    let second = second.await.unwrap();
    assert_eq!(second.status(), StatusCode::OK);
    held.end_one();
    assert!(second.into_body().collect().await.is_ok());
    metric_becomes(&gateway, IN_USE, 0.0).await;
    assert_eq!(metric(&gateway, "apiserver_flowcontrol_dispatched_requests_total").await, 2.0);
    assert_eq!(metric(&gateway, "fairgate_workspace_dispatched_requests_total").await, 2.0);
}

#[tokio::test]
async fn a_watch_holds_no_seat_once_it_has_begun_and_logs_never_do() {
    let held = Held::default();
    let gateway = fair(held.shard(1), one_level(REJECT));
    let mut streams = Vec::new();
    for path in
        ["/clusters/a/api/v1/pods?watch=1&resourceVersion=1", "/clusters/a/api/v1/namespaces/n/pods/p/log?follow=true"]
    {
        let response = h1(&gateway).await.send_request(get(path)).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(response.headers().contains_key("x-kubernetes-pf-prioritylevel-uid"), path.contains("watch"));
        metric_becomes(&gateway, IN_USE, 0.0).await;
        streams.push(response);
    }
    let (status, headers, _) = {
        let response = h1(&gateway).await.send_request(get("/clusters/a/api/v1/pods")).await.unwrap();
        held.answers.lock().unwrap().pop();
        let (parts, body) = response.into_parts();
        (parts.status, parts.headers, text(body).await)
    };
    assert_eq!(status, StatusCode::OK);
    let uid = headers["x-kubernetes-pf-flowschema-uid"].to_str().unwrap();
    assert_eq!((uid.len(), headers.get_all("x-kubernetes-pf-flowschema-uid").iter().count()), (36, 1));
}

#[tokio::test]
async fn a_refusal_is_a_status_or_upstreams_text() {
    let held = Held::default();
    let gateway = fair(held.shard(1), one_level(REJECT));
    let _first = h1(&gateway).await.send_request(get("/clusters/a/api/v1/pods")).await.unwrap();
    for (accept, is_json) in [(None, true), (Some("application/json"), true), (Some("text/html"), false)] {
        let mut request = get("/clusters/a/api/v1/pods");
        if let Some(accept) = accept {
            request.headers_mut().insert("accept", HeaderValue::from_static(accept));
        }
        let (status, headers, body) = once(&gateway, request).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert!(headers["retry-after"].to_str().unwrap().parse::<u32>().unwrap() >= 1);
        assert_eq!(headers["x-kubernetes-pf-flowschema-uid"].len(), 36);
        assert_eq!(headers["x-kubernetes-pf-prioritylevel-uid"].len(), 36);
        if is_json {
            let status: serde_json::Value = serde_json::from_str(&body).unwrap();
            assert_eq!((&status["code"], &status["reason"]), (&429.into(), &"TooManyRequests".into()));
            assert_eq!(status["details"]["causes"][0]["reason"], "concurrency-limit");
        } else {
            assert_eq!(body, "Too many requests, please try again later.\n");
            assert_eq!(headers["content-type"], "text/plain; charset=utf-8");
            assert_eq!(headers["x-content-type-options"], "nosniff");
        }
    }
    // PX-14: nobody is invited to send a body that will not be read.
    let ask = "POST /clusters/a/api/v1/pods HTTP/1.1\r\nHost: d\r\nConnection: close\r\nExpect: 100-continue\r\n\
               Content-Length: 1000000\r\n\r\n";
    let answer = raw(gateway.address(), ask.as_bytes(), |_| false).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert_eq!(held.arrived.load(SeqCst), 1);
    assert_eq!(metric(&gateway, "apiserver_flowcontrol_rejected_requests_total").await, 4.0);
}

/// FA-23 and FA-25: whoever leaves takes nothing along, neither a seat nor a place in a queue.
#[tokio::test]
async fn clients_that_leave_free_their_seats_and_places() {
    let held = Held::default();
    let gateway = fair(held.shard(2), one_level(QUEUE));
    for round in 0..10 {
        let mut tasks = Vec::new();
        for n in 0..6 {
            let (mut one, mut two) = (h1(&gateway).await, h2(&gateway).await);
            tasks.push(tokio::spawn(async move {
                let response = match n % 2 {
                    0 => one.send_request(get("/clusters/a/api/v1/pods")).await,
                    _ => two.send_request(get_h2("/clusters/a/api/v1/pods")).await,
                };
                let _ = response.unwrap().into_body().collect().await;
            }));
        }
        metric_becomes(&gateway, WAITING, 4.0).await;
        tasks.iter().for_each(|task| task.abort());
        metric_becomes(&gateway, WAITING, 0.0).await;
        metric_becomes(&gateway, IN_USE, 0.0).await;
        held.answers.lock().unwrap().clear();
        assert!(held.arrived.load(SeqCst) <= 6 * (round + 1));
    }
    let mut quick = h1(&gateway).await;
    assert_eq!(quick.send_request(get("/clusters/a/api/v1/quick")).await.unwrap().status(), StatusCode::OK);
}

/// FA-24: a watch that the shard does not begin to answer gives its seat to others.
#[tokio::test]
async fn a_watch_that_does_not_begin_gives_its_seat_back() {
    let shard = local(|request: Request<Body>| async move {
        if request.uri().query() == Some("watch=1") {
            std::future::pending::<()>().await;
        }
        ok("ok")
    });
    let limits = proxy::Limits { watch_start_timeout: std::time::Duration::from_millis(1), ..proxy::Limits::default() };
    let options = GatewayOptions {
        fairness: Some(one_level(QUEUE)),
        limits,
        ..options(vec![ShardOptions { seats: 1, ..shard }])
    };
    let gateway = Gateway::start(options).unwrap();
    let mut watcher = h1(&gateway).await;
    let watch = tokio::spawn(async move { watcher.send_request(get("/clusters/a/api/v1/pods?watch=1")).await.is_ok() });
    metric_becomes(&gateway, IN_USE, 1.0).await;
    assert_eq!(once(&gateway, get("/clusters/b/api/v1/pods")).await.0, StatusCode::OK);
    metric_becomes(&gateway, IN_USE, 0.0).await;
    assert!(!watch.is_finished());
    watch.abort();
}

/// A class that limits the rate of its workspaces, each on its own.
#[tokio::test]
async fn a_class_may_limit_the_rate() {
    let class = r#"
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: slow }
spec:
  match: { paths: ["root:slow:*"] }
  nominalConcurrencyShares: 10
  rateLimit: { requestsPerSecond: 1, burst: 2 }
---
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: closed }
spec: { match: { paths: ["root:closed"] }, seats: 0 }
"#;
    let config = rules::parse(class);
    let held = Held::default();
    let gateway = fair(held.shard(100), config);
    let ask = async |path: &str| once(&gateway, get(path)).await;
    // What no level counts is counted here.
    for path in ["/clusters/root:slow:a/quick", "/clusters/root:slow:p/api/v1/namespaces/n/pods/p/proxy/quick"] {
        let mut refused = 0;
        for _ in 0..20 {
            let (status, headers, body) = ask(path).await;
            if status == StatusCode::TOO_MANY_REQUESTS {
                refused += 1;
                let why = r#"the workspace class \"slow\" of the request refused it: rate-limit"#;
                assert!(body.contains(why) && headers.contains_key("retry-after"), "{body}");
            }
        }
        assert!(refused > 0, "{path}");
    }
    let (status, _, body) = ask("/clusters/root:closed/quick").await;
    let why = r#"the workspace class \"closed\" of the request refused it: concurrency-limit"#;
    assert!(status == StatusCode::TOO_MANY_REQUESTS && body.contains(why), "{body}");
    for path in
        ["/clusters/root:slow:b/quick", "/clusters/root:fast/quick", "/clusters/root:fast/quick", "/version/quick"]
    {
        assert_eq!(ask(path).await.0, StatusCode::OK, "{path}");
    }
}

/// Each user of a workspace has a limit of its own there; refusals are counted apart.
#[tokio::test]
async fn a_class_may_limit_the_rate_of_each_user() {
    let class = r#"
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: slow }
spec:
  match: { paths: ["*"] }
  nominalConcurrencyShares: 10
  rateLimit: { perUser: { requestsPerSecond: 1, burst: 2 } }
"#;
    let config = rules::parse(class);
    let gateway = fair(Held::default().shard(100), config);
    let mut refused = 0;
    for _ in 0..20 {
        let (status, headers, body) = once(&gateway, get("/clusters/a/quick")).await;
        if status == StatusCode::TOO_MANY_REQUESTS {
            refused += 1;
            assert!(body.contains("rate-limit") && headers["retry-after"] == "1", "{body}");
        }
    }
    assert!(refused > 0);
    assert_eq!(once(&gateway, get("/clusters/b/quick")).await.0, StatusCode::OK, "a user of another workspace");
    metric_becomes(&gateway, r#"fairgate_rate_limited_requests_total{limit="user"}"#, f64::from(refused)).await;
    let rejected = r#"apiserver_flowcontrol_rejected_requests_total{"#;
    assert!(!admin(&gateway, "/metrics").await.contains(rejected), "no rejections of a level");
}

/// Who waits when the levels change is served; what comes later is served by the new ones; all of it is shown.
#[tokio::test]
async fn a_new_configuration_takes_effect_and_loses_nobody() {
    let held = Held::default();
    let gateway = fair(held.shard(1), one_level(QUEUE));
    let (_first, second) = one_runs_and_one_waits(&gateway).await;
    let uid = async |gateway: &Gateway| {
        once(gateway, get("/clusters/a/quick")).await.1["x-kubernetes-pf-flowschema-uid"].clone()
    };
    gateway.reload_fairness(&one_level(REJECT));
    let (status, ..) = once(&gateway, get("/clusters/a/api/v1/pods")).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "the level refuses now");
    held.answers.lock().unwrap().clear();
    assert_eq!(second.await.unwrap().unwrap().status(), StatusCode::OK, "it waited");
    held.answers.lock().unwrap().clear();
    let before = uid(&gateway).await;
    gateway.reload_fairness(&FairnessConfig::default());
    assert_ne!(uid(&gateway).await, before, "another FlowSchema");
    metric_becomes(&gateway, IN_USE, 0.0).await;
    let error = FairnessConfig::parse("kind: Pod", std::path::Path::new("fairness.yaml")).unwrap_err();
    gateway.refuse_fairness(&error);
    let text = admin(&gateway, "/metrics").await;
    for line in [
        r#"fairgate_config_reloads_total{file="fairness",outcome="applied"} 2"#,
        r#"fairgate_config_reloads_total{file="fairness",outcome="refused"} 1"#,
        "fairgate_config_generation 3",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains(r#"priority_level="all""#), "the series of a level that is gone: {text}");
    let shown = admin(&gateway, "/configz").await;
    assert!(shown.contains("want FlowSchema") && shown.contains("\"generation\": 3"), "{shown}");
    assert_eq!(once(&gateway, get("/readyz")).await.0, StatusCode::OK);
}

/// FA-11: probes are outside all levels.
#[tokio::test]
async fn probes_are_answered_while_all_seats_are_taken() {
    let held = Held::default();
    let gateway = fair(held.shard(1), one_level(REJECT));
    let _first = h1(&gateway).await.send_request(get("/clusters/a/api/v1/pods")).await.unwrap();
    for path in ["/livez", "/readyz", "/healthz", "/livez/ping"] {
        assert_eq!(once(&gateway, get(path)).await.0, StatusCode::OK);
    }
    assert_eq!(once(&gateway, get("/livezzz")).await.0, StatusCode::TOO_MANY_REQUESTS);
}

/// Queued requests that cannot be served end with the drain, they do not hang.
#[tokio::test]
async fn a_drain_cuts_off_who_still_waits() {
    let held = Held::default();
    let gateway = fair(held.shard(1), one_level(QUEUE));
    let (_first, second) = one_runs_and_one_waits(&gateway).await;
    let shutdown = gateway.shutdown(std::time::Duration::ZERO, std::time::Duration::from_secs(2));
    let cut = tokio::time::timeout(PATIENCE, shutdown).await.unwrap();
    let second = second.await.unwrap().unwrap();
    assert_eq!(
        (second.status(), second.headers()["retry-after"].as_bytes()),
        (StatusCode::SERVICE_UNAVAILABLE, &b"1"[..])
    );
    assert_eq!(cut, 1, "the first, which the shard does not finish");
}

/// The rows of one of the debug endpoints.
async fn dump(gateway: &Gateway, what: &str) -> Vec<Vec<String>> {
    let answer = admin(gateway, &format!("/debug/api_priority_and_fairness/{what}")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    body.lines().skip(1).map(|line| line.split(',').map(|cell| cell.trim().to_owned()).collect()).collect()
}

#[tokio::test]
async fn the_debug_endpoints_show_who_runs_and_who_waits() {
    let held = Held::default();
    let gateway = fair(held.shard(1), one_level(QUEUE));
    let first = h1(&gateway).await.send_request(get("/clusters/a/api/v1/pods?limit=1")).await.unwrap();
    let mut second = h2(&gateway).await;
    let path = "/clusters/a/apis/apps/v1/namespaces/n/deployments/d";
    let second = tokio::spawn(async move { second.send_request(get_h2(path)).await.unwrap() });
    metric_becomes(&gateway, WAITING, 1.0).await;

    let levels = dump(&gateway, "dump_priority_levels?workspace=a").await;
    let all = levels.iter().find(|row| row[0] == "all").unwrap();
    assert_eq!(all[1..], ["1", "false", "false", "1", "1", "1", "0", "0", "0"]);
    assert!(levels.is_sorted() && levels.len() == 3, "{levels:?}");
    let queues = dump(&gateway, "dump_queues?workspace=a").await;
    assert_eq!((queues.len(), &queues[0][..5]), (1, &["all", "0", "1", "1", "1"].map(str::to_owned)[..]));
    let requests = dump(&gateway, "dump_requests?includeRequestDetails=1&workspace=a").await;
    let cut: Vec<_> = requests.iter().map(|row| [&row[..4], &row[10..]].concat().join(" ")).collect();
    assert_eq!(
        cut,
        [
            "all all 0 0 system:anonymous get /apis/apps/v1/namespaces/n/deployments/d n d apps/v1 deployments ",
            "all all 0 -1 system:anonymous list /api/v1/pods   v1 pods ",
        ]
    );
    assert!(requests[0][9].starts_with("0001-01-01") && requests[1][9].starts_with("20"), "{requests:?}");

    let everybody = dump(&gateway, "dump_requests?workspace=*").await;
    assert!(everybody.len() == 2 && everybody[0].len() == 11 && !everybody[0][10].is_empty(), "{everybody:?}");
    let everybody = dump(&gateway, "dump_queues?workspace=*").await;
    assert_eq!((everybody.len(), &everybody[0][..9]), (1, &queues[0][..9]), "empty queues are left out: {everybody:?}");
    let platform = dump(&gateway, "dump_requests").await;
    assert!(platform.is_empty(), "{platform:?}");
    let unknown = admin(&gateway, "/debug/api_priority_and_fairness/dump_nothing").await;
    assert!(unknown.starts_with("HTTP/1.1 404 ") && unknown.contains("dump_queues"), "{unknown}");

    drop(first);
    held.end_one();
    assert_eq!(second.await.unwrap().status(), StatusCode::OK);
}

/// PX-14: a body is invited once its request has a seat, and never when the request is refused.
#[tokio::test]
async fn a_body_is_invited_with_the_seat() {
    let ask = "POST /clusters/a/api/v1/pods HTTP/1.1\r\nHost: d\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
    for response in [REJECT, QUEUE] {
        let address = upstream(|request: Request<Incoming>| async move {
            let got = request.into_body().collect().await.unwrap().to_bytes();
            Response::builder().status(StatusCode::CREATED).body(Body::from(got)).unwrap()
        });
        let shard = ShardOptions { seats: 1, ..remote(address.await) };
        let gateway = fair(shard, one_level(response));
        let (sender, body) = channel();
        let request = Request::post("/clusters/a/api/v1/pods").header("host", "d").body(body).unwrap();
        let mut holding = h1(&gateway).await;
        let holding = tokio::spawn(async move { holding.send_request(request).await });
        metric_becomes(&gateway, IN_USE, 1.0).await;

        let mut socket = TcpStream::connect(gateway.address()).await.unwrap();
        socket.write_all(ask.as_bytes()).await.unwrap();
        let mut got = Vec::new();
        if response == REJECT {
            while !String::from_utf8_lossy(&got).contains("\r\n\r\n") {
                assert!(socket.read_buf(&mut got).await.unwrap() > 0);
            }
            assert!(got.starts_with(b"HTTP/1.1 429 "), "{}", String::from_utf8_lossy(&got));
        } else {
            metric_becomes(&gateway, WAITING, 1.0).await;
            assert!(socket.try_read_buf(&mut got).is_err_and(|e| e.kind() == std::io::ErrorKind::WouldBlock));
        }
        drop(sender);
        assert_eq!(holding.await.unwrap().unwrap().status(), StatusCode::CREATED);
        if response == QUEUE {
            while !got.ends_with(b"\r\n\r\n") {
                assert!(socket.read_buf(&mut got).await.unwrap() > 0);
            }
            assert_eq!(String::from_utf8_lossy(&got), "HTTP/1.1 100 Continue\r\n\r\n");
            socket.write_all(b"hi").await.unwrap();
            got.clear();
            while !got.ends_with(b"hi") {
                assert!(socket.read_buf(&mut got).await.unwrap() > 0);
            }
            assert!(got.starts_with(b"HTTP/1.1 201 "));
        }
    }
}

/// More seats are promised than there are: nobody is told so by waiting for them.
#[tokio::test]
async fn promises_beyond_the_shard_are_shown() {
    let config = rules::parse(&rules::class("gold", "*", "seats: 4"));
    let gateway = fair(Held::default().shard(10), config);
    for (workspace, missing) in [("a", 0.0), ("b", 0.0), ("c", 2.0)] {
        // The third gets what is left.
        let status = once(&gateway, get(&format!("/clusters/{workspace}/quick"))).await.0;
        assert_eq!(status, StatusCode::OK);
        metric_becomes(&gateway, "fairgate_shard_reserves_missing_seats", missing).await;
    }
}
