//! The client beside hyper's on the same bytes, and laws over any bytes.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::{future::poll_fn, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt;
use hyper_util::rt::TokioIo;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;

mod differential;
mod exchange;

/// What a client makes of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    status: StatusCode,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    trailers: Option<HeaderMap>,
    /// Whether it came to its end.
    is_whole: bool,
}

/// `None` = no answer.
type Outcome = Option<Seen>;

fn sorted(headers: &HeaderMap) -> Vec<(String, Vec<u8>)> {
    let dropped = ["connection", "transfer-encoding"];
    let kept = headers.iter().filter(|(name, _)| !dropped.contains(&name.as_str()));
    let mut all: Vec<_> = kept.map(|(n, v)| (n.as_str().to_owned(), v.as_bytes().to_vec())).collect();
    all.sort();
    // The same length twice is one to us.
    all.dedup_by(|a, b| a == b && a.0 == "content-length");
    all
}

fn request(method: Method) -> Request<Body> {
    Request::builder().method(method).uri("/x?y=1").body(Body::empty()).unwrap()
}

/// A shard that reads a request's head, writes `parts` one by one, and hangs up.
async fn play(mut far: DuplexStream, parts: Vec<Vec<u8>>) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if far.read_buf(&mut head).await.unwrap_or(0) == 0 {
            return;
        }
    }
    for part in parts {
        if far.write_all(&part).await.is_err() {
            return;
        }
        // The client reads it before the next one comes.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }
}

async fn ours(method: Method, parts: Vec<Vec<u8>>) -> Outcome {
    let (near, far) = duplex(1 << 20);
    let shard = tokio::spawn(play(far, parts));
    let mut connection = Connection::new(near);
    let (head, body) = request(method).into_parts();
    let mut headers = connection.begin(head, body, &HeaderValue::from_static("s"), &Stamp::default());
    let answer = poll_fn(|cx| connection.poll_head(&mut headers, cx)).await;
    let seen = match answer {
        Err(_) => None,
        Ok(answer) => {
            let mut seen = Seen {
                status: answer.status,
                headers: sorted(&headers),
                body: Vec::new(),
                trailers: None,
                is_whole: true,
            };
            while !connection.is_done() {
                match poll_fn(|cx| connection.poll_frame(cx)).await {
                    Some(Ok(frame)) => match frame.into_data() {
                        Ok(data) => seen.body.extend_from_slice(&data),
                        Err(last) => seen.trailers = last.into_trailers().ok(),
                    },
                    Some(Err(_)) => seen.is_whole = false,
                    None => {}
                }
            }
            Some(seen)
        }
    };
    drop(connection);
    shard.await.unwrap();
    seen
}

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}

/// Cuts `bytes` at `places`.
fn split(bytes: &[u8], places: &[prop::sample::Index]) -> Vec<Vec<u8>> {
    let mut ends: Vec<usize> = places.iter().map(|at| at.index(bytes.len() + 1)).chain([bytes.len()]).collect();
    ends.sort_unstable();
    let mut start = 0;
    ends.into_iter().map(|end| bytes[std::mem::replace(&mut start, end)..end].to_vec()).collect()
}
