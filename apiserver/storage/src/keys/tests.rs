use serde_json::Value;

use super::*;

const VECTORS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/kcp/storage-keys.json"));

fn list_prefix(case: &Value) -> String {
    let keys = ResourceKeys::new(case["group"].as_str().unwrap(), case["resource"].as_str().unwrap()).unwrap();
    match case["cluster"].as_str().unwrap() {
        "*" => keys.all().to_owned(),
        cluster => keys.cluster(&cluster.parse().unwrap()).unwrap(),
    }
}

#[test]
fn vectors() {
    let vectors: Value = serde_json::from_str(VECTORS).unwrap();
    let (mut read, mut custom) = (0, 0);
    for case in vectors["cases"].as_array().unwrap() {
        let input = &case["in"];
        let text = |name: &str| input[name].as_str();
        match case["op"].as_str().unwrap() {
            // Custom resources and those of bound APIs, which lie one segment deeper, are not served.
            "build" | "listPrefix" if text("identity").is_some() || input["customResource"] == true => custom += 1,
            "build" => {
                let keys = ResourceKeys::new(text("group").unwrap(), text("resource").unwrap()).unwrap();
                let cluster: ClusterName = text("cluster").unwrap().parse().unwrap();
                let key = keys.key(&cluster, text("namespace"), text("name").unwrap()).unwrap();
                assert_eq!(&*key, case["key"], "{input}");
            }
            "listPrefix" => assert_eq!(list_prefix(input), case["prefix"], "{input}"),
            // Nothing here reads keys: who watches them knows what they begin with.
            "clusterOf" => read += 1,
            other => panic!("unknown operation {other}"),
        }
    }
    assert_eq!((read, custom), (6, 7));
}

#[test]
fn the_cache_server_adds_the_shard() {
    let root: ClusterName = "root".parse().unwrap();
    let keys = ResourceKeys::cached("core.kcp.io", "shards", "alpha").unwrap();
    assert_eq!(keys.all(), "/cache/core.kcp.io/shards/customresources/alpha/");
    let key = keys.key(&root, None, "alpha").unwrap();
    assert_eq!(&*key, "/cache/core.kcp.io/shards/customresources/alpha/root/alpha");
    assert!(key.starts_with(&cache_prefix("core.kcp.io", "shards").unwrap()));
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
    let keys = ResourceKeys::new("", "configmaps").unwrap();
    for bad in ["", ".", "..", "a/b", "a\0", "a\n"] {
        assert!(keys.key(&root, Some("default"), bad).is_err(), "{bad:?}");
        assert!(keys.key(&root, Some(bad), "x").is_err(), "{bad:?}");
        assert!(ResourceKeys::cached("g.io", "widgets", bad).is_err(), "{bad:?}");
    }
    assert!(keys.key(&root, None, "system:controller:x").is_ok());
}
