use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::builtin;

fn resource(plural: &str) -> &'static Resource {
    builtin::all().iter().find(|r| r.plural == plural).unwrap()
}

fn patched(plural: &str, kind: PatchType, old: &Value, patch: &Value) -> Result<Value, Status> {
    Patch::parse(kind, patch.to_string().as_bytes())?
        .apply(resource(plural), old, FieldValidation::Strict)
        .map(|(object, _)| object)
}

fn map(data: Value) -> Value {
    json!({"metadata": {"name": "a"}, "data": data})
}

#[test]
fn json_patches() {
    let old = map(json!({"k": "v"}));
    let apply = |patch: Value| patched("configmaps", PatchType::Json, &old, &patch);
    let new = apply(json!([{"op": "add", "path": "/data/n", "value": "1"}, {"op": "remove", "path": "/data/k"}]));
    assert_eq!(new.unwrap(), map(json!({"n": "1"})));
    for refused in [
        json!([{"op": "test", "path": "/data/k", "value": "no"}]),
        json!([{"op": "remove", "path": "/data/zzz"}]),
        json!([{"op": "add", "path": "/data/k", "value": "w"}, {"op": "replace", "path": "/x/y", "value": 1}]),
    ] {
        let status = apply(refused).unwrap_err();
        assert_eq!(status.code, 422);
        assert_eq!(status.message, "the server rejected our request due to an error in our request");
        assert!(status.details.unwrap().causes[0].field.starts_with("operations["));
    }
    // What is not there is null to upstream's library: so kube-rs adds the first finalizer.
    let first = json!([
        {"op": "test", "path": "/metadata/finalizers", "value": null},
        {"op": "add", "path": "/metadata/finalizers", "value": ["a.dev/b"]},
    ]);
    let new = apply(first.clone()).unwrap();
    assert_eq!(new["metadata"]["finalizers"], json!(["a.dev/b"]));
    assert_eq!(patched("configmaps", PatchType::Json, &new, &first).unwrap_err().code, 422);
    let nowhere = json!([{"op": "test", "path": "/data/k/x", "value": null}]);
    assert_eq!(apply(nowhere).unwrap_err().code, 422);
    for (undecodable, why) in [
        (json!({"a": 1}), "want an array of operations"),
        (
            json!([{"op": "repalce", "path": "/a"}]),
            "operations[0].op: \"repalce\" is none of add, remove, replace, move, copy, test",
        ),
        (json!([1]), "operations[0]: want an object with op and path"),
        (json!([{"op": "remove", "path": "/a"}, {"op": "add"}]), "operations[1].path: is missing"),
        (json!([{"op": "add", "path": "/a"}]), "operations[0].value: is missing; add needs it"),
        (json!([{"op": "move", "path": "/a", "from": 1}]), "operations[0].from: want a text"),
        (
            json!([{"op": "remove", "path": "a"}]),
            "operations[0].path: \"a\" is no JSON pointer; want one such as \"/data/key\"",
        ),
    ] {
        let status = apply(undecodable).unwrap_err();
        assert_eq!((status.code, status.message), (400, format!("error decoding patch: {why}")));
    }
    for (refused, why) in [
        (json!({"op": "replace", "path": "/spec/a/b", "value": 1}), "replace \"/spec/a/b\": \"/spec\" is not there"),
        (json!({"op": "remove", "path": "/data/zzz"}), "remove \"/data/zzz\": it is not there"),
        (json!({"op": "add", "path": "/data/k/x", "value": 1}), "add \"/data/k/x\": it is not there"),
        (json!({"op": "copy", "path": "/data/y", "from": "/x/y"}), "copy \"/x/y\": \"/x\" is not there"),
        (json!({"op": "test", "path": "/data/k", "value": "no"}), "test \"/data/k\": value did not match"),
    ] {
        let status = apply(json!([refused])).unwrap_err();
        assert_eq!(status.details.unwrap().causes[0].message, why);
    }
}

#[test]
fn a_patch_does_not_change_the_kind() {
    let old = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
    for (kind, patch) in [
        (PatchType::Json, json!([{"op": "replace", "path": "/kind", "value": "Secret"}])),
        (PatchType::Json, json!([{"op": "replace", "path": "/apiVersion", "value": "v2"}])),
        (PatchType::Merge, json!({"kind": "Secret"})),
    ] {
        let refused = patched("configmaps", kind, &old, &patch).unwrap_err();
        assert_eq!(refused.code, 422);
        assert!(format!("{refused:?}").contains("cannot be changed"), "{refused:?}");
    }
    for patch in [json!({"kind": "ConfigMap", "apiVersion": "v1"}), json!({"kind": null})] {
        assert!(patched("configmaps", PatchType::Merge, &old, &patch).is_ok(), "{patch}");
    }
}

#[test]
fn json_patches_are_bounded() {
    let old = map(json!({"k": "v".repeat(100)}));
    let apply = |patch: Value| patched("configmaps", PatchType::Json, &old, &patch);
    let many: Vec<Value> = (0..10_001).map(|_| json!({"op": "remove", "path": "/x"})).collect();
    let status = apply(json!(many)).unwrap_err();
    assert_eq!(
        (status.code, &*status.message),
        (413, "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001")
    );
    let doubling: Vec<Value> =
        (0..40).map(|i| json!({"op": "copy", "from": "/data", "path": format!("/data/c{i}")})).collect();
    assert_eq!(apply(json!(doubling)).unwrap_err().code, 422);
    let path = |i: usize| "/data".to_owned() + &"/x".repeat(i);
    let nesting: Vec<Value> = (1..500).map(|i| json!({"op": "add", "path": path(i), "value": {}})).collect();
    let status = apply(json!(nesting)).unwrap_err();
    assert!(status.details.unwrap().causes[0].message.contains("nested more than 128 deep"));
}

#[test]
fn merge_patches() {
    let old = map(json!({"k": "v", "x": "y"}));
    let new = patched("configmaps", PatchType::Merge, &old, &json!({"data": {"k": null, "n": "1"}}));
    assert_eq!(new.unwrap(), map(json!({"x": "y", "n": "1"})));
    assert_eq!(Patch::parse(PatchType::Merge, b"{bad").unwrap_err().code, 400);
    assert_eq!(Patch::parse(PatchType::Merge, b"[]").unwrap_err().code, 400);
    let status = patched("configmaps", PatchType::Merge, &old, &json!({"data": {"k": 5}})).unwrap_err();
    assert!(status.code == 422 && status.message.starts_with(" \"\" is invalid: patch: Invalid value: "), "{status}");
    let status = patched("configmaps", PatchType::Merge, &old, &json!({"bogus": 5})).unwrap_err();
    assert!(
        status.code == 422 && status.message.ends_with("strict decoding error: unknown field \"bogus\""),
        "{status}"
    );
    assert!(status.message.contains(r#""{\"bogus\":5,\"data\":{\"k\":\"v\""#), "{status}");
    let patch = json!({"bogus": [1, "x"], "data": {"a": null}});
    let status = patched("configmaps", PatchType::Strategic, &old, &patch).unwrap_err();
    assert_eq!(
        status.message,
        " \"\" is invalid: patch: Invalid value: \"map[bogus:[1 x] data:map[a:<nil>]]\": strict decoding error: unknown \
         field \"bogus\""
    );
    let twice = Patch::parse(PatchType::Merge, br#"{"data":{"k":"1","k":"2"}}"#).unwrap();
    let status = twice.apply(resource("configmaps"), &old, FieldValidation::Strict).unwrap_err();
    assert!(status.message.ends_with("strict decoding error: duplicate field \"data.k\""), "{status}");
    let lax = Patch::parse(PatchType::Merge, br#"{"bogus":5}"#).unwrap();
    let (same, warnings) = lax.apply(resource("configmaps"), &old, FieldValidation::Warn).unwrap();
    assert_eq!((same, &*warnings), (old, &["unknown field \"bogus\"".to_owned()][..]));
}

/// `(resource, old, patch, new)` of strategic merge patches.
#[test]
fn strategic_patches() {
    let account = |secrets: Value| json!({"metadata": {"name": "a"}, "secrets": secrets});
    let finalizers = |list: Value| json!({"metadata": {"name": "a", "finalizers": list}});
    let cases = [
        (
            "configmaps",
            map(json!({"k": "v"})),
            json!({"data": {"$patch": "replace", "n": "1"}}),
            map(json!({"n": "1"})),
        ),
        ("configmaps", map(json!({"k": "v"})), json!({"data": {"k": null, "n": "1"}}), map(json!({"n": "1"}))),
        (
            "configmaps",
            map(json!({"k": "v", "x": "y"})),
            json!({"data": {"$retainKeys": ["k", "n"], "n": "1"}}),
            map(json!({"k": "v", "n": "1"})),
        ),
        (
            "configmaps",
            map(json!({"k": "v"})),
            json!({"data": {"$patch": "delete"}}),
            json!({"metadata": {"name": "a"}}),
        ),
        // By merge key.
        (
            "serviceaccounts",
            account(json!([{"name": "x", "kind": "A"}, {"name": "y"}])),
            json!({"secrets": [{"name": "x", "uid": "u"}, {"name": "z"}]}),
            // A new item stands before those that only the server knows, as upstream orders them.
            account(json!([{"name": "x", "kind": "A", "uid": "u"}, {"name": "z"}, {"name": "y"}])),
        ),
        (
            "serviceaccounts",
            account(json!([{"name": "x"}, {"name": "y"}])),
            json!({"secrets": [{"name": "x", "$patch": "delete"}]}),
            account(json!([{"name": "y"}])),
        ),
        (
            "serviceaccounts",
            account(json!([{"name": "x"}, {"name": "y"}])),
            json!({"secrets": [{"$patch": "replace", "name": "x"}, {"name": "z"}, {"name": "y", "$patch": "delete"}]}),
            account(json!([{"name": "z"}])),
        ),
        (
            "serviceaccounts",
            account(json!([{"name": "x"}, {"name": "y"}])),
            json!({"$setElementOrder/secrets": [{"name": "y"}, {"name": "z"}, {"name": "x"}], "secrets": [{"name": "z"}]}),
            account(json!([{"name": "y"}, {"name": "z"}, {"name": "x"}])),
        ),
        (
            "serviceaccounts",
            account(json!([{"name": "x"}, {"name": "y"}])),
            json!({"$setElementOrder/secrets": [{"name": "y"}, {"name": "x"}]}),
            account(json!([{"name": "y"}, {"name": "x"}])),
        ),
        // Replaced: no merge key.
        (
            "serviceaccounts",
            json!({"metadata": {"name": "a"}, "imagePullSecrets": [{"name": "x"}]}),
            json!({"imagePullSecrets": [{"name": "y"}]}),
            json!({"metadata": {"name": "a"}, "imagePullSecrets": [{"name": "y"}]}),
        ),
        // Sets of scalars.
        (
            "configmaps",
            finalizers(json!(["a.dev/x"])),
            json!({"metadata": {"finalizers": ["a.dev/y", "a.dev/x"]}}),
            finalizers(json!(["a.dev/y", "a.dev/x"])),
        ),
        (
            "configmaps",
            finalizers(json!(["a.dev/x", "a.dev/y"])),
            json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a.dev/x"], "$setElementOrder/finalizers": ["a.dev/y"]}}),
            finalizers(json!(["a.dev/y"])),
        ),
        // New members come without directives.
        (
            "configmaps",
            json!({"metadata": {"name": "a"}}),
            json!({"data": {"$retainKeys": ["k"], "k": "v", "gone": null}}),
            map(json!({"k": "v"})),
        ),
    ];
    for (plural, old, patch, want) in cases {
        assert_eq!(patched(plural, PatchType::Strategic, &old, &patch).unwrap(), want, "{patch}");
    }
}

#[test]
fn wrong_directives() {
    let old = json!({"metadata": {"name": "a", "ownerReferences": [{"uid": "u"}], "finalizers": ["a.dev/x"]}, "data": {"k": "v"}});
    for (patch, code) in [
        (json!({"data": {"$patch": "odd"}}), 400),
        (json!({"data": {"$retainKeys": "k"}}), 400),
        (json!({"data": {"$retainKeys": [], "k": "w"}}), 400),
        (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}}), 400),
        (json!({"metadata": {"$setElementOrder/finalizers": "x"}}), 400),
        (json!({"metadata": {"ownerReferences": [{"name": "x"}]}}), 422),
        (json!({"metadata": {"ownerReferences": ["x"]}}), 422),
    ] {
        assert_eq!(patched("configmaps", PatchType::Strategic, &old, &patch).unwrap_err().code, code, "{patch}");
    }
}

fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![Just(Value::Null), any::<bool>().prop_map(Value::from), "[a-c]{0,2}".prop_map(Value::from)];
    let key = prop_oneof![
        Just("metadata".to_owned()),
        Just("data".to_owned()),
        Just("secrets".to_owned()),
        Just("ownerReferences".to_owned()),
        Just("finalizers".to_owned()),
        Just("name".to_owned()),
        Just("uid".to_owned()),
        Just("$patch".to_owned()),
        Just("$retainKeys".to_owned()),
        Just("$setElementOrder/secrets".to_owned()),
        Just("$deleteFromPrimitiveList/finalizers".to_owned()),
        "[a-c]",
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..5).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

/// Whether a directive is left anywhere.
fn has_directive(value: &Value) -> bool {
    match value {
        Value::Object(m) => m.iter().any(|(k, v)| k.starts_with('$') || has_directive(v)),
        Value::Array(items) => items.iter().any(has_directive),
        _ => false,
    }
}

proptest! {
    #[test]
    fn directives_are_never_stored(old in json_value(), patch in json_value()) {
        prop_assume!(!has_directive(&old));
        for kind in [PatchType::Strategic, PatchType::Merge, PatchType::Json] {
            let Ok(patch) = Patch::parse(kind, patch.to_string().as_bytes()) else { continue };
            let applied = patch.apply(resource("serviceaccounts"), &old, FieldValidation::Ignore);
            if let (PatchType::Strategic, Ok((new, _))) = (kind, applied) {
                prop_assert!(!has_directive(&new), "{}", new);
            }
        }
    }

    #[test]
    fn a_strategic_patch_of_nothing_changes_nothing(labels in prop::collection::btree_map("[a-c]", "[a-c]", 0..4)) {
        let mut old = json!({"metadata": {"name": "a"}});
        if !labels.is_empty() {
            old["metadata"]["labels"] = json!(labels);
        }
        prop_assert_eq!(patched("configmaps", PatchType::Strategic, &old, &json!({})).unwrap(), old.clone());
        // Applying an object to itself changes nothing either.
        prop_assert_eq!(patched("configmaps", PatchType::Strategic, &old, &old).unwrap(), old);
    }
}
