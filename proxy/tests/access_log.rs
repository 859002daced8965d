//! The access log of a real gateway: one line for each request, whatever becomes of it, and numbers that are true. A binary
//! of its own, since a subscriber of spans is that of the whole process.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

#[path = "gateway/support/mod.rs"]
mod support;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use bytes::Bytes;
use config::{AccessLog, FairnessConfig, Sink};
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use proxy::{Body, Gateway, GatewayOptions, Limits, ShardOptions};
use serde_json::Value;
use support::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// A level with a queue for everybody, besides the refusals.
fn fairness() -> FairnessConfig {
    let limited = format!("nominalConcurrencyShares: 100, lendablePercent: 0, limitResponse: {}", rules::QUEUE);
    rules::parse(&(rules::refusals() + &rules::level("open", &limited) + &rules::schema("open", 200, "", "'*'")))
}

/// A gateway with a log of everything.
struct Logged {
    gateway: Option<Gateway>,
    file: PathBuf,
    _directory: tempfile::TempDir,
}

impl Logged {
    fn start(shard: ShardOptions, per_million: u32) -> Self {
        Self::with(shard, per_million, Limits::default())
    }

    fn with(shard: ShardOptions, per_million: u32, limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("access.log");
        let access_log = AccessLog { sink: Sink::File(file.clone()), per_million, errors_per_second: 1000 };
        let fairness = Some(fairness());
        let options = GatewayOptions { fairness, limits, access_log: Some(access_log), ..options(vec![shard]) };
        Self { gateway: Some(Gateway::start(options).unwrap()), file, _directory: directory }
    }

    fn gateway(&self) -> &Gateway {
        self.gateway.as_ref().unwrap()
    }

    /// All lines, once there are so many.
    async fn lines(&self, count: usize) -> Vec<Value> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(&self.file).unwrap();
            let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
            if lines.len() >= count {
                assert_eq!(lines.len(), count, "{lines:#?}");
                return lines;
            }
            assert!(Instant::now() < deadline, "only {} lines: {lines:#?}", lines.len());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Stops the gateway; what the log has then is all there will be.
    fn stop(mut self) -> Vec<Value> {
        drop(self.gateway.take());
        let text = std::fs::read_to_string(&self.file).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn number(line: &Value, field: &str) -> f64 {
    line[field].as_f64().unwrap_or_else(|| panic!("no {field} in {line:#}"))
}

fn check(line: &Value, want: Value) {
    for (field, want) in want.as_object().unwrap() {
        assert_eq!(&line[field], want, "{field} of {line:#}");
    }
}

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// Reads the whole body and answers with so many bytes.
async fn big(request: Request<hyper::body::Incoming>) -> Response<Body> {
    let _ = request.into_body().collect().await;
    ok(vec![b'x'; 100_000])
}

#[tokio::test]
async fn a_served_request_has_every_field() {
    let seen = Seen::default();
    let noted = seen.clone();
    let shard = remote(
        upstream(move |request| {
            let (parts, body) = request.into_parts();
            noted.push(parts.clone());
            big(Request::from_parts(parts, body))
        })
        .await,
    );
    let logged = Logged::start(shard, AccessLog::MILLION);
    let path = "/clusters/root:org/apis/apps/v1/namespaces/shop/deployments?limit=5&continue=secret";
    let mut request = get(path);
    request.headers_mut().insert("traceparent", PARENT.parse().unwrap());
    request.headers_mut().insert("tracestate", "a=1".parse().unwrap());
    request.headers_mut().insert("user-agent", "kubectl/v1.34".parse().unwrap());
    once(logged.gateway(), request).await;
    let post = Request::post("http://door/clusters/a/api/v1/namespaces/n/pods/p/eviction");
    let answer = h2(logged.gateway()).await.send_request(post.body(full(vec![b'y'; 70_000])).unwrap()).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes().len(), 100_000);
    let (lines, parts) = (logged.lines(2).await, seen.take());
    check(
        &lines[0],
        serde_json::json!({
            "user": "system:anonymous", "groups": 1, "workspace": "root:org", "verb": "list", "apiGroup": "apps",
            "apiVersion": "v1", "resource": "deployments", "namespace": "shop", "method": "GET",
            "path": "/clusters/root:org/apis/apps/v1/namespaces/shop/deployments?limit=5&*",
            "protocol": "HTTP/1.1", "client": "127.0.0.1", "userAgent": "kubectl/v1.34", "flowSchema": "open",
            "priorityLevel": "open", "seatsCharged": 1, "queueWaitMs": 0.0, "bytesIn": 0, "bytesOut": 100_000,
            "status": 200, "outcome": "served", "shard": "root", "parentSpanID": "00f067aa0ba902b7",
            "traceID": "4bf92f3577b34da6a3ce929d0e0e4736", "impersonatedBy": null, "name": null,
            "auditID": parts[0].headers["audit-id"].to_str().unwrap(),
        }),
    );
    let told = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", lines[0]["spanID"].as_str().unwrap());
    assert_eq!(
        (parts[0].headers["traceparent"].to_str().unwrap(), &parts[0].headers["tracestate"]),
        (&*told, &"a=1".parse().unwrap())
    );
    assert!(lines[0]["cluster"].is_string() && number(&lines[0], "seatsEstimated") >= 1.0);
    let [first, total] = ["firstByteMs", "totalMs"].map(|field| number(&lines[0], field));
    assert!(0.0 < first && first <= total && total < PATIENCE.as_millis() as f64, "{:#}", lines[0]);
    let time = lines[0]["time"].as_str().unwrap();
    let format = &time::format_description::well_known::Rfc3339;
    let age = time::OffsetDateTime::now_utc() - time::OffsetDateTime::parse(time, format).unwrap();
    assert!(age.is_positive() && age < PATIENCE * 10, "{time}");
    check(
        &lines[1],
        serde_json::json!({
            "verb": "create", "resource": "pods", "subresource": "eviction", "name": "p", "apiVersion": "v1",
            "apiGroup": null, "protocol": "HTTP/2", "bytesIn": 70_000, "bytesOut": 100_000, "parentSpanID": null,
        }),
    );
    // Its line is wanted, so it has a trace although it brought none.
    let told = parts[1].headers["traceparent"].to_str().unwrap();
    let [trace, span] = ["traceID", "spanID"].map(|field| lines[1][field].as_str().unwrap());
    assert_eq!(told, format!("00-{trace}-{span}-02"));
}

#[tokio::test]
async fn who_does_not_come_to_a_shard_has_a_line_too() {
    let nobody = listener().local_addr().unwrap();
    let logged = Logged::start(remote(nobody), AccessLog::MILLION);
    for (path, code) in [
        ("/clusters/a/api/v1/secrets", StatusCode::TOO_MANY_REQUESTS),
        ("/clusters/A/api", StatusCode::FORBIDDEN),
        ("/clusters/a/api/v1/pods", StatusCode::SERVICE_UNAVAILABLE),
        ("/livez", StatusCode::OK),
    ] {
        assert_eq!(once(logged.gateway(), get(path)).await.0, code, "{path}");
    }
    let lines = logged.lines(4).await;
    for (line, want) in lines.iter().zip([
        serde_json::json!({ "status": 429, "outcome": "rejected:concurrency-limit", "priorityLevel": "closed", "shard": "root",
            "firstByteMs": null, "queueWaitMs": 0.0 }),
        serde_json::json!({ "status": 403, "outcome": "refused:workspace", "user": "system:anonymous", "shard": null,
            "verb": null, "queueWaitMs": null }),
        serde_json::json!({ "status": 503, "outcome": "upstream-error:connect", "verb": "list", "firstByteMs": null }),
        serde_json::json!({ "status": 200, "outcome": "served", "user": null, "workspace": null, "bytesOut": 2 }),
    ]) {
        check(line, want);
    }
    assert!(lines.iter().all(|line| line["bytesOut"].as_u64().unwrap() > 0), "{lines:#?}");
}

/// A shard that begins its answers and ends them when the test says so.
fn held() -> (ShardOptions, tokio::sync::mpsc::UnboundedReceiver<tokio::sync::mpsc::UnboundedSender<Bytes>>) {
    let (answers, begun) = tokio::sync::mpsc::unbounded_channel();
    let shard = local(move |_| {
        let (sender, body) = channel();
        sender.send("begun".into()).unwrap();
        answers.send(sender).unwrap();
        std::future::ready(Response::new(body))
    });
    (ShardOptions { seats: 1, ..shard }, begun)
}

const WAITING: &str = "apiserver_flowcontrol_current_inqueue_requests";

#[tokio::test]
async fn clients_that_leave_and_streams_have_one_line_each_when_they_end() {
    let (shard, mut begun) = held();
    let logged = Logged::start(shard, AccessLog::MILLION);
    let path = |name: &str| format!("/clusters/a/api/v1/namespaces/n/pods/{name}");
    let mut running = h1(logged.gateway()).await.send_request(get(&path("running"))).await.unwrap();
    let running_answer = begun.recv().await.unwrap();
    let (mut leaver, mut patient) = (h1(logged.gateway()).await, h2(logged.gateway()).await);
    let leaves = path("leaves");
    let leaving = tokio::spawn(async move { leaver.send_request(get(&leaves)).await });
    metric_becomes(logged.gateway(), WAITING, 1.0).await;
    let waits = path("waits");
    let waiting = tokio::spawn(async move { patient.send_request(get_h2(&waits)).await });
    metric_becomes(logged.gateway(), WAITING, 2.0).await;
    leaving.abort();
    metric_becomes(logged.gateway(), WAITING, 1.0).await;
    check(
        &logged.lines(1).await[0],
        serde_json::json!({ "name": "leaves", "outcome": "cancelled", "status": null, "firstByteMs": null, "bytesOut": 0 }),
    );
    assert!(running.body_mut().frame().await.unwrap().is_ok());
    drop(running_answer);
    assert!(running.body_mut().frame().await.is_none());
    let mut answer = waiting.await.unwrap().unwrap();
    let _waited = begun.recv().await.unwrap();
    assert!(answer.body_mut().frame().await.unwrap().is_ok());
    drop(answer);
    let lines = logged.lines(3).await;
    check(&lines[1], serde_json::json!({ "name": "running", "outcome": "served", "bytesOut": 5, "queueWaitMs": 0.0 }));
    check(&lines[2], serde_json::json!({ "name": "waits", "outcome": "cancelled", "status": 200, "bytesOut": 5 }));
    assert!(number(&lines[0], "queueWaitMs") > 0.0 && number(&lines[2], "queueWaitMs") > 0.0, "{lines:#?}");
    assert!(number(&lines[2], "queueWaitMs") <= number(&lines[2], "totalMs"));
    let mut watch = h1(logged.gateway()).await.send_request(get("/clusters/a/api/v1/pods?watch=true")).await.unwrap();
    let events = begun.recv().await.unwrap();
    events.send("more".into()).unwrap();
    drop(events);
    while watch.body_mut().frame().await.is_some() {}
    check(
        &logged.lines(4).await[3],
        serde_json::json!({ "verb": "watch", "outcome": "served", "status": 200, "bytesOut": 9 }),
    );
    assert_eq!(logged.stop().len(), 4);
}

#[tokio::test]
async fn a_shard_that_fails_is_named() {
    let limits = Limits { request_timeout: Duration::from_secs(1), ..Limits::default() };
    let shard = remote(
        raw_upstream(async |mut socket, _| {
            let mut head = [0; 4096];
            let read = socket.read(&mut head).await.unwrap();
            let answer: &[u8] = match String::from_utf8_lossy(&head[..read]) {
                head if head.contains("/breaks") => b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
                head if head.contains("/closes") => b"",
                head if head.contains("/silent") => b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
                _ => b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            };
            let is_silent = String::from_utf8_lossy(&head[..read]).contains("/hangs")
                || head[..read].windows(7).any(|w| w == b"/silent");
            if !String::from_utf8_lossy(&head[..read]).contains("/hangs") {
                socket.write_all(answer).await.unwrap();
            }
            if is_silent {
                std::future::pending::<()>().await;
            }
        })
        .await,
    );
    // Only what goes wrong is logged.
    let logged = Logged::with(shard, 0, limits);
    let ask = async |name: &str| {
        let path = format!("/clusters/a/api/v1/namespaces/{name}");
        // A break may come before hyper has written the head.
        let answer = h1(logged.gateway()).await.send_request(get(&path)).await.ok()?;
        let status = answer.status();
        answer.into_body().collect().await.ok().map(|_| status.as_u16())
    };
    for (n, (name, status, is_whole, outcome)) in [
        ("breaks", 200, false, "upstream-error:broken-off"),
        ("closes", 502, true, "upstream-error:broken"),
        ("garbage", 502, true, "upstream-error:malformed"),
        ("silent", 200, false, "timed-out:silent"),
        ("hangs", 504, true, "timed-out:first-byte"),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(ask(name).await, is_whole.then_some(status), "{name}");
        let line = &logged.lines(n + 1).await[n];
        check(line, serde_json::json!({ "name": name, "outcome": outcome, "status": status, "shard": "root" }));
    }
    assert_eq!(once(logged.gateway(), get("/livez")).await.0, StatusCode::OK);
    let text = admin(logged.gateway(), "/metrics").await;
    assert_eq!(sum(&text, r#"fairgate_access_log_lines_total{result="written"}"#), 5.0);
    assert_eq!(sum(&text, r#"fairgate_access_log_lines_total{result="dropped"}"#), 0.0);
    assert_eq!(logged.stop().len(), 5, "what went well is not in the sample");
}

#[tokio::test]
async fn a_tunnel_is_one_line_when_it_ends() {
    let shard = remote(
        raw_upstream(async |mut socket, _| {
            let mut bytes = [0; 4096];
            let _head = socket.read(&mut bytes).await.unwrap();
            let answer = b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: SPDY/3.1\r\n\r\n";
            socket.write_all(answer).await.unwrap();
            while let Ok(read @ 1..) = socket.read(&mut bytes).await {
                socket.write_all(&bytes[..read].repeat(2)).await.unwrap();
            }
        })
        .await,
    );
    let logged = Logged::start(shard, AccessLog::MILLION);
    let mut socket = tokio::net::TcpStream::connect(logged.gateway().address()).await.unwrap();
    let ask = "POST /clusters/a/api/v1/namespaces/n/pods/p/exec?command=secret HTTP/1.1\r\nHost: a\r\n\
               Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n";
    socket.write_all(ask.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&head));
    socket.write_all(b"0123456789").await.unwrap();
    socket.read_exact(&mut [0; 20]).await.unwrap();
    metric_becomes(logged.gateway(), "fairgate_requests_in_flight", 1.0).await;
    drop(socket);
    check(
        &logged.lines(1).await[0],
        serde_json::json!({ "status": 101, "outcome": "served", "verb": "create", "subresource": "exec", "name": "p",
            "path": "/clusters/a/api/v1/namespaces/n/pods/p/exec?*", "bytesIn": 10, "bytesOut": 20,
            "priorityLevel": null }),
    );
    let text = admin(logged.gateway(), "/metrics").await;
    let ended = r#"fairgate_stream_duration_seconds_count{verb="CONNECT",outcome="served"}"#;
    assert_eq!((sum(&text, ended), sum(&text, "fairgate_requests_in_flight")), (1.0, 0.0));
}

#[tokio::test]
async fn all_lines_are_written_when_the_gateway_stops() {
    let logged = Logged::start(local(|_| async { ok("ok") }), AccessLog::MILLION);
    let mut client = h1(logged.gateway()).await;
    for n in 0..300 {
        let answer = client.send_request(get(&format!("/clusters/a/api/v1/namespaces/{n}"))).await.unwrap();
        text(answer.into_body()).await;
    }
    let names: Vec<_> = logged.stop().iter().map(|line| line["name"].as_str().unwrap().to_owned()).collect();
    assert_eq!(names, (0..300).map(|n| n.to_string()).collect::<Vec<_>>(), "each once and in order");
}

#[tokio::test]
async fn who_acts_for_another_is_named_beside_it() {
    let ca = tls::Ca::new();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("access.log");
    let options = GatewayOptions {
        tls: Some(std::sync::Arc::new(ca.server_config())),
        access_log: Some(AccessLog { sink: Sink::File(file.clone()), per_million: 1_000_000, errors_per_second: 0 }),
        ..options(vec![local(|_| async { ok("ok") })])
    };
    let gateway = Gateway::start(options).unwrap();
    let groups = ["system:masters".to_owned()];
    let mut client = h2_on(ca.connect(gateway.address(), Some(("admin", &groups)), true).await).await;
    let mut request = get_h2("/clusters/a/api");
    request.headers_mut().insert("impersonate-user", "alice".parse().unwrap());
    request.headers_mut().insert("audit-id", "mine".parse().unwrap());
    assert_eq!(client.send_request(request).await.unwrap().status(), StatusCode::OK);
    drop(gateway);
    let line: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    check(
        &line,
        serde_json::json!({ "user": "alice", "impersonatedBy": "admin", "groups": 1, "auditID": "mine",
            "protocol": "HTTP/2", "priorityLevel": null, "queueWaitMs": null }),
    );
}

#[tokio::test]
async fn who_asks_too_often_is_logged_with_level_and_price() {
    let logged = Logged::start(local(|_| async { ok("ok") }), 0);
    for _ in 0..20 {
        once(logged.gateway(), get("/clusters/slow/api")).await;
    }
    let lines = logged.stop();
    assert!(!lines.is_empty(), "the rate of one a second was never exceeded");
    for line in &lines {
        check(
            line,
            serde_json::json!({ "status": 429, "outcome": "rejected:rate-limit", "flowSchema": "open",
                "priorityLevel": "open", "seatsCharged": 1, "queueWaitMs": null }),
        );
    }
}

#[tokio::test]
async fn a_fault_of_the_gateway_is_told_as_such() {
    let shard = local(|request: Request<Body>| async move {
        assert!(!request.uri().path().ends_with("/boom"), "as asked");
        ok("ok")
    });
    let logged = Logged::start(ShardOptions { seats: 1, ..shard }, 0);
    let path = "/clusters/a/api/v1/namespaces/boom";
    assert_eq!(once(logged.gateway(), get(path)).await.0, StatusCode::INTERNAL_SERVER_ERROR);
    let answer = h2(logged.gateway()).await.send_request(get_h2(path)).await.unwrap();
    assert_eq!(answer.status(), StatusCode::INTERNAL_SERVER_ERROR);
    let lines = logged.lines(2).await;
    for line in &lines {
        check(line, serde_json::json!({ "outcome": "panic", "status": 500, "name": "boom", "shard": "root" }));
    }
    let phase = r#"fairgate_request_phase_duration_seconds_count{phase="total",verb="GET",outcome="panic"}"#;
    let text = admin(logged.gateway(), "/metrics").await;
    assert_eq!((sum(&text, "fairgate_request_panics_total"), sum(&text, phase)), (2.0, 2.0));
    assert_eq!(once(logged.gateway(), get("/clusters/a/api")).await.0, StatusCode::OK, "the only seat is free");
}

/// The first request finds nobody; those of the moment after it are not even tried.
#[tokio::test]
async fn a_shard_that_is_not_asked_is_told_from_one_that_does_not_accept() {
    let nobody = listener().local_addr().unwrap();
    let logged = Logged::start(remote(nobody), AccessLog::MILLION);
    let (connect, open) = ("upstream-error:connect", "upstream-error:circuit-open");
    let mut lines = Vec::new();
    while !lines.iter().any(|line: &Value| line["outcome"] == open) {
        assert!(lines.len() < 100, "{lines:#?}");
        assert_eq!(once(logged.gateway(), get("/clusters/a/api")).await.0, StatusCode::SERVICE_UNAVAILABLE);
        lines = logged.lines(lines.len() + 1).await;
    }
    check(&lines[0], serde_json::json!({ "outcome": connect, "status": 503, "queueWaitMs": 0.0, "shard": "root" }));
    let last = lines.last().unwrap();
    check(last, serde_json::json!({ "outcome": open, "status": 503, "firstByteMs": null, "shard": "root" }));
    let text = admin(logged.gateway(), "/metrics").await;
    for (reason, outcome) in [("connect", connect), ("circuit-open", open)] {
        let label = format!("reason=\"{reason}\"");
        let counted = text.lines().filter(|l| l.starts_with("fairgate_shard_errors_total{") && l.contains(&label));
        let counted: f64 = counted.map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum();
        let told = lines.iter().filter(|line| line["outcome"] == outcome).count();
        assert_eq!(counted, told as f64, "{reason}");
    }
}

#[tokio::test]
async fn whom_a_token_stands_for_is_not_guessed() {
    let logged = Logged::start(local(|_| async { ok("ok") }), AccessLog::MILLION);
    let mut request = get("/clusters/a/api");
    request.headers_mut().insert("authorization", "Bearer t0ken".parse().unwrap());
    once(logged.gateway(), request).await;
    once(logged.gateway(), get("/clusters/a/api")).await;
    let lines = logged.lines(2).await;
    check(&lines[0], serde_json::json!({ "user": null, "groups": null, "impersonatedBy": null, "status": 200 }));
    check(&lines[1], serde_json::json!({ "user": "system:anonymous", "groups": 1, "status": 200 }));
    assert!(!std::fs::read_to_string(&logged.file).unwrap().contains("t0ken"));
}

#[tokio::test]
async fn what_is_asked_of_a_proxied_service_is_nowhere_in_the_log() {
    let logged = Logged::start(local(|_| async { ok("ok") }), AccessLog::MILLION);
    let path = "/clusters/a/api/v1/namespaces/n/services/s/proxy/reset/s3cret?limit=s3cret&s3cret";
    once(logged.gateway(), get(path)).await;
    let line = &logged.lines(1).await[0];
    check(
        line,
        serde_json::json!({ "path": "/clusters/a/api/v1/namespaces/n/services/s/proxy/*?*", "subresource": "proxy",
            "resource": "services", "name": "s", "namespace": "n" }),
    );
    assert!(!line.to_string().contains("s3cret"), "{line:#}");
}

#[tokio::test]
async fn an_upload_that_does_not_go_on_has_one_outcome_over_both_protocols() {
    let limits = Limits { stall_timeout: Duration::from_secs(1), ..Limits::default() };
    let logged = Logged::with(remote(upstream(big).await), AccessLog::MILLION, limits);
    let post = |base: &str| {
        let (sender, body) = channel();
        sender.send("begun".into()).unwrap();
        (sender, Request::post(format!("{base}/clusters/a/api/v1/namespaces/n/pods")).header("host", "door").body(body))
    };
    let (_held, request) = post("");
    let answer = h1(logged.gateway()).await.send_request(request.unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    let (_also, request) = post("http://door");
    let answer = h2(logged.gateway()).await.send_request(request.unwrap()).await.unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    let lines = logged.lines(2).await;
    for (line, protocol) in lines.iter().zip(["HTTP/1.1", "HTTP/2"]) {
        check(
            line,
            serde_json::json!({ "protocol": protocol, "outcome": "refused:stalled", "status": 408, "bytesIn": 5 }),
        );
    }
}

/// Takes what the subscriber writes.
#[derive(Clone, Default)]
struct Written(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Written {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The subscriber is that of the whole process: the other tests' requests have spans from then on too.
#[tokio::test]
async fn a_request_is_a_span_whose_last_event_says_the_same() {
    let written = Written::default();
    let writer = written.clone();
    let subscriber = tracing_subscriber::fmt().json().with_env_filter("fairgate::request=debug");
    subscriber.with_writer(move || writer.clone()).init();
    let seen = Seen::default();
    let gateway = Gateway::start(options(vec![noting(&seen)])).unwrap();
    once(&gateway, get("/clusters/spans/api/v1/pods?limit=1&x=secret")).await;
    drop(gateway);
    let text = String::from_utf8(written.0.lock().unwrap().clone()).unwrap();
    let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let events: Vec<_> = events.filter(|event| event["span"]["path"].as_str().unwrap().contains("/spans/")).collect();
    assert_eq!(events.len(), 1, "{text}");
    check(
        &events[0]["fields"],
        serde_json::json!({ "message": "request ended", "verb": "list", "resource": "pods", "status": 200,
            "outcome": "served", "bytes_out": 2, "workspace": "spans", "user": "system:anonymous" }),
    );
    check(
        &events[0]["span"],
        serde_json::json!({ "name": "request", "method": "GET", "path": "/clusters/spans/api/v1/pods?limit=1&*" }),
    );
    let told = seen.take()[0].headers["traceparent"].to_str().unwrap().to_owned();
    assert!(told.contains(events[0]["fields"]["trace_id"].as_str().unwrap()) && told.ends_with("-02"), "{told}");
}
