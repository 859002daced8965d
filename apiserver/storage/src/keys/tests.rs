use serde_json::Value;

use super::*;

const VECTORS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/kcp/storage-keys.json"));

fn class(case: &Value) -> Class {
    match (case["identity"].as_str(), case["customResource"].as_bool()) {
        (Some(hash), _) => Class::Identity(hash.into()),
        (None, Some(true)) => Class::Custom,
        _ => Class::BuiltIn,
    }
}

fn list_prefix(case: &Value) -> String {
    let (group, resource) = (case["group"].as_str().unwrap(), case["resource"].as_str().unwrap());
    if case["partialMetadata"] == true {
        return every_class(REGISTRY, group, resource).unwrap();
    }
    let keys = ResourceKeys::new(&class(case), group, resource).unwrap();
    match case["cluster"].as_str().unwrap() {
        "*" => keys.all().to_owned(),
        cluster => keys.cluster(&cluster.parse().unwrap()).unwrap(),
    }
}

#[test]
fn vectors() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let mut without_class = 0;
    for case in vectors["cases"].as_array().unwrap() {
        let input = &case["in"];
        let text = |name: &str| input[name].as_str();
        match case["op"].as_str().unwrap() {
            "build" => {
                let keys = ResourceKeys::new(&class(input), text("group").unwrap(), text("resource").unwrap()).unwrap();
                let cluster: ClusterName = text("cluster").unwrap().parse().unwrap();
                let key = keys.key(&cluster, text("namespace"), text("name").unwrap()).unwrap();
                assert_eq!(&*key, case["key"], "{input}");
                let namespace = text("namespace").map(Into::into);
                let object = ObjectKey { cluster, namespace, name: text("name").unwrap().into() };
                assert_eq!(keys.parse(&key), Some(object), "{input}");
            }
            "listPrefix" => assert_eq!(list_prefix(input), case["prefix"], "{input}"),
            // Nothing here reads keys whose class it does not know, so there is no such function.
            "clusterOf" => without_class += 1,
            other => panic!("unknown operation {other}"),
        }
    }
    assert_eq!(without_class, 6);
}

#[test]
fn the_cache_server_adds_the_shard() {
    let root: ClusterName = "root".parse().unwrap();
    let keys = ResourceKeys::cached(None, "core.kcp.io", "shards", "alpha").unwrap();
    assert_eq!(keys.all(), "/cache/core.kcp.io/shards/customresources/alpha/");
    let key = keys.key(&root, None, "alpha").unwrap();
    assert_eq!(&*key, "/cache/core.kcp.io/shards/customresources/alpha/root/alpha");
    assert_eq!(keys.parse(&key).unwrap().cluster, root);
    let bound = ResourceKeys::cached(Some("cafe"), "g.io", "widgets", "beta").unwrap();
    assert_eq!(&*bound.key(&root, Some("ns"), "w").unwrap(), "/cache/g.io/widgets/cafe/beta/root/ns/w");
    assert_eq!(cache_prefix(Some("cafe"), "g.io", "widgets").unwrap(), "/cache/g.io/widgets/cafe/");
}

#[test]
fn a_path_never_reaches_a_key() {
    for bad in ["root:org", "root:internal-cluster", "x:system:y"] {
        assert_eq!(checked_cluster(bad), Err(KeyError::ClusterIsPath(bad.into())));
    }
    assert_eq!(checked_cluster("system:admin"), Ok("system:admin"));
    assert_eq!(checked_cluster("root"), Ok("root"));
}

#[test]
fn segments_cannot_change_the_structure() {
    let root: ClusterName = "root".parse().unwrap();
    let keys = ResourceKeys::new(&Class::BuiltIn, "", "configmaps").unwrap();
    for bad in ["", ".", "..", "a/b", "a\0", "a\n"] {
        assert!(keys.key(&root, Some("default"), bad).is_err(), "{bad:?}");
        assert!(keys.key(&root, Some(bad), "x").is_err(), "{bad:?}");
        assert!(ResourceKeys::new(&Class::Identity(bad.into()), "g.io", "widgets").is_err(), "{bad:?}");
    }
    assert!(keys.key(&root, None, "system:controller:x").is_ok());
}

#[test]
fn only_own_keys_are_read_back() {
    let keys = ResourceKeys::new(&Class::Custom, "g.io", "widgets").unwrap();
    for foreign in [
        "/registry/g.io/widgets/cafe/root/w",
        "/registry/g.io/widgets/customresources/root",
        "/registry/g.io/widgets/customresources/root/",
        "/registry/g.io/widgets/customresources/root/ns/w/x",
        "/registry/g.io/widgets/customresources/root:org/w",
        "/registry/g.io/widgets2/customresources/root/w",
    ] {
        assert_eq!(keys.parse(foreign), None, "{foreign}");
    }
}
