//! The server's side of SPDY/3.1 as far as kubectl uses it: streams that the client opens, data, pings.
//!
//! Header blocks of the client are not unpacked: which stream is which follows from the order in which client-go
//! opens them. Those of the server are empty, and so need no compressor: a stored block of deflate with "no headers".

use std::{collections::HashMap, io};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::{TcpStream, tcp::OwnedWriteHalf},
    sync::mpsc,
};

use super::process::{Output, Process};

const SYN_STREAM: u16 = 1;
const SYN_REPLY: u16 = 2;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const FIN: u8 = 1;
/// A zlib header that asks for SPDY's dictionary (RFC 1950 section 2.2); only the first block of a connection has it.
const ZLIB_START: [u8; 6] = [0x78, 0xbb, 0xe3, 0xc6, 0xa7, 0xc2];
/// Four stored bytes, the number of headers: none. The empty block behind them is what a flush ends with; Go's reader
/// wants to see it.
const NO_HEADERS: [u8; 14] = [0, 4, 0, 0xfb, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];

enum Frame {
    Open(u32),
    Data(u32, Vec<u8>, bool),
    Reset(u32),
    Ping(Vec<u8>),
    GoAway,
    Other,
}

async fn read_frame(io: &mut (impl AsyncRead + Unpin)) -> io::Result<Frame> {
    let mut head = [0; 8];
    io.read_exact(&mut head).await?;
    let word = |bytes: &[u8]| u32::from_be_bytes(bytes[..4].try_into().unwrap()) & 0x7fff_ffff;
    let mut payload = vec![0; (word(&head[4..]) & 0x00ff_ffff) as usize];
    io.read_exact(&mut payload).await?;
    if head[0] & 0x80 == 0 {
        return Ok(Frame::Data(word(&head), payload, head[4] & FIN != 0));
    }
    assert_eq!(u16::from_be_bytes([head[0] & 0x7f, head[1]]), 3, "SPDY/3 on the wire");
    Ok(match u16::from_be_bytes([head[2], head[3]]) {
        SYN_STREAM => Frame::Open(word(&payload)),
        RST_STREAM => Frame::Reset(word(&payload)),
        PING => Frame::Ping(payload),
        GOAWAY => Frame::GoAway,
        _ => Frame::Other,
    })
}

/// What is to be written; bounded, so that a slow client slows the process down.
#[derive(Clone)]
struct Writer(mpsc::Sender<Vec<u8>>);

impl Writer {
    fn start(mut io: impl AsyncWrite + Unpin + Send + 'static) -> (Self, tokio::task::JoinHandle<()>) {
        let (sender, mut frames) = mpsc::channel::<Vec<u8>>(4);
        let writing = tokio::spawn(async move {
            while let Some(frame) = frames.recv().await {
                if io.write_all(&frame).await.is_err() {
                    return;
                }
            }
            let _ = io.shutdown().await;
        });
        (Self(sender), writing)
    }

    async fn send(&self, head: [u8; 4], flags: u8, payload: &[&[u8]]) {
        let payload = payload.concat();
        let length = (u32::try_from(payload.len()).unwrap() | u32::from(flags) << 24).to_be_bytes();
        let _ = self.0.send([&head[..], &length, &payload].concat()).await;
    }

    async fn control(&self, kind: u16, payload: &[&[u8]]) {
        let kind = kind.to_be_bytes();
        self.send([0x80, 3, kind[0], kind[1]], 0, payload).await;
    }

    async fn accept(&self, stream: u32, first: bool) {
        let start = if first { &ZLIB_START[..] } else { &[] };
        self.control(SYN_REPLY, &[&stream.to_be_bytes(), start, &NO_HEADERS]).await;
    }

    async fn data(&self, stream: u32, bytes: &[u8], last: bool) {
        self.send(stream.to_be_bytes(), if last { FIN } else { 0 }, &[bytes]).await;
    }
}

/// Runs `process` on streams that are opened in this order: error, then each of stdin (0), stdout (1), stderr (2) that
/// is in `channels`. Returns when the client has hung up, and the process is gone.
pub(crate) async fn exec<S>(io: S, channels: &[u8], process: Process)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut read, write) = tokio::io::split(io);
    let (writer, writing) = Writer::start(write);
    let (input, mut output) = (process.input, process.output);
    let mut input = Some(input);
    let mut streams = Vec::new();
    while streams.len() <= channels.len() {
        match read_frame(&mut read).await {
            Ok(Frame::Open(stream)) => {
                writer.accept(stream, streams.is_empty()).await;
                streams.push(stream);
            }
            Ok(Frame::Ping(id)) => writer.control(PING, &[&id]).await,
            Ok(_) => {}
            Err(_) => return,
        }
    }
    let of_channel = |channel: u8| channels.iter().position(|c| *c == channel).map(|at| streams[at + 1]);
    let (error, stdin) = (streams[0], of_channel(0));
    let outputs = [of_channel(1), of_channel(2)];
    let answering = {
        let writer = writer.clone();
        async move {
            while let Some(part) = output.recv().await {
                match part {
                    Output::Data(channel, bytes) => {
                        if let Some(stream) = outputs[usize::from(channel) - 1] {
                            writer.data(stream, &bytes, false).await;
                        }
                    }
                    Output::Exit(status) => {
                        for stream in outputs.into_iter().flatten() {
                            writer.data(stream, b"", true).await;
                        }
                        writer.data(error, status.as_bytes(), true).await;
                    }
                }
            }
        }
    };
    let answering = tokio::spawn(answering);
    loop {
        match read_frame(&mut read).await {
            Ok(Frame::Data(stream, bytes, last)) if Some(stream) == stdin => {
                if let Some(sender) = input.as_ref().filter(|_| !bytes.is_empty()) {
                    let _ = sender.send(bytes).await;
                }
                if last {
                    input = None;
                }
            }
            Ok(Frame::Ping(id)) => writer.control(PING, &[&id]).await,
            Ok(Frame::GoAway) | Err(_) => break,
            Ok(_) => {}
        }
    }
    drop((input, writer));
    answering.abort();
    writing.abort();
}

/// Connects each pair of an error and a data stream with the TCP port, as a kubelet does for port-forward. The pairs have
/// to come one after the other.
pub(crate) async fn port_forward<S>(io: S, to: std::net::SocketAddr)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (mut read, write) = tokio::io::split(io);
    let (writer, _writing) = Writer::start(write);
    let mut streams: Vec<u32> = Vec::new();
    let mut ports: HashMap<u32, OwnedWriteHalf> = HashMap::new();
    loop {
        match read_frame(&mut read).await {
            Ok(Frame::Open(stream)) => {
                writer.accept(stream, streams.is_empty()).await;
                streams.push(stream);
                let [.., error, _] = streams[..] else { continue };
                if streams.len() % 2 == 1 {
                    continue;
                }
                let (mut port, half) = TcpStream::connect(to).await.unwrap().into_split();
                ports.insert(stream, half);
                let writer = writer.clone();
                tokio::spawn(async move {
                    let mut buffer = vec![0; 16 << 10];
                    while let Ok(read @ 1..) = port.read(&mut buffer).await {
                        writer.data(stream, &buffer[..read], false).await;
                    }
                    writer.data(stream, b"", true).await;
                    writer.data(error, b"", true).await;
                });
            }
            Ok(Frame::Data(stream, bytes, last)) => {
                if let Some(port) = ports.get_mut(&stream) {
                    let _ = port.write_all(&bytes).await;
                }
                if last && let Some(mut port) = ports.remove(&stream) {
                    let _ = port.shutdown().await;
                }
            }
            Ok(Frame::Reset(stream)) => drop(ports.remove(&stream)),
            Ok(Frame::Ping(id)) => writer.control(PING, &[&id]).await,
            Ok(Frame::GoAway) | Err(_) => return,
            Ok(Frame::Other) => {}
        }
    }
}
