//! exec, attach, cp and port-forward of real kubectls through the gateway: the old ones speak SPDY/3.1, the new ones
//! websocket, and SPDY/3.1 where a shard refuses that.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

mod node;
mod process;
mod spdy;

use std::{
    path::{Path, PathBuf},
    process::{Output, Stdio},
    sync::Arc,
};

use crate::support::*;
use futures_util::{SinkExt, StreamExt};
use proxy::{Gateway, GatewayOptions};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
};
use tokio_tungstenite::{
    client_async,
    tungstenite::{Message, client::IntoClientRequest},
};

use self::node::Node;

const SPDY_ONLY: [&str; 2] = ["1.25", "1.29"];
const WEBSOCKET: [&str; 2] = ["1.32", "1.35"];
const SIZE: usize = 1 << 20;

fn bytes(seed: usize) -> Vec<u8> {
    (0..SIZE).map(|n| (n * (seed + 7) % 251) as u8).collect()
}

/// Gateway with TLS in front of a [`Node`], a kubectl, and files.
struct Session {
    gateway: Gateway,
    node: Node,
    kubectl: PathBuf,
    files: tempfile::TempDir,
}

impl Session {
    async fn start(version: &str, refuses_websockets: bool) -> Self {
        let tools = std::env::var_os("FAIRGATE_TEST_TOOLS");
        let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools");
        let kubectl = tools.map_or(installed, PathBuf::from).join(version).join("kubectl");
        assert!(kubectl.is_file(), "{} is missing: run scripts/tools, or see there", kubectl.display());
        let node = Node::start(echo_port().await, refuses_websockets).await;
        let tls = Some(Arc::new(tls::Ca::new().server_config()));
        let gateway = Gateway::start(GatewayOptions { tls, ..options(vec![remote(node.address)]) }).unwrap();
        Self { gateway, node, kubectl, files: tempfile::tempdir().unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.kubectl);
        command
            .arg(format!("--server=https://{}/clusters/root:a", self.gateway.address()))
            .args(["--insecure-skip-tls-verify", "--token=t", "--kubeconfig=/dev/null"])
            .arg(format!("--cache-dir={}", self.path("cache")))
            .args(args)
            .env("HOME", self.files.path())
            .env_remove("KUBECONFIG")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    fn path(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    async fn run(&self, args: &[&str], input: &[u8]) -> Output {
        let mut child = self.command(args).spawn().unwrap();
        let mut stdin = child.stdin.take().unwrap();
        let feed = async {
            // It may have ended without reading everything.
            let _ = stdin.write_all(input).await;
            drop(stdin);
        };
        let all = async { tokio::join!(feed, child.wait_with_output()).1.unwrap() };
        tokio::time::timeout(4 * PATIENCE, all).await.unwrap_or_else(|_| panic!("{args:?} does not end"))
    }

    async fn ok(&self, args: &[&str], input: &[u8]) -> Vec<u8> {
        let output = self.run(args, input).await;
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?} of {}: {error}", self.kubectl.display());
        output.stdout
    }

    /// Every command, and the protocols that it was carried by.
    async fn everything(&self) -> Vec<String> {
        let sent = bytes(1);
        let got = self.ok(&["exec", "-i", "p", "--", "cat"], &sent).await;
        assert!(got == sent, "{} of {} bytes", got.len(), sent.len());

        let failing = self.run(&["exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 7"], b"").await;
        assert_eq!((failing.status.code(), &failing.stdout[..]), (Some(7), &b"out\n"[..]));
        assert!(failing.stderr.starts_with(b"err\n"), "{:?}", failing.stderr);

        let attached = self.ok(&["attach", "-i", "p", "-c", "c"], b"to whom it may concern\n").await;
        assert!(attached.ends_with(b"to whom it may concern\n"), "{}", String::from_utf8_lossy(&attached));

        std::fs::write(self.path("there"), bytes(2)).unwrap();
        std::fs::create_dir_all(self.path("pod")).unwrap();
        let inside = format!("p:{}", self.path("pod/copy"));
        self.ok(&["cp", &self.path("there"), &inside], b"").await;
        self.ok(&["cp", &inside, &self.path("back")], b"").await;
        assert!(std::fs::read(self.path("pod/copy")).unwrap() == bytes(2));
        assert!(std::fs::read(self.path("back")).unwrap() == bytes(2));

        self.port_forward().await;
        let mut switched = std::mem::take(&mut *self.node.switched.lock().unwrap());
        switched.sort_unstable();
        switched.dedup();
        switched
    }

    /// Two connections, one after the other; each sends everything, says that it has, and gets everything back.
    async fn port_forward(&self) {
        let mut child: Child = self.command(&["port-forward", "pod/p", ":80"]).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().unwrap();
        let local = line.strip_prefix("Forwarding from ").and_then(|rest| rest.split(' ').next()).unwrap();
        for seed in [3, 4] {
            let (mut read, mut write) = TcpStream::connect(local).await.unwrap().into_split();
            let sent = bytes(seed);
            let mut got = Vec::new();
            let sending = async {
                write.write_all(&sent).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let all = async { tokio::join!(sending, read.read_to_end(&mut got)).1.unwrap() };
            tokio::time::timeout(PATIENCE, all).await.expect("the forwarded port hangs");
            assert!(got == sent, "{} of {} bytes", got.len(), sent.len());
        }
        child.kill().await.unwrap();
    }
}

/// A TCP server that sends back what it gets.
async fn echo_port() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            tokio::spawn(async move {
                let (mut read, mut write) = socket.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
                let _ = write.shutdown().await;
            });
        }
    });
    address
}

#[tokio::test]
async fn kubectl_by_spdy() {
    for version in SPDY_ONLY {
        let used = Session::start(version, false).await.everything().await;
        assert_eq!(used, ["SPDY/3.1 portforward.k8s.io", "SPDY/3.1 v4.channel.k8s.io"], "{version}");
    }
}

#[tokio::test]
async fn kubectl_by_websocket() {
    for version in WEBSOCKET {
        let used = Session::start(version, false).await.everything().await;
        let want = ["websocket SPDY/3.1+portforward.k8s.io", "websocket v5.channel.k8s.io"];
        assert_eq!(used, want, "{version}");
    }
}

/// A refused switch to websocket is followed by one to SPDY/3.1.
#[tokio::test]
async fn kubectl_falls_back_to_spdy() {
    for version in WEBSOCKET {
        let used = Session::start(version, true).await.everything().await;
        assert_eq!(used, ["SPDY/3.1 portforward.k8s.io", "SPDY/3.1 v4.channel.k8s.io"], "{version}");
    }
}

/// The protocol of the clients in other languages; it has no way to end standard input.
#[tokio::test]
async fn a_client_of_version_4_by_websocket() {
    let node = Node::start(echo_port().await, false).await;
    let gateway = Gateway::start(options(vec![remote(node.address)])).unwrap();
    let path = "clusters/root:a/api/v1/namespaces/default/pods/p/exec?command=head&command=-c&command=9&stdin=true&stdout=true&stderr=true";
    let mut request = format!("ws://{}/{path}", gateway.address()).into_client_request().unwrap();
    request.headers_mut().insert("sec-websocket-protocol", "v4.channel.k8s.io".parse().unwrap());
    let socket = TcpStream::connect(gateway.address()).await.unwrap();
    let (mut websocket, answer) = client_async(request, socket).await.unwrap();
    assert_eq!(answer.headers()["sec-websocket-protocol"], "v4.channel.k8s.io");
    websocket.send(Message::Ping("alive?".into())).await.unwrap();
    for part in ["abc", "def", "ghijkl"] {
        websocket.send(Message::Binary([b"\0", part.as_bytes()].concat().into())).await.unwrap();
    }
    let (mut out, mut status, mut pongs) = (Vec::new(), Vec::new(), 0);
    while let Some(Ok(message)) = websocket.next().await {
        match message {
            Message::Binary(bytes) if bytes[0] == 1 => out.extend_from_slice(&bytes[1..]),
            Message::Binary(bytes) if bytes[0] == 3 => status.extend_from_slice(&bytes[1..]),
            Message::Pong(bytes) => pongs += usize::from(&bytes[..] == b"alive?"),
            _ => {}
        }
    }
    assert_eq!((&out[..], pongs), (&b"abcdefghi"[..], 1));
    assert!(String::from_utf8(status).unwrap().contains(r#""status":"Success""#));
}
