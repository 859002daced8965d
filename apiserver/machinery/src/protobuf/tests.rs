use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::{builtin, decode::body, negotiate::BodyFormat, resource::Resource, schema::meta};

fn resource(plural: &str) -> &'static Resource {
    builtin::all().iter().find(|r| r.plural == plural).unwrap()
}

/// Bodies that kubectl 1.32 sent, and what was meant.
#[test]
fn bodies_of_kubectl() {
    let cases = [
        ("namespace", "namespaces", json!({"metadata": {"name": "team-a"}, "spec": {}, "status": {}})),
        ("configmap", "configmaps", json!({"metadata": {"name": "settings"}, "data": {"a": "1", "b": "zwei"}})),
        (
            "configmap-mixed",
            "configmaps",
            json!({"metadata": {"name": "mixed"}, "data": {"a": "1"}, "binaryData": {"bin.dat": "AAH+/w=="}}),
        ),
        ("configmap-empty", "configmaps", json!({"metadata": {"name": "empty", "namespace": "other"}})),
        ("secret", "secrets", json!({"metadata": {"name": "s1"}, "data": {"user": "bWU=", "pw": ""}})),
        (
            "secret-typed",
            "secrets",
            json!({"metadata": {"name": "s2-7m5kg8d42c"}, "data": {"k": "dg=="}, "type": "my/own"}),
        ),
        ("serviceaccount", "serviceaccounts", json!({"metadata": {"name": "robot"}})),
    ];
    for (file, plural, mut want) in cases {
        let path = format!("{}/../../tests/vectors/protobuf/{file}.bin", env!("CARGO_MANIFEST_DIR"));
        let bytes = std::fs::read(&path).unwrap();
        let resource = resource(plural);
        let decoded = body(resource, BodyFormat::Protobuf, &bytes).unwrap();
        want["kind"] = json!(resource.kind);
        want["apiVersion"] = json!("v1");
        assert_eq!(decoded.object, want, "{file}");
        assert!(decoded.findings.is_empty());
        // What our encoder writes for it is what kubectl sent.
        let again = body(resource, BodyFormat::Protobuf, &seal(resource.schema, &want)).unwrap();
        assert_eq!(again.object, want, "{file}");
    }
}

#[test]
fn every_kind_of_value() {
    let event = json!({"kind": "Event", "apiVersion": "v1",
        "metadata": {"name": "e", "namespace": "n", "generation": -3, "deletionGracePeriodSeconds": 0,
            "creationTimestamp": "2026-01-02T03:04:05Z", "labels": {"a": "b", "c": ""}, "finalizers": ["x", ""],
            "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "n", "uid": "u", "controller": false}],
            "managedFields": [{"manager": "m", "fieldsV1": {"f:data": {}}}]},
        "involvedObject": {"kind": "ConfigMap", "name": "c"}, "count": -1,
        "eventTime": "2026-01-02T03:04:05.123456Z", "series": {"count": 3}, "source": {}});
    let lease = json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "l"},
        "spec": {"holderIdentity": "", "leaseDurationSeconds": 15, "leaseTransitions": 0,
            "renewTime": "1969-12-31T23:59:59.000000Z"}});
    let level = json!({"kind": "PriorityLevelConfiguration", "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "metadata": {"name": "p"}, "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 0,
            "limitResponse": {"type": "Queue", "queuing": {"queues": 64, "handSize": 8, "queueLengthLimit": 50}}}}});
    let schema = json!({"kind": "FlowSchema", "apiVersion": "flowcontrol.apiserver.k8s.io/v1",
        "metadata": {"name": "f"}, "spec": {"matchingPrecedence": 7, "priorityLevelConfiguration": {"name": "p"},
            "rules": [{"subjects": [{"kind": "Group", "group": {"name": "g"}}],
                "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
                "resourceRules": [{"verbs": ["get"], "clusterScope": true, "namespaces": ["*"]}]}]}});
    for (plural, object) in
        [("events", event), ("leases", lease), ("prioritylevelconfigurations", level), ("flowschemas", schema)]
    {
        let bytes = seal(resource(plural).schema, &object);
        let mut got = body(resource(plural), BodyFormat::Protobuf, &bytes).unwrap().object;
        // Go's structs that are no pointers come out empty where the source had none.
        if let Some(map) = got.as_object_mut() {
            map.retain(|k, v| object.get(k).is_some() || *v != json!({}));
        }
        assert_eq!(got, object, "{plural}");
    }
}

#[test]
fn damage_is_told() {
    let maps = resource("configmaps");
    let message = |bytes: &[u8]| body(maps, BodyFormat::Protobuf, bytes).unwrap_err().message;
    assert_eq!(
        message(b"xxxxxx"),
        "the object provided is unrecognized (must be of type ConfigMap): provided data does not appear to be a \
         protobuf message, expected prefix [107 56 115 0] (787878787878)"
    );
    // Two bytes that happen to be an unknown field: an empty object, which upstream refuses for its name.
    assert!(body(maps, BodyFormat::Protobuf, b"k8s\0xx").is_ok());
    assert!(message(b"k8s\0x").contains("unexpected EOF"));
    assert_eq!(open(b"k8s\0\x12\x05ab").unwrap_err(), ProtobufError::Eof);
    assert_eq!(open(&[MAGIC.as_slice(), &[0xff; 11]].concat()).unwrap_err(), ProtobufError::Overflow);
    let wrong = decode(maps.schema, &[0x08, 1]).unwrap_err();
    assert_eq!(wrong.to_string(), "proto: wrong wireType = 0 for field metadata");
    let many = [0x72u8, 0].repeat(VALUES_MAX + 1);
    assert_eq!(decode(&crate::schema::meta::OBJECT_META, &many).unwrap_err(), ProtobufError::TooManyValues);
}

#[test]
fn unknown_fields_are_skipped_and_messages_merged() {
    let maps = resource("configmaps");
    let raw =
        [&[0x0a, 3, 0x0a, 1, b'n'][..], &[0xf8, 0x07, 5], &[0x0a, 3, 0x1a, 1, b's'], &[0x7d, 1, 2, 3, 4]].concat();
    assert_eq!(decode(maps.schema, &raw).unwrap(), json!({"metadata": {"name": "n", "namespace": "s"}}));
}

proptest! {
    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), at in 0..10usize) {
        let resource = &builtin::all()[at];
        let _ = decode(resource.schema, &bytes);
        let _ = open(&[MAGIC.as_slice(), &bytes].concat());
    }

    #[test]
    fn a_flipped_byte_never_panics(at in 0..400usize, byte in any::<u8>()) {
        let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a", "labels": {"x": "y"},
            "creationTimestamp": "2026-01-02T03:04:05Z"}, "data": {"k": "v".repeat(100)}});
        let maps = resource("configmaps");
        let mut bytes = seal(maps.schema, &object);
        let at = at % bytes.len();
        bytes[at] = byte;
        let _ = body(maps, BodyFormat::Protobuf, &bytes);
    }

    #[test]
    fn maps_there_and_back(data in prop::collection::btree_map("[a-z]{1,5}", ".*", 0..5)) {
        let mut object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "a"}});
        if !data.is_empty() {
            object["data"] = json!(data);
        }
        let maps = resource("configmaps");
        let got = body(maps, BodyFormat::Protobuf, &seal(maps.schema, &object)).unwrap();
        prop_assert_eq!(got.object, object);
    }
}

/// A list is what the envelope around the whole would be, and is there only once.
#[test]
fn lists_in_pieces() {
    let metadata = json!({"resourceVersion": "7"});
    let items = |count: u8| (0..count).map(|n| vec![n; 2000]);
    for count in [0, 1, 200] {
        let pieces: Vec<Vec<u8>> = list(("ConfigMapList", "v1"), &metadata, items(count)).collect();
        assert_eq!(pieces.len() > 1, count > 32, "{count}");
        let whole = pieces.concat();
        let opened = open(&whole).unwrap();
        assert_eq!((&*opened.kind, &*opened.api_version), ("ConfigMapList", "v1"));
        let mut raw = encode(&meta::LIST_META, &metadata);
        raw = [vec![1 << 3 | 2, raw.len() as u8], raw].concat();
        // Two thousand is 0xd0 0x0f in seven bits each.
        items(count).for_each(|item| raw.extend([vec![2 << 3 | 2, 0xd0, 0x0f], item].concat()));
        assert!(opened.raw == raw && whole == envelope("ConfigMapList", "v1", &raw), "{count}");
    }
    let mut bytes = 0;
    let used = allocation_counter::measure(|| {
        bytes = list(("ConfigMapList", "v1"), &metadata, items(250).cycle().take(2000)).map(|piece| piece.len()).sum();
    });
    assert!(bytes > 4_000_000 && used.bytes_max < bytes as u64 * 3 / 2, "{} for {bytes}", used.bytes_max);
}
