//! What kubectl 1.25, 1.29, 1.32 and 1.35 and helm 3 and 4 asked of Kubernetes v1.34, request by request in the recorded
//! order (`tests/vectors/kubectl`): the same code, media type and warnings come back. Every request counts: it is equal,
//! or stands in [`DIFFERENT`] with the reason, or fails the test.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod replay;
mod support;

use std::collections::BTreeMap;

use replay::{
    different::DIFFERENT,
    injected::Injector,
    session::{Answer, Session},
};
use serde_json::Value;

/// How the requests of one file came out.
#[derive(Default)]
struct Tally {
    equal: usize,
    /// By the name in [`DIFFERENT`].
    different: BTreeMap<&'static str, usize>,
    /// Answered by the recording's injector, not by a server.
    injected: usize,
    wrong: Vec<String>,
}

impl Tally {
    fn print(&self, file: &str) {
        let different: usize = self.different.values().sum();
        let (equal, injected, wrong) = (self.equal, self.injected, self.wrong.len());
        println!(
            "{file}: {} requests: {equal} equal, {different} different on purpose, {injected} injected, {wrong} wrong",
            equal + different + injected + wrong
        );
        self.different.iter().for_each(|(name, count)| println!("    {count:4} {name}"));
    }
}

fn read(file: &str) -> Value {
    let path = format!("{}/../../tests/vectors/kubectl/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// Replays one file against one server.
async fn replay(file: &str) -> Tally {
    let (recorded, mut tally) = (read(file), Tally::default());
    let mut session = Session::new(read("fixtures.json")).await;
    for entry in recorded["entries"].as_array().unwrap() {
        let mut injector = Injector::new(&entry["injected"]);
        session.begin(file, entry).await;
        for request in entry["requests"].as_array().unwrap() {
            if injector.answers(request) {
                tally.injected += 1;
                continue;
            }
            let differs = DIFFERENT.iter().find(|(_, applies, _)| applies(request));
            if let Some((name, _, _)) = differs {
                *tally.different.entry(name).or_default() += 1;
                continue;
            }
            if file == "faults.json" {
                // Each of its entries ran on a server on which the others had left other things.
                session.restore(request).await;
            }
            let (want, got) = (Answer::recorded(request), session.send(request).await);
            if got == want {
                tally.equal += 1;
            } else {
                let (method, path) = (&request["method"], &request["path"]);
                tally.wrong.push(format!(
                    "{file} {}: {method} {path}\n  got  {got:?}\n  want {want:?}\n  {}",
                    entry["id"],
                    session.last_body()
                ));
            }
        }
        session.end(entry).await;
    }
    tally.print(file);
    tally
}

const FILES: [&str; 7] = [
    "kubectl-1.25.json",
    "kubectl-1.29.json",
    "kubectl-1.32.json",
    "kubectl-1.35.json",
    "helm-3.11.json",
    "helm-4.1.json",
    "faults.json",
];

#[tokio::test]
async fn recorded_sessions() {
    let mut all = Tally::default();
    for file in FILES {
        let tally = replay(file).await;
        all.equal += tally.equal;
        all.injected += tally.injected;
        all.wrong.extend(tally.wrong);
        tally.different.into_iter().for_each(|(name, count)| *all.different.entry(name).or_default() += count);
    }
    all.print("all");
    assert!(all.wrong.is_empty(), "{}", all.wrong.join("\n"));
    let unused: Vec<_> = DIFFERENT.iter().map(|(name, ..)| name).filter(|n| !all.different.contains_key(*n)).collect();
    assert!(unused.is_empty(), "listed as different, but nothing is: {unused:?}");
}

/// Which documents ten generations of kubectl ask for, and how.
#[tokio::test]
async fn generations_of_kubectl() {
    let mut session = Session::new(read("fixtures.json")).await;
    let mut asked = 0;
    for (version, generation) in read("generations.json").as_object().unwrap() {
        for what in ["discovery", "openapi"] {
            for pair in generation[what].as_array().unwrap() {
                let (path, accept) = (pair[0].as_str().unwrap(), pair[1].as_str().unwrap());
                if path.contains("crd.dev") {
                    continue; // Custom resources are not served yet.
                }
                let answer = session.get(path, accept).await;
                assert_eq!(answer.code, 200, "{version} {path} {accept}");
                let wanted = accept.split([';', ',']).next().unwrap().replace('@', ".");
                assert!(answer.content_type.unwrap().starts_with(&wanted), "{version} {path} {accept}");
                asked += 1;
            }
        }
    }
    assert!(asked > 30, "{asked}");
}
