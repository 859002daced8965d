//! The commands that were recorded against Kubernetes v1.34 (`tests/vectors/kubectl`), run by four versions of kubectl
//! against a workspace: the same exit code and the same output. Every command counts: it does the same, or stands in
//! [`NOT_SERVED`] or [`OTHERWISE`] with the reason, or fails the test.
//!
//! What comes out is the table in `docs/clients.md`, which must be that of this run; `FAIRGATE_WRITE_DOCS=1` writes it.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

mod different;
mod output;
mod shell;

use std::{fmt::Write as _, path::Path};

use serde_json::Value;

use self::{
    different::{NOT_SERVED, OTHERWISE, not_served},
    shell::Shell,
};
use crate::common::Dev;

const VERSIONS: [&str; 4] = ["1.25", "1.29", "1.32", "1.35"];
const DOCUMENT: &str = "docs/clients.md";
const BEGIN: &str = "<!-- commands: written by the test -->\n";
const END: &str = "<!-- end of the commands -->\n";

/// How a command went in one version.
struct Cell {
    command: String,
    /// What the table says of it.
    said: &'static str,
    /// What is wrong with it.
    wrong: Option<String>,
}

fn vectors(file: &str) -> Value {
    let path = format!("{}/tests/vectors/kubectl/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// All commands of a version in their recorded order.
fn run(dev: &Dev, version: &'static str) -> Vec<Cell> {
    let workspace = format!("c{}", version.replace('.', "-"));
    dev.workspace("root", &workspace);
    let shell = Shell::new(dev, version, &format!("root:{workspace}"), &vectors("fixtures.json"));
    let recorded = vectors(&format!("kubectl-{version}.json"));
    let entries = recorded["entries"].as_array().unwrap();
    entries.iter().map(|entry| one(&shell, entry)).collect()
}

fn one(shell: &Shell, entry: &Value) -> Cell {
    let (id, command) = (entry["id"].as_str().unwrap(), entry["command"].as_str().unwrap());
    let cell = |said, wrong| Cell { command: command.replace(" >/dev/null", "").replace(" 2>&1", ""), said, wrong };
    if not_served(id).is_some() && id != "create-multi-doc" {
        return cell("-", None);
    }
    shell.before(id);
    let got = shell.run(entry);
    shell.after(id);
    if not_served(id).is_some() {
        return cell("-", None);
    }
    let only_code = OTHERWISE.iter().any(|(other, _)| *other == id);
    match output::compare(entry, &got, only_code) {
        Err(why) => cell("**no**", Some(format!("{}: {command}: {why}", shell.version))),
        Ok(()) if got.code == Some(0) || entry["exit"] == "interrupted" => cell("ok", None),
        // Kubernetes refuses it too, or this kubectl does not know it.
        Ok(()) => cell("refused", None),
    }
}

/// Commands by version, then what is not served and what comes out otherwise.
fn document(results: &[Vec<Cell>]) -> String {
    let mut text = String::from("| command | 1.25 | 1.29 | 1.32 | 1.35 |\n|---|---|---|---|---|\n");
    for (row, cell) in results[0].iter().enumerate() {
        let said: Vec<&str> = results.iter().map(|version| version[row].said).collect();
        if said.iter().any(|said| *said != "-") {
            let command = cell.command.strip_prefix("kubectl ").unwrap().replace('|', "\\|");
            writeln!(text, "| `{command}` | {} |", said.join(" | ")).unwrap();
        }
    }
    text.push_str("\nNot served yet:\n\n");
    for (what, why, ids) in NOT_SERVED {
        let of = |cell: &&Value| ids.contains(&cell["id"].as_str().unwrap());
        let entries = vectors("kubectl-1.32.json");
        let commands: Vec<String> = entries["entries"]
            .as_array()
            .unwrap()
            .iter()
            .filter(of)
            .map(|entry| format!("`{}`", entry["command"].as_str().unwrap().trim_start_matches("kubectl ")))
            .map(|command| command.replace(" >/dev/null", "").replace(" 2>&1", ""))
            .collect();
        assert_eq!(commands.len(), ids.len(), "{what}: an id is misspelt");
        writeln!(text, "- {what} ({why}): {}", commands.join(", ")).unwrap();
    }
    text.push_str("\nThe exit code is the same, and the output differs:\n\n");
    OTHERWISE.iter().for_each(|(id, why)| writeln!(text, "- `{id}`: {why}").unwrap());
    text.push('\n');
    text
}

#[test]
fn recorded_commands_of_four_versions() {
    let place = tempfile::tempdir().unwrap();
    let dev = Dev::start(&place.path().join("data"), &[]);
    let results: Vec<Vec<Cell>> = std::thread::scope(|scope| {
        let running: Vec<_> = VERSIONS.map(|version| scope.spawn(|| run(&dev, version))).into();
        running.into_iter().map(|version| version.join().unwrap()).collect()
    });
    let table = document(&results);
    println!("{table}");
    let wrong: Vec<&String> = results.iter().flatten().filter_map(|cell| cell.wrong.as_ref()).collect();
    assert!(wrong.is_empty(), "{}", wrong.iter().map(|w| w.as_str()).collect::<Vec<_>>().join("\n\n"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(DOCUMENT);
    let written = std::fs::read_to_string(&path).unwrap();
    let (head, rest) = written.split_once(BEGIN).unwrap();
    let (_, tail) = rest.split_once(END).unwrap();
    let now = format!("{head}{BEGIN}{table}{END}{tail}");
    if std::env::var_os("FAIRGATE_WRITE_DOCS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let is_same = std::fs::read_to_string(&path).unwrap() == now;
    assert!(is_same, "{DOCUMENT} tells of another run: FAIRGATE_WRITE_DOCS=1 cargo test --test e2e recorded_commands");
}
