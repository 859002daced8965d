//! `fairgate simulate` from the outside: table, JSON, exit codes, and what it says of wrong files.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::{
    path::Path,
    process::{Command, Output},
};

use serde_json::Value;

const WORKLOAD: &str = "name: two
seats: 4
end_s: 20
warmup_s: 2
window_s: 6
seed: 3
backlogged: [a, b]
workspaces:
- {name: a, weight: 1}
- {name: b, weight: 3}
sources:
- {workspace: a, clients: 10, service_s: {dist: exp, mean: 0.05}}
- {workspace: b, clients: 10, service_s: {dist: exp, mean: 0.05}}
";

const FAIRNESS: &str = "apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: batch}
spec:
  matchingPrecedence: 500
  priorityLevelConfiguration: {name: batch}
  distinguisherMethod: {type: ByUser}
  rules:
  - subjects: [{kind: Group, group: {name: batch}}]
    resourceRules: [{verbs: [list], apiGroups: [''], resources: [pods], namespaces: ['*'], clusterScope: true}]
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: batch}
spec:
  type: Limited
  limited:
    nominalConcurrencyShares: 10
    limitResponse: {type: Queue, queuing: {queues: 8, handSize: 1, queueLengthLimit: 5}}
---
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: {name: gold}
spec: {match: {paths: ['root:gold']}, nominalConcurrencyShares: 90}
";

const CLASSIFIED: &str = "seats: 4
end_s: 20
workspaces: [{name: 'root:gold'}, {name: plain}]
sources:
- workspace: root:gold
  clients: 40
  service_s: {dist: exp, mean: 0.05}
  request: {user: jobs, groups: [batch], resource: pods, verb: list}
- {workspace: plain, clients: 4, service_s: {dist: exp, mean: 0.05}, request: {user: alice, resource: pods}}
";

fn simulate(directory: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fairgate")).current_dir(directory).arg("simulate").args(args).output().unwrap()
}

fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn stdout(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_table_and_the_json_say_the_same() {
    let directory = directory(&[("w.yaml", WORKLOAD)]);
    let at = directory.path();
    let table = stdout(&simulate(at, &["w.yaml", "--json", "out.json"]));
    let json: Value = serde_json::from_slice(&std::fs::read(at.join("out.json")).unwrap()).unwrap();
    assert_eq!((&json["workload"], &json["mode"], &json["seed"]), (&"two".into(), &"fairgate".into(), &3.into()));
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines[0], "workload two: 4 seats, 20 s of which 2 s warm-up, mode fairgate, seed 3");
    assert!(lines[1].starts_with("use of the shard "), "{table}");
    for (name, seats) in [("a", 1.0), ("b", 3.0)] {
        let row: Vec<&str> =
            lines.iter().find(|l| l.starts_with(&format!("{name} "))).unwrap().split_whitespace().collect();
        let figures = &json["report"]["groups"][name];
        assert_eq!(row[1], format!("{:.3}", figures["seats"].as_f64().unwrap()));
        assert_eq!(row[5], figures["arrived"].to_string());
        assert!((figures["seats"].as_f64().unwrap() / seats - 1.0).abs() < 0.1, "{figures}");
        assert_eq!(figures["rejected"]["time-out"], 0);
    }
    // Equal runs are equal; another seed is another run.
    let whole = stdout(&simulate(at, &["w.yaml", "--json", "-"]));
    assert_eq!(serde_json::from_str::<Value>(&whole).unwrap(), json);
    let other = stdout(&simulate(at, &["w.yaml", "--json", "-", "--seed", "4"]));
    let other: Value = serde_json::from_str(&other).unwrap();
    assert_eq!(other["seed"], 4);
    assert_ne!(other["report"]["decisions"], json["report"]["decisions"]);
    let apf = stdout(&simulate(at, &["w.yaml", "--mode", "apf"]));
    assert!(apf.lines().next().unwrap().ends_with("mode apf, seed 3"), "{apf}");
}

#[test]
fn a_fairness_file_gives_levels_flows_and_quotas_in_both_modes() {
    let directory = directory(&[("w.yaml", CLASSIFIED), ("f.yaml", FAIRNESS)]);
    for mode in ["fairgate", "apf"] {
        let out = stdout(&simulate(directory.path(), &["w.yaml", "--config", "f.yaml", "--mode", mode, "--json", "-"]));
        let report = &serde_json::from_str::<Value>(&out).unwrap()["report"];
        let batch = &report["levels"]["root:gold/batch"];
        assert!(batch["started"].as_u64().unwrap() > 0, "{mode}: {batch}");
        // One flow, one queue of five: most of forty clients are refused.
        assert!(batch["rejected"]["queue-full"].as_u64().unwrap() > 0, "{mode}: {batch}");
        assert_eq!(report["levels"]["plain/batch"]["arrived"], 0);
        // What no FlowSchema of the file wants is for catch-all, where nobody waits.
        let rest = &report["levels"]["plain/catch-all"];
        let count = |of: &Value| of.as_u64().unwrap();
        assert!(count(&rest["arrived"]) > 0, "{mode}: {rest}");
        assert_eq!(count(&rest["arrived"]), count(&rest["started"]) + count(&rest["rejected"]["concurrency-limit"]));
    }
}

#[test]
fn wrong_files_are_refused_with_their_place() {
    let wrong = WORKLOAD.replace("seats: 4", "seats: 0").replace("workspace: b", "workspace: c");
    let class = FAIRNESS.replace("nominalConcurrencyShares: 90", "nominalConcurrencyShare: 90");
    let directory = directory(&[("w.yaml", &wrong), ("ok.yaml", CLASSIFIED), ("f.yaml", &class), ("n.yaml", "a: [")]);
    let cases: [(&[&str], &[&str]); 5] = [
        (&["w.yaml"], &["w.yaml:2:8: seats: is 0 or missing", "w.yaml:13:15: sources[1].workspace: is \"c\""]),
        (&["ok.yaml", "--config", "f.yaml"], &["f.yaml:24:", "nominalConcurrencyShare"]),
        (&["ok.yaml"], &["ok.yaml:3:14: workspaces[0]: has neither or both of weight and seats"]),
        (&["n.yaml"], &["n.yaml:"]),
        (&["none.yaml"], &["none.yaml: cannot be read"]),
    ];
    for (args, wanted) in cases {
        let output = simulate(directory.path(), args);
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), output.stdout.len()), (Some(64), 0), "{args:?}: {text}");
        for want in wanted {
            assert!(text.contains(want), "{args:?}: {want:?} is not in\n{text}");
        }
    }
    let output = simulate(directory.path(), &["ok.yaml", "--mode", "other"]);
    assert_eq!(output.status.code(), Some(64));
}
