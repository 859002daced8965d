//! A shard with one running pod, `p`: exec, attach and port-forward by SPDY/3.1 and by websocket, as API server and
//! kubelet together speak them. What is executed is a process of this machine.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use http::{Request, StatusCode};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use proxy::Body;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_tungstenite::{
    WebSocketStream, accept_hdr_async,
    tungstenite::{
        Message,
        handshake::server::{Request as Asked, Response as Answer},
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};

use super::{
    process::{Output, Process},
    spdy,
};
use crate::support::ok;

const POD: &str = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"default","uid":"1"},
    "spec":{"containers":[{"name":"c","image":"i","stdin":true,"ports":[{"containerPort":80}]}]},"status":{"phase":"Running"}}"#;
const RESOURCES: &str = r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[
    {"name":"pods","singularName":"pod","namespaced":true,"kind":"Pod","verbs":["get","list"],"shortNames":["po"]}]}"#;

/// What it does and has seen.
#[derive(Clone)]
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    /// The target of every forwarded port.
    pub(crate) port: SocketAddr,
    /// Refused as by a server that knows only SPDY.
    pub(crate) refuses_websockets: bool,
    /// Protocols that were switched to, such as `SPDY/3.1 v4.channel.k8s.io`.
    pub(crate) switched: Arc<Mutex<Vec<String>>>,
}

impl Node {
    /// Serves until the test's runtime ends.
    pub(crate) async fn start(port: SocketAddr, refuses_websockets: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let node = Self { address: listener.local_addr().unwrap(), port, refuses_websockets, switched: Arc::default() };
        let serving = node.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                tokio::spawn(serving.clone().serve(socket));
            }
        });
        node
    }

    async fn serve(self, mut socket: TcpStream) {
        let Some(head) = peek_head(&mut socket).await else { return };
        let Some(protocol) = field(&head, "upgrade") else {
            let service =
                service_fn(|request: Request<Incoming>| async move { Ok::<_, hyper::Error>(answer(&request)) });
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service).await;
            return;
        };
        let target = head.split(' ').nth(1).unwrap().to_owned();
        match protocol.to_lowercase().as_str() {
            "websocket" if self.refuses_websockets => {
                // Read to the end of the head, or the answer would be lost in a reset.
                let _ = socket.read_exact(&mut vec![0; head.len()]).await;
                let no = b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
                let _ = socket.write_all(no).await;
            }
            "websocket" => self.websocket(socket, &target).await,
            _ => self.spdy(socket, &head, &target).await,
        }
    }

    fn note(&self, protocol: &str) {
        self.switched.lock().unwrap().push(protocol.to_owned());
    }

    async fn spdy(self, mut socket: TcpStream, head: &str, target: &str) {
        socket.read_exact(&mut vec![0; head.len()]).await.unwrap();
        let is_forward = target.contains("/portforward");
        let version = if is_forward { "portforward.k8s.io" } else { "v4.channel.k8s.io" };
        self.note(&format!("SPDY/3.1 {version}"));
        let yes = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: {version}\r\n\r\n"
        );
        socket.write_all(yes.as_bytes()).await.unwrap();
        match is_forward {
            true => spdy::port_forward(socket, self.port).await,
            false => spdy::exec(socket, &channels(target), Process::start(&command(target))).await,
        }
    }

    async fn websocket(self, socket: TcpStream, target: &str) {
        let mut chosen = String::new();
        #[expect(clippy::result_large_err, reason = "the library's signature")]
        let choose = |asked: &Asked, mut answer: Answer| {
            let offered = &asked.headers()["sec-websocket-protocol"];
            chosen = offered.to_str().unwrap().split(',').next().unwrap().trim().to_owned();
            answer.headers_mut().insert("sec-websocket-protocol", chosen.parse().unwrap());
            Ok(answer)
        };
        let websocket = accept_hdr_async(socket, choose).await.unwrap();
        self.note(&format!("websocket {chosen}"));
        match chosen.strip_prefix("SPDY/3.1+") {
            Some(_) => {
                let (near, far) = tokio::io::duplex(64 << 10);
                tokio::join!(spdy::port_forward(near, self.port), carry(websocket, far));
            }
            None => exec(websocket, chosen.starts_with("v5."), Process::start(&command(target))).await,
        }
    }
}

/// Remote commands by websocket: the first byte of a message is the channel.
async fn exec(websocket: WebSocketStream<TcpStream>, is_v5: bool, process: Process) {
    let (mut write, mut read) = websocket.split();
    let (mut input, mut output) = (Some(process.input), process.output);
    let answering = tokio::spawn(async move {
        while let Some(part) = output.recv().await {
            let message = match &part {
                Output::Data(channel, bytes) => [&[*channel][..], bytes].concat(),
                Output::Exit(status) => [&[3][..], status.as_bytes()].concat(),
            };
            if write.send(Message::Binary(message.into())).await.is_err() {
                return;
            }
        }
        let _ = write.send(normal_close()).await;
    });
    while let Some(Ok(message)) = read.next().await {
        let Message::Binary(message) = message else { continue };
        match &message[..] {
            [0, bytes @ ..] if !bytes.is_empty() => {
                if let Some(input) = &input {
                    let _ = input.send(bytes.to_vec()).await;
                }
            }
            // Version 5 can close a channel.
            [255, 0] if is_v5 => input = None,
            _ => {}
        }
    }
    answering.abort();
}

/// kubectl takes a close without a code for a failure.
fn normal_close() -> Message {
    Message::Close(Some(CloseFrame { code: CloseCode::Normal, reason: "".into() }))
}

/// Carries a stream of bytes in binary messages.
async fn carry(websocket: WebSocketStream<TcpStream>, stream: tokio::io::DuplexStream) {
    let (mut write, mut read) = websocket.split();
    let (mut from, mut to) = tokio::io::split(stream);
    let out = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if write.send(Message::Binary(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
                return;
            }
        }
        let _ = write.send(normal_close()).await;
    };
    let back = async {
        while let Some(Ok(message)) = read.next().await {
            if let Message::Binary(bytes) = message
                && to.write_all(&bytes).await.is_err()
            {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(out, back);
}

/// The head of the first request, left in the socket.
async fn peek_head(socket: &mut TcpStream) -> Option<String> {
    let mut buffer = vec![0; 32 << 10];
    let mut known = 0;
    loop {
        let peeked = socket.peek(&mut buffer).await.ok()?;
        if let Some(end) = buffer[..peeked].windows(4).position(|w| w == b"\r\n\r\n") {
            return Some(String::from_utf8_lossy(&buffer[..end + 4]).into_owned());
        }
        if peeked == 0 {
            return None;
        }
        // What is known stays readable: there is nothing to be woken by.
        if peeked == known {
            tokio::task::yield_now().await;
        }
        known = peeked;
    }
}

fn field<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut fields = head.lines().filter_map(|line| line.split_once(':'));
    fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

fn answer(request: &Request<Incoming>) -> http::Response<Body> {
    let path = request.uri().path();
    let path = path.strip_prefix("/clusters/").map_or(path, |rest| &rest[rest.find('/').unwrap_or(rest.len())..]);
    let text = match path {
        "/api" => r#"{"kind":"APIVersions","versions":["v1"]}"#,
        "/apis" => r#"{"kind":"APIGroupList","apiVersion":"v1","groups":[]}"#,
        "/api/v1" => RESOURCES,
        "/api/v1/namespaces/default/pods/p" => POD,
        _ => r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#,
    };
    let mut answer = ok(text);
    if text.contains("NotFound") {
        *answer.status_mut() = StatusCode::NOT_FOUND;
    }
    answer.headers_mut().insert("content-type", "application/json".parse().unwrap());
    answer
}

fn query<'t>(target: &'t str, name: &'t str) -> impl Iterator<Item = String> + 't {
    let query = target.split_once('?').map_or("", |(_, query)| query);
    form_urlencoded::parse(query.as_bytes()).filter(move |(key, _)| key == name).map(|(_, value)| value.into_owned())
}

/// What runs in the pod when nothing is named, as for attach, is `cat`.
fn command(target: &str) -> Vec<String> {
    let named: Vec<_> = query(target, "command").collect();
    if named.is_empty() { vec!["cat".to_owned()] } else { named }
}

fn channels(target: &str) -> Vec<u8> {
    let wanted = |name| query(target, name).any(|value| value == "true");
    ["stdin", "stdout", "stderr"].into_iter().zip(0..).filter(|(name, _)| wanted(name)).map(|(_, n)| n).collect()
}
