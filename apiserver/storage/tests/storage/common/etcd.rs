//! Servers of etcd for tests.

use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use apiserver_storage::{Etcd, etcd::Options};

/// How long a server may take on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A cluster of etcd; killed when dropped.
pub(crate) struct Cluster {
    pub(crate) members: Vec<Member>,
    /// Removed with it.
    _directory: tempfile::TempDir,
}

pub(crate) struct Member {
    pub(crate) client_port: u16,
    command: Vec<String>,
    child: Option<Child>,
}

impl Cluster {
    /// One member.
    pub(crate) fn single() -> Self {
        Self::of(1, &[])
    }

    /// So many members, with further options for each.
    pub(crate) fn of(size: usize, options: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let ports: Vec<[u16; 2]> = free_ports(2 * size).chunks(2).map(|two| [two[0], two[1]]).collect();
        let peers: Vec<_> = ports.iter().map(|[_, peer]| format!("m{peer}=http://127.0.0.1:{peer}")).collect();
        let scheme = if options.contains(&"--cert-file") { "https" } else { "http" };
        let members = ports.iter().map(|[client, peer]| {
            let data = directory.path().join(peer.to_string());
            let (client_url, peer_url) = (format!("{scheme}://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
            let (name, peers, data) = (format!("m{peer}"), peers.join(","), data.display().to_string());
            let own = [
                ["--name", &name],
                ["--data-dir", &data],
                ["--listen-client-urls", &client_url],
                ["--advertise-client-urls", &client_url],
                ["--listen-peer-urls", &peer_url],
                ["--initial-advertise-peer-urls", &peer_url],
                ["--initial-cluster", &peers],
                ["--logger", "zap"],
                ["--log-level", "error"],
            ];
            let command = own.concat().into_iter().chain(options.iter().copied()).map(str::to_owned).collect();
            Member { client_port: *client, command, child: None }
        });
        let mut cluster = Self { members: members.collect(), _directory: directory };
        cluster.members.iter_mut().for_each(Member::start);
        cluster.members.iter().for_each(Member::wait);
        cluster
    }

    /// How to reach it.
    pub(crate) fn options(&self, prefix: &str) -> Options {
        let servers = self.members.iter().map(|m| format!("http://127.0.0.1:{}", m.client_port)).collect();
        Options { servers, prefix: prefix.into(), ca_file: None, identity: None, credentials: None }
    }

    /// A store on it.
    pub(crate) async fn open(&self, prefix: &str) -> Etcd {
        Etcd::connect(&self.options(prefix)).await.unwrap()
    }
}

impl Member {
    pub(crate) fn start(&mut self) {
        let child = Command::new(program()).args(&self.command).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.child = Some(child.expect("etcd can be started"));
    }

    /// Ends it at once, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Waits until it accepts connections.
    pub(crate) fn wait(&self) {
        let deadline = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(("127.0.0.1", self.client_port)).is_err() {
            assert!(Instant::now() < deadline, "etcd does not come up: {:?}", self.command);
            std::thread::yield_now();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The program that `scripts/tools` installs, else that of the system.
fn program() -> PathBuf {
    let tools = std::env::var_os("FAIRGATE_TEST_TOOLS").map(PathBuf::from);
    let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|directory| directory.join("target/tools"));
    let installed = tools.into_iter().chain(above).map(|tools| tools.join("etcd"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut candidates = installed.chain(std::env::split_paths(&path)).map(|directory| directory.join("etcd"));
    candidates.find(|path| path.is_file()).expect("etcd is installed: run scripts/tools, or see there")
}

/// Ports that nobody listened on a moment ago.
fn free_ports(count: usize) -> Vec<u16> {
    let listeners: Vec<_> = (0..count).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
    listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect()
}
