//! Acknowledged writes survive `kill -9`; watches resume where they were.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use std::collections::BTreeMap;

use crate::common::Dev;
use futures_util::StreamExt;
use serde_json::{Value, json};

/// The path of the config maps of `root:durable` in `default`.
fn url(dev: &Dev) -> String {
    format!("{}/clusters/root:durable/api/v1/namespaces/default/configmaps", dev.gateway)
}

/// Creates config maps until the process dies; what was acknowledged: name to resourceVersion.
async fn create_until_it_dies(dev: &Dev, run: usize) -> BTreeMap<String, u64> {
    let (client, url, pid) = (dev.client(), url(dev), dev.pid().to_string());
    let writers = (0..8).map(|writer| {
        let (client, url, pid) = (client.clone(), url.clone(), pid.clone());
        async move {
            let mut acknowledged = Vec::new();
            for n in 0..10_000 {
                let name = format!("run-{run}-writer-{writer}-{n}");
                let body = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
                let Ok(answer) = client.post(&url).json(&body).send().await else { break };
                assert_eq!(answer.status(), 201);
                let Ok(object) = answer.json::<Value>().await else { break };
                acknowledged.push((name, object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()));
                if writer == 0 && n == 20 {
                    assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
                }
            }
            acknowledged
        }
    });
    futures_util::future::join_all(writers).await.into_iter().flatten().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acknowledged_object_is_there_after_kill_9() {
    let directory = tempfile::tempdir().unwrap();
    let mut acknowledged = BTreeMap::new();
    let mut start = 0;
    for run in 0..3 {
        let dev = Dev::start(directory.path(), &[]);
        if run == 0 {
            dev.workspace("root", "durable");
            let list: Value = dev.client().get(url(&dev)).send().await.unwrap().json().await.unwrap();
            start = list["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        }
        let new = create_until_it_dies(&dev, run).await;
        assert!(new.len() > 20);
        acknowledged.extend(new);
        dev.kill_9();
    }
    let dev = Dev::start(directory.path(), &[]);
    let list: Value = dev.client().get(url(&dev)).send().await.unwrap().json().await.unwrap();
    let version = |object: &Value| -> (String, u64) {
        let metadata = &object["metadata"];
        let version = metadata["resourceVersion"].as_str().unwrap().parse().unwrap();
        (metadata["name"].as_str().unwrap().to_owned(), version)
    };
    let stored: BTreeMap<_, _> = list["items"].as_array().unwrap().iter().map(version).collect();
    for (name, revision) in &acknowledged {
        assert_eq!(stored.get(name), Some(revision), "{name} was acknowledged");
    }
    let mut revisions: Vec<_> = stored.values().collect();
    revisions.sort();
    revisions.dedup();
    assert_eq!(revisions.len(), stored.len(), "a revision was used twice");

    // A watch from before the first crash sees every creation once, in order.
    let watch = format!("{}?watch=true&timeoutSeconds=60&resourceVersion={start}", url(&dev));
    let mut body = dev.client().get(watch).send().await.unwrap().bytes_stream();
    let (mut buffer, mut seen) = (Vec::new(), Vec::new());
    while seen.len() < stored.len() {
        buffer.extend_from_slice(&body.next().await.expect("the watch goes on").unwrap());
        while let Some(end) = buffer.iter().position(|b| *b == b'\n') {
            let event: Value = serde_json::from_slice(&buffer.drain(..=end).collect::<Vec<_>>()).unwrap();
            assert_eq!(event["type"], "ADDED", "{event}");
            seen.push(version(&event["object"]));
        }
    }
    assert!(seen.is_sorted_by_key(|(_, revision)| *revision));
    assert_eq!(seen.into_iter().collect::<BTreeMap<_, _>>(), stored);
}
