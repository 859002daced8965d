//! A controller as operators write them with kube-rs: it watches, keeps a cache, holds objects by a finalizer and applies
//! what it owns on the server.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    runtime::{
        Controller,
        controller::Action,
        finalizer::{Event, finalizer},
        watcher,
    },
};
use serde_json::json;

use super::{map, maps};
use crate::common::{Dev, PATIENCE};

const FINALIZER: &str = "fairgate.dev/echo";
const MANAGER: &str = "echo-controller";
const SOURCE: &str = "role=source";
const ECHO: &str = "role=echo";

type Failure = kube::runtime::finalizer::Error<kube::Error>;

/// Gives each source an echo with the same data.
async fn reconcile(source: Arc<ConfigMap>, maps: Arc<Api<ConfigMap>>) -> Result<Action, Failure> {
    finalizer(&maps, FINALIZER, source, |event| async {
        match event {
            Event::Apply(source) => {
                let name = format!("{}-echo", source.name_any());
                let echo = json!({
                    "apiVersion": "v1", "kind": "ConfigMap",
                    "metadata": {"name": name, "labels": {"role": "echo"},
                        "ownerReferences": [source.controller_owner_ref(&()).unwrap()]},
                    "data": source.data,
                });
                maps.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&echo)).await?;
            }
            Event::Cleanup(source) => {
                let name = format!("{}-echo", source.name_any());
                match maps.delete(&name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => {}
                    other => drop(other?),
                }
            }
        }
        Ok(Action::await_change())
    })
    .await
}

/// Runs the controller until it is aborted.
async fn run(maps: Api<ConfigMap>) {
    let of = |labels: &str| watcher::Config::default().labels(labels);
    let again = |_: Arc<ConfigMap>, _: &Failure, _: Arc<Api<ConfigMap>>| Action::requeue(Duration::from_millis(50));
    Controller::new(maps.clone(), of(SOURCE))
        .owns(maps.clone(), of(ECHO))
        .run(reconcile, again, Arc::new(maps))
        .for_each(|_| std::future::ready(()))
        .await;
}

/// The values of the maps with this label, by name.
async fn values(maps: &Api<ConfigMap>, labels: &str) -> BTreeMap<String, String> {
    let list = maps.list(&ListParams::default().labels(labels)).await.unwrap();
    list.iter().map(|m| (m.name_any(), m.data.as_ref().unwrap()["k"].clone())).collect()
}

/// Polls until the echoes are these.
async fn wait_for(maps: &Api<ConfigMap>, what: &str, wanted: &BTreeMap<String, String>) {
    let found = tokio::time::timeout(PATIENCE, async {
        while values(maps, ECHO).await != *wanted {
            tokio::task::yield_now().await;
        }
    });
    assert!(found.await.is_ok(), "{what}: {:?} instead of {wanted:?}", values(maps, ECHO).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_keeps_what_it_owns() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(directory.path(), &[]);
    dev.workspace("root", "operator");
    let maps = maps(&dev, "operator").await;
    let controller = tokio::spawn(run(maps.clone()));
    let mut wanted = BTreeMap::new();
    for n in 0..10 {
        let mut source = map(&format!("s{n}"), "1");
        source.labels_mut().insert("role".into(), "source".into());
        maps.create(&PostParams::default(), &source).await.unwrap();
        wanted.insert(format!("s{n}-echo"), "1".to_owned());
    }
    wait_for(&maps, "each source has its echo", &wanted).await;
    for n in 0..5 {
        let patch = json!({"data": {"k": "2"}});
        maps.patch(&format!("s{n}"), &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
        wanted.insert(format!("s{n}-echo"), "2".to_owned());
    }
    wait_for(&maps, "echoes follow", &wanted).await;

    // Who else applies the controller's field is refused, and overruled when he insists.
    let own = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "s0-echo"}, "data": {"k": "mine"}});
    let refused = maps.patch("s0-echo", &PatchParams::apply("human"), &Patch::Apply(&own)).await.unwrap_err();
    let kube::Error::Api(status) = refused else { panic!("{refused}") };
    assert!(status.code == 409 && status.message.contains(MANAGER), "{status:?}");
    maps.patch("s0-echo", &PatchParams::apply("human").force(), &Patch::Apply(&own)).await.unwrap();
    wait_for(&maps, "a change of an echo is undone", &wanted).await;
    maps.delete("s1-echo", &DeleteParams::default()).await.unwrap();
    wait_for(&maps, "an echo that is deleted comes back", &wanted).await;

    // The finalizer holds each source until its echo is gone.
    assert!(maps.get("s2").await.unwrap().finalizers().contains(&FINALIZER.to_owned()));
    maps.delete_collection(&DeleteParams::default(), &ListParams::default().labels(SOURCE)).await.unwrap();
    wait_for(&maps, "echoes go with their sources", &BTreeMap::new()).await;
    let gone = tokio::time::timeout(PATIENCE, async {
        while !values(&maps, SOURCE).await.is_empty() {
            tokio::task::yield_now().await;
        }
    });
    assert!(gone.await.is_ok(), "the finalizers were not released");
    controller.abort();
}
