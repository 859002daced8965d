//! HTTP/2, frame by frame, from a shard's side.

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt},
    net::tcp::{OwnedReadHalf, OwnedWriteHalf},
};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes()[..], payload].concat()
}

/// The head of a 200.
pub const OK: &[u8] = &[0x88];

/// The shard's side of a connection.
pub struct Wire(pub OwnedWriteHalf);

impl Wire {
    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.0.write_all(&frame(kind, flags, stream, payload)).await.unwrap();
    }
}

/// The next frame: its type, flags, stream and payload.
pub async fn next(read: &mut (impl AsyncRead + Unpin)) -> Option<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    read.read_exact(&mut head).await.ok()?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    let mut payload = vec![0; length as usize];
    read.read_exact(&mut payload).await.ok()?;
    Some((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}

/// The requests of a connection whose frames nobody acknowledges.
pub struct Requests {
    read: OwnedReadHalf,
    greeted: bool,
}

impl Requests {
    pub fn new(read: OwnedReadHalf) -> Self {
        Self { read, greeted: false }
    }

    /// The stream of the next one.
    pub async fn next(&mut self) -> Option<u32> {
        if !std::mem::replace(&mut self.greeted, true) {
            self.read.read_exact(&mut [0; 24]).await.ok()?;
        }
        loop {
            if let (HEADERS, _, stream, _) = next(&mut self.read).await? {
                return Some(stream);
            }
        }
    }
}
