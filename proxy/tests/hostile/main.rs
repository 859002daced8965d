//! Hostile and ambiguous input on real sockets: what each is answered, and what the shard sees of it.
//!
//! The table is docs/hostile-inputs.md; with FAIRGATE_WRITE_TABLE=1 the test writes it anew.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, unreachable_pub, reason = "this is a test")]

mod floods;
mod h1;
mod h2;
mod paths;
#[path = "../gateway/support/mod.rs"]
mod support;
mod wire;

use std::{
    fmt::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use http_body_util::BodyExt;
use proxy::{Gateway, Limits};
use support::*;
use wire::Client;

/// One hostile input.
struct Row {
    what: &'static str,
    /// As it is shown; an excerpt where it is long.
    shown: String,
    sent: Sent,
    /// The answers in order, then `open` or `closed`.
    answer: &'static str,
    /// What the shard sees: method, path and query, bytes of body.
    shard: &'static [&'static str],
}

enum Sent {
    H1(Vec<u8>),
    /// What comes behind the preface and an empty SETTINGS frame, and whether a stream is answered.
    H2(Vec<u8>, bool),
}

impl Row {
    fn h1(what: &'static str, bytes: impl Into<Vec<u8>>, answer: &'static str) -> Self {
        let bytes = bytes.into();
        let shown = excerpt(bytes.escape_ascii());
        Self { what, shown, sent: Sent::H1(bytes), answer, shard: &[] }
    }

    /// `shown` says in words what the frames are.
    fn h2(what: &'static str, shown: &str, frames: Vec<u8>, answer: &'static str) -> Self {
        Self { what, shown: shown.into(), sent: Sent::H2(frames, true), answer, shard: &[] }
    }

    /// It is answered by the end of the connection, or not at all.
    fn without_answer(mut self) -> Self {
        if let Sent::H2(_, awaits) = &mut self.sent {
            *awaits = false;
        }
        self
    }

    fn seen(mut self, shard: &'static [&'static str]) -> Self {
        self.shard = shard;
        self
    }
}

/// What is shown of an input.
fn excerpt(text: impl std::fmt::Display) -> String {
    const MOST: usize = 150;
    let text = text.to_string();
    if text.len() > MOST { format!("{}... ({} characters)", &text[..MOST - 20], text.len()) } else { text }
}

/// What a shard sees, with the bodies of requests read to their ends.
#[derive(Clone, Default)]
struct Record {
    seen: Arc<Mutex<Vec<String>>>,
    /// Requests whose bodies have not ended yet.
    open: Arc<AtomicUsize>,
}

impl Record {
    async fn shard(&self) -> proxy::ShardOptions {
        let record = self.clone();
        remote(upstream(move |request| record.clone().take(request)).await)
    }

    async fn take(self, request: http::Request<hyper::body::Incoming>) -> http::Response<proxy::Body> {
        /// Also when the gateway gives up.
        struct Open(Record, String);
        impl Drop for Open {
            fn drop(&mut self) {
                self.0.seen.lock().unwrap().push(std::mem::take(&mut self.1));
                self.0.open.fetch_sub(1, SeqCst);
            }
        }
        self.open.fetch_add(1, SeqCst);
        let (parts, body) = request.into_parts();
        let mut open = Open(self, format!("{} {} (broken off)", parts.method, parts.uri));
        for header in ["x-remote-user", "x-remote-group", "x-forwarded-for"] {
            let mut values = parts.headers.get_all(header).iter();
            let value = values.next().unwrap().to_str().unwrap();
            let ours = ["system:anonymous", "system:unauthenticated", "127.0.0.1"].contains(&value);
            assert!(ours && values.next().is_none(), "{header}: {value}");
        }
        if let Ok(body) = body.collect().await {
            open.1 = format!("{} {}", parts.method, parts.uri);
            let bytes = body.to_bytes().len();
            if bytes > 0 {
                let _ = write!(open.1, " ({bytes} bytes)");
            }
        }
        ok("the shard's")
    }

    /// What has come since the last call: at least as many requests as are `due`, if these come in time. `client` is
    /// let go when they have come.
    async fn seen(&self, due: usize, client: Client) -> Vec<String> {
        let deadline = std::time::Instant::now() + PATIENCE;
        let come = || self.open.load(SeqCst) + self.seen.lock().unwrap().len();
        while come() < due && std::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(client);
        eventually("all requests of the row have ended at the shard", || self.open.load(SeqCst) == 0).await;
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

/// The defaults, but for what would take long to run into.
fn limits() -> Limits {
    Limits {
        body_bytes: Some(32 << 10),
        streams: 10,
        resets_per_minute: 100,
        control_frames_per_minute: 1000,
        head_timeout: Duration::from_secs(1),
        stall_timeout: Duration::from_secs(1),
        ..Limits::default()
    }
}

async fn outcome(gateway: &Gateway, sent: &Sent) -> (String, Client) {
    let mut client = Client::connect(gateway).await;
    let outcome = match sent {
        Sent::H1(bytes) => {
            client.send(bytes).await;
            client.outcome_h1().await
        }
        Sent::H2(frames, awaits) => {
            client.send(&[wire::PREFACE, &wire::frame(wire::SETTINGS, 0, 0, &[]), frames].concat()).await;
            client.outcome_h2(*awaits).await
        }
    };
    (outcome, client)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_hostile_input_has_its_answer() {
    let record = Record::default();
    let gateway =
        Gateway::start(proxy::GatewayOptions { limits: limits(), ..options(vec![record.shard().await]) }).unwrap();
    let mut table = String::from(INTRODUCTION);
    let mut wrong = Vec::new();
    let mut count = 0;
    for (title, rows) in [("Paths", paths::rows()), ("HTTP/1.1", h1::rows()), ("HTTP/2", h2::rows())] {
        let _ = write!(table, "\n## {title}\n\n| input | sent | answer | shard sees |\n|---|---|---|---|\n");
        for row in rows {
            count += 1;
            let (answer, client) = outcome(&gateway, &row.sent).await;
            let seen = record.seen(row.shard.len(), client).await;
            if answer != row.answer || seen != row.shard {
                wrong.push(format!("{}: got {answer:?} {seen:?}, want {:?} {:?}", row.what, row.answer, row.shard));
            }
            for request in &seen {
                let path = request.split(' ').nth(1).unwrap();
                let is_own = path.starts_with("/clusters/org:acme") || path.starts_with("/clusters/org%3Aacme");
                let is_none = !path.contains("cluster");
                if !is_own && !is_none {
                    wrong.push(format!("{}: the shard sees {request} of another", row.what));
                }
            }
            let seen = match &seen[..] {
                [] => "nothing".into(),
                [first, .., last] if first == last => format!("`{first}`, {} times", seen.len()),
                _ => format!("`{}`", seen.join("`, `")),
            };
            let shown = row.shown.replace('|', "\\|").replace('`', "'");
            let _ = writeln!(table, "| {} | `{shown}` | {answer} | {seen} |", row.what);
        }
    }
    println!("{table}");
    assert!(wrong.is_empty(), "{} of {count} rows:\n{}", wrong.len(), wrong.join("\n"));
    assert!(count >= 80, "{count} rows");
    let last = Client::connect(&gateway).await;
    assert!(record.seen(0, last).await.is_empty(), "something came late");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hostile-inputs.md");
    if std::env::var_os("FAIRGATE_WRITE_TABLE").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap(), table, "write it anew with FAIRGATE_WRITE_TABLE=1");
}

const INTRODUCTION: &str = "# Hostile and ambiguous input

What the gateway answers, and what a shard behind it sees, from a test on real sockets (`proxy/tests/hostile`), which
compares this file with what it finds. The limits are the defaults, but for `bodyBytes: 32768`, `streams: 10`,
`resetsPerMinute: 100`, `controlFramesPerMinute: 1000`, and one second for `headTimeout` and `stallTimeout`.

An answer is the code and the `reason` of its Status (`Status` where Kubernetes has no reason for the code), or the
frame that ends the stream or connection; then whether the connection serves another request (`open`) or is `closed`.
Behind each `POST ...` stands a request for the secrets of `org:beta` that another parser could take for a part of it,
or the other way round.
";
