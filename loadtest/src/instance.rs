//! A fairgate that the load test starts for itself, in a directory that goes with it.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context, bail};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

/// Longest time from start to serving.
const START_MAX: Duration = Duration::from_secs(30);
/// The same with all the data of an earlier run.
const RESTART_MAX: Duration = Duration::from_secs(300);
/// Lines of its log that are shown when it does not start.
const LOG_LINES: usize = 20;

const GATEWAY: &str = "apiVersion: fairgate.dev/v1alpha1\nkind: GatewayConfiguration\n";

/// How a fairgate is started.
#[derive(Clone, Copy)]
pub(crate) struct Setup<'a> {
    /// Of its API server.
    pub(crate) seats: u32,
    /// Whether it is fair.
    pub(crate) fairness: bool,
    /// Content of its fairness.yaml, see [`Instance::fairness_file`].
    pub(crate) fairness_file: Option<&'a str>,
    /// `limits` of its gateway.yaml.
    pub(crate) limits: Option<&'a str>,
}

/// Killed, and its directory removed, when it is dropped.
pub(crate) struct Instance {
    command: Command,
    child: Child,
    directory: TempDir,
    /// The address of the operators; empty until it serves.
    admin: String,
}

impl Instance {
    /// Starts a fairgate and waits until it serves.
    ///
    /// # Errors
    /// It cannot be run, ended, or did not say where it listens in time; with the end of its log.
    pub(crate) async fn start(binary: &Path, setup: Setup<'_>) -> anyhow::Result<Self> {
        let directory = tempfile::Builder::new().prefix("fairgate-loadtest-").tempdir()?;
        let log = std::fs::File::create(directory.path().join("log"))?;
        let mut command = Command::new(binary);
        command.arg("dev").arg("--data-dir").arg(directory.path().join("data"));
        command.args(["--port", "0", "--admin-port", "0", "--seats", &setup.seats.to_string()]);
        let mut config = String::new();
        if let Some(content) = setup.fairness_file {
            std::fs::write(directory.path().join("fairness.yaml"), content)?;
            config.push_str("fairness: { file: fairness.yaml }\n");
        }
        if let Some(limits) = setup.limits {
            config.push_str(&format!("limits: {limits}\n"));
        }
        if !config.is_empty() {
            let gateway = directory.path().join("gateway.yaml");
            std::fs::write(&gateway, format!("{GATEWAY}{config}"))?;
            command.arg("--config").arg(gateway);
        }
        if !setup.fairness {
            command.arg("--no-fairness");
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).kill_on_drop(true);
        let child = command.spawn().with_context(|| format!("cannot run {}", binary.display()))?;
        let mut instance = Self { command, child, directory, admin: String::new() };
        instance.started(START_MAX).await?;
        Ok(instance)
    }

    /// Kills it and starts it again with the same data.
    ///
    /// # Errors
    /// As those of [`Instance::start`].
    pub(crate) async fn restart(&mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot end the fairgate that was started")?;
        self.child = self.command.spawn().context("cannot run it again")?;
        self.started(RESTART_MAX).await
    }

    async fn started(&mut self, longest: Duration) -> anyhow::Result<()> {
        match timeout(longest, self.serving()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(error.context(self.log_tail())),
            Err(_) => bail!("it does not serve after {longest:?}\n{}", self.log_tail()),
        }
    }

    /// The administrator's kubeconfig.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("data/admin.kubeconfig")
    }

    /// Where its fairness.yaml is.
    pub(crate) fn fairness_file(&self) -> PathBuf {
        self.directory.path().join("fairness.yaml")
    }

    /// Process id; `None` when it has ended.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// The URL of the operators' address.
    pub(crate) fn admin(&self) -> &str {
        &self.admin
    }

    /// Resident memory in bytes, where the system tells.
    pub(crate) fn memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()?)).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }

    /// Processor time it has used, in user mode and in the kernel, where the system tells.
    pub(crate) fn cpu(&self) -> Option<Duration> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()?)).ok()?;
        // The name of the command, in parentheses, may hold anything; user and system time are fields 14 and 15.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let ticks = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
        // Linux counts in hundredths of a second towards programs, whatever it does inside (man 5 proc, USER_HZ).
        Some(Duration::from_millis(ticks * 10))
    }

    /// Ends it. Its data goes with it, so there is nothing to wait for.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        self.child.kill().await.context("cannot end the fairgate that was started")
    }

    /// Reads standard output until both addresses were printed, and goes on reading so that it never blocks.
    async fn serving(&mut self) -> anyhow::Result<()> {
        let stdout = self.child.stdout.take().context("no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let (mut gateway, mut admin) = (false, false);
        while !(gateway && admin) {
            let Some(line) = lines.next_line().await? else {
                let status = self.child.wait().await?;
                bail!("it ended with {status} before it served");
            };
            gateway |= line.starts_with("gateway:");
            if let Some(address) = line.strip_prefix("admin:") {
                (admin, self.admin) = (true, address.trim().to_owned());
            }
        }
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        Ok(())
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines.get(lines.len().saturating_sub(LOG_LINES)..).unwrap_or_default();
        format!("the end of its log:\n  {}", tail.join("\n  "))
    }
}

/// The fairgate to start: the one named, else the one built beside this program, else the one on PATH.
pub(crate) fn find(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    if let Some(named) = named {
        return Ok(named.to_owned());
    }
    let beside = std::env::current_exe()?.with_file_name("fairgate");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::iter::once(beside).chain(std::env::split_paths(&path).map(|dir| dir.join("fairgate")));
    places.find(|place| place.is_file()).context(
        "there is no fairgate beside this program or on PATH: build it with `cargo build --release`, \
         or name one with --fairgate",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const SETUP: Setup<'_> = Setup { seats: 8, fairness: true, fairness_file: None, limits: None };

    /// A program that stands in for fairgate.
    fn script(directory: &TempDir, text: &str) -> PathBuf {
        let path = directory.path().join("fairgate");
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    #[tokio::test]
    async fn it_waits_for_both_addresses_and_leaves_nothing() {
        let place = tempfile::tempdir().unwrap();
        let binary = script(
            &place,
            "[ \"$*\" = \"dev --data-dir $3 --port 0 --admin-port 0 --seats 8 --no-fairness\" ] || exit 3\n\
             echo 'gateway: https://127.0.0.1:1'; echo 'admin: http://127.0.0.1:2'; exec sleep 1000",
        );
        let instance = Instance::start(&binary, Setup { fairness: false, ..SETUP }).await.unwrap();
        let directory = instance.directory.path().to_owned();
        assert!(instance.memory().is_some_and(|bytes| bytes > 0) && directory.exists());
        assert!(instance.cpu().is_some_and(|time| time < Duration::from_secs(60)));
        instance.stop().await.unwrap();
        assert!(!directory.exists());
    }

    #[tokio::test]
    async fn when_it_does_not_start_its_log_is_shown() {
        let place = tempfile::tempdir().unwrap();
        let binary = script(&place, "echo 'gateway: x'; echo 'the disk is full' >&2; exit 1");
        let error = format!("{:#}", Instance::start(&binary, SETUP).await.err().unwrap());
        assert!(error.contains("the disk is full") && error.contains("exit status: 1"), "{error}");
        let missing = Instance::start(&place.path().join("none"), SETUP).await.err().unwrap();
        assert!(format!("{missing:#}").contains("cannot run"));
    }
}
