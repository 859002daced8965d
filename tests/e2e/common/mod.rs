//! What the end-to-end suites share: the real binary on ports that the kernel chooses, kubectl, an HTTP client.
#![allow(dead_code, reason = "each suite uses its part")]
#![allow(clippy::unwrap_used, reason = "what fails here is a failed test")]

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

/// How long anything may take on a slow machine before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A running `fairgate dev`; killed when dropped.
pub(crate) struct Dev {
    child: Child,
    /// Its data directory.
    pub(crate) data_dir: PathBuf,
    /// For example `https://127.0.0.1:40123`.
    pub(crate) gateway: String,
    /// For example `http://127.0.0.1:40124`.
    pub(crate) admin: String,
}

impl Dev {
    /// Starts `fairgate dev` on free ports and waits until it says where it listens.
    pub(crate) fn start(data_dir: &Path, extra: &[&str]) -> Self {
        Self::start_on(data_dir, 0, extra)
    }

    /// The same with this port for the gateway.
    pub(crate) fn start_on(data_dir: &Path, port: u16, extra: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fairgate"))
            .args(["dev", "--port", &port.to_string(), "--admin-port", "0", "--data-dir"])
            .arg(data_dir)
            .args(extra)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |key: &str| loop {
            let line = lines.next().unwrap_or_else(|| panic!("it ended before it said {key:?}")).unwrap();
            if let Some(found) = line.trim().strip_prefix(key) {
                return found.trim().to_owned();
            }
        };
        let (gateway, admin) = (address("gateway:"), address("admin:"));
        // Keeps the pipe open and empty for as long as the process writes to it.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, data_dir: data_dir.to_owned(), gateway, admin }
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it without a chance to clean up.
    pub(crate) fn kill_9(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGINT and returns the exit code.
    pub(crate) fn interrupt(mut self) -> Option<i32> {
        assert!(Command::new("kill").args(["-INT", &self.pid().to_string()]).status().unwrap().success());
        until("the process ends", || self.child.try_wait().unwrap()).code()
    }

    /// Runs kubectl as the administrator in a logical cluster (name or path).
    pub(crate) fn kubectl(&self, cluster: &str, args: &[&str]) -> Output {
        self.kubectl_with(cluster, args, "")
    }

    /// The same with text on standard input.
    pub(crate) fn kubectl_with(&self, cluster: &str, args: &[&str], input: &str) -> Output {
        let mut child = self.kubectl_command(cluster, args).stdin(Stdio::piped()).spawn().expect("kubectl is on PATH");
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), input.as_bytes()).unwrap();
        child.wait_with_output().unwrap()
    }

    /// A kubectl command with its output piped, not yet started.
    pub(crate) fn kubectl_command(&self, cluster: &str, args: &[&str]) -> Command {
        self.command_of(Path::new("kubectl"), cluster, args)
    }

    /// The same with this kubectl.
    pub(crate) fn command_of(&self, kubectl: &Path, cluster: &str, args: &[&str]) -> Command {
        let mut command = Command::new(kubectl);
        command
            .arg(format!("--kubeconfig={}", self.data_dir.join("admin.kubeconfig").display()))
            .arg(format!("--server={}/clusters/{cluster}", self.gateway))
            .arg(format!("--cache-dir={}", self.data_dir.join("kubectl-cache").display()))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs kubectl, insists on success and returns what it printed.
    pub(crate) fn kubectl_ok(&self, cluster: &str, args: &[&str]) -> String {
        said(&self.kubectl(cluster, args), args)
    }

    /// Creates a workspace below `parent` and waits until it is ready.
    pub(crate) fn workspace(&self, parent: &str, name: &str) {
        let manifest = format!("apiVersion: tenancy.kcp.io/v1alpha1\nkind: Workspace\nmetadata: {{ name: {name} }}\n");
        let args = ["create", "-f", "-"];
        said(&self.kubectl_with(parent, &args, &manifest), &args);
        self.kubectl_ok(parent, &["wait", "--for=jsonpath={.status.phase}=Ready", &format!("workspace/{name}")]);
    }

    /// An HTTP client with the administrator's certificate.
    pub(crate) fn client(&self) -> reqwest::Client {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let read = |name: &str| std::fs::read(self.data_dir.join(name)).unwrap();
        let identity = [read("admin.crt"), read("admin.key")].concat();
        reqwest::Client::builder()
            .tls_certs_only([reqwest::Certificate::from_pem(&read("ca.crt")).unwrap()])
            .identity(reqwest::Identity::from_pem(&identity).unwrap())
            .build()
            .unwrap()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The `kubectl` or `helm` of a Kubernetes version such as `1.25`, which `scripts/tools` installs.
pub(crate) fn tool(version: &str, name: &str) -> PathBuf {
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools");
    let tools = std::env::var_os("FAIRGATE_TEST_TOOLS").map_or(installed, PathBuf::from);
    let path = tools.join(version).join(name);
    assert!(path.is_file(), "{} is missing: run scripts/tools, or see there", path.display());
    path
}

/// Standard output of a command that must have succeeded.
pub(crate) fn said(output: &Output, what: &[&str]) -> String {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what:?} failed with {:?}\n{out}\n{err}", output.status.code());
    out.into_owned()
}

/// Polls until there is an answer.
pub(crate) fn until<T>(what: &str, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = poll() {
            return found;
        }
        assert!(Instant::now() < deadline, "gave up waiting: {what}");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}
