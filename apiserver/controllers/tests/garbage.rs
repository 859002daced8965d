//! The garbage collector against a simple model, and case by case.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use apiserver_machinery::options::Propagation;
use proptest::prelude::*;
use serde_json::{Value, json};
use support::{World, core, owner, root, uid, until};

fn maps() -> &'static apiserver_machinery::Resource {
    core("configmaps")
}

/// A ConfigMap of `default` with these owners (name and uid each).
fn map(name: &str, owners: &[(&str, &str)]) -> Value {
    let owners: Vec<Value> = owners.iter().map(|(name, uid)| owner(name, uid)).collect();
    json!({"metadata": {"name": name, "ownerReferences": owners}})
}

async fn gone(world: &World, name: &str) {
    until(name, || async { world.get(maps(), "default", name).await.is_none().then_some(()) }).await;
}

#[tokio::test]
async fn background_takes_dependents_along_and_keeps_what_has_another_owner() {
    let world = World::start().await;
    let a = world.create(maps(), "default", map("a", &[])).await;
    let b = world.create(maps(), "default", map("b", &[])).await;
    let child = world.create(maps(), "default", map("child", &[("a", uid(&a))])).await;
    world.create(maps(), "default", map("grandchild", &[("child", uid(&child))])).await;
    world.create(maps(), "default", map("shared", &[("a", uid(&a)), ("b", uid(&b))])).await;
    world.delete(maps(), "default", "a", Some(Propagation::Background)).await;
    gone(&world, "child").await;
    gone(&world, "grandchild").await;
    let owners = until("the reference to a goes", || async {
        let shared = world.get(maps(), "default", "shared").await.expect("it has a living owner");
        let owners = shared["metadata"]["ownerReferences"].as_array().unwrap().clone();
        (owners.len() == 1).then_some(owners)
    });
    assert_eq!(owners.await[0]["name"], "b");
    world.stop().await;
}

#[tokio::test]
async fn foreground_waits_for_what_blocks() {
    let world = World::start().await;
    let a = world.create(maps(), "default", map("a", &[])).await;
    let mut held = map("held", &[("a", uid(&a))]);
    held["metadata"]["finalizers"] = json!(["test.dev/hold"]);
    world.create(maps(), "default", held).await;
    world.create(maps(), "default", map("free", &[("a", uid(&a))])).await;
    world.delete(maps(), "default", "a", Some(Propagation::Foreground)).await;
    gone(&world, "free").await;
    let is_dying = || async {
        let held = world.get(maps(), "default", "held").await.unwrap();
        held["metadata"].get("deletionTimestamp").is_some().then_some(())
    };
    until("the held one is deleted", is_dying).await;
    let a = world.get(maps(), "default", "a").await.expect("a dependent blocks it");
    assert_eq!(a["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    world.change(maps(), "held", "", |o| drop(o["metadata"].as_object_mut().unwrap().remove("finalizers"))).await;
    gone(&world, "held").await;
    gone(&world, "a").await;
    world.stop().await;
}

#[tokio::test]
async fn orphans_stay_without_a_reference() {
    let world = World::start().await;
    let a = world.create(maps(), "default", map("a", &[])).await;
    for n in 0..600 {
        world.create(maps(), "default", map(&format!("c{n}"), &[("a", uid(&a))])).await;
    }
    world.delete(maps(), "default", "a", Some(Propagation::Orphan)).await;
    gone(&world, "a").await;
    let children = world.list(maps(), "default").await;
    assert_eq!(children.len(), 600);
    assert!(children.iter().all(|child| child["metadata"].get("ownerReferences").is_none()));
    world.stop().await;
}

#[tokio::test]
async fn owners_that_never_were_and_owners_elsewhere() {
    let world = World::start().await;
    let namespaces = core("namespaces");
    world.create(namespaces, "", json!({"metadata": {"name": "other"}})).await;
    let elsewhere = world.create(maps(), "other", map("elsewhere", &[])).await;
    let here = world.create(maps(), "default", map("here", &[])).await;
    // Another uid, another namespace, another name, nothing at all: these owners are not there.
    for (name, owner, uid) in [
        ("other-uid", "here", "1b2d7a1c-7c1e-4f0e-9a53-000000000000"),
        ("other-namespace", "elsewhere", uid(&elsewhere)),
        ("other-name", "there", uid(&here)),
        ("no-uid", "nobody", "not-a-uuid"),
    ] {
        world.create(maps(), "default", map(name, &[(owner, uid)])).await;
        gone(&world, name).await;
    }
    // Nothing is known of kinds that are not served, and no object of the cluster can belong to one of a namespace.
    let unknown = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "1"});
    let mut kept = map("kept", &[("nobody", "2")]);
    kept["metadata"]["ownerReferences"].as_array_mut().unwrap().push(unknown);
    world.create(maps(), "default", kept).await;
    let mut scoped = map("scoped", &[("nobody", "3")]);
    scoped["metadata"]["finalizers"] = json!(["test.dev/hold"]);
    world.create(namespaces, "", scoped).await;
    // An object of the cluster may own one of a namespace.
    let space = world.get(namespaces, "", "other").await.unwrap();
    let of_space = json!({"apiVersion": "v1", "kind": "Namespace", "name": "other", "uid": uid(&space)});
    world.create(maps(), "default", json!({"metadata": {"name": "owned", "ownerReferences": [of_space]}})).await;
    // Behind this one everything before has been looked at.
    world.create(maps(), "default", map("sentinel", &[("nobody", "4")])).await;
    gone(&world, "sentinel").await;
    assert!(world.get(maps(), "default", "owned").await.is_some());
    let kept = world.get(maps(), "default", "kept").await.unwrap();
    assert_eq!(kept["metadata"]["ownerReferences"].as_array().unwrap().len(), 1, "{kept}");
    assert!(world.get(namespaces, "", "scoped").await.unwrap()["metadata"].get("deletionTimestamp").is_none());
    world.stop().await;
}

#[tokio::test]
async fn a_circle_is_no_obstacle_and_a_restart_forgets_nothing() {
    let world = World::start().await;
    let a = world.create(maps(), "default", map("a", &[])).await;
    let b = world.create(maps(), "default", map("b", &[("a", uid(&a))])).await;
    let c = world.create(maps(), "default", map("c", &[("b", uid(&b))])).await;
    let (name, uid) = ("c", uid(&c).to_owned());
    world.change(maps(), "a", "", move |o| o["metadata"]["ownerReferences"] = json!([owner(name, &uid)])).await;
    let registry = world.stop().await;
    // Deleted while no collector runs.
    let world = World::over(registry);
    world.delete(maps(), "default", "a", Some(Propagation::Foreground)).await;
    for name in ["a", "b", "c"] {
        gone(&world, name).await;
    }
    let owner = world.create(maps(), "default", map("owner", &[])).await;
    world.create(maps(), "default", map("child", &[("owner", support::uid(&owner))])).await;
    let registry = world.stop().await;
    let key = apiserver_server::registry::ObjectKey::new(&root(), "default", "owner");
    registry.delete(maps(), &key, &Default::default()).await.unwrap();
    let world = World::over(registry);
    gone(&world, "child").await;
    world.stop().await;
}

#[tokio::test]
async fn a_mandatory_object_that_is_made_anew_is_another_owner() {
    let world = World::start().await;
    let schemas = apiserver_machinery::builtin::find("flowcontrol.apiserver.k8s.io", "v1", "flowschemas").unwrap();
    // Of what nothing is stored at first, then of what the deletion has stored.
    for name in ["of-the-first", "of-the-second"] {
        let schema = world.get(schemas, "", "exempt").await.unwrap();
        let mut child = map(name, &[("exempt", uid(&schema))]);
        child["metadata"]["ownerReferences"][0]["kind"] = json!("FlowSchema");
        child["metadata"]["ownerReferences"][0]["apiVersion"] = json!("flowcontrol.apiserver.k8s.io/v1");
        world.create(maps(), "default", child).await;
        // Behind this one the child has been looked at.
        world.create(maps(), "default", map("sentinel", &[("nobody", "1")])).await;
        gone(&world, "sentinel").await;
        assert!(world.get(maps(), "default", name).await.is_some());
        world.delete(schemas, "", "exempt", None).await;
        gone(&world, name).await;
    }
    world.stop().await;
}

/// One step of the test of laws. Objects are numbered; the same number may be created again after it is gone.
#[derive(Clone, Debug)]
enum Step {
    /// Create it with these owners, of which some may be gone or may never have been.
    Create(usize, Vec<usize>),
    Own(usize, Vec<usize>),
    Delete(usize, Option<Propagation>),
    Restart,
}

const OBJECTS: usize = 6;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let owners = || prop::collection::vec(0..OBJECTS, 0..3);
    let policy = prop::sample::select(vec![
        None,
        Some(Propagation::Background),
        Some(Propagation::Foreground),
        Some(Propagation::Orphan),
    ]);
    let step = prop_oneof![
        5 => (0..OBJECTS, owners()).prop_map(|(n, owners)| Step::Create(n, owners)),
        2 => (0..OBJECTS, owners()).prop_map(|(n, owners)| Step::Own(n, owners)),
        4 => (0..OBJECTS, policy).prop_map(|(n, policy)| Step::Delete(n, policy)),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..24)
}

/// What there should be: objects by number, each with its uid and the uids of its owners.
#[derive(Default)]
struct Model {
    objects: BTreeMap<usize, (String, BTreeSet<String>)>,
    /// The last uid that an object of this number had.
    last: BTreeMap<usize, String>,
}

impl Model {
    /// Whose owners are all gone goes; others forget the owners that are gone.
    fn settle(&mut self) {
        loop {
            let living: BTreeSet<String> = self.objects.values().map(|(uid, _)| uid.clone()).collect();
            let before = self.objects.len();
            self.objects.retain(|_, (_, owners)| owners.is_empty() || owners.iter().any(|o| living.contains(o)));
            if self.objects.len() == before {
                self.objects.values_mut().for_each(|(_, owners)| owners.retain(|o| living.contains(o)));
                return;
            }
        }
    }

    /// The references to these numbers as they were last known; one that never was has an invented uid.
    fn references(&self, numbers: &[usize]) -> (Vec<Value>, BTreeSet<String>) {
        let uids: BTreeMap<usize, String> = numbers
            .iter()
            .map(|n| (*n, self.last.get(n).cloned().unwrap_or_else(|| format!("00000000-0000-4000-8000-{n:012}"))))
            .collect();
        let references = uids.iter().map(|(n, uid)| owner(&format!("o{n}"), uid)).collect();
        (references, uids.into_values().collect())
    }
}

/// What there is, in the form of the model; `None` while something is being deleted.
async fn present(world: &World) -> Option<BTreeMap<usize, (String, BTreeSet<String>)>> {
    let mut objects = BTreeMap::new();
    for object in world.list(maps(), "default").await {
        if object["metadata"].get("deletionTimestamp").is_some() {
            return None;
        }
        let number = object["metadata"]["name"].as_str().unwrap()[1..].parse().unwrap();
        let owners = object["metadata"]["ownerReferences"].as_array().cloned().unwrap_or_default();
        let owners = owners.iter().map(|o| o["uid"].as_str().unwrap().to_owned()).collect();
        objects.insert(number, (uid(&object).to_owned(), owners));
    }
    Some(objects)
}

/// Carries out one step in the world and in the model.
async fn carry_out(mut world: World, model: &mut Model, step: Step) -> World {
    match step {
        Step::Create(n, owners) if !model.objects.contains_key(&n) => {
            let (references, uids) = model.references(&owners);
            let object = json!({"metadata": {"name": format!("o{n}"), "ownerReferences": references}});
            let created = world.create(maps(), "default", object).await;
            model.last.insert(n, uid(&created).to_owned());
            model.objects.insert(n, (uid(&created).to_owned(), uids));
        }
        Step::Own(n, owners) if model.objects.contains_key(&n) => {
            let (references, uids) = model.references(&owners);
            let change = move |o: &mut Value| o["metadata"]["ownerReferences"] = json!(references);
            world.change(maps(), &format!("o{n}"), "", change).await;
            model.objects.get_mut(&n).unwrap().1 = uids;
        }
        Step::Delete(n, policy) if model.objects.contains_key(&n) => {
            world.delete(maps(), "default", &format!("o{n}"), policy).await;
            let (uid, _) = model.objects.remove(&n).unwrap();
            if policy == Some(Propagation::Orphan) {
                model.objects.values_mut().for_each(|(_, owners)| owners.retain(|owner| *owner != uid));
            }
        }
        Step::Restart => world = World::over(world.stop().await),
        _ => {}
    }
    model.settle();
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, max_shrink_iters: 200, ..ProptestConfig::default() })]

    /// Step by step, what is left is exactly what the model says.
    #[test]
    fn what_is_left_is_what_the_model_says(steps in steps()) {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let (mut world, mut model) = (World::start().await, Model::default());
            for step in steps {
                world = carry_out(world, &mut model, step).await;
                let (world, model) = (&world, &model);
                until("the model's state", || async {
                    (present(world).await.as_ref() == Some(&model.objects)).then_some(())
                }).await;
            }
            world.stop().await;
        });
    }

    /// However creations, changes and deletions overlap with the collector's work: in the end nothing is left whose
    /// owners are all gone, and nothing went that had a living owner or none at all and was not deleted by name.
    #[test]
    fn in_the_end_nothing_is_left_over_and_nothing_missing(
        owners in prop::collection::vec(prop::collection::vec(0..40_usize, 0..3), 40),
        deleted in prop::collection::btree_map(0..40_usize, any::<bool>(), 1..8),
    ) {
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let world = World::start().await;
            let mut uids: Vec<String> = Vec::new();
            let mut wanted: Vec<Vec<usize>> = Vec::new();
            for (n, owners) in owners.iter().enumerate() {
                // Only of objects that were made before, which may be gone by now.
                let owners: BTreeSet<usize> = owners.iter().copied().filter(|o| *o < n).collect();
                let references: Vec<Value> = owners.iter().map(|o| owner(&format!("o{o}"), &uids[*o])).collect();
                let object = json!({"metadata": {"name": format!("o{n}"), "ownerReferences": references}});
                uids.push(uid(&world.create(maps(), "default", object).await).to_owned());
                wanted.push(owners.into_iter().collect());
                for (victim, foreground) in deleted.iter().filter(|(v, _)| **v + 5 == n) {
                    let policy = if *foreground { Propagation::Foreground } else { Propagation::Background };
                    let options = apiserver_machinery::options::DeleteOptions {
                        propagation: Some(policy), ..Default::default()
                    };
                    let key = apiserver_server::registry::ObjectKey::new(&root(), "default", &format!("o{victim}"));
                    // The collector may have been faster.
                    let _ = world.registry.delete(maps(), &key, &options).await;
                }
            }
            let doomed: BTreeSet<usize> = deleted.keys().copied().filter(|v| *v + 5 < 40).collect();
            let mut left: BTreeSet<usize> = (0..40).collect();
            left.retain(|n| !doomed.contains(n));
            loop {
                let living = left.clone();
                left.retain(|n| wanted[*n].is_empty() || wanted[*n].iter().any(|o| living.contains(o)));
                if left == living { break; }
            }
            until("the rest", || async {
                let found = present(&world).await?;
                let names: BTreeSet<usize> = found.keys().copied().collect();
                assert!(left.is_subset(&names), "{:?} went with a living owner", left.difference(&names));
                (names == left).then_some(())
            }).await;
            world.stop().await;
        });
    }
}
