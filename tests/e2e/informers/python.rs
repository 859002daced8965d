//! The Python client in a process of its own.

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{Receiver, channel},
};

use serde_json::Value;

use super::NAMESPACE;
use crate::common::{PATIENCE, tool};

/// A running `informer.py`.
pub(super) struct Python {
    child: Child,
    input: ChildStdin,
    lines: Receiver<Value>,
}

impl Python {
    /// `mode` is `watch` or `informer`.
    pub(super) fn start(mode: &str, kubeconfig: &Path) -> Self {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/informers/informer.py");
        let mut child = Command::new(tool("python", "bin/python"))
            .args([script, mode])
            .arg(kubeconfig)
            .arg(NAMESPACE)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            let lines = out.lines().map_while(Result::ok);
            lines.map(|line| serde_json::from_str(&line).unwrap()).try_for_each(|value| sender.send(value))
        });
        Self { input: child.stdin.take().unwrap(), child, lines }
    }

    /// The next thing that it says.
    pub(super) fn next(&self) -> Value {
        self.lines.recv_timeout(PATIENCE).expect("the Python client says something: run scripts/tools, or see there")
    }

    /// What it has said and nobody has read.
    pub(super) fn said(&self) -> Vec<Value> {
        self.lines.try_iter().collect()
    }

    /// Asks for the names in its cache.
    pub(super) fn ask(&mut self) {
        self.input.write_all(b"?\n").unwrap();
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
