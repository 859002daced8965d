//! `/livez`, `/readyz` and `/healthz`, as kube-apiserver answers them.
//!
//! Readiness is about this gateway, not about what stands behind it: every replica sees the same dead shard, and if all of
//! them went out of rotation for it, the other shards' tenants would be out too. So a gateway is ready when it knows the
//! workspaces of one shard. At the start it first gives every shard a chance, so that a roll-out does not refuse what the
//! replicas before it would have served; one that has failed once, or does not answer for [`START_WAIT`], is not waited for.

use std::{fmt::Write, sync::atomic::Ordering::Relaxed, time::Duration};

use apiserver_api::{Reason, Status};
use fairness::Clock;
use http::{Method, Response, StatusCode};

use crate::{
    Body, Health,
    core::Core,
    refusal::{answer, text},
    shards::Entry,
};

/// How long readiness waits at the start for shards that say neither yes nor no.
const START_WAIT: Duration = Duration::from_secs(10);

/// One line of a verbose answer.
struct Check {
    name: String,
    outcome: Outcome,
}

enum Outcome {
    Well,
    /// Something is wrong that is no reason to send requests elsewhere.
    Impaired(String),
    Failed(String),
}

/// Answers one of the probes, if `path` is one. `open` answers are for everybody: without reasons.
pub(crate) fn probe(core: &Core, method: &Method, path: &str, query: &str, open: bool) -> Option<Response<Body>> {
    let first = path.strip_prefix('/')?.split('/').next()?;
    if !matches!(first, "livez" | "readyz" | "healthz") {
        return None;
    }
    if !matches!(*method, Method::GET | Method::HEAD) {
        return Some(answer(&Status::new(Reason::MethodNotAllowed, "probes answer GET and HEAD")));
    }
    let mut checks = vec![process(core)];
    if first == "readyz" {
        checks.extend(readiness(core));
    }
    let is_dead = core.health() == Health::Dead;
    let has_failed = checks.iter().any(|check| matches!(check.outcome, Outcome::Failed(_)));
    let is_verbose = query.split('&').any(|option| option.split('=').next() == Some("verbose"));
    let code = match has_failed {
        false => StatusCode::OK,
        true if is_dead => StatusCode::INTERNAL_SERVER_ERROR,
        true => StatusCode::SERVICE_UNAVAILABLE,
    };
    if !has_failed && !is_verbose {
        return Some(text(code, "ok"));
    }
    Some(text(code, written(first, &checks, has_failed, open)))
}

/// Whether a load balancer should send requests here.
pub(crate) fn is_ready(core: &Core) -> bool {
    core.health() == Health::Well && readiness(core).iter().all(|check| !matches!(check.outcome, Outcome::Failed(_)))
}

fn written(probe: &str, checks: &[Check], has_failed: bool, open: bool) -> String {
    let mut out = String::new();
    for Check { name, outcome } in checks {
        let (mark, word, why) = match outcome {
            Outcome::Well => ("[+]", "ok", ""),
            Outcome::Impaired(why) => ("[!]", "impaired: ", why.as_str()),
            Outcome::Failed(why) => ("[-]", "failed: ", why.as_str()),
        };
        let why = if open && !why.is_empty() { "reason withheld" } else { why };
        // Writing to a string cannot fail.
        let _ = writeln!(out, "{mark}{name} {word}{why}");
    }
    let _ = writeln!(out, "{probe} check {}", if has_failed { "failed" } else { "passed" });
    out
}

fn process(core: &Core) -> Check {
    let outcome = match core.health() {
        Health::Well | Health::Unready => Outcome::Well,
        Health::Dead => Outcome::Failed("only a restart can mend it: see the log".into()),
    };
    Check { name: "process".into(), outcome }
}

fn readiness(core: &Core) -> Vec<Check> {
    let shutdown = match core.leaving.load(Relaxed) {
        false => Outcome::Well,
        true => Outcome::Failed("this gateway is shutting down".into()),
    };
    let mut checks = vec![
        Check { name: "shutdown".into(), outcome: shutdown },
        Check { name: "storage".into(), outcome: storage(core) },
        Check { name: "index".into(), outcome: index(core) },
        Check { name: "configuration".into(), outcome: configuration(core) },
    ];
    checks.extend(core.shards.iter().map(|(number, entry)| Check {
        name: format!("shard/{}", entry.shard.name),
        outcome: shard(core, number, entry),
    }));
    checks
}

/// What a shard in this process keeps its objects in. Where it has gone, nothing that is sent here is answered.
fn storage(core: &Core) -> Outcome {
    match core.health() {
        Health::Well | Health::Dead => Outcome::Well,
        Health::Unready => Outcome::Failed("the store of the bundled shard cannot be reached: see the log".into()),
    }
}

fn index(core: &Core) -> Outcome {
    let unheard = || core.shards.iter().filter(|(number, _)| !core.index.is_synced(*number));
    if core.was_ready.load(Relaxed) {
        return Outcome::Well;
    }
    let names: Vec<_> = unheard().map(|(_, entry)| &*entry.shard.name).collect();
    if !core.index.is_ready() {
        return Outcome::Failed(format!("the workspaces of no shard are known; waiting for {}", names.join(", ")));
    }
    let is_awaited = unheard().any(|(_, entry)| entry.reachability.is_well());
    if is_awaited && core.clock.now_ns() < START_WAIT.as_nanos() as u64 {
        return Outcome::Failed(format!("waiting for the workspaces of {}", names.join(", ")));
    }
    core.was_ready.store(true, Relaxed);
    Outcome::Well
}

fn configuration(core: &Core) -> Outcome {
    match core.refused_files() {
        files if files.is_empty() => Outcome::Well,
        files => Outcome::Impaired(format!("the latest content of {} is refused: see /configz", files.join(", "))),
    }
}

fn shard(core: &Core, number: usize, entry: &Entry) -> Outcome {
    if let Some(why) = entry.reachability.failure() {
        return Outcome::Impaired(why);
    }
    if entry.shard.is_open_circuit(usize::MAX, || core.clock.now_ns()) {
        return Outcome::Impaired("it does not accept connections".into());
    }
    match core.index.is_synced(number) {
        true => Outcome::Well,
        false => Outcome::Impaired("its workspaces are not known yet".into()),
    }
}
