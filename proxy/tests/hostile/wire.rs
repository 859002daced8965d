//! HTTP/1.1 and HTTP/2 as bytes: what no well-behaved client library would send.

use std::fmt::Write as _;

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::timeout,
};

use crate::support::PATIENCE;

/// The answer to a probe, which the gateway gives itself.
const PROBED: &[u8] = b"ok";
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;

/// One HTTP/2 frame.
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// A header block of literals without indexing and without Huffman coding (RFC 7541 section 6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    let text = |block: &mut Vec<u8>, text: &str| {
        match text.len() {
            short @ ..127 => block.push(short as u8),
            mut long => {
                block.push(127);
                long -= 127;
                while long >= 128 {
                    block.push((long % 128) as u8 | 0x80);
                    long /= 128;
                }
                block.push(long as u8);
            }
        }
        block.extend_from_slice(text.as_bytes());
    };
    for (name, value) in fields {
        block.push(0);
        text(&mut block, name);
        text(&mut block, value);
    }
    block
}

/// HEADERS, and CONTINUATION frames if the block is longer than a frame.
pub fn head(stream: u32, flags: u8, fields: &[(&str, &str)]) -> Vec<u8> {
    let block = block(fields);
    let mut parts = block.chunks(16 << 10).peekable();
    let mut frames = Vec::new();
    let mut kind = HEADERS;
    while let Some(part) = parts.next() {
        let end = if parts.peek().is_none() { END_HEADERS } else { 0 };
        let flags = if kind == HEADERS { flags | end } else { end };
        frames.extend(frame(kind, flags, stream, part));
        kind = CONTINUATION;
    }
    frames
}

/// The fields of a GET of `path`, and more behind them.
pub fn get<'a>(path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    request("GET", path, more)
}

pub fn request<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    [&[(":method", method), (":scheme", "http"), (":authority", "door"), (":path", path)], more].concat()
}

/// Names of HTTP/2 error codes (RFC 9113 section 7).
fn error_name(code: &[u8]) -> String {
    let code = u32::from_be_bytes(code.try_into().unwrap());
    let names = [
        "NO_ERROR",
        "PROTOCOL_ERROR",
        "INTERNAL_ERROR",
        "FLOW_CONTROL_ERROR",
        "SETTINGS_TIMEOUT",
        "STREAM_CLOSED",
        "FRAME_SIZE_ERROR",
        "REFUSED_STREAM",
        "CANCEL",
        "COMPRESSION_ERROR",
        "CONNECT_ERROR",
        "ENHANCE_YOUR_CALM",
    ];
    names.get(code as usize).map_or_else(|| code.to_string(), ToString::to_string)
}

/// The code of an answer from its header block: h2 writes `:status` first, by its index or as a literal in Huffman
/// coding, in which a digit is five or six bits (RFC 7541 appendices A and B).
fn status(block: &[u8]) -> u16 {
    match block[0] {
        index @ 0x88..=0x8e => [200, 204, 206, 304, 400, 404, 500][usize::from(index - 0x88)],
        0x48 => {
            let length = usize::from(block[1] & 0x7f);
            let mut bits = block[2..2 + length].iter().flat_map(|b| (0..8).rev().map(move |i| b >> i & 1));
            let mut take = |n: usize| (0..n).fold(0, |value, _| value << 1 | u16::from(bits.next().unwrap()));
            (0..3).fold(0, |code, _| {
                let five = take(5);
                // 0 to 2 are 00000 to 00010, 3 to 9 are 011001 to 011111.
                let digit = if five < 3 { five } else { (five << 1 | take(1)) - 22 };
                code * 10 + digit
            })
        }
        other => panic!("no status: {other:#x}"),
    }
}

/// `200`, or code and reason of a Status.
fn told(code: u16, body: &[u8]) -> String {
    let status: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let mut told = code.to_string();
    match (&status["kind"], &status["reason"]) {
        (kind, reason) if kind == "Status" => {
            assert_eq!(status["code"], code, "a Status names the code of its answer");
            assert!(status["message"].as_str().is_some_and(|m| !m.is_empty()), "a Status says what is wrong");
            let _ = write!(told, " {}", reason.as_str().unwrap_or("Status"));
        }
        _ if code >= 400 => told.push_str(" without a Status"),
        _ if body == PROBED => told.push_str(" probe"),
        _ => {}
    }
    told
}

/// A client connection, read apart from its writing: a gateway that has heard enough does not take what is written.
pub struct Client {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    read: Vec<u8>,
    /// What it is to say that there is no more.
    end: &'static str,
}

impl Client {
    pub async fn connect(gateway: &proxy::Gateway) -> Self {
        let (reader, writer) = TcpStream::connect(gateway.address()).await.unwrap().into_split();
        Self { reader, writer, read: Vec::new(), end: "closed" }
    }

    /// Writes as much as the gateway takes.
    pub async fn send(&mut self, bytes: &[u8]) {
        let _ = timeout(PATIENCE, self.writer.write_all(bytes)).await.expect("the gateway takes or closes");
    }

    /// Reads more; whether there was any.
    async fn more(&mut self) -> bool {
        let Ok(read) = timeout(PATIENCE, self.reader.read_buf(&mut self.read)).await else {
            self.end = "silent";
            return false;
        };
        read.is_ok_and(|n| n > 0)
    }

    /// The next HTTP/1.1 answer; `None` at the end of the connection.
    async fn answer(&mut self) -> Option<String> {
        let head = loop {
            if let Some(end) = self.read.windows(4).position(|w| w == b"\r\n\r\n") {
                break self.read.drain(..end + 4).collect::<Vec<_>>();
            }
            if !self.more().await {
                assert!(self.read.is_empty(), "half an answer: {:?}", String::from_utf8_lossy(&self.read));
                return None;
            }
        };
        let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
        let code: u16 = head[9..12].parse().unwrap();
        let length =
            head.split("content-length: ").nth(1).map_or(0, |l| l.split("\r\n").next().unwrap().parse().unwrap());
        while self.read.len() < length && self.more().await {}
        let body: Vec<_> = self.read.drain(..length).collect();
        Some(told(code, &body))
    }

    /// Everything that is answered over HTTP/1.1, and whether the connection is of use afterwards.
    pub async fn outcome_h1(&mut self) -> String {
        let mut answers = Vec::new();
        let mut probed = false;
        while let Some(answer) = self.answer().await {
            if probed && answer == "200 probe" {
                answers.push("open".into());
                return answers.join(", ");
            }
            answers.push(answer);
            if !std::mem::replace(&mut probed, true) {
                self.send(b"GET /livez HTTP/1.1\r\nHost: door\r\n\r\n").await;
            }
        }
        answers.push(self.end.into());
        answers.join(", ")
    }

    /// One HTTP/2 frame: kind, flags, stream, payload.
    async fn frame(&mut self) -> Option<(u8, u8, u32, Vec<u8>)> {
        loop {
            if let [l0, l1, l2, kind, flags, s0, s1, s2, s3, ..] = self.read[..] {
                let length = u32::from_be_bytes([0, l0, l1, l2]) as usize;
                if self.read.len() >= 9 + length {
                    let frame: Vec<_> = self.read.drain(..9 + length).collect();
                    return Some((kind, flags, u32::from_be_bytes([s0, s1, s2, s3]), frame[9..].to_vec()));
                }
            }
            if !self.more().await {
                return None;
            }
        }
    }

    /// What is answered over HTTP/2 to the first stream that is answered, and whether the connection is of use
    /// afterwards. `awaits`: whether there is an answer to be waited for.
    pub async fn outcome_h2(&mut self, awaits: bool) -> String {
        const PROBE: &[u8] = b"are you?";
        let mut answers = Vec::new();
        let (mut code, mut body) = (0, Vec::new());
        if !awaits {
            self.send(&frame(PING, 0, 0, PROBE)).await;
        }
        while let Some((kind, flags, _, payload)) = self.frame().await {
            match kind {
                HEADERS => code = status(&payload),
                DATA => body.extend(payload),
                RST_STREAM if awaits && answers.is_empty() => {
                    answers.push(format!("RST_STREAM {}", error_name(&payload)));
                    self.send(&frame(PING, 0, 0, PROBE)).await;
                }
                GOAWAY => answers.push(format!("GOAWAY {}", error_name(&payload[4..8]))),
                SETTINGS if flags & ACK == 0 => self.send(&frame(SETTINGS, ACK, 0, &[])).await,
                PING if payload == PROBE => {
                    answers.push("open".into());
                    return answers.join(", ");
                }
                _ => {}
            }
            if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 && awaits && answers.is_empty() {
                answers.push(told(code, &body));
                self.send(&frame(PING, 0, 0, PROBE)).await;
            }
        }
        answers.push(self.end.into());
        answers.join(", ")
    }
}
