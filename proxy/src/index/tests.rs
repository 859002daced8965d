use serde_json::Value;

use super::*;

fn vectors() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/kcp/path-lookup.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn held(confirmed: bool) -> Cluster {
    Cluster { confirmed, ..Cluster::default() }
}

fn name(text: &str) -> ClusterName {
    text.parse().unwrap()
}

/// The fixture's index and the names and base URLs of its shards.
pub(crate) fn fixture(vectors: &Value) -> (Index, Vec<(String, String)>) {
    let fixture = &vectors["fixture"];
    let shards: Vec<_> = fixture["shards"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(n, url)| (n.clone(), url.as_str().unwrap().trim_end_matches('/').to_owned()))
        .collect();
    let number = |shard: &str| shards.iter().position(|(n, _)| n == shard).unwrap();
    let index = Index::new(Directory::Watch, shards.len());
    for (shard, clusters) in fixture["logicalClusters"].as_object().unwrap() {
        for cluster in clusters.as_array().unwrap() {
            index.put_cluster(number(shard), &name(cluster.as_str().unwrap()), held(false));
        }
    }
    for workspace in fixture["workspaces"].as_array().unwrap() {
        let text = |key: &str| workspace[key].as_str().unwrap_or_default();
        let mut object = serde_json::json!({
            "metadata": { "name": text("name"), "annotations": { "kcp.io/cluster": text("cluster") } },
            "spec": { "cluster": text("specCluster"), "URL": text("url") },
            "status": { "phase": text("phase") },
        });
        if workspace["mount"] == true {
            object["spec"]["mount"] = serde_json::json!({ "ref": {} });
        }
        let object: objects::Object = serde_json::from_value(object).unwrap();
        if let Some(workspace) = object.workspace() {
            index.put_workspace(number(text("shard")), &object.cluster().unwrap(), text("name"), workspace);
        }
    }
    for shard in 0..shards.len() {
        index.mark_synced(shard, CLUSTERS | WORKSPACES);
    }
    (index, shards)
}

#[test]
fn paths_lead_where_kcp_says() {
    let vectors = vectors();
    let (index, shards) = fixture(&vectors);
    let mut seen = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let Some(path) = case["path"].as_str() else { continue };
        seen += 1;
        let expect = &case["expect"];
        match index.lookup(path) {
            Lookup::Found { name, shard } => {
                assert_eq!((name.as_str(), &*shards[shard].0), (str_of(expect, "cluster"), str_of(expect, "shard")));
                assert_eq!(expect["code"], 0, "{path}");
            }
            // Better than kcp on purpose: it will be there in a moment.
            Lookup::Pending => assert!(path == "root:pending" && expect["found"] == false, "{path}"),
            Lookup::Unknown { certain } => assert!(certain && expect["found"] == false, "{path}"),
            other => panic!("{path}: {other:?}"),
        }
    }
    assert_eq!(seen, 8);
}

fn str_of<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

fn found(cluster: &str, shard: usize) -> Lookup {
    Lookup::Found { name: name(cluster), shard }
}

#[test]
fn a_cluster_on_two_shards_belongs_to_the_one_it_names() {
    let index = Index::new(Directory::Watch, 2);
    assert_eq!(index.put_cluster(0, &name("c"), held(false)), News::Appeared);
    assert_eq!(index.put_cluster(1, &name("c"), held(false)), News::Appeared);
    assert_eq!(index.put_cluster(1, &name("c"), held(false)), News::Nothing);
    assert_eq!(index.lookup("c"), found("c", 0), "the older one");
    assert_eq!(index.put_cluster(1, &name("c"), held(true)), News::Changed);
    assert_eq!(index.lookup("c"), found("c", 1), "the one it names");
    assert!(index.remove_cluster(1, &name("c")));
    assert_eq!(index.lookup("c"), found("c", 0));
    assert!(index.remove_cluster(0, &name("c")) && !index.remove_cluster(0, &name("c")));
    assert!(!index.knows(&name("c")));
    assert_eq!(index.lookup("c"), Lookup::Unknown { certain: false });
}

#[test]
fn what_a_new_list_does_not_hold_is_gone() {
    let index = Index::new(Directory::Watch, 1);
    for cluster in ["root", "a", "b"] {
        index.put_cluster(0, &name(cluster), held(false));
    }
    let to = |cluster: &str| Workspace { cluster: Some(name(cluster)), ..Workspace::default() };
    index.put_workspace(0, &name("root"), "one", to("a"));
    index.put_workspace(0, &name("root"), "two", to("b"));
    assert!(!index.is_ready());
    assert_eq!(index.sync_clusters(0, &[name("root"), name("a")].into()), [name("b")]);
    index.sync_workspaces(0, &[(name("root"), "one".into()), (name("root"), "two".into())].into());
    assert!(index.is_ready());
    assert_eq!(index.lookup("root:one"), found("a", 0));
    assert_eq!(index.lookup("root:two"), Lookup::Unknown { certain: true });
    index.sync_workspaces(0, &HashSet::new());
    assert_eq!(index.lookup("root:one"), Lookup::Unknown { certain: true });
    assert_eq!(index.lookup("a"), found("a", 0), "by name it is still there");
}

#[test]
fn the_workspaces_of_a_lost_cluster_are_lost() {
    let index = Index::new(Directory::Watch, 1);
    index.put_cluster(0, &name("root"), held(false));
    index.put_cluster(0, &name("a"), held(false));
    index.put_workspace(0, &name("root"), "one", Workspace { cluster: Some(name("a")), ..Workspace::default() });
    index.remove_cluster(0, &name("root"));
    index.put_cluster(0, &name("root"), held(false));
    assert_eq!(index.lookup("root:one"), Lookup::Unknown { certain: false });
}

#[test]
fn labels_come_from_the_parent_and_go_with_the_workspace() {
    let index = Index::new(Directory::Watch, 1);
    index.put_cluster(0, &name("a"), Cluster { path: "root:one".into(), ..Cluster::default() });
    assert_eq!(index.describe(&name("a")), ("root:one".into(), Arc::default()));
    let gold: Labels = [("tier".to_owned(), "gold".to_owned())].into();
    let labelled = Workspace { cluster: Some(name("a")), labels: gold.clone(), ..Workspace::default() };
    assert_eq!(index.put_workspace(0, &name("root"), "one", labelled.clone()), Some(name("a")));
    assert_eq!(index.put_workspace(0, &name("root"), "one", labelled.clone()), None, "no news");
    assert_eq!(index.describe(&name("a")), ("root:one".into(), Arc::new(gold)));
    index.remove_workspace(0, &name("root"), "one");
    assert!(index.describe(&name("a")).1.is_empty());
    assert_eq!((index.held_by(0), index.describe(&name("b")).0), (1, "b".into()));
}

#[test]
fn equal_labels_are_kept_once_and_what_is_unused_goes() {
    let index = Index::new(Directory::Watch, 1);
    let put = |cluster: &str, tier: &str| {
        let labels = Labels::from([("tier".to_owned(), tier.to_owned())]);
        let workspace = Workspace { cluster: Some(name(cluster)), labels, ..Workspace::default() };
        index.put_workspace(0, &name("root"), cluster, workspace);
        index.describe(&name(cluster)).1
    };
    assert!(Arc::ptr_eq(&put("a", "gold"), &put("b", "gold")));
    assert!(!Arc::ptr_eq(&put("a", "gold"), &put("c", "silver")));
    (0..1000).for_each(|n| drop(put("d", &n.to_string())));
    assert!(index.kinds.lock().unwrap().sets.len() < 200);
    assert_eq!(index.describe(&name("a")).1["tier"], "gold");
}

/// A shard goes while the one in its place tells the same: paths lead there, labels stay, and what only it held is gone.
#[test]
fn a_shard_that_goes_leaves_what_another_tells_too() {
    let index = Index::new(Directory::Watch, 1);
    let labels = Labels::from([("tier".to_owned(), "gold".to_owned())]);
    let told =
        |cluster: &str| Workspace { cluster: Some(name(cluster)), labels: labels.clone(), ..Workspace::default() };
    let next = index.add_shard();
    for shard in [0, next] {
        for cluster in ["root", "one"] {
            index.put_cluster(shard, &name(cluster), held(true));
        }
        index.put_workspace(shard, &name("root"), "org", told("one"));
    }
    index.put_cluster(0, &name("two"), held(true));
    index.put_workspace(0, &name("root"), "lost", told("two"));
    index.mark_synced(0, CLUSTERS | WORKSPACES);
    let found = |shard| Lookup::Found { name: name("one"), shard };
    assert_eq!((index.lookup("root:org"), index.unheard()), (found(0), 1));
    index.leave(0);
    assert_eq!(index.lookup("root:org"), found(0), "until the other one has told all");
    assert!(!index.is_ready() && !index.is_synced(next));
    index.mark_synced(next, CLUSTERS | WORKSPACES);
    let mut gone = index.forget_shard(0);
    gone.sort();
    assert_eq!(gone, ["one", "root", "two"].map(name));
    assert_eq!(index.lookup("root:org"), found(next));
    assert_eq!((index.describe(&name("one")).1, index.describe(&name("two")).1), (labels.into(), Arc::default()));
    for lost in ["two", "root:lost"] {
        assert_eq!(index.lookup(lost), Lookup::Unknown { certain: true }, "{lost}");
    }
    assert_eq!((index.held_by(0), index.held_by(next)), (0, 2));
}
