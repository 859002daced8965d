//! HTTP/2, frame by frame, from a shard's side.

use std::{net::SocketAddr, sync::Arc};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::tcp::OwnedWriteHalf,
    sync::{
        Mutex,
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    },
    time::timeout,
};

use super::{PATIENCE, raw_upstream};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// What a client says first.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// `GET /clusters/a/api`.
pub fn get_frame(stream: u32) -> Vec<u8> {
    // RFC 7541, appendix A: GET, http; then a path, and an authority of one byte, as they are.
    let head = [&[0x82, 0x86, 0x04, 15][..], b"/clusters/a/api", &[0x01, 1, b'd']].concat();
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &head)
}

/// The head of a 200.
pub const OK: &[u8] = &[0x88];

/// The next frame: its type, flags, stream and payload.
pub async fn next(read: &mut (impl AsyncRead + Unpin)) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    read.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    read.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

/// One frame of the gateway, and the way to answer on its connection.
pub struct Heard {
    /// The number of the connection, from 0 on.
    pub connection: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
    wire: Arc<Mutex<OwnedWriteHalf>>,
}

impl Heard {
    /// Sends a frame on that connection; the gateway may have left.
    pub async fn send(&self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let _ = self.wire.lock().await.write_all(&frame(kind, flags, stream, payload)).await;
    }

    /// A whole answer, of a head.
    pub async fn answer(&self) {
        self.send(HEADERS, END_HEADERS | END_STREAM, self.stream, OK).await;
    }

    /// The head of an answer that goes on.
    pub async fn begin(&self) {
        self.send(HEADERS, END_HEADERS, self.stream, OK).await;
    }

    /// The head of an answer that goes on, with a field of so many bytes, in as many frames as that takes.
    pub async fn begin_with(&self, field: usize) {
        // RFC 7541 sections 5.1 and 6.2.2: a literal that is not indexed, its name and value as they are.
        let mut block = [OK, &[0, 1, b'x', 127]].concat();
        let mut rest = field - 127;
        while rest >= 128 {
            block.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        block.push(u8::try_from(rest).unwrap());
        block.resize(block.len() + field, b'y');
        let parts: Vec<_> = block.chunks(16 << 10).collect();
        // In one piece: nothing may come between them (RFC 9113 section 6.10).
        let mut frames = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let kind = if at == 0 { HEADERS } else { CONTINUATION };
            let flags = if at + 1 == parts.len() { END_HEADERS } else { 0 };
            frames.extend(frame(kind, flags, self.stream, part));
        }
        let _ = self.wire.lock().await.write_all(&frames).await;
    }

    /// So many parts of one byte each, in one piece.
    pub async fn crumbs(&self, count: usize) {
        let frames: Vec<u8> = (0..count).flat_map(|at| frame(DATA, 0, self.stream, &[b"abc"[at % 3]])).collect();
        let _ = self.wire.lock().await.write_all(&frames).await;
    }

    pub async fn data(&self, text: &str, flags: u8) {
        self.send(DATA, flags, self.stream, text.as_bytes()).await;
    }

    pub async fn reset(&self, reason: u32) {
        self.send(RST_STREAM, 0, self.stream, &reason.to_be_bytes()).await;
    }

    /// Says goodbye: streams behind `last` have not been looked at.
    pub async fn goaway(&self, last: u32) {
        self.send(GOAWAY, 0, 0, &[last.to_be_bytes(), [0; 4]].concat()).await;
    }

    /// Allows so many streams on that connection from now on.
    pub async fn allow(&self, streams: u8) {
        self.send(SETTINGS, 0, 0, &streams_max(streams)).await;
    }
}

/// The setting of how many streams a connection may have.
pub fn streams_max(streams: u8) -> Vec<u8> {
    vec![0, 3, 0, 0, 0, streams]
}

/// What a scripted shard hears.
pub struct Inbox(UnboundedReceiver<Heard>);

impl Inbox {
    /// The next frame of this kind; those of other kinds before it are forgotten.
    pub async fn next(&mut self, kind: u8) -> Heard {
        let found = async {
            loop {
                let heard = self.0.recv().await.expect("the shard lives as long as its test");
                if heard.kind == kind {
                    return heard;
                }
            }
        };
        timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no frame of type {kind} comes"))
    }

    /// The next request.
    pub async fn request(&mut self) -> Heard {
        self.next(HEADERS).await
    }

    /// The requests that have come and not been asked for.
    pub fn rest(&mut self) -> Vec<Heard> {
        std::iter::from_fn(|| self.0.try_recv().ok()).filter(|heard| heard.kind == HEADERS).collect()
    }
}

/// A shard on which the test answers each request itself. `streams` says how many each of its connections allows;
/// `None`: it does not greet on that one.
pub async fn scripted(streams: impl Fn(usize) -> Option<u8> + Send + Sync + 'static) -> (SocketAddr, Inbox) {
    let (frames, inbox) = unbounded_channel();
    let address = raw_upstream(move |socket, connection| {
        let (frames, streams) = (frames.clone(), streams(connection));
        async move {
            let (mut read, mut write) = socket.into_split();
            if let Some(streams) = streams {
                write.write_all(&frame(SETTINGS, 0, 0, &streams_max(streams))).await.unwrap();
            }
            listen(&mut read, connection, &Arc::new(Mutex::new(write)), &frames).await;
        }
    })
    .await;
    (address, Inbox(inbox))
}

/// Passes on what comes; nothing is acknowledged.
async fn listen(
    read: &mut (impl AsyncRead + Unpin),
    connection: usize,
    wire: &Arc<Mutex<OwnedWriteHalf>>,
    frames: &UnboundedSender<Heard>,
) {
    if read.read_exact(&mut [0; 24]).await.is_err() {
        return;
    }
    while let Some((kind, flags, stream, payload)) = next(read).await {
        let _ = frames.send(Heard { connection, kind, flags, stream, payload, wire: wire.clone() });
    }
}
