//! A shard as far as the gateway can see one: HTTP/1.1 by hand, answers that say what was asked for, watches that go on.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};

/// How often a watch has an event.
const EVENT_EVERY: Duration = Duration::from_millis(100);

/// What it says it holds: with `None` it is a plain API server.
pub(crate) type Clusters = Option<&'static [&'static str]>;

#[derive(Clone, Default)]
pub(crate) struct Counters {
    /// Requests being answered now, watches not counted, and the most there ever were.
    pub(crate) running: Arc<AtomicUsize>,
    pub(crate) most: Arc<AtomicUsize>,
}

/// Serves until the runtime ends.
pub(crate) fn serve(listener: std::net::TcpListener, clusters: Clusters) -> Counters {
    let counters = Counters::default();
    let seen = counters.clone();
    listener.set_nonblocking(true).unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    tokio::spawn(async move {
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            let seen = seen.clone();
            tokio::spawn(async move {
                socket.set_nodelay(true).unwrap();
                // Whatever breaks is the gateway's to tell.
                let _ = converse(socket, clusters, &seen).await;
            });
        }
    });
    counters
}

/// A port on which nobody listens, and which nobody else gets: it can be listened on later.
pub(crate) fn place() -> (socket2::Socket, SocketAddr) {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    (socket, address)
}

async fn converse(socket: TcpStream, clusters: Clusters, seen: &Counters) -> std::io::Result<()> {
    let mut socket = BufReader::new(socket);
    loop {
        let Some((target, length)) = head(&mut socket).await? else { return Ok(()) };
        let mut body = vec![0; length];
        socket.read_exact(&mut body).await?;
        let (path, query) = target.split_once('?').unwrap_or((&target, ""));
        if query.contains("watch=") {
            return watch(&mut socket, path).await;
        }
        let running = seen.running.fetch_add(1, SeqCst) + 1;
        seen.most.fetch_max(running, SeqCst);
        if let Some(ms) = query.split('&').find_map(|option| option.strip_prefix("slow=")) {
            tokio::time::sleep(Duration::from_millis(ms.parse().unwrap())).await;
        }
        seen.running.fetch_sub(1, SeqCst);
        let (code, answer) = match list(path, clusters) {
            Some(found) => found,
            None => ("200 OK", json!({ "path": path, "query": query, "received": length })),
        };
        let text = answer.to_string();
        let head =
            format!("HTTP/1.1 {code}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", text.len());
        socket.write_all((head + &text).as_bytes()).await?;
    }
}

/// Target and length of the body of the next request.
async fn head(socket: &mut BufReader<TcpStream>) -> std::io::Result<Option<(String, usize)>> {
    let (mut line, mut target, mut length) = (String::new(), String::new(), 0);
    loop {
        line.clear();
        if socket.read_line(&mut line).await? == 0 {
            return Ok(None);
        }
        match line.trim_end() {
            "" => return Ok(Some((target, length))),
            text if target.is_empty() => target = text.split(' ').nth(1).unwrap().to_owned(),
            text => {
                if let Some(value) = text.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
            }
        }
    }
}

/// The lists that the gateway's index is made of.
fn list(path: &str, clusters: Clusters) -> Option<(&'static str, Value)> {
    let names = match path {
        "/clusters/*/apis/core.kcp.io/v1alpha1/logicalclusters" => clusters,
        "/clusters/*/apis/tenancy.kcp.io/v1alpha1/workspaces" => clusters.map(|_| &[][..]),
        _ => return None,
    };
    let Some(names) = names else { return Some(("404 Not Found", json!({}))) };
    let kind = if path.ends_with("logicalclusters") { "LogicalClusterList" } else { "WorkspaceList" };
    let object = |name: &&str| json!({ "metadata": { "name": "cluster", "annotations": { "kcp.io/cluster": name }, "resourceVersion": "5" } });
    let items: Vec<_> = names.iter().map(object).collect();
    Some(("200 OK", json!({ "kind": kind, "metadata": { "resourceVersion": "7" }, "items": items })))
}

/// Events without end; those of the index have none.
async fn watch(socket: &mut BufReader<TcpStream>, path: &str) -> std::io::Result<()> {
    socket.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    let is_quiet = path.starts_with("/clusters/*/");
    loop {
        let mut byte = [0];
        tokio::select! {
            read = socket.read(&mut byte) => return read.map(drop),
            () = tokio::time::sleep(EVENT_EVERY), if !is_quiet => {
                socket.write_all(b"8\r\n{\"e\":1}\n\r\n").await?;
            }
        }
    }
}
