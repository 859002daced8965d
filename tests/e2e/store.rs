//! The stores from outside: several servers on one etcd, and the commands for the file of the embedded one.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

#[path = "../../apiserver/storage/tests/storage/common/etcd.rs"]
#[allow(dead_code, reason = "of another suite; this one uses its part")]
mod etcd;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
};

use futures_util::StreamExt;
use serde_json::{Value, json};

use crate::common::{Dev, said, until};

fn url(dev: &Dev) -> String {
    format!("{}/clusters/root:team/api/v1/namespaces/default/configmaps", dev.gateway)
}

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Creates a config map; its resourceVersion.
async fn create(dev: &Dev, name: &str) -> u64 {
    let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    let answer = dev.client().post(url(dev)).json(&body).send().await.unwrap();
    assert_eq!(answer.status(), 201, "{name}");
    version(&answer.json::<Value>().await.unwrap())
}

async fn get(dev: &Dev, path: &str) -> Value {
    let answer = dev.client().get(format!("{}{path}", url(dev))).send().await.unwrap();
    assert_eq!(answer.status(), 200, "{path}");
    answer.json().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_on_one_etcd_of_which_one_is_killed() {
    let cluster = etcd::Cluster::single();
    let address = format!("http://127.0.0.1:{}", cluster.members[0].client_port);
    let options = ["--store", "etcd", "--etcd-servers", &address];
    let (one_dir, two_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let one = Dev::start(one_dir.path(), &options);
    one.workspace("root", "team");
    let two = Dev::start(two_dir.path(), &options);
    until("the other server knows the workspace", || {
        two.kubectl("root:team", &["get", "namespace", "default"]).status.success().then_some(())
    });
    let start = version(&get(&two, "").await);
    let watch = format!("{}?watch=true&resourceVersion={start}", url(&two));
    let mut watch = two.client().get(watch).send().await.unwrap().bytes_stream();
    let mut written = Vec::new();
    for n in 0..20 {
        let name = format!("c-{n}");
        let (writer, reader) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let revision = create(writer, &name).await;
        assert_eq!(version(&get(reader, &format!("/{name}")).await), revision, "read right after the answer");
        written.push((name, revision));
    }
    let own = ["dev", "--port", "0", "--admin-port", "0"];
    for args in [own.to_vec(), [&own[..], &options].concat()] {
        refused(&fairgate(&args, one_dir.path()), "in use by another process");
    }
    one.kill_9();
    for n in 20..30 {
        let name = format!("c-{n}");
        written.push((name.clone(), create(&two, &name).await));
    }
    let (mut seen, mut text) = (Vec::new(), Vec::new());
    while seen.len() < written.len() {
        text.extend_from_slice(&watch.next().await.expect("the watch goes on").unwrap());
        while let Some(end) = text.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            let event: Value = serde_json::from_slice(&line).unwrap();
            assert_eq!(event["type"], "ADDED");
            seen.push((event["object"]["metadata"]["name"].as_str().unwrap().to_owned(), version(&event["object"])));
        }
    }
    assert_eq!(seen, written);
    assert!(!one_dir.path().join("store.db").exists());
}

fn fairgate(args: &[&str], data_dir: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fairgate")).args(args).arg("--data-dir").arg(data_dir).output().unwrap()
}

fn refused(output: &Output, why: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains(why), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_store_is_checked_backed_up_and_restored_elsewhere() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dev = Dev::start(old.path(), &[]);
    dev.workspace("root", "team");
    let before = create(&dev, "before").await;
    let backup = old.path().join("backup.db");
    let name = backup.to_str().unwrap();
    let text = said(&fairgate(&["store", "check"], old.path()), &["check"]);
    assert!(text.contains("nothing is wrong"), "{text}");
    said(&fairgate(&["store", "backup", name], old.path()), &["backup"]);
    refused(&fairgate(&["store", "backup", name], old.path()), "nothing is overwritten");
    refused(&fairgate(&["store", "compact"], old.path()), "in use");
    let after = create(&dev, "after").await;
    drop(dev);

    said(&fairgate(&["store", "compact"], old.path()), &["compact"]);
    said(&fairgate(&["store", "restore", name], new.path()), &["restore"]);
    refused(&fairgate(&["store", "restore", name], new.path()), "nothing is overwritten");
    let restored = Dev::start(new.path(), &[]);
    let list = get(&restored, "").await;
    let names: Vec<_> = list["items"].as_array().unwrap().iter().map(|o| &o["metadata"]["name"]).collect();
    assert!(names.contains(&&json!("before")) && !names.contains(&&json!("after")), "{names:?}");
    assert_eq!(version(&get(&restored, "/before").await), before);
    assert!(create(&restored, "new").await > after + 900_000, "no revision is given out twice");
    let stale = format!("{}?watch=true&resourceVersion={after}", url(&restored));
    let stale = restored.client().get(stale).send().await.unwrap().text().await.unwrap();
    assert!(stale.contains("410"), "{stale}");
}

/// A disk on which there is no room for the copy, as a limit on the size of files; the index of SQLite's log has half of it.
#[test]
fn a_copy_without_room_is_the_fault_of_its_place() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let dev = Dev::start(old.path(), &[]);
    let numbers: String = (0..20_000).map(|n| n.to_string()).collect();
    dev.kubectl_ok("root", &["create", "configmap", "large", &format!("--from-literal=k={numbers}")]);
    assert_eq!(dev.interrupt(), Some(0));
    let backup = new.path().join("copy.db");
    let cramped = |command: &str, file: &Path, data_dir: &Path| {
        Command::new("bash")
            .args(["-c", r#"trap '' XFSZ; ulimit -f 64; exec "$@""#, "bash", env!("CARGO_BIN_EXE_fairgate")])
            .args(["store", command, "--data-dir"])
            .args([data_dir, file])
            .output()
            .unwrap()
    };
    let output = cramped("backup", &backup, old.path());
    refused(&output, &format!("cannot use {}", backup.display()));
    assert!(!String::from_utf8_lossy(&output.stderr).contains("writable"), "{output:?}");
    assert_eq!(std::fs::read_dir(new.path()).unwrap().count(), 0);
    said(&fairgate(&["store", "backup", backup.to_str().unwrap()], old.path()), &["backup"]);
    let target = new.path().join("some/where");
    refused(&cramped("restore", &backup, &target), &format!("cannot use {}", target.join("store.db").display()));
    assert!(!new.path().join("some").exists());
}

#[test]
fn a_directory_without_a_store_is_told() {
    let dir = tempfile::tempdir().unwrap();
    for command in [&["check"][..], &["compact"], &["backup", "x.db"]] {
        let nowhere = dir.path().join("none");
        refused(&fairgate(&[&["store"], command].concat(), &nowhere), "no store is in");
        assert!(!nowhere.exists());
    }
    std::fs::write(dir.path().join("admin.kubeconfig"), "").unwrap();
    refused(&fairgate(&["store", "check"], dir.path()), "--store etcd");
}

#[test]
fn wrong_options_of_the_store_are_explained() {
    let dir = tempfile::tempdir().unwrap();
    let cases: [(&[&str], &str); 8] = [
        (&["dev", "--etcd-servers", "http://127.0.0.1:1"], "--etcd-servers is for a server that keeps"),
        (&["dev", "--etcd-prefix", "/fairgate"], "add --store etcd"),
        (&["dev", "--store", "embedded", "--etcd-credentials", "x"], "--etcd-credentials is for"),
        (&["dev", "--store", "etcd"], "--etcd-servers"),
        (&["dev", "--store", "etcd", "--etcd-servers", "https://127.0.0.1:1"], "CA certificate"),
        (&["dev", "--store", "etcd", "--etcd-servers", "x"], "is no address"),
        (
            &["dev", "--store", "etcd", "--etcd-servers", "http://u:pass@127.0.0.1:1"],
            "\"...@127.0.0.1:1\" is no address",
        ),
        (&["dev", "--store", "etcd", "--etcd-servers", "http://127.0.0.1:1", "--etcd-prefix", "a/"], "is no prefix"),
    ];
    for (args, why) in cases {
        let args = [args, &["--port", "0", "--admin-port", "0"]].concat();
        let output = fairgate(&args, dir.path());
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{text}");
        assert!(text.contains(why) && !text.contains("pass@"), "{text}");
    }
}

/// What a start says of keys and stores that are not there: something only where there was something.
#[test]
fn what_is_lost_is_told_and_what_never_was_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("service-account.key");
    let started = || {
        let mut child = Command::new(env!("CARGO_BIN_EXE_fairgate"))
            .args(["dev", "--port", "0", "--admin-port", "0", "--data-dir"])
            .arg(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("gateway:")), "it ended too early");
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        String::from_utf8(output.stderr).unwrap()
    };
    let (lost_key, lost_store) = ("the key of service accounts is missing", "this one begins empty");
    let etcd = ["dev", "--store", "etcd", "--etcd-servers", "http://127.0.0.1:1", "--port", "0", "--admin-port", "0"];
    let output = fairgate(&etcd, dir.path());
    refused(&output, "is it running, and is that where it listens?");
    let text = started();
    assert!(!text.contains(lost_key) && !text.contains(lost_store), "{text}");
    std::fs::remove_file(&key).unwrap();
    std::fs::remove_file(dir.path().join("admin.kubeconfig")).unwrap();
    let text = started();
    assert!(text.contains(lost_key) && !text.contains(lost_store), "{text}");
    for file in ["store.db", "store.db-wal", "store.db-shm"] {
        let _ = std::fs::remove_file(dir.path().join(file));
    }
    let text = started();
    assert!(text.contains(lost_store) && !text.contains(lost_key), "{text}");
    let output = fairgate(&etcd, dir.path());
    refused(&output, "there is an embedded store, which is not served");
}
