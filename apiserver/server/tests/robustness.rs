//! No input makes the server panic or answer nonsense, and its ends are clean.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::{sync::Arc, time::Duration};

use apiserver_server::{ApiServer, Options, Trust};
use apiserver_storage::Embedded;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use proptest::{prelude::*, test_runner::TestRunner};
use serde_json::{Value, json};
use support::{Client, server};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Pieces of paths, queries and bodies that lead deep into the handlers.
fn pieces(all: &'static [&'static str], joint: &'static str, most: usize) -> impl Strategy<Value = String> {
    let piece = prop_oneof![6 => prop::sample::select(all).prop_map(str::to_owned), 1 => "[ -~]{0,8}"];
    prop::collection::vec(piece, 0..most).prop_map(move |v| v.join(joint))
}

fn requests() -> impl Strategy<Value = (String, String, String, String, String)> {
    let method = prop::sample::select(&["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "BREW"][..])
        .prop_map(str::to_owned);
    let path = pieces(
        &[
            "clusters",
            "root",
            "one",
            "*",
            "root:x",
            "api",
            "apis",
            "v1",
            "namespaces",
            "default",
            "configmaps",
            "a",
            "status",
            "core.kcp.io",
            "v1alpha1",
            "logicalclusters",
            "cluster",
            "watch",
            "openapi",
            "v3",
            "%2A",
            "..",
            "",
            "healthz",
            "metrics",
        ],
        "/",
        9,
    );
    let query = pieces(
        &[
            "watch=1",
            "timeoutSeconds=0",
            "limit=1",
            "limit=-5",
            "continue=e30",
            "resourceVersion=1",
            "resourceVersion=99999999999999999999",
            "labelSelector=a%3Db",
            "fieldSelector=metadata.name%3Da",
            "dryRun=All",
            "fieldValidation=Strict",
            "sendInitialEvents=true",
            "resourceVersionMatch=NotOlderThan",
            "timeout=1s",
            "propagationPolicy=Orphan",
            "hash=AA",
            "fieldManager=m",
            "force=true",
        ],
        "&",
        4,
    );
    let kind = prop::sample::select(
        &[
            "",
            "application/json",
            "application/yaml",
            "application/vnd.kubernetes.protobuf",
            "application/json-patch+json",
            "application/merge-patch+json",
            "application/strategic-merge-patch+json",
            "application/apply-patch+yaml",
        ][..],
    )
    .prop_map(str::to_owned);
    let body = pieces(
        &[
            "{",
            "}",
            "[",
            "]",
            "\"metadata\":",
            "{\"metadata\":{\"name\":\"a\"}}",
            "null",
            "k8s\0",
            "\n\x03",
            "- ",
            ": ",
            "{\"metadata\":null}",
            "[{\"op\":\"test\",\"path\":\"/a\",\"value\":1}]",
            "{\"data\":{\"$patch\":\"replace\"}}",
            "apiVersion: v1\nkind: ConfigMap\n",
            "metadata: {name: a, managedFields: [{operation: Apply, fieldsType: FieldsV1, fieldsV1: {'f:a': 1}}]}\n",
            "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"finalizers\":[1,1]},\"data\":[]}",
        ],
        "",
        5,
    );
    (method, path, query, kind, body)
}

async fn ask(server: &ApiServer, (method, path, query, kind, body): (String, String, String, String, String)) {
    let Ok(request) = Request::builder()
        .method(&*method)
        .uri(format!("/{path}?{query}"))
        .header("content-type", kind)
        .header("x-remote-user", "admin")
        .header("x-remote-group", "system:masters")
        .body(Full::new(Bytes::from(body)))
    else {
        return;
    };
    let shown = format!("{method} {}", request.uri());
    let response = server.handle(request, Trust::Gateway).await;
    let code = response.status().as_u16();
    assert!(code < 500 || [501, 504].contains(&code), "{shown}: {code}");
    assert!(response.headers().contains_key("audit-id"));
    if response.headers().get("content-type").is_some_and(|t| t == "application/json") && code >= 400 {
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&status["kind"], &status["code"]), (&json!("Status"), &json!(code)), "{shown}");
    }
}

#[test]
fn any_request_gets_an_answer() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let server = runtime.block_on(server());
    let config = ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() };
    TestRunner::new(config)
        .run(&requests(), |request| {
            runtime.block_on(ask(&server, request));
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn a_shutdown_ends_watches_and_readiness() {
    let options = Options::default();
    let server = ApiServer::new(Arc::new(Embedded::in_memory()), options.clone());
    server.bootstrap().await.unwrap();
    let root = Client::new(&server, "root");
    let mut watch = root.watch(&format!("{MAPS}?watch=1")).await;
    assert_eq!(root.get("/readyz").await.code, 200);
    options.shutdown.cancel();
    assert!(watch.next().await.is_none());
    assert_eq!((root.get("/readyz").await.code, root.get("/livez").await.code), (500, 200));
}

#[tokio::test]
async fn a_bootstrap_can_be_repeated() {
    let server = server().await;
    let before = server.registry().store().revision();
    server.bootstrap().await.unwrap();
    assert_eq!(server.registry().store().revision(), before);
}

#[tokio::test]
async fn a_body_that_breaks_off_is_400() {
    let server = server().await;
    let frames = [Ok(http_body::Frame::data(Bytes::from_static(b"{\"meta"))), Err(std::io::Error::other("reset"))];
    let body = http_body_util::StreamBody::new(futures_util::stream::iter(frames));
    let request = Request::post(format!("/clusters/one{MAPS}"))
        .header("x-remote-user", "admin")
        .header("x-remote-group", "system:masters")
        .body(body)
        .unwrap();
    assert_eq!(server.handle(request, Trust::Gateway).await.status(), 400);
    assert!(Client::new(&server, "one").get(MAPS).await.ok()["items"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_504() {
    let server = server().await;
    let body = http_body_util::StreamBody::new(futures_util::stream::pending::<
        Result<http_body::Frame<Bytes>, std::io::Error>,
    >());
    let request = Request::post(format!("/clusters/one{MAPS}?timeout=1ms"))
        .header("x-remote-user", "admin")
        .header("x-remote-group", "system:masters")
        .body(body)
        .unwrap();
    let response = tokio::time::timeout(Duration::from_secs(60), server.handle(request, Trust::Gateway)).await.unwrap();
    assert_eq!(response.status(), 504);
}
