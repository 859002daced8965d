use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::builtin;

fn maps() -> &'static Resource {
    builtin::find("", "v1", "configmaps").unwrap()
}

fn decode(text: &str) -> Result<Decoded, Status> {
    body(maps(), BodyFormat::Json, text.as_bytes())
}

/// The recorded creates of upstream: which are refused while decoding, and with which text.
#[test]
fn recorded_bodies() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/kubectl/http-probes.json");
    let probes: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let probe = |id: &str| {
        let found = probes["entries"].as_array().unwrap().iter().find(|p| p["set"] == "basic" && p["id"] == id);
        let found = found.unwrap_or_else(|| panic!("{id}"));
        let text = match &found["request"]["body"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let message = found["response"]["body"]["message"].as_str().unwrap_or_default().to_owned();
        (text, message)
    };
    for id in ["create", "create-no-kind", "create-no-ctype", "generatename"] {
        assert_eq!(decode(&probe(id).0).unwrap().findings, Vec::<String>::new(), "{id}");
    }
    for id in ["create-unknown-strict", "create-dup-field-strict"] {
        let (text, want) = probe(id);
        let mut got = decode(&text).unwrap().validated(maps(), FieldValidation::Strict).unwrap_err().message;
        if id == "create-unknown-strict" {
            // The recorded body has lost its order of keys; ours are named in the order of the text.
            got = got.replace("\"bogus\", unknown field \"metadata.foo\"", "\"metadata.foo\", unknown field \"bogus\"");
        }
        assert_eq!(got, want, "{id}");
    }
    // Our own words follow upstream's beginning.
    for (id, same) in [
        ("create-bad-json", "couldn't get version/kind; json parse error: "),
        ("create-empty-body", "couldn't get version/kind; json parse error: "),
        ("create-wrong-kind", "cannot be handled as a ConfigMap: "),
        ("create-wrong-type", "cannot be handled as a ConfigMap: json: cannot unmarshal number into"),
    ] {
        let (text, want) = probe(id);
        let got = decode(&text).unwrap_err();
        let length = want.find(same).unwrap_or_else(|| panic!("{id}")) + same.len();
        assert_eq!((got.code, got.message.get(..length)), (400, want.get(..length)), "{id}");
    }
    assert!(decode(&probe("create-bad-json").0).unwrap_err().message.ends_with(" ({bad)"));
    assert!(decode(&probe("create-empty-body").0).unwrap_err().message.ends_with(" (<empty>)"));
    assert_eq!(
        decode(&probe("create-wrong-gv").0).unwrap_err().message,
        "the API version in the data (apps/v1) does not match the expected API version (v1)"
    );
}

#[test]
fn findings_in_the_order_of_the_text() {
    let text = r#"{"z":1,"metadata":{"name":"a","ownerReferences":[{"uid":"u"},{"odd":{"a":1}}],"b":2},
        "data":{"k":"1","k":"2"},"a":3,"kind":"ConfigMap","kind":"ConfigMap"}"#;
    let decoded = decode(text).unwrap();
    assert_eq!(
        decoded.findings,
        [
            "unknown field \"z\"",
            "unknown field \"metadata.ownerReferences[1].odd\"",
            "unknown field \"metadata.b\"",
            "duplicate field \"data.k\"",
            "unknown field \"a\"",
            "duplicate field \"kind\"",
        ]
    );
    assert_eq!(decoded.object["data"], json!({"k": "2"}));
    assert_eq!(decoded.object.get("z"), None);
    let (_, warnings) = decoded.clone().validated(maps(), FieldValidation::Warn).unwrap();
    assert_eq!(warnings.len(), 6);
    assert!(decoded.validated(maps(), FieldValidation::Ignore).unwrap().1.is_empty());
}

#[test]
fn findings_are_bounded() {
    let members: Vec<String> = (0..200).map(|i| format!("\"x{i}\":1")).collect();
    assert_eq!(decode(&format!("{{{}}}", members.join(","))).unwrap().findings.len(), FINDINGS_MAX);
}

#[test]
fn equal_objects_get_one_form() {
    let leases = builtin::find("coordination.k8s.io", "v1", "leases").unwrap();
    let text = json!({"metadata": {"name": "l", "labels": {}, "finalizers": [], "creationTimestamp": null,
        "deletionTimestamp": "2020-01-01T01:00:00.5+01:00"}, "spec": {"leaseTransitions": 0, "holderIdentity": "",
        "renewTime": "2020-01-01T00:00:00.5Z"}});
    let decoded = body(leases, BodyFormat::Json, text.to_string().as_bytes()).unwrap();
    assert_eq!(
        decoded.object,
        json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1",
            "metadata": {"name": "l", "deletionTimestamp": "2020-01-01T00:00:00Z"},
            "spec": {"leaseTransitions": 0, "holderIdentity": "", "renewTime": "2020-01-01T00:00:00.500000Z"}})
    );
}

#[test]
fn wrong_types_are_told_with_their_place() {
    for (text, place) in [
        (r#"{"data":[]}"#, "ConfigMap.data"),
        (r#"{"binaryData":{"a":"?"}}"#, "ConfigMap.binaryData.a"),
        (r#"{"metadata":{"finalizers":["a",1]}}"#, "ConfigMap.metadata.finalizers[1]"),
        (r#"{"metadata":{"generation":1.5}}"#, "ConfigMap.metadata.generation"),
        (r#"{"metadata":{"creationTimestamp":"now"}}"#, "ConfigMap.metadata.creationTimestamp"),
        (r#"{"metadata":"x"}"#, "ConfigMap.metadata"),
    ] {
        let message = decode(text).unwrap_err().message;
        assert!(message.ends_with(place), "{message}");
    }
    assert!(decode("[]").unwrap_err().message.contains("found array"));
    assert!(decode("{} x").is_err());
    let status = patched(maps(), json!({"data": {"k": 5}})).unwrap_err();
    assert_eq!((status.code, status.message.ends_with("Go struct field ConfigMap.data.k")), (422, true));
}

#[test]
fn yaml_and_delete_options() {
    let text = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: yy}\nodd: 1\n";
    let decoded = body(maps(), BodyFormat::Yaml, text).unwrap();
    assert_eq!(decoded.object["metadata"], json!({"name": "yy"}));
    assert_eq!(decoded.findings, ["unknown field \"odd\""]);
    assert_eq!(body(maps(), BodyFormat::Yaml, b"a: [").unwrap_err().code, 400);

    let options = delete_options(BodyFormat::Json, br#"{"propagationPolicy":"Background"}"#).unwrap();
    assert_eq!(options, Some(json!({"propagationPolicy": "Background"})));
    assert_eq!(delete_options(BodyFormat::Json, b"").unwrap(), None);
    for wrong in [&b"{bad"[..], br#"{"kind":"Pod"}"#, b"3", br#"{"dryRun":"All"}"#] {
        assert_eq!(delete_options(BodyFormat::Json, wrong).unwrap_err().code, 400);
    }
    assert_eq!(delete_options(BodyFormat::Protobuf, b"k8s\0x").unwrap_err().code, 400);
}

#[test]
fn what_is_wrong_with_yaml_is_told_to_who_wrote_it() {
    let head = "apiVersion: v1\nkind: ConfigMap\n";
    for (rest, why) in [
        ("data: {a: x, a: y}", "yaml: key \"a\" already set in map at line 3, column 14"),
        ("---\na: b", "yaml: a second document; want one object and nothing more at line 4, column 1"),
        ("data: &a {b: *a}", "yaml: an alias stands within what it stands for at line 3, column 14"),
        ("data: *a", "unknown"),
        ("data: [", "unclosed bracket"),
    ] {
        let message = body(maps(), BodyFormat::Yaml, format!("{head}{rest}").as_bytes()).unwrap_err().message;
        assert!(message.contains(why), "{rest}: {message}");
    }
    let twice = format!("{head}data: {{a: x, a: y}}");
    let (config, warnings) = applied(maps(), twice.as_bytes(), FieldValidation::Warn).unwrap();
    assert_eq!(
        (&config["data"]["a"], &*warnings),
        (&json!("y"), &["key \"a\" already set in map at line 3, column 14".to_owned()][..])
    );
}

/// Small texts that would become huge or deep are refused.
#[test]
fn bombs_are_refused() {
    let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for i in 1..12 {
        let alias = format!("*a{}", i - 1);
        laughs += &format!("a{i}: &a{i} [{}]\n", [alias.as_str(); 10].join(","));
    }
    assert_eq!(body(maps(), BodyFormat::Yaml, laughs.as_bytes()).unwrap_err().code, 400);
    for text in ["[".repeat(100_000), "{\"a\":".repeat(100_000)] {
        for format in [BodyFormat::Json, BodyFormat::Yaml] {
            assert_eq!(body(maps(), format, text.as_bytes()).unwrap_err().code, 400);
        }
    }
}

proptest! {
    #[test]
    fn one_form_is_final(labels in prop::collection::btree_map("[a-c]", "[a-c]{0,2}", 0..3), data in ".{0,5}", count in -1..2i32) {
        let event = json!({"metadata": {"name": "e", "labels": labels, "finalizers": []}, "message": data, "count": count,
            "source": {}, "eventTime": "2026-01-02T03:04:05.6+01:00"});
        let events = builtin::find("", "v1", "events").unwrap();
        let once = body(events, BodyFormat::Json, event.to_string().as_bytes()).unwrap();
        let twice = body(events, BodyFormat::Json, once.object.to_string().as_bytes()).unwrap();
        prop_assert_eq!(&once, &twice);
        prop_assert_eq!(patched(events, once.object.clone()).unwrap(), once);
    }

    #[test]
    fn no_text_panics(text in "[\\[\\]{}\":,a-e0-9 .ä\\\\]*", bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        for format in [BodyFormat::Json, BodyFormat::Yaml, BodyFormat::Protobuf] {
            let _ = body(maps(), format, text.as_bytes());
            let _ = body(maps(), format, &bytes);
            let _ = delete_options(format, &bytes);
        }
    }
}
