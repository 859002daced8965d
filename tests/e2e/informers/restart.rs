//! Informers whose server dies, loses its history and comes back changed.

use std::{
    collections::BTreeSet,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures_util::{StreamExt, stream::BoxStream};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api,
    api::{DeleteParams, PostParams},
    runtime::{
        WatchStreamExt, reflector,
        watcher::{self, Event, watcher},
    },
};
use serde_json::{Value, json};

use super::{kubeconfig, map, maps, python::Python};
use crate::common::{Dev, until};

/// A reflector at work.
struct Reflector {
    store: reflector::Store<ConfigMap>,
    /// How often it has listed.
    listed: Arc<AtomicUsize>,
    task: tokio::task::JoinHandle<()>,
}

impl Reflector {
    fn start(maps: Api<ConfigMap>, config: watcher::Config) -> Self {
        let (store, writer) = reflector::store();
        let listed = Arc::new(AtomicUsize::new(0));
        let mut events: BoxStream<'static, _> = reflector(writer, watcher(maps, config)).default_backoff().boxed();
        let counter = listed.clone();
        let task = tokio::spawn(async move {
            // Errors are what it has to get over.
            while let Some(event) = events.next().await {
                if matches!(event, Ok(Event::InitDone)) {
                    counter.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self { store, listed, task }
    }

    fn names(&self) -> BTreeSet<String> {
        self.store.state().iter().map(|map| map.metadata.name.clone().unwrap()).collect()
    }
}

impl Drop for Reflector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn names(of: &[&str]) -> BTreeSet<String> {
    of.iter().map(|name| (*name).to_owned()).collect()
}

/// What the Python informer has in its cache.
fn cached(python: &mut Python, said: &mut Vec<Value>) -> BTreeSet<String> {
    python.ask();
    loop {
        let value = python.next();
        if value["type"] == "STATE" {
            return value["names"].as_array().unwrap().iter().map(|n| n.as_str().unwrap().to_owned()).collect();
        }
        said.push(value);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_that_is_gone_is_survived() {
    let directory = tempfile::tempdir().unwrap();
    let mut dev = Dev::start(directory.path(), &[]);
    dev.workspace("root", "restart");
    let port: u16 = dev.gateway.rsplit(':').next().unwrap().parse().unwrap();
    let before = maps(&dev, "restart").await;
    for name in ["a", "b", "c"] {
        before.create(&PostParams::default(), &map(name, "1")).await.unwrap();
    }
    let by_list = Reflector::start(before.clone(), watcher::Config::default());
    let by_stream = Reflector::start(before.clone(), watcher::Config::default().streaming_lists());
    let mut python = Python::start("informer", &kubeconfig(&dev, "restart"));
    let mut said = Vec::new();
    let known = names(&["a", "b", "c"]);
    until("all know what is there", || {
        let all = by_list.names() == known && by_stream.names() == known && cached(&mut python, &mut said) == known;
        all.then_some(())
    });

    // It dies. Elsewhere, where nobody watches, things change, and what was before is forgotten.
    dev.kill_9();
    dev = Dev::start(directory.path(), &[]);
    let elsewhere = maps(&dev, "restart").await;
    elsewhere.delete("b", &DeleteParams::default()).await.unwrap();
    elsewhere.create(&PostParams::default(), &map("d", "1")).await.unwrap();
    dev.kill_9();
    let compacted = Command::new(env!("CARGO_BIN_EXE_fairgate"))
        .args(["store", "compact", "--data-dir"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert!(compacted.status.success(), "{}", String::from_utf8_lossy(&compacted.stderr));
    dev = Dev::start_on(directory.path(), port, &[]);

    let known = names(&["a", "c", "d"]);
    until("all know what has changed", || {
        let all = by_list.names() == known && by_stream.names() == known && cached(&mut python, &mut said) == known;
        all.then_some(())
    });
    // Because they were told that their version is gone, once each.
    assert_eq!(by_list.listed.load(Ordering::Relaxed), 2);
    assert_eq!(by_stream.listed.load(Ordering::Relaxed), 2);
    assert!(said.contains(&json!({"type": "ERROR", "code": 410})), "{said:?}");

    // And they go on.
    let after = maps(&dev, "restart").await;
    after.create(&PostParams::default(), &map("e", "1")).await.unwrap();
    let known = names(&["a", "c", "d", "e"]);
    until("all hear what comes", || {
        let all = by_list.names() == known && by_stream.names() == known && cached(&mut python, &mut said) == known;
        all.then_some(())
    });
    // The cache knows before the handler is called.
    let told = |said: &[Value], kind: &str, name: &str| {
        said.iter().filter(|value| value["type"] == kind && value["name"] == name).count()
    };
    until("the handler is called", || {
        cached(&mut python, &mut said);
        (told(&said, "ADDED", "e") > 0).then_some(())
    });
    let times = [("ADDED", "e"), ("ADDED", "d"), ("DELETED", "b")].map(|(kind, name)| told(&said, kind, name));
    assert_eq!(times, [1, 1, 1], "{said:?}");
}
