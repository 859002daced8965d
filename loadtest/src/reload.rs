//! Rewrites the `fairness.yaml` of a running fairgate again and again, and asks what became of it.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use serde::Serialize;
use tokio::{process::Command, task::JoinHandle, time::MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::{
    client::{Connection, Endpoint},
    instance::Instance,
};

/// One content in so many is faulty.
const FAULTY_EVERY: u64 = 5;
const COUNTER: &str = "fairgate_config_reloads_total";

/// What became of the contents.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Reloads {
    pub(crate) written: u64,
    /// Of these, the faulty ones.
    pub(crate) faulty: u64,
    /// As the gateway counts them.
    pub(crate) in_force: u64,
    pub(crate) refused: u64,
}

impl Reloads {
    /// What stands against success.
    pub(crate) fn failure(&self) -> Option<String> {
        let is_wrong = self.in_force == 0 || self.refused > self.faulty || self.in_force > self.written - self.faulty;
        is_wrong.then(|| format!("reloads: {self}"))
    }
}

impl fmt::Display for Reloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { written, faulty, in_force, refused } = self;
        write!(
            f,
            "fairness.yaml written {written} times, {faulty} of them faulty: {in_force} in force, {refused} refused"
        )
    }
}

/// Rewrites the file until it is stopped.
pub(crate) struct Reloader {
    stop: CancellationToken,
    task: JoinHandle<anyhow::Result<u64>>,
}

impl Reloader {
    pub(crate) fn start(instance: &Instance, per_second: u32) -> anyhow::Result<Self> {
        let (file, pid) = (instance.fairness_file(), instance.pid().context("the fairgate has ended")?);
        let stop = CancellationToken::new();
        let task = tokio::spawn(rewrite(file, pid, per_second, stop.clone()));
        Ok(Self { stop, task })
    }

    /// Stops, and reads the gateway's counters.
    pub(crate) async fn stop(self, instance: &Instance) -> anyhow::Result<Reloads> {
        self.stop.cancel();
        let written = self.task.await.context("the writer panicked")??;
        let metrics = metrics(instance.admin()).await.context("reading the metrics")?;
        let count = |outcome: &str| {
            let series = format!("{COUNTER}{{file=\"fairness\",outcome=\"{outcome}\"}} ");
            metrics.lines().find_map(|line| line.strip_prefix(&*series)?.trim().parse().ok()).unwrap_or(0)
        };
        let (in_force, refused) = (count("applied"), count("refused"));
        Ok(Reloads { written, faulty: written / FAULTY_EVERY, in_force, refused })
    }
}

/// Each content is put in its place by a rename, and told of by SIGHUP, so that none is gathered with the next.
async fn rewrite(file: PathBuf, pid: u32, per_second: u32, stop: CancellationToken) -> anyhow::Result<u64> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let new = file.with_extension("new");
    let mut written = 0;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        written += 1;
        std::fs::write(&new, content(written)).and_then(|()| std::fs::rename(&new, &file))?;
        let told = Command::new("kill").args(["-HUP", &pid.to_string()]).status().await.context("kill")?;
        if !told.success() {
            bail!("the fairgate has ended");
        }
    }
    // What was told last is read by now.
    tokio::time::sleep(Duration::from_millis(200)).await;
    Ok(written)
}

async fn metrics(admin: &str) -> anyhow::Result<String> {
    let authority = admin.strip_prefix("http://").with_context(|| format!("{admin:?} is no http URL"))?;
    let endpoint =
        Endpoint { address: authority.parse()?, authority: authority.to_owned(), tls: None, authorization: None };
    let request = Request::get("/metrics").header("host", authority).body(Full::new(Bytes::new()))?;
    let (_, body) = Connection::new(Arc::new(endpoint)).fetch(request).await?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// The n-th content; no two are alike, and no workspace weighs more than another in any.
pub(crate) fn content(n: u64) -> String {
    let shares = 10 + n % 50;
    let class = format!(
        "---\napiVersion: fairgate.dev/v1alpha1\nkind: WorkspaceClass\nmetadata: {{ name: all-{n} }}\n\
         spec: {{ match: {{ paths: [\"*\"] }}, nominalConcurrencyShares: {shares} }}\n"
    );
    match n % FAULTY_EVERY {
        // A typo, behind what would change everything.
        0 if n > 0 => format!("{}{class}", level("faulty", n, 64).replace("queueLengthLimit", "queueLengthLimits")),
        // Kubernetes' own levels; with and without a class.
        1 => class,
        2 => format!("# {n}\n{{ apiVersion: v1, kind: List, items: [] }}\n"),
        // Another level for everybody, with one queue or many; the others are gone.
        3 => level("only", shares, 1) + &class,
        _ => level("only", shares, 64) + &level("unused", n, 8),
    }
}

/// A level, and a FlowSchema that puts everybody there.
fn level(name: &str, shares: u64, queues: u32) -> String {
    format!(
        r#"---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {{ name: {name} }}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: {shares}
    lendablePercent: 50
    limitResponse: {{ type: Queue, queuing: {{ queues: {queues}, handSize: 1, queueLengthLimit: 1000 }} }}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {{ name: {name} }}
spec:
  priorityLevelConfiguration: {{ name: {name} }}
  matchingPrecedence: 500
  distinguisherMethod: {{ type: ByUser }}
  rules:
  - subjects: [{{ kind: Group, group: {{ name: "*" }} }}]
    resourceRules: [{{ verbs: ["*"], apiGroups: ["*"], resources: ["*"], clusterScope: true, namespaces: ["*"] }}]
"#
    )
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    #[test]
    fn every_fifth_content_is_faulty_and_no_two_are_alike() {
        let mut seen = BTreeSet::new();
        for n in 0..100 {
            let parsed = config::FairnessConfig::parse(&content(n), Path::new("fairness.yaml"));
            assert_eq!(parsed.is_err(), n > 0 && n % FAULTY_EVERY == 0, "{n}: {:?}", parsed.err());
            assert!(seen.insert(content(n)), "{n}");
        }
    }
}
