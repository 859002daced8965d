use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{builtin, decode};

fn maps() -> &'static Resource {
    builtin::find("", "v1", "configmaps").unwrap()
}

fn by(manager: &str) -> Writer<'_> {
    Writer { manager, subresource: "", now: 1_796_000_000 }
}

fn at(manager: &str, now: i64) -> Writer<'_> {
    Writer { manager, subresource: "", now }
}

fn config(rest: Value) -> Value {
    let mut config = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    json_patch::merge(&mut config, &rest);
    config
}

/// Applies and normalises, as a server does.
fn applied(live: Option<&Value>, rest: Value, by: Writer<'_>, force: bool) -> Result<Value, apiserver_api::Status> {
    let new = apply(maps(), live, &Applied { config: config(rest), force }, by)?;
    Ok(decode::patched(maps(), new)?.object)
}

fn updated(live: Option<&Value>, rest: Value, by: Writer<'_>) -> Value {
    let mut new = config(rest);
    let given = take_entries(&mut new);
    track(maps(), live, &mut new, given.as_ref(), by);
    new
}

fn entries_of(object: &Value) -> &Value {
    &object["metadata"]["managedFields"]
}

fn fields(object: &Value, manager: &str) -> Value {
    let list = entries_of(object).as_array().map_or(&[][..], Vec::as_slice);
    list.iter().find(|e| e["manager"] == manager).map_or(Value::Null, |e| e["fieldsV1"].clone())
}

#[test]
fn an_update_is_put_down_to_its_manager() {
    let first = updated(None, json!({"metadata": {"labels": {"a": "b"}}, "data": {"k": "v"}}), by("m"));
    assert_eq!(
        entries_of(&first),
        &json!([{"manager": "m", "operation": "Update", "apiVersion": "v1", "time": "2026-11-30T00:53:20Z",
            "fieldsType": "FieldsV1", "fieldsV1": {"f:data": {".": {}, "f:k": {}},
            "f:metadata": {"f:labels": {".": {}, "f:a": {}}}}}])
    );
    let second = updated(Some(&first), json!({"data": {"k": "w", "l": "x"}}), by("n"));
    assert_eq!(fields(&second, "m"), json!({"f:data": {}}));
    assert_eq!(fields(&second, "n"), json!({"f:data": {"f:k": {}, "f:l": {}}}));
    let unchanged = updated(Some(&second), json!({"data": {"k": "w", "l": "x"}}), at("z", 2_000_000_000));
    assert_eq!(unchanged, second);
}

#[test]
fn clients_that_do_not_know_the_entries_keep_them() {
    let first = updated(None, json!({"data": {"k": "v"}}), by("m"));
    for given in [json!(null), json!([{"operation": "Nothing"}]), json!([{"fieldsType": "V9", "operation": "Apply"}])] {
        let same = updated(Some(&first), json!({"metadata": {"managedFields": given}, "data": {"k": "v"}}), by("m"));
        assert_eq!(same, first);
    }
    // Those that do can write them, or have them forgotten; then they are kept up no more.
    let mut mine = entries_of(&first).clone();
    mine[0]["manager"] = json!("renamed");
    let renamed = updated(Some(&first), json!({"metadata": {"managedFields": mine}, "data": {"k": "v"}}), by("m"));
    assert_eq!(fields(&renamed, "renamed"), json!({"f:data": {".": {}, "f:k": {}}}));
    for reset in [json!([{}]), json!([])] {
        let none = updated(Some(&first), json!({"metadata": {"managedFields": reset}, "data": {"k": "w"}}), by("m"));
        assert!(entries_of(&none).is_null(), "{none}");
        assert!(entries_of(&updated(Some(&none), json!({"data": {"k": "x"}}), by("m"))).is_null());
    }
}

#[test]
fn a_subresource_has_an_entry_of_its_own_and_the_object_none_of_it() {
    let schemas = builtin::find("flowcontrol.apiserver.k8s.io", "v1", "flowschemas").unwrap();
    let condition = json!({"type": "Dangling", "status": "False"});
    let mut first = json!({"metadata": {"name": "f"}, "spec": {"matchingPrecedence": 1}});
    track(schemas, None, &mut first, None, by("m"));
    assert_eq!(fields(&first, "m"), json!({"f:spec": {"f:matchingPrecedence": {}}}));
    let mut second = first.clone();
    second["status"] = json!({"conditions": [condition]});
    track(schemas, Some(&first), &mut second, None, Writer { subresource: "status", ..by("m") });
    let list = entries_of(&second).as_array().unwrap();
    assert_eq!((list.len(), &list[1]["subresource"]), (2, &json!("status")));
    let of_status = json!({"f:status": {"f:conditions": {".": {}, "k:{\"type\":\"Dangling\"}":
        {".": {}, "f:status": {}, "f:type": {}}}}});
    assert_eq!(list[1]["fieldsV1"], of_status);
    let config = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema",
        "metadata": {"name": "f"}, "status": {"conditions": [condition]}});
    let new = apply(schemas, Some(&first), &Applied { config, force: false }, by("n")).unwrap();
    assert!(fields(&new, "n").is_null(), "{new}");
}

#[test]
fn conflicts_name_every_field() {
    let live = applied(None, json!({"data": {"a": "1", "b": "1"}}), by("m1"), false).unwrap();
    let live = applied(Some(&live), json!({"data": {"c": "1"}}), by("m2"), false).unwrap();
    let live = updated(Some(&live), json!({"data": {"a": "1", "b": "1", "c": "1", "d": "1"}}), by("upd"));
    let all = json!({"data": {"a": "2", "b": "2", "c": "1", "d": "2"}});
    let status = applied(Some(&live), all.clone(), by("m3"), false).unwrap_err();
    assert_eq!(status.code, 409);
    assert_eq!(
        status.message,
        "Apply failed with 3 conflicts: conflicts with \"m1\":\n- .data.a\n- .data.b\n\
         conflicts with \"upd\" using v1:\n- .data.d"
    );
    let causes = status.details.unwrap().causes;
    let last = causes.last().unwrap();
    assert_eq!((causes.len(), &*last.message, &*last.field), (3, "conflict with \"upd\" using v1", ".data.d"));
    let forced = applied(Some(&live), all, by("m3"), true).unwrap();
    assert_eq!(forced["data"], json!({"a": "2", "b": "2", "c": "1", "d": "2"}));
    assert!(fields(&forced, "m1").is_null() && fields(&forced, "upd").is_null());
    assert_eq!(fields(&forced, "m2"), json!({"f:data": {"f:c": {}}}));
}

#[test]
fn what_is_applied_no_longer_goes_unless_another_has_it() {
    let live = applied(None, json!({"data": {"a": "1", "b": "1"}}), by("m1"), false).unwrap();
    let live = applied(Some(&live), json!({"data": {"b": "1"}}), by("m2"), false).unwrap();
    let live = updated(Some(&live), json!({"data": {"a": "1", "b": "1", "c": "1"}}), by("upd"));
    let live = applied(Some(&live), json!({"data": {}}), by("m1"), false).unwrap();
    assert_eq!(live["data"], json!({"b": "1", "c": "1"}));
    let live = applied(Some(&live), json!({}), by("m2"), false).unwrap();
    assert_eq!(live["data"], json!({"c": "1"}));
}

#[test]
fn lists_by_key_and_sets() {
    let owner = |uid: &str, name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid});
    let meta =
        |owners: Value, finalizers: Value| json!({"metadata": {"ownerReferences": owners, "finalizers": finalizers}});
    let live = applied(None, meta(json!([owner("1", "a")]), json!(["x/a", "x/b"])), by("m1"), false).unwrap();
    assert_eq!(
        fields(&live, "m1"),
        json!({"f:metadata": {"f:finalizers": {"v:\"x/a\"": {}, "v:\"x/b\"": {}},
            "f:ownerReferences": {"k:{\"uid\":\"1\"}": {}}}})
    );
    let live = applied(Some(&live), meta(json!([owner("2", "b")]), json!(["x/c", "x/a"])), by("m2"), false).unwrap();
    assert_eq!(live["metadata"]["finalizers"], json!(["x/c", "x/a", "x/b"]));
    assert_eq!(live["metadata"]["ownerReferences"].as_array().unwrap().len(), 2);
    let why = applied(Some(&live), meta(json!([owner("1", "z")]), json!([])), by("m2"), false).unwrap_err().message;
    assert_eq!(why, "Apply failed with 1 conflict: conflict with \"m1\": .metadata.ownerReferences[uid=\"1\"]");
    let live = applied(Some(&live), json!({}), by("m1"), false).unwrap();
    assert_eq!(live["metadata"]["finalizers"], json!(["x/c", "x/a"]));
    assert_eq!(live["metadata"]["ownerReferences"], json!([owner("2", "b")]));
}

#[test]
fn what_nobody_managed_is_put_down_to_who_was_before() {
    let live = config(json!({"data": {"a": "1"}}));
    let why = applied(Some(&live), json!({"data": {"a": "2"}}), by("m"), false).unwrap_err().message;
    assert_eq!(why, "Apply failed with 1 conflict: conflict with \"before-first-apply\" using v1: .data.a");
    let new = applied(Some(&live), json!({"data": {"b": "2"}}), by("m"), false).unwrap();
    assert_eq!(fields(&new, "before-first-apply"), json!({"f:data": {".": {}, "f:a": {}}}));
}

#[test]
fn kubectl_takes_over_what_it_applied_from_its_own_side() {
    const LAST: &str = "kubectl.kubernetes.io/last-applied-configuration";
    let last = config(json!({"data": {"a": "1"}})).to_string();
    let rest = json!({"metadata": {"annotations": {LAST: last}}, "data": {"a": "1"}});
    let live = updated(None, rest, by("kubectl-client-side-apply"));
    let wanted = json!({"data": {"a": "2"}});
    assert_eq!(applied(Some(&live), wanted.clone(), by("other"), false).unwrap_err().code, 409);
    let new = applied(Some(&live), wanted.clone(), by("kubectl"), false).unwrap();
    assert_eq!(new["data"]["a"], "2");
    let kept: Value = serde_json::from_str(new["metadata"]["annotations"][LAST].as_str().unwrap()).unwrap();
    assert_eq!(kept, config(wanted.clone()));
    // What somebody has changed since is not kubectl's.
    let changed = updated(Some(&live), json!({"metadata": {"annotations": {LAST: last}}, "data": {"a": "3"}}), by("x"));
    assert_eq!(applied(Some(&changed), wanted, by("kubectl"), false).unwrap_err().code, 409);
}

#[test]
fn configurations_that_are_none() {
    for (rest, want) in [
        (
            json!({"bogus": 1}),
            "failed to create typed patch object (/a; /v1, Kind=ConfigMap): .bogus: field not declared in schema",
        ),
        (json!({"metadata": {"managedFields": []}}), "metadata.managedFields must be nil"),
        (json!({"metadata": {"finalizers": ["a/b", "a/b"]}}), "duplicate entries for key [=\"a/b\"]"),
        (json!({"metadata": {"ownerReferences": [{"name": "x"}]}}), "omits key field \"uid\""),
        (json!({"data": {"a": 1}}), "cannot unmarshal number into a string"),
        (json!({"data": [1]}), "cannot unmarshal array into a map"),
    ] {
        let status = applied(None, rest, by("m"), false).unwrap_err();
        assert_eq!(status.code, 400);
        assert!(status.message.contains(want), "{}", status.message);
    }
}

/// What clients may set in a ConfigMap, small enough that managers meet.
fn wish() -> impl Strategy<Value = Value> {
    let data = prop::option::of(prop::collection::btree_map("[ab]", "[12]", 0..3));
    let labels = prop::option::of(prop::collection::btree_map("[ab]", "[12]", 0..3));
    let finalizers = prop::option::of(prop::sample::subsequence(vec!["x/a", "x/b", "x/c"], 0..3));
    (data, labels, finalizers, any::<bool>()).prop_map(|(data, labels, finalizers, immutable)| {
        let mut rest = json!({"metadata": {}});
        data.into_iter().for_each(|data| rest["data"] = json!(data));
        labels.into_iter().for_each(|labels| rest["metadata"]["labels"] = json!(labels));
        finalizers.into_iter().for_each(|list| rest["metadata"]["finalizers"] = json!(list));
        if immutable {
            rest["immutable"] = json!(true);
        }
        rest
    })
}

/// Any JSON, with names that mean something.
fn tree() -> impl Strategy<Value = Value> {
    let names = ["metadata", "data", "labels", "finalizers", "ownerReferences", "uid", "managedFields", "annotations"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3).prop_map(Value::from),
        "[ab]?".prop_map(Value::from)
    ];
    leaf.prop_recursive(4, 24, 4, move |below| {
        prop_oneof![
            prop::collection::vec(below.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(prop::sample::select(names.to_vec()), below, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    /// Whatever is sent, there is an object of the kind or a refusal, and the object can be applied once more.
    #[test]
    fn any_configuration(metadata in tree(), data in tree(), live in wish()) {
        let live = applied(None, live, by("m"), false).unwrap();
        let rest = json!({"metadata": metadata, "data": data});
        for live in [None, Some(&live)] {
            if let Ok(new) = applied(live, rest.clone(), by("n"), true) {
                prop_assert!(is_same(&applied(Some(&new), rest.clone(), by("n"), false).unwrap(), &new));
            }
        }
    }

    #[test]
    fn laws_of_apply(steps in prop::collection::vec((wish(), 0..4_usize, any::<bool>()), 1..8), last in wish()) {
        let mut live: Option<Value> = None;
        for (n, (rest, who, is_apply)) in steps.into_iter().enumerate() {
            let now = 1_796_000_000 + i64::try_from(n).unwrap();
            let manager = ["m0", "m1", "m2", "m3"][who];
            if is_apply || live.is_none() {
                live = applied(live.as_ref(), rest, at(manager, now), true).ok();
            } else {
                let normal = decode::patched(maps(), config(rest)).unwrap().object;
                live = Some(updated(live.as_ref(), normal, at(manager, now)));
            }
        }
        let live = live.unwrap();
        let once = applied(Some(&live), last.clone(), at("m0", 1_796_000_100), true).unwrap();
        // The configuration is in the object, and its manager owns it.
        for (name, value) in object::entries(&last, &["data"]) {
            prop_assert_eq!(&once["data"][name], value);
        }
        let kind = Kind::object(maps().schema);
        let wanted = kind.fields(&config(last.clone())).0.difference(&unowned());
        let own = FieldSet::parse(&fields(&once, "m0")).unwrap_or_default();
        prop_assert_eq!(&own.intersection(&wanted), &wanted);
        // Once more changes nothing, forced or not.
        let twice = applied(Some(&once), last.clone(), at("m0", 1_796_000_200), false).unwrap();
        prop_assert!(is_same(&twice, &once), "{} {}", once, twice);
        // Somebody who agrees conflicts with nobody.
        let agreed = applied(Some(&once), last.clone(), at("new", 1_796_000_300), false).unwrap();
        prop_assert_eq!(&agreed["data"], &once["data"]);
        // Nobody owns what is not there, but for maps that were applied without members.
        let empty = FieldSet::parse(&json!({"f:data": {}, "f:metadata": {"f:labels": {}}})).unwrap();
        let all = kind.compare(&json!({}), &once).added.union(&empty);
        for entry in entries_of(&once).as_array().unwrap_or(&vec![]) {
            let set = FieldSet::parse(&entry["fieldsV1"]).unwrap();
            let wanted = if entry["manager"] == "m0" { &wanted } else { &all };
            prop_assert_eq!(set.difference(&all).difference(wanted), FieldSet::default());
        }
    }
}
