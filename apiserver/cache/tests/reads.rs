//! Reads in all combinations of a concrete place and wildcards.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use serde_json::{Value, json};
use support::{Client, EXPORTS, Events, admin, at, export, place};

/// The same name everywhere, and one more.
async fn filled() -> Client {
    let client = admin();
    for (shard, cluster, name) in [
        ("amber", "root", "a"),
        ("amber", "one", "a"),
        ("ruby", "root", "a"),
        ("ruby", "one", "a"),
        ("ruby", "one", "b"),
        // Prefixes of the others: no name may count as one.
        ("amber-2", "root", "a"),
        ("amber", "on", "a"),
    ] {
        client.put(shard, cluster, name).await;
    }
    client
}

#[tokio::test]
async fn lists_in_all_combinations() {
    let client = filled().await;
    let all =
        ["amber-2|root/a", "amber|on/a", "amber|one/a", "amber|root/a", "ruby|one/a", "ruby|one/b", "ruby|root/a"];
    for (shard, cluster, want) in [
        ("amber", "one", &["amber|one/a"][..]),
        ("amber", "*", &["amber|on/a", "amber|one/a", "amber|root/a"]),
        ("*", "one", &["amber|one/a", "ruby|one/a", "ruby|one/b"]),
        ("%2A", "%2A", &all),
        ("none", "one", &[]),
        ("amber", "none", &[]),
    ] {
        let path = at(shard, cluster, EXPORTS);
        assert_eq!(client.list(&path).await, want, "{path}");
        // Without the prefix, as a server of its own is asked.
        assert_eq!(client.list(path.strip_prefix("/services/cache").unwrap()).await, want, "{path}");
        let named: Vec<_> = want.iter().filter(|p| p.ends_with("/a")).copied().collect();
        assert_eq!(client.list(&format!("{path}?fieldSelector=metadata.name%3Da")).await, named, "{path}");
        assert_eq!(pages(&client, &path).await, want, "{path}");
    }
}

/// The same list in pages of one object.
async fn pages(client: &Client, path: &str) -> Vec<String> {
    let (mut found, mut token) = (Vec::new(), String::new());
    loop {
        let (code, page) = client.get(&format!("{path}?limit=1&continue={token}")).await;
        assert_eq!(code, 200, "{page}");
        found.extend(page["items"].as_array().unwrap().iter().map(place));
        match page["metadata"]["continue"].as_str() {
            Some(next) if !next.is_empty() => token = next.to_owned(),
            _ => return found,
        }
    }
}

#[tokio::test]
async fn a_token_is_of_its_place() {
    let client = filled().await;
    let (_, page) = client.get(&at("amber", "*", &format!("{EXPORTS}?limit=1"))).await;
    let token = page["metadata"]["continue"].as_str().unwrap();
    let elsewhere = at("ruby", "*", &format!("{EXPORTS}?limit=1&continue={token}"));
    assert_eq!(client.refused("GET", &elsewhere, None).await.0, 400);
}

#[tokio::test]
async fn one_object_in_all_combinations() {
    let client = filled().await;
    for (shard, cluster, name, want) in [
        ("ruby", "one", "b", Ok("ruby|one/b")),
        ("ruby", "*", "b", Ok("ruby|one/b")),
        ("*", "one", "b", Ok("ruby|one/b")),
        ("*", "*", "b", Ok("ruby|one/b")),
        ("amber", "on", "a", Ok("amber|on/a")),
        ("*", "on", "a", Ok("amber|on/a")),
        ("amber", "one", "b", Err(404)),
        ("amber", "*", "b", Err(404)),
        ("*", "root", "b", Err(404)),
        ("*", "*", "x%2Cy%3Dz", Err(404)),
        // There are several, and nobody can say which one is meant.
        ("*", "root", "a", Err(400)),
        ("amber", "*", "a", Err(400)),
    ] {
        let path = at(shard, cluster, &format!("{EXPORTS}/{name}"));
        let (code, value) = client.get(&path).await;
        match want {
            Ok(want) => assert_eq!((code, place(&value)), (200, want.to_owned()), "{path}"),
            Err(want) => assert_eq!(code, want, "{path}: {value}"),
        }
    }
    let several = client.refused("GET", &at("*", "root", &format!("{EXPORTS}/a")), None).await.1;
    assert!(several.starts_with("3 apiexports.apis.kcp.io in these places are called \"a\""), "{several}");
}

#[tokio::test]
async fn items_say_what_they_are_and_where() {
    let client = admin();
    let mut object = export("a", json!("the content is free"));
    object["size"] = json!(40_000);
    object["metadata"]["annotations"] = json!({"kcp.io/cluster": "forged", "kcp.io/shard": "forged", "x": "y"});
    let (code, created) = client.send("POST", &at("amber", "root", EXPORTS), Some(&object)).await;
    assert_eq!(code, 201, "{created}");
    let annotations = json!({"kcp.io/cluster": "root", "kcp.io/shard": "amber", "x": "y"});
    assert_eq!(created["metadata"]["annotations"], annotations);
    assert_eq!((&created["spec"], &created["size"]), (&object["spec"], &object["size"]));
    let (_, list) = client.get(&at("*", "*", EXPORTS)).await;
    assert_eq!(list["kind"], "APIExportList");
    assert_eq!(list["items"], Value::from(vec![created.clone()]));
    let (_, got) = client.get(&at("amber", "root", &format!("{EXPORTS}/a"))).await;
    assert_eq!(got, created);
}

#[tokio::test]
async fn watches_in_all_combinations() {
    let client = admin();
    let mut places = Vec::new();
    for (shard, cluster) in [("amber", "one"), ("amber", "*"), ("*", "one"), ("*", "*")] {
        let path = at(shard, cluster, &format!("{EXPORTS}?watch=true&resourceVersion=1"));
        places.push(Events::open(&client, &path).await);
    }
    for (shard, cluster) in [("ruby", "root"), ("amber", "root"), ("ruby", "one"), ("amber", "one")] {
        client.put(shard, cluster, "a").await;
    }
    let changed = client.send("PATCH", &at("ruby", "one", &format!("{EXPORTS}/a")), Some(&json!({"spec": 2}))).await;
    assert_eq!(changed.0, 200);
    for (shard, cluster) in [("ruby", "one"), ("amber", "one")] {
        assert_eq!(client.send("DELETE", &at(shard, cluster, &format!("{EXPORTS}/a")), None).await.0, 200);
    }
    let all = [
        "ADDED ruby|root/a",
        "ADDED amber|root/a",
        "ADDED ruby|one/a",
        "ADDED amber|one/a",
        "MODIFIED ruby|one/a",
        "DELETED ruby|one/a",
        "DELETED amber|one/a",
    ];
    let amber = |e: &&&str| e.contains(" amber");
    let one = |e: &&&str| e.contains("|one/");
    let wanted: [Vec<&&str>; 4] = [
        all.iter().filter(amber).filter(one).collect(),
        all.iter().filter(amber).collect(),
        all.iter().filter(one).collect(),
        all.iter().collect(),
    ];
    for (events, wanted) in places.iter_mut().zip(&wanted) {
        for want in wanted {
            assert_eq!(events.told().await, **want);
        }
    }
}

#[tokio::test]
async fn a_watch_begins_with_the_state_and_marks_its_end() {
    let client = filled().await;
    let options = "?watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut events = Events::open(&client, &at("*", "one", &format!("{EXPORTS}{options}"))).await;
    for want in ["ADDED amber|one/a", "ADDED ruby|one/a", "ADDED ruby|one/b"] {
        assert_eq!(events.told().await, want);
    }
    let mark = events.next().await.unwrap();
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    client.put("ruby", "root", "c").await;
    client.put("ruby", "one", "c").await;
    assert_eq!(events.told().await, "ADDED ruby|one/c");
}

#[tokio::test]
async fn tables_and_metadata_alone_tell_the_place_too() {
    let client = admin();
    client.put("amber", "root", "a").await;
    let metadata =
        Client { accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", ..client.clone() };
    assert_eq!(metadata.list(&at("*", "*", EXPORTS)).await, ["amber|root/a"]);
    let table = Client { accept: "application/json;as=Table;g=meta.k8s.io;v=v1", ..client };
    let (_, rows) = table.get(&at("*", "*", EXPORTS)).await;
    assert_eq!(rows["rows"][0]["cells"][0], "a");
    assert_eq!(place(&rows["rows"][0]["object"]), "amber|root/a");
}
