//! Answers in YAML and protobuf: the same as in JSON.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use apiserver_machinery::{
    builtin,
    decode::body,
    negotiate::BodyFormat,
    protobuf,
    schema::{Message, meta},
};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use support::{Client, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const YAML: &str = "application/yaml";

/// Kind and fields of a sealed object.
fn open(message: &Message, bytes: &[u8]) -> (String, Value) {
    let envelope = protobuf::open(bytes).unwrap();
    (envelope.kind, protobuf::decode(message, envelope.raw).unwrap())
}

fn maps() -> &'static Message {
    builtin::find("", "v1", "configmaps").unwrap().schema
}

#[tokio::test]
async fn indented_for_people() {
    let server = server().await;
    let one = Client::new(&server, "one");
    one.map("a", "1").await;
    for path in [MAPS.to_owned(), format!("{MAPS}/a"), format!("{MAPS}/none"), "/api/v1".into()] {
        let [plain, pretty] = [one.get(&path).await, one.get(&format!("{path}?pretty=true")).await];
        assert_eq!((plain.code, plain.json()), (pretty.code, pretty.json()), "{path}");
        let lines = |answer: &support::Answer| answer.bytes.iter().filter(|b| **b == b'\n').count();
        assert!(lines(&plain) <= 1 && lines(&pretty) > 5, "{path}");
        assert!(pretty.bytes.starts_with(b"{\n  \""), "{path}");
    }
    let path = format!("{MAPS}/a");
    for query in ["pretty=false", "pretty=0"] {
        assert_eq!(one.get(&format!("{path}?{query}")).await.bytes, one.get(&path).await.bytes);
    }
    let yaml = one.wants(YAML);
    assert_eq!(yaml.get(&format!("{path}?pretty=1")).await.bytes, yaml.get(&path).await.bytes);
    let event = one.watch(&format!("{MAPS}?watch=1&pretty=1")).await.event().await.unwrap();
    assert_eq!(event.1, "a");
}

/// The fields of one number in a message, as bytes.
fn parts(mut bytes: &[u8], number: u64) -> Vec<&[u8]> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        assert_eq!(tag & 7, 2, "only texts and messages are looked at");
        let length = usize::try_from(varint(&mut bytes)).unwrap();
        let (part, rest) = bytes.split_at(length);
        if tag >> 3 == number {
            found.push(part);
        }
        bytes = rest;
    }
    found
}

#[tokio::test]
async fn objects_and_lists() {
    let server = server().await;
    let one = Client::new(&server, "one");
    for name in ["a", "b"] {
        one.map(name, "no").await;
    }
    let plain = one.get(&format!("{MAPS}/a")).await.ok();
    let resource = builtin::find("", "v1", "configmaps").unwrap();
    for (accept, format) in [(YAML, BodyFormat::Yaml), (PROTOBUF, BodyFormat::Protobuf)] {
        let client = one.wants(&format!("{accept},application/json"));
        let answer = client.get(&format!("{MAPS}/a")).await;
        assert_eq!((answer.code, &answer.headers["content-type"]), (200, &accept.parse().unwrap()));
        assert_eq!(body(resource, format, &answer.bytes).unwrap().object, plain, "{accept}");
    }
    let list = one.wants(PROTOBUF).get(&format!("{MAPS}?limit=1")).await;
    let envelope = protobuf::open(&list.bytes).unwrap();
    assert_eq!((envelope.kind.as_str(), envelope.api_version.as_str()), ("ConfigMapList", "v1"));
    let metadata = protobuf::decode(&meta::LIST_META, parts(envelope.raw, 1)[0]).unwrap();
    assert_eq!(metadata["remainingItemCount"], 1);
    assert!(metadata["continue"].is_string() && metadata["resourceVersion"].is_string(), "{metadata}");
    let items = parts(envelope.raw, 2);
    assert_eq!(items.len(), 1);
    assert_eq!(protobuf::decode(maps(), items[0]).unwrap()["data"], plain["data"]);
    let yaml = one.wants(YAML).get(MAPS).await;
    let text = String::from_utf8(yaml.bytes.to_vec()).unwrap();
    assert!(text.contains("kind: ConfigMapList") && text.contains("k: \"no\"") || text.contains("k: 'no'"), "{text}");
    let table = one.wants("application/yaml;as=Table;v=v1;g=meta.k8s.io").get(MAPS).await;
    let text = String::from_utf8(table.bytes.to_vec()).unwrap();
    assert!(text.contains("kind: Table") && text.contains("columnDefinitions:"), "{text}");
}

#[tokio::test]
async fn metadata_statuses_and_refusals() {
    let server = server().await;
    let one = Client::new(&server, "one");
    one.map("a", "v").await;
    // Of every kind protobuf has the metadata.
    let partial = one.wants("application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let answer = partial.get("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster").await;
    let (kind, object) = open(&meta::PARTIAL_OBJECT_METADATA, &answer.bytes);
    assert_eq!((kind.as_str(), &object["metadata"]["name"]), ("PartialObjectMetadata", &json!("cluster")));
    let list = one.wants("application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1");
    let answer = list.get(MAPS).await;
    assert_eq!(protobuf::open(&answer.bytes).unwrap().kind, "PartialObjectMetadataList");
    // Its own kinds have no message there.
    let only = one.wants(PROTOBUF).get("/apis/tenancy.kcp.io/v1alpha1/workspaces").await;
    let (kind, status) = open(&meta::STATUS, &only.bytes);
    assert_eq!((only.code, kind.as_str(), &status["reason"]), (406, "Status", &json!("NotAcceptable")));
    let gone = one.wants(PROTOBUF).delete(&format!("{MAPS}/a")).await;
    let (_, status) = open(&meta::STATUS, &gone.bytes);
    assert_eq!(
        (gone.code, &status["status"], &status["details"]["kind"]),
        (200, &json!("Success"), &json!("configmaps"))
    );
    let missing = one.wants(YAML).get(&format!("{MAPS}/a")).await;
    let text = String::from_utf8(missing.bytes.to_vec()).unwrap();
    assert_eq!((missing.code, &missing.headers["content-type"]), (404, &YAML.parse().unwrap()));
    assert!(text.contains("reason: NotFound") && text.contains("code: 404"), "{text}");
}

#[tokio::test]
async fn reviews() {
    let server = server().await;
    let one = Client::new(&server, "one").user("ann", &["system:masters"]).wants(PROTOBUF);
    let path = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
    let answer = one.post(path, &json!({})).await;
    let envelope = protobuf::open(&answer.bytes).unwrap();
    let user = parts(parts(envelope.raw, 2)[0], 1)[0];
    assert_eq!((answer.code, envelope.kind.as_str(), parts(user, 1)[0]), (201, "SelfSubjectReview", &b"ann"[..]));
    assert!(parts(user, 3).contains(&&b"system:masters"[..]));
}

#[tokio::test]
async fn watches() {
    let server = server().await;
    Client::new(&server, "one").map("a", "v").await;
    let one = Client::new(&server, "one").wants(PROTOBUF);
    let path = format!(
        "{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=1"
    );
    let response = one.response("GET", &path, "", Bytes::new()).await;
    assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let mut rest = &bytes[..];
    let mut events = Vec::new();
    while !rest.is_empty() {
        let (length, tail) = rest.split_at(4);
        let (event, tail) = tail.split_at(u32::from_be_bytes(length.try_into().unwrap()) as usize);
        let object = parts(parts(event, 2)[0], 1)[0].to_vec();
        let (kind, object) = open(maps(), &object);
        assert_eq!(kind, "ConfigMap");
        events.push((String::from_utf8(parts(event, 1)[0].to_vec()).unwrap(), object));
        rest = tail;
    }
    let kinds: Vec<&str> = events.iter().map(|(kind, _)| kind.as_str()).collect();
    assert_eq!(kinds[..2], ["ADDED", "BOOKMARK"]);
    assert_eq!(events[0].1["metadata"]["name"], "a");
    assert_eq!(events[1].1["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    let future =
        format!("{MAPS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=99999999");
    let expired = one.response("GET", &future, "", Bytes::new());
    let bytes = expired.await.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(parts(&bytes[4..], 1)[0], b"ERROR");
    let (_, status) = open(&meta::STATUS, parts(parts(&bytes[4..], 2)[0], 1)[0]);
    assert_eq!(status["code"], 504);
}

/// One that is large comes in pieces, packed if the client likes, and says the same as JSON.
#[tokio::test]
async fn a_large_list_in_protobuf() {
    let server = server().await;
    let one = Client::new(&server, "one");
    for n in 0..100 {
        one.map(&format!("m{n:03}"), &n.to_string().repeat(2000)).await;
    }
    let path = "/api/v1/namespaces/default/configmaps";
    let names: Vec<String> = one.get(path).await.ok()["items"].as_array().unwrap().iter().map(meta_name).collect();
    let protobuf = one.wants(PROTOBUF);
    let mut response = protobuf.response("GET", path, "", Bytes::new()).await;
    assert_eq!(http_body::Body::size_hint(response.body()).exact(), None);
    let whole = response.body_mut().collect().await.unwrap().to_bytes();
    let items = parts(protobuf::open(&whole).unwrap().raw, 2);
    let read: Vec<String> = items.iter().map(|item| meta_name(&protobuf::decode(maps(), item).unwrap())).collect();
    assert_eq!(read, names);
    let request = http::Request::get(format!("/clusters/one{path}"))
        .header("accept", PROTOBUF)
        .header("accept-encoding", "gzip")
        .header("x-remote-user", "admin")
        .header("x-remote-group", "system:masters");
    let packed = server.handle(request.body(http_body_util::Full::new(Bytes::new())).unwrap(), one.trust).await;
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    let packed = packed.into_body().collect().await.unwrap().to_bytes();
    let mut unpacked = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&packed[..]), &mut unpacked).unwrap();
    assert_eq!(unpacked, whole);
}

fn meta_name(object: &Value) -> String {
    object["metadata"]["name"].as_str().unwrap().to_owned()
}
