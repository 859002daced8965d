//! The README's tour with the real kubectl against the real binary.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::{
    io::{BufRead, BufReader},
    process::Stdio,
};

use crate::common::{Dev, said, until};

/// One running control plane with the workspaces `team-a` and `team-b`.
fn two_teams() -> (tempfile::TempDir, Dev) {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(directory.path(), &[]);
    dev.workspace("root", "team-a");
    dev.workspace("root", "team-b");
    (directory, dev)
}

#[test]
fn a_tour_through_two_workspaces() {
    let (_directory, dev) = two_teams();
    for team in ["root:team-a", "root:team-b"] {
        dev.kubectl_ok(team, &["create", "namespace", "shop"]);
        let literal = format!("--from-literal=owner={team}");
        dev.kubectl_ok(team, &["create", "configmap", "settings", "-n", "shop", &literal]);
        dev.kubectl_ok(team, &["create", "secret", "generic", "key", "-n", "shop", "--from-literal=k=v"]);
        dev.kubectl_ok(team, &["create", "serviceaccount", "robot", "-n", "shop"]);
    }
    let wide = dev.kubectl_ok("root:team-a", &["get", "configmaps,secrets,sa", "-A", "-o", "wide"]);
    for expected in ["configmap/settings", "secret/key", "serviceaccount/robot", "Opaque"] {
        assert!(wide.contains(expected), "{expected} is missing in\n{wide}");
    }
    // The same names in both workspaces do not meet.
    for team in ["root:team-a", "root:team-b"] {
        let yaml = dev.kubectl_ok(team, &["get", "configmap", "settings", "-n", "shop", "-o", "yaml"]);
        assert!(yaml.contains(&format!("owner: {team}")), "{yaml}");
        assert!(yaml.contains("kcp.io/cluster:"), "{yaml}");
    }
    dev.kubectl_ok("root:team-a", &["label", "configmap", "settings", "-n", "shop", "tier=gold"]);
    assert!(dev.kubectl_ok("root:team-a", &["get", "cm", "-n", "shop", "-l", "tier=gold"]).contains("settings"));
    assert!(!dev.kubectl_ok("root:team-b", &["get", "cm", "-n", "shop", "-l", "tier=gold"]).contains("settings"));
    for (kind, patch) in [
        ("strategic", r#"{"data":{"a":"1"}}"#),
        ("merge", r#"{"data":{"b":"2"}}"#),
        ("json", r#"[{"op":"add","path":"/data/c","value":"3"}]"#),
    ] {
        dev.kubectl_ok("root:team-a", &["patch", "cm", "settings", "-n", "shop", "--type", kind, "-p", patch]);
    }
    let data = dev.kubectl_ok("root:team-a", &["get", "cm", "settings", "-n", "shop", "-o", "jsonpath={.data}"]);
    assert_eq!(data, r#"{"a":"1","b":"2","c":"3","owner":"root:team-a"}"#);
    dev.kubectl_ok("root:team-a", &["delete", "configmap", "settings", "-n", "shop"]);
    let gone = dev.kubectl("root:team-a", &["get", "configmap", "settings", "-n", "shop"]);
    assert!(String::from_utf8_lossy(&gone.stderr).contains(r#"configmaps "settings" not found"#));
    dev.kubectl_ok("root:team-b", &["get", "configmap", "settings", "-n", "shop"]);
    // A namespace takes its content along.
    dev.kubectl_ok("root:team-a", &["delete", "namespace", "shop", "--timeout=60s"]);
    assert!(!dev.kubectl_ok("root:team-a", &["get", "secrets", "-A"]).contains("shop"));
    assert_eq!(dev.interrupt(), Some(0));
}

#[test]
fn the_wildcard_lists_both_with_their_annotation() {
    let (_directory, dev) = two_teams();
    let mut names = Vec::new();
    for team in ["root:team-a", "root:team-b"] {
        dev.kubectl_ok(team, &["create", "configmap", "same", "--from-literal=a=b"]);
        names.push(
            dev.kubectl_ok(team, &["get", "cm", "same", "-o", r"jsonpath={.metadata.annotations.kcp\.io/cluster}"]),
        );
    }
    let all: serde_json::Value =
        serde_json::from_str(&dev.kubectl_ok("root", &["get", "--raw", "/clusters/*/api/v1/configmaps"])).unwrap();
    let found: Vec<_> = all["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|item| item["metadata"]["name"] == "same")
        .map(|item| item["metadata"]["annotations"]["kcp.io/cluster"].as_str().unwrap().to_owned())
        .collect();
    names.sort();
    assert_eq!(found, names);
    assert_ne!(names[0], names[1]);
}

#[test]
fn a_watch_shows_what_another_client_does() {
    let (_directory, dev) = two_teams();
    let mut watch = dev
        .kubectl_command("root:team-a", &["get", "configmaps", "--watch", "--output-watch-events", "--no-headers"])
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    dev.kubectl_ok("root:team-b", &["create", "configmap", "elsewhere"]);
    dev.kubectl_ok("root:team-a", &["create", "configmap", "here"]);
    dev.kubectl_ok("root:team-a", &["delete", "configmap", "here"]);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        let line = lines.next().unwrap().unwrap();
        assert!(!line.contains("elsewhere"), "{line}");
        if line.contains("here") {
            seen.push(line.split_whitespace().next().unwrap().to_owned());
        }
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert_eq!(seen, ["ADDED", "DELETED"]);
}

#[test]
fn an_unknown_workspace_is_refused_as_kcp_refuses_it() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(directory.path(), &[]);
    let answer = dev.kubectl("root", &["get", "--raw", "/clusters/root:nobody/api/v1/configmaps"]);
    let text = String::from_utf8_lossy(&answer.stderr).into_owned();
    assert!(!answer.status.success() && text.contains("workspace access not permitted"), "{text}");
}

#[test]
fn a_deleted_workspace_is_gone_with_its_content() {
    let (_directory, dev) = two_teams();
    dev.kubectl_ok("root:team-a", &["create", "configmap", "content"]);
    dev.kubectl_ok("root", &["delete", "workspace", "team-a", "--timeout=60s"]);
    until("the workspace is refused", || (!dev.kubectl("root:team-a", &["get", "cm"]).status.success()).then_some(()));
    let all = dev.kubectl_ok("root", &["get", "--raw", "/clusters/*/api/v1/configmaps"]);
    assert!(!all.contains(r#""name":"content""#), "{all}");
    let output = dev.kubectl("root:team-b", &["get", "cm"]);
    said(&output, &["get", "cm"]);
}

#[test]
fn the_cache_server_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(directory.path(), &[]);
    let shards = "/services/cache/shards/root/clusters/root/apis/core.kcp.io/v1alpha1/shards";
    let object = r#"{"apiVersion":"core.kcp.io/v1alpha1","kind":"Shard","metadata":{"name":"root"},"spec":{"baseURL":"https://x"}}"#;
    let args = ["create", "--raw", shards, "-f", "-"];
    said(&dev.kubectl_with("root", &args, object), &args);
    let everywhere = "/services/cache/shards/*/clusters/*/apis/core.kcp.io/v1alpha1/shards";
    let all = dev.kubectl_ok("root", &["get", "--raw", everywhere]);
    assert!(all.contains(r#""kcp.io/shard":"root""#), "{all}");
}
