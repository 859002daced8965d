//! `fairgate serve` as its own process, with a directory for its files and a certificate authority.

use std::{
    fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use serde_json::Value;
use tokio::time::Instant;

/// How long anything may take on a slow machine before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A certificate authority.
pub(crate) struct Ca {
    pub(crate) pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// A certificate for loopback with this common name, and its key.
    pub(crate) fn issue(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".into(), "localhost".into()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// The files of a gateway, laid out as a mounted volume: links to files behind a link that is swapped.
pub(crate) struct Volume {
    directory: tempfile::TempDir,
    version: u32,
}

impl Volume {
    pub(crate) fn new(files: &[(&str, &str)]) -> Self {
        let mut volume = Self { directory: tempfile::tempdir().unwrap(), version: 0 };
        volume.swap(files);
        for (name, _) in files {
            symlink(format!("..data/{name}"), volume.path(name)).unwrap();
        }
        volume
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts other contents in place of all files at once.
    pub(crate) fn swap(&mut self, files: &[(&str, &str)]) {
        let old = fs::read_link(self.path("..data")).ok();
        self.version += 1;
        let data = format!("..{}", self.version);
        fs::create_dir(self.path(&data)).unwrap();
        for (name, text) in files {
            fs::write(self.path(&data).join(name), text).unwrap();
        }
        symlink(&data, self.path("..tmp")).unwrap();
        fs::rename(self.path("..tmp"), self.path("..data")).unwrap();
        if let Some(old) = old {
            fs::remove_dir_all(self.path(old.to_str().unwrap())).unwrap();
        }
    }

    /// Writes one file in place.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Renames another file over the place of one: it is no link any more.
    pub(crate) fn rename(&self, name: &str, text: &str) {
        fs::write(self.path("..new"), text).unwrap();
        fs::rename(self.path("..new"), self.path(name)).unwrap();
    }
}

/// A running `fairgate serve`; killed when dropped.
pub(crate) struct Serve {
    child: Child,
    /// For example `https://127.0.0.1:40123`.
    pub(crate) url: String,
    /// For example `http://127.0.0.1:40124`.
    pub(crate) admin: String,
}

impl Serve {
    pub(crate) fn start(config: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fairgate"))
            .args(["serve", "--config"])
            .arg(config)
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut address = |key: &str| {
            let line = lines.next().unwrap_or_else(|| panic!("it ended before it said {key:?}")).unwrap();
            line.strip_prefix(key).unwrap_or_else(|| panic!("want {key:?}: {line}")).trim().to_owned()
        };
        let (url, admin) = (address("gateway:"), address("admin:"));
        Self { child, url, admin }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.url.split("//").nth(1).unwrap().parse().unwrap()
    }

    /// `TERM`, `INT` or `HUP`.
    pub(crate) fn signal(&self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([&format!("-{name}"), &pid]).status().unwrap().success());
    }

    /// Waits for its end.
    pub(crate) async fn ended(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Code and text of a page of the admin address; `None` if nobody answers.
    pub(crate) async fn admin(&self, path: &str) -> Option<(u16, String)> {
        let answer = reqwest::get(format!("{}{path}", self.admin)).await.ok()?;
        Some((answer.status().as_u16(), answer.text().await.ok()?))
    }

    /// Polls the admin address until it says what is wanted.
    pub(crate) async fn becomes(&self, path: &str, what: &str, wanted: impl Fn(u16, &str) -> bool) -> String {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (code, text) = self.admin(path).await.unwrap_or_default();
            if wanted(code, &text) {
                return text;
            }
            assert!(Instant::now() < deadline, "not in time: {what}:\n{code} {text}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// What `/configz` says of gateway.yaml.
    pub(crate) async fn config(&self) -> Value {
        let (_, text) = self.admin("/configz").await.unwrap();
        serde_json::from_str::<Value>(&text).unwrap()["gateway"].clone()
    }

    /// Waits for a generation of gateway.yaml.
    pub(crate) async fn generation(&self, number: u64) -> Value {
        self.becomes("/configz", &format!("generation {number}"), |_, text| {
            serde_json::from_str::<Value>(text).is_ok_and(|v| v["gateway"]["generation"].as_u64() >= Some(number))
        })
        .await;
        self.config().await
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
