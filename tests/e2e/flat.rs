//! Bodies of any size pass in flat memory: a large one up and down through `fairgate serve`, over both protocols.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::{
    convert::Infallible,
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::common::PATIENCE;

/// Bytes of a body; never in memory as a whole.
const SIZE: u64 = 1 << 30;
const PART: usize = 64 << 10;
/// What the gateway's memory may grow by.
const GROWTH_MAX: u64 = 32 << 20;

/// A shard that serves every workspace: a GET gets as many bytes as its query says, a POST the number of those it had.
async fn shard() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket));
        }
    });
    address
}

async fn serve(socket: TcpStream) -> Option<()> {
    let (read, mut write) = socket.into_split();
    let mut read = tokio::io::BufReader::with_capacity(PART, read);
    loop {
        let (mut first, mut length) = (String::new(), 0);
        read.read_line(&mut first).await.ok().filter(|n| *n > 0)?;
        loop {
            let mut line = String::new();
            read.read_line(&mut line).await.ok().filter(|n| *n > 0)?;
            let Some((name, value)) = line.split_once(':') else { break };
            if name.eq_ignore_ascii_case("content-length") {
                length = value.trim().parse().unwrap();
            }
        }
        if let Some(size) = first.split("bytes=").nth(1).and_then(|rest| rest.split(' ').next()) {
            let size: u64 = size.parse().unwrap();
            write.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {size}\r\n\r\n").as_bytes()).await.ok()?;
            tokio::io::copy(&mut tokio::io::repeat(b'd').take(size), &mut write).await.ok()?;
        } else {
            let got = tokio::io::copy(&mut (&mut read).take(length), &mut tokio::io::sink()).await.ok()?.to_string();
            // No LogicalClusters: every workspace is this shard's.
            let status = if first.starts_with("POST") { "200 OK" } else { "404 Not Found" };
            let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{got}", got.len());
            write.write_all(answer.as_bytes()).await.ok()?;
        }
    }
}

/// A running `fairgate serve` in plain text; killed when dropped.
struct Serve {
    child: Child,
    /// For example `http://127.0.0.1:40123`.
    url: String,
}

impl Serve {
    fn start(shard: SocketAddr, directory: &std::path::Path) -> Self {
        let config = directory.join("gateway.yaml");
        let text = format!(
            "apiVersion: fairgate.dev/v1alpha1\nkind: GatewayConfiguration\nlisten: {{ address: '127.0.0.1:0' }}\n\
             admin: {{ address: '127.0.0.1:0' }}\nauthentication: {{ anonymous: true }}\n\
             shards: [{{ name: root, url: 'http://{shard}', seats: 10 }}]\n"
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_fairgate"));
        command.arg("serve").arg("--config").arg(config).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let line = BufReader::new(child.stdout.as_mut().unwrap()).lines().next().unwrap().unwrap();
        Self { child, url: line.strip_prefix("gateway: ").unwrap().to_owned() }
    }
}

/// Resident bytes of a process.
fn memory(pid: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `size` bytes up, then down.
async fn both_ways(client: &reqwest::Client, url: &str, size: u64) {
    let parts = (0..size / PART as u64).map(|_| Ok::<_, Infallible>(vec![b'u'; PART]));
    let up = client.post(url).header("content-length", size).body(reqwest::Body::wrap_stream(stream::iter(parts)));
    let answer = up.send().await.unwrap();
    assert_eq!(answer.status(), 200);
    assert_eq!(answer.text().await.unwrap(), size.to_string());
    let mut down = client.get(format!("{url}?bytes={size}")).send().await.unwrap().bytes_stream();
    let mut got = 0;
    while let Some(part) = down.next().await {
        let part = part.unwrap();
        assert!(part.iter().all(|byte| *byte == b'd'));
        got += part.len() as u64;
    }
    assert_eq!(got, size);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_a_gigabyte_takes_no_more_memory_than_a_small_one() {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let place = tempfile::tempdir().unwrap();
    let gateway = Serve::start(shard().await, place.path());
    let url = format!("{}/clusters/root:a/api/v1/namespaces/n/configmaps", gateway.url);
    let clients = [
        reqwest::Client::builder().http1_only().build().unwrap(),
        reqwest::Client::builder().http2_prior_knowledge().build().unwrap(),
    ];
    let deadline = Instant::now() + PATIENCE;
    while clients[0].get(format!("{}/readyz", gateway.url)).send().await.unwrap().status() != 200 {
        assert!(Instant::now() < deadline, "it does not become ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for client in &clients {
        both_ways(client, &url, 1 << 20).await;
    }
    let (pid, base) = (gateway.child.id(), memory(gateway.child.id()));
    let most = Arc::new(AtomicU64::new(base));
    let sampler = {
        let most = most.clone();
        tokio::spawn(async move {
            loop {
                most.fetch_max(memory(pid), Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
    };
    for client in &clients {
        both_ways(client, &url, SIZE).await;
    }
    sampler.abort();
    let grown = most.load(Relaxed) - base;
    println!("{} MiB before, at most {} KiB more", base >> 20, grown >> 10);
    assert!(grown < GROWTH_MAX, "from {base} bytes by {grown}");
}
