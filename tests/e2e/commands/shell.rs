//! One version of kubectl at work in a directory with the recorded manifests.

use std::{
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{Receiver, channel},
};

use serde_json::{Value, json};

use super::output::Ended;
use crate::common::{Dev, PATIENCE, tool};

/// See the module.
pub(crate) struct Shell {
    pub(crate) version: &'static str,
    directory: PathBuf,
    tools: PathBuf,
    /// The path of the workspace.
    prefix: String,
}

impl Shell {
    /// In this workspace, with what the recorded server had before.
    pub(crate) fn new(dev: &Dev, version: &'static str, workspace: &str, fixtures: &Value) -> Self {
        let directory = dev.data_dir.join(format!("commands-{version}"));
        std::fs::create_dir_all(directory.join("kz")).unwrap();
        let config = std::fs::read_to_string(dev.data_dir.join("admin.kubeconfig")).unwrap();
        let config = config.replace("/clusters/root", &format!("/clusters/{workspace}"));
        std::fs::write(directory.join("config"), config).unwrap();
        for (file, documents) in fixtures["manifests"].as_object().unwrap().iter().filter(|(f, _)| f.contains('.')) {
            let documents: Vec<String> = documents.as_array().unwrap().iter().map(Value::to_string).collect();
            std::fs::write(directory.join(file), documents.join("\n")).unwrap();
        }
        std::fs::copy(directory.join("cmb.yaml"), directory.join("kz/cm.yaml")).unwrap();
        std::fs::write(directory.join("kz/kustomization.yaml"), "resources: [cm.yaml]\n").unwrap();
        let tools = tool(version, "kubectl").parent().map(Path::to_owned).unwrap();
        let shell = Self { version, directory, tools, prefix: format!("/clusters/{workspace}") };
        let objects = [
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}}),
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-system"}}),
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "bot", "namespace": "demo"}}),
            json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q", "namespace": "demo"},
                "spec": {"hard": {"configmaps": "500"}}}),
        ];
        let text: Vec<String> = objects.iter().map(Value::to_string).collect();
        std::fs::write(shell.directory.join("before.json"), text.join("\n")).unwrap();
        shell.ok("kubectl apply -f before.json --validate=false");
        for name in ["a", "b", "c"] {
            shell.ok(&format!("kubectl create cm {name} -n demo --from-literal=k=v"));
        }
        shell.ok("kubectl label cm a -n demo app=demo");
        shell.ok("kubectl create secret generic s -n demo --from-literal=k=v");
        shell
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        let path = format!("{}:{}", self.tools.display(), std::env::var("PATH").unwrap());
        command
            .args(["-c", line])
            .current_dir(&self.directory)
            .env("PATH", path)
            .env("HOME", &self.directory)
            .env("KUBECONFIG", self.directory.join("config"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// What has to succeed, and is none of the recorded commands.
    fn ok(&self, line: &str) {
        let output = self.command(line).output().unwrap();
        assert!(output.status.success(), "{}: {line}: {}", self.version, String::from_utf8_lossy(&output.stderr));
    }

    /// What the recorder did between its commands.
    pub(crate) fn before(&self, id: &str) {
        let delete = |name: &str| self.ok(&format!("kubectl delete cm {name} -n demo --ignore-not-found"));
        match id {
            "create-unknown-field-ignore" => delete("cmunk"),
            "apply-new" | "apply-ssa-new" => delete("cmf"),
            "apply-ssa-migrate-csa" => {
                delete("cmf");
                self.ok("kubectl apply -f cm.yaml");
            }
            "delete-finalizer-wait-timeout" => self.ok("kubectl create -f cmfin.yaml"),
            "delete-file" | "delete-selector" => self.ok("kubectl create -f cm.yaml"),
            "delete-all" => self.ok("kubectl delete cm --all -n demo"),
            _ => {}
        }
    }

    /// The recorded server kept no quotas: five ConfigMaps would not do.
    pub(crate) fn after(&self, id: &str) {
        if id == "create-quota" {
            self.ok("kubectl delete quota qnew -n demo");
        }
    }

    /// Runs a recorded command.
    pub(crate) fn run(&self, entry: &Value) -> Ended {
        // With `--raw` older kubectls leave out the path of their server.
        let prefix = if self.version == "1.35" { "" } else { &self.prefix };
        let raw = format!("--raw {prefix}/");
        let line = &entry["command"].as_str().unwrap().replace("--raw /", &raw);
        if entry["cold_cache"] == true {
            // Not there before the first command.
            let _ = std::fs::remove_dir_all(self.directory.join(".kube"));
        }
        if entry["meanwhile"].is_string() || entry["exit"] == "interrupted" {
            return self.run_beside(entry, line);
        }
        let mut command = self.command(line);
        for (name, value) in entry["env"].as_object().into_iter().flatten() {
            command.env(name, value.as_str().unwrap());
        }
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ended { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Runs a command that watches. It logs its requests: once it watches, what somebody else did meanwhile is done.
    fn run_beside(&self, entry: &Value, line: &str) -> Ended {
        let line = format!("exec {} -v=6", line.replace(" >/dev/null", ""));
        let mut child = self.command(&line).spawn().unwrap();
        let out = lines(child.stdout.take().unwrap());
        let err = lines(child.stderr.take().unwrap());
        let sign = if entry["id"] == "wait-create" { "/configmaps/late" } else { "watch=true" };
        // A kubectl that does not know the command ends before.
        let mut log = Vec::new();
        while let Ok(line) = err.recv_timeout(PATIENCE) {
            log.push(line);
            if log.last().is_some_and(|line| line.contains(sign)) {
                break;
            }
        }
        if let Some(meanwhile) = entry["meanwhile"].as_str() {
            self.ok(meanwhile);
        }
        let wanted = entry["stdout"].as_str().unwrap().lines().count();
        let shown: Vec<String> = (0..wanted).map_while(|_| out.recv_timeout(PATIENCE).ok()).collect();
        let code = if entry["exit"] == "interrupted" { stop(&mut child) } else { child.wait().unwrap().code() };
        log.extend(err.iter());
        let told = log.into_iter().filter(|line| !is_log(line)).collect::<Vec<_>>();
        Ended { code, out: shown.join("\n"), err: told.join("\n") }
    }
}

fn stop(child: &mut Child) -> Option<i32> {
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Lines of a stream as they come.
fn lines(stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        BufReader::new(stream).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
    });
    receiver
}

/// Whether a line of the standard error is of kubectl's log: `I1130 03:51:22.1 ...`.
fn is_log(line: &str) -> bool {
    line.strip_prefix(['I', 'W']).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}
