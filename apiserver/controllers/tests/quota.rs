//! Quotas under concurrent writers, and what they say is used.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

mod support;

use std::sync::Arc;

use apiserver_api::Status;
use apiserver_machinery::{Resource, builtin, options::WriteOptions};
use apiserver_server::{
    ApiServer,
    registry::{Collection, ObjectKey},
};
use apiserver_storage::Embedded;
use serde_json::json;
use support::{World, core, root, until};

async fn quota(world: &World, name: &str, hard: serde_json::Value) {
    world.create(core("resourcequotas"), "default", json!({"metadata": {"name": name}, "spec": {"hard": hard}})).await;
}

async fn used(world: &World, name: &str, what: &str, want: &str) {
    until(&format!("{what} of {name} is {want}"), || async {
        let quota = world.get(core("resourcequotas"), "default", name).await.unwrap();
        (quota["status"]["used"][what] == want).then_some(())
    })
    .await;
}

async fn make(
    world: &World,
    resource: &'static Resource,
    object: serde_json::Value,
    options: &WriteOptions,
) -> Result<(), Status> {
    world.registry.create(resource, &root(), "default", object, options).await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_writers_get_exactly_what_there_is() {
    let world = Arc::new(World::start().await);
    quota(&world, "q", json!({"configmaps": "25", "count/configmaps": "100"})).await;
    quota(&world, "wide", json!({"count/configmaps": "60"})).await;
    for round in 0..3 {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..16 {
            let world = world.clone();
            writers.spawn(async move {
                let mut made = 0;
                for n in 0..10 {
                    let object = json!({"metadata": {"name": format!("r{round}w{writer}n{n}")}});
                    let options = WriteOptions::default();
                    match world.registry.create(core("configmaps"), &root(), "default", object, &options).await {
                        Ok(_) => made += 1,
                        Err(status) => {
                            let exceeded = "is forbidden: exceeded quota: q, requested: configmaps=1, used: configmaps=25, limited: configmaps=25";
                            assert!(status.code == 403 && status.message.ends_with(exceeded), "{}", status.message);
                        }
                    }
                }
                made
            });
        }
        let made: usize = writers.join_all().await.into_iter().sum();
        // 25 at first, then as many as were deleted.
        assert_eq!(made, if round == 0 { 25 } else { 7 });
        assert_eq!(world.list(core("configmaps"), "default").await.len(), 25);
        used(&world, "q", "configmaps", "25").await;
        used(&world, "wide", "count/configmaps", "25").await;
        for object in world.list(core("configmaps"), "default").await.iter().take(7) {
            world.delete(core("configmaps"), "default", object["metadata"]["name"].as_str().unwrap(), None).await;
        }
        used(&world, "q", "configmaps", "18").await;
    }
    Arc::into_inner(world).unwrap().stop().await;
}

#[tokio::test]
async fn what_is_used_is_told_and_what_is_not_measured_is_not() {
    let world = World::start().await;
    world.create(core("secrets"), "default", json!({"metadata": {"name": "old"}})).await;
    let hard = json!({"secrets": "2", "count/leases.coordination.k8s.io": "1", "pods": "3", "requests.cpu": "1"});
    quota(&world, "q", hard.clone()).await;
    used(&world, "q", "secrets", "1").await;
    let status = world.get(core("resourcequotas"), "default", "q").await.unwrap()["status"].clone();
    assert_eq!(status, json!({"hard": hard, "used": {"secrets": "1", "count/leases.coordination.k8s.io": "0"}}));
    world.create(core("secrets"), "default", json!({"metadata": {"generateName": "new-"}})).await;
    // At once, not when the controller comes by.
    let quota = world.get(core("resourcequotas"), "default", "q").await.unwrap();
    assert_eq!(quota["status"]["used"]["secrets"], "2");
    // A name that is taken is charged for and given back.
    let lease = builtin::find("coordination.k8s.io", "v1", "leases").unwrap();
    world.create(lease, "default", json!({"metadata": {"name": "l"}})).await;
    for (object, code) in [(json!({"metadata": {"name": "m"}}), 403), (json!({"metadata": {"name": "l"}}), 403)] {
        let made = make(&world, lease, object, &WriteOptions::default()).await;
        assert_eq!(made.unwrap_err().code, code);
    }
    world
        .change(core("resourcequotas"), "q", "", |q| q["spec"]["hard"]["count/leases.coordination.k8s.io"] = json!("9"))
        .await;
    let taken = make(&world, lease, json!({"metadata": {"name": "l"}}), &WriteOptions::default()).await;
    assert_eq!(taken.unwrap_err().code, 409);
    used(&world, "q", "count/leases.coordination.k8s.io", "1").await;
    // A dry run is asked and pays nothing.
    let dry = WriteOptions { dry_run: true, ..WriteOptions::default() };
    let full = make(&world, core("secrets"), json!({"metadata": {"name": "dry"}}), &dry).await;
    assert_eq!(full.unwrap_err().code, 403);
    world.delete(core("secrets"), "default", "old", None).await;
    used(&world, "q", "secrets", "1").await;
    let fits = make(&world, core("secrets"), json!({"metadata": {"name": "dry"}}), &dry).await;
    fits.unwrap();
    used(&world, "q", "secrets", "1").await;
    world.stop().await;
}

/// Each counts for itself, and what one has charged for and not made yet the other cannot see.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_servers_on_one_store_do_not_exceed_it_together() {
    const HARD: usize = 50;
    let store = Arc::new(Embedded::in_memory());
    let server = || ApiServer::new(store.clone(), apiserver_server::Options::default());
    let servers = [server(), server()];
    servers[0].bootstrap().await.unwrap();
    let worlds = servers.map(|server| Arc::new(World::over(server.registry().clone())));
    quota(&worlds[0], "q", json!({"configmaps": HARD.to_string()})).await;
    used(&worlds[1], "q", "configmaps", "0").await;
    let here = Collection::namespace(&root(), "default");
    // First only creates, then objects that go again too.
    for (round, deletes) in [(0, false), (1, true), (2, true), (3, false)] {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..8 {
            let (world, here) = (worlds[writer % 2].clone(), here.clone());
            writers.spawn(async move {
                for n in 0..HARD {
                    let name = format!("r{round}w{writer}n{n}");
                    let object = json!({"metadata": {"name": name}});
                    let made = make(&world, core("configmaps"), object, &WriteOptions::default()).await;
                    let there = world.registry.count(core("configmaps"), &here).unwrap();
                    assert!(there <= HARD as u64, "{there} of {HARD}");
                    match made {
                        Ok(()) if deletes => world.delete(core("configmaps"), "default", &name, None).await,
                        Ok(()) => {}
                        Err(status) => assert_eq!(status.code, 403, "{}", status.message),
                    }
                }
            });
        }
        writers.join_all().await;
        let there = worlds[0].list(core("configmaps"), "default").await.len();
        assert_eq!(there, if deletes { 0 } else { HARD });
        used(&worlds[1], "q", "configmaps", &there.to_string()).await;
        for object in worlds[0].list(core("configmaps"), "default").await {
            let key = ObjectKey::new(&root(), "default", object["metadata"]["name"].as_str().unwrap());
            worlds[round % 2].registry.delete(core("configmaps"), &key, &Default::default()).await.unwrap();
        }
        used(&worlds[0], "q", "configmaps", "0").await;
    }
    for world in worlds {
        Arc::into_inner(world).unwrap().stop().await;
    }
}
