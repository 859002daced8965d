//! Writes of ConfigMaps as recorded from Kubernetes v1.34 (`tests/vectors/kubectl/http-probes.json`), run through
//! decoding, metadata rules, patches and validation: same code, same message. Every recorded POST and PATCH of a
//! ConfigMap is run; where we differ on purpose the case stands in [`DIFFERENT`] with the reason.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use apiserver_api::Status;
use apiserver_machinery::{
    Resource, builtin, decode, meta, negotiate,
    negotiate::AnswerForm,
    options::{WriteOptions, WriteVerb},
    patch::Patch,
    table::{IncludeObject, TableFormat, table_of_one},
};
use serde_json::{Value, json};

/// What is compared of a case.
enum Compare {
    /// The message up to and including this text: our own words follow.
    Until(&'static str),
    /// Our code, with upstream's message.
    Code(u16),
    /// Nothing here, for this reason.
    Nothing(&'static str),
}
use Compare::{Code, Nothing, Until};

const DIFFERENT: &[(&str, Compare)] = &[
    // Our parser's words.
    ("create-bad-json", Until("json parse error: ")),
    ("create-empty-body", Until("json parse error: ")),
    ("create-wrong-kind", Until("cannot be handled as a ConfigMap: ")),
    ("create-wrong-type", Until("json: cannot unmarshal number into")),
    ("jsonpatch-bad-body", Until("error decoding patch: ")),
    ("jsonpatch-not-array", Until("error decoding patch: ")),
    ("patch-bad-json-merge", Until("error decoding patch: ")),
    // The field instead of the whole object.
    ("patch-invalid-type", Until(" \"\" is invalid: patch: Invalid value: ")),
    ("patch-unknown-strict", Until(" \"\" is invalid: patch: Invalid value: ")),
    // 500 upstream, for a fault of the client.
    ("create-with-rv", Code(400)),
    ("create-wrong-gv", Nothing("upstream names a file of its source; we name both versions")),
    ("create-unknown-strict", Nothing("the recorded body has lost the order of its keys; tested in decode")),
    ("patch-bad-ctype", Nothing("upstream does not list what is accepted; we do")),
    ("create-dup", Nothing("refused by the store")),
    ("patch-404", Nothing("refused by the store")),
    ("patch-wrong-rv", Nothing("refused by the store")),
    ("cluster-name-ns-resource-w-o-ns", Nothing("refused by the routes")),
    ("405-post-item", Nothing("refused by the routes")),
    ("big-body", Nothing("the body was not recorded")),
    ("cm-over-1mib", Nothing("the body was not recorded; tested in config_map")),
    ("jsonpatch-too-many", Nothing("the body was not recorded; tested in patch")),
    ("update-terminating-add-finalizer", Nothing("needs a terminating object; tested in meta")),
    ("update-terminating-ok", Nothing("needs a terminating object")),
    ("remove-finalizer", Nothing("needs a terminating object")),
];

fn maps() -> &'static Resource {
    builtin::find("", "v1", "configmaps").unwrap()
}

fn probes() -> Vec<Value> {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/kubectl/http-probes.json");
    let mut all: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    std::mem::take(all["entries"].as_array_mut().unwrap())
}

fn body_of(probe: &Value) -> Vec<u8> {
    match &probe["request"]["body"] {
        Value::String(text) => text.clone().into_bytes(),
        other => other.to_string().into_bytes(),
    }
}

fn create(probe: &Value, query: &str) -> Result<Value, Status> {
    negotiate::object_answer(probe["request"]["accept"].as_str(), maps(), false)?;
    let options = WriteOptions::parse(WriteVerb::Create, query)?;
    let format = negotiate::body_format(maps(), probe["request"]["content_type"].as_str())?;
    let decoded = decode::body(maps(), format, &body_of(probe))?;
    let (mut new, _) = decoded.validated(maps(), options.field_validation)?;
    let namespace = probe["request"]["path"].as_str().unwrap().split('/').nth(4).unwrap();
    meta::prepare_create(maps(), &mut new, namespace, 1_796_000_000)?;
    (maps().prepare)(&mut new, None);
    meta::validate(maps(), &new, None)?;
    Ok(new)
}

fn patch(probe: &Value, query: &str, old: &Value) -> Result<Value, Status> {
    let kind = negotiate::patch_type(maps(), probe["request"]["content_type"].as_str())?;
    let options = WriteOptions::parse(WriteVerb::Patch, query)?;
    let (mut new, _) = Patch::parse(kind, &body_of(probe))?.apply(maps(), old, options.field_validation)?;
    meta::prepare_update(maps(), &mut new, old, "", false)?;
    (maps().prepare)(&mut new, Some(old));
    meta::finish_update(maps(), &mut new, old, "");
    meta::validate(maps(), &new, Some(old))?;
    Ok(new)
}

/// The parts of an object that do not differ from run to run.
fn comparable(object: &Value) -> Value {
    let mut object = object.clone();
    let generated = object["metadata"].get("generateName").is_some();
    let metadata = object["metadata"].as_object_mut().unwrap();
    metadata.retain(|key, _| !["uid", "resourceVersion", "creationTimestamp", "managedFields"].contains(&key.as_str()));
    if generated {
        let name = metadata["name"].as_str().unwrap();
        let kept = name[..name.len() - 5].to_owned();
        metadata["name"] = json!(kept);
    }
    object
}

fn compare(id: &str, got: &Result<Value, Status>, response: &Value) {
    let code = u16::try_from(response["status"].as_u64().unwrap()).unwrap();
    let want = response["body"]["message"].as_str().unwrap_or_default();
    let how = DIFFERENT.iter().find(|(name, _)| *name == id).map(|(_, how)| how);
    match (got, how) {
        (Ok(object), None) => {
            assert!(code < 300, "{id}: upstream refuses with {code} {want}");
            assert_eq!(comparable(object), comparable(&response["body"]), "{id}");
        }
        (Err(status), None) => assert_eq!((status.code, &*status.message), (code, want), "{id}"),
        (Err(status), Some(Code(ours))) => assert_eq!((status.code, &*status.message), (*ours, want), "{id}"),
        (Err(status), Some(Until(text))) => {
            let length = want.find(text).unwrap_or_else(|| panic!("{id}: {want}")) + text.len();
            assert_eq!((status.code, status.message.get(..length)), (code, want.get(..length)), "{id}");
        }
        (got, _) => panic!("{id}: {got:?}"),
    }
}

#[test]
fn writes_of_config_maps() {
    let (mut seen, mut different) = (0, 0);
    // The object that the patches were recorded against.
    let mut old = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"k": "v"}, "metadata": {"name": "a",
        "namespace": "r", "uid": "u", "creationTimestamp": "2026-11-29T13:40:28Z"}});
    let mut frozen = json!({"kind": "ConfigMap", "apiVersion": "v1", "data": {"k": "3"}, "metadata": {"name": "x",
        "namespace": "p", "uid": "u", "creationTimestamp": "2026-11-29T13:40:28Z"}});
    for probe in probes() {
        let id = probe["id"].as_str().unwrap();
        let full = probe["request"]["path"].as_str().unwrap();
        let (path, query) = full.split_once('?').unwrap_or((full, ""));
        let content_type = probe["request"]["content_type"].as_str().unwrap_or_default();
        let admin = probe["request"]["user"] == "admin" && path.starts_with("/api/v1/") && path.contains("/configmaps");
        let of_interest =
            admin && content_type != negotiate::PROTOBUF && content_type != "application/apply-patch+yaml";
        let method = probe["request"]["method"].as_str().unwrap();
        if !of_interest || !["POST", "PATCH"].contains(&method) {
            continue;
        }
        seen += 1;
        if let Some((_, Nothing(why))) = DIFFERENT.iter().find(|(name, _)| *name == id) {
            println!("{id}: {why}");
            different += 1;
            continue;
        }
        if method == "POST" {
            match negotiate::object_answer(probe["request"]["accept"].as_str(), maps(), false).unwrap().form {
                AnswerForm::Object => compare(id, &create(&probe, query), &probe["response"]),
                _ => assert_eq!((id, create(&probe, query).is_ok()), ("table-post", true)),
            }
            continue;
        }
        let stored = if path.ends_with("/x") { &mut frozen } else { &mut old };
        let got = patch(&probe, query, stored);
        compare(id, &got, &probe["response"]);
        if let Ok(new) = got {
            *stored = new;
        }
    }
    let nothing = DIFFERENT.iter().filter(|(_, how)| matches!(how, Nothing(_))).count();
    assert_eq!((different, nothing), (14, 14), "a case that is listed does not occur");
    assert!(seen > 45, "{seen}");
}

#[test]
fn a_table() {
    let all = probes();
    let find = |id: &str| all.iter().find(|p| p["set"] == "basic" && p["id"] == id).unwrap();
    let object = &find("accept-pretty")["response"]["body"];
    let format = TableFormat { version: "v1", include: IncludeObject::Metadata, now: 0 };
    let mut got = table_of_one(maps(), format, object, true);
    let mut want = find("table-one")["response"]["body"].clone();
    for table in [&mut got, &mut want] {
        for column in table["columnDefinitions"].as_array_mut().unwrap() {
            column["description"] = json!("");
        }
        // The age depends on the present time.
        table["rows"][0]["cells"][2] = Value::Null;
    }
    assert_eq!(got, want);
}
