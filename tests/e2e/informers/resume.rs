//! Watches that are cut off each second while others write.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use futures_util::{StreamExt, future::join_all};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams},
};
use serde_json::Value;

use super::{kubeconfig, map, maps, python::Python, version};
use crate::common::{Dev, PATIENCE};

/// Kind, name and version of an event.
type Seen = (&'static str, String, u64);
/// Ends what is watched.
const END: &str = "end";

/// Creates, changes twice and deletes maps; what a watch has to tell of them. Deletions do not tell their version.
async fn write(maps: &Api<ConfigMap>, round: usize) -> Vec<Seen> {
    let one = |n: usize| async move {
        let name = format!("map-{round}-{n}");
        let mut object = maps.create(&PostParams::default(), &map(&name, "0")).await.unwrap();
        let mut told = vec![("ADDED", name.clone(), version(&object))];
        for value in ["1", "2"] {
            object.data = map(&name, value).data;
            object = maps.replace(&name, &PostParams::default(), &object).await.unwrap();
            told.push(("MODIFIED", name.clone(), version(&object)));
        }
        maps.delete(&name, &DeleteParams::default()).await.unwrap();
        told.push(("DELETED", name, 0));
        told
    };
    join_all((0..8).map(one)).await.concat()
}

/// Watches with kube-rs, a second at a time.
async fn watch(maps: Api<ConfigMap>, mut from: String, resumed: Arc<AtomicUsize>) -> Vec<Seen> {
    let mut seen = Vec::new();
    loop {
        let mut events = maps.watch(&WatchParams::default().timeout(1), &from).await.unwrap().boxed();
        while let Some(event) = events.next().await {
            let (kind, object) = match event.unwrap() {
                WatchEvent::Added(object) => ("ADDED", object),
                WatchEvent::Modified(object) => ("MODIFIED", object),
                WatchEvent::Deleted(object) => ("DELETED", object),
                WatchEvent::Bookmark(mark) => {
                    from = mark.metadata.resource_version;
                    continue;
                }
                WatchEvent::Error(status) => panic!("{status:?}"),
            };
            from = version(&object).to_string();
            let name = object.metadata.name.clone().unwrap();
            if name == END {
                return seen;
            }
            seen.push((kind, name, version(&object)));
        }
        resumed.fetch_add(1, Ordering::Relaxed);
    }
}

/// What was told is what happened, once and in its order.
fn check(who: &str, written: &[Seen], seen: &[Seen]) {
    assert!(seen.is_sorted_by(|a, b| a.2 < b.2), "{who}: versions do not go on");
    let by_name = |events: &[Seen]| {
        let mut names: BTreeMap<String, Vec<(&'static str, u64)>> = BTreeMap::new();
        for (kind, name, version) in events {
            let version = if *kind == "DELETED" { 0 } else { *version };
            names.entry(name.clone()).or_default().push((kind, version));
        }
        names
    };
    let (written, seen) = (by_name(written), by_name(seen));
    assert_eq!(seen.len(), written.len(), "{who}");
    written.iter().for_each(|(name, events)| assert_eq!(seen.get(name), Some(events), "{who}: {name}"));
}

/// Events of the Python client up to the end.
fn of_python(said: &[Value]) -> Vec<Seen> {
    let kinds = ["ADDED", "MODIFIED", "DELETED"];
    let event = |value: &Value| {
        let kind = kinds.into_iter().find(|kind| value["type"] == *kind)?;
        let name = value["name"].as_str().unwrap();
        (name != END).then(|| (kind, name.to_owned(), value["version"].as_str().unwrap().parse().unwrap()))
    };
    said.iter().filter_map(event).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_resume_without_gap_or_repeat() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(directory.path(), &[]);
    dev.workspace("root", "resume");
    let maps = maps(&dev, "resume").await;
    let python = Python::start("watch", &kubeconfig(&dev, "resume"));
    assert_eq!(python.next()["type"], "LISTED");
    let from = maps.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let resumed = Arc::new(AtomicUsize::new(0));
    let rust = tokio::spawn(watch(maps.clone(), from, resumed.clone()));
    let (mut written, mut said) = (Vec::new(), Vec::new());
    let deadline = Instant::now() + PATIENCE;
    let of_python_resumed = |said: &[Value]| said.iter().filter(|value| value["type"] == "RESUMED").count();
    for round in 0.. {
        written.extend(write(&maps, round).await);
        said.extend(python.said());
        if resumed.load(Ordering::Relaxed) >= 3 && of_python_resumed(&said) >= 3 {
            break;
        }
        assert!(Instant::now() < deadline, "the watches are not cut off");
    }
    maps.create(&PostParams::default(), &map(END, "")).await.unwrap();
    check("kube-rs", &written, &rust.await.unwrap());
    while !said.iter().any(|value| value["name"] == END) {
        said.push(python.next());
    }
    check("Python", &written, &of_python(&said));
}
