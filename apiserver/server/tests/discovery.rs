//! Discovery and OpenAPI.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

mod support;

use std::sync::Arc;

use apiserver_server::{ApiServer, Options};
use apiserver_storage::Embedded;
use serde_json::{Value, json};
use support::{Client, server};

#[tokio::test]
async fn legacy_discovery() {
    let server = server().await;
    let one = Client::new(&server, "one").user("alice", &["system:authenticated"]);
    assert_eq!(one.get("/api").await.ok()["versions"], json!(["v1"]));
    let groups = one.get("/apis").await.ok();
    assert_eq!(groups["kind"], "APIGroupList");
    let names: Vec<&str> = groups["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
    assert!(names.contains(&"tenancy.kcp.io") && !names.contains(&""), "{names:?}");
    assert_eq!(one.get("/apis/").await.ok(), groups);
    assert_eq!(one.get("/apis/coordination.k8s.io").await.ok()["preferredVersion"]["version"], "v1");
    let core = one.get("/api/v1").await.ok();
    let maps = core["resources"].as_array().unwrap().iter().find(|r| r["name"] == "configmaps").unwrap();
    assert_eq!(
        (&maps["kind"], &maps["namespaced"], &maps["shortNames"]),
        (&json!("ConfigMap"), &json!(true), &json!(["cm"]))
    );
    for missing in ["/apis/none.dev", "/apis/coordination.k8s.io/v9", "/api/v9"] {
        assert_eq!(one.get(missing).await.refusal().0, 404);
    }
    assert_eq!(one.get("/version").await.ok()["gitVersion"], concat!("v1.34.1+fairgate.", env!("CARGO_PKG_VERSION")));
}

/// kubectl asks before it creates what cannot be patched, and takes a 404 for a server that is broken.
#[tokio::test]
async fn there_are_no_custom_resources_and_that_is_an_answer() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let list = one.get(definitions).await.ok();
    assert_eq!((&list["kind"], &list["items"]), (&json!("CustomResourceDefinitionList"), &json!([])));
    assert!(list["metadata"]["resourceVersion"].is_string());
    let alice = one.user("alice", &["system:authenticated"]);
    assert_eq!(alice.get(definitions).await.refusal().0, 403);
    assert_eq!(one.get(&format!("{definitions}/x")).await.refusal().0, 404);
    assert_eq!(one.post(definitions, &json!({})).await.refusal().0, 404);
}

#[tokio::test]
async fn aggregated_discovery_is_revalidated() {
    let server = server().await;
    for version in ["v2", "v2beta1"] {
        let form = format!("application/json;g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
        let one = Client::new(&server, "one").wants(&format!("{form},application/json"));
        let answer = one.get("/apis").await;
        assert_eq!(answer.headers["content-type"], form.as_str());
        assert_eq!(
            (&answer.headers["vary"], &answer.headers["cache-control"]),
            (&"Accept".parse().unwrap(), &"public".parse().unwrap())
        );
        assert_eq!(
            (&answer.ok()["kind"], &answer.ok()["apiVersion"]),
            (&json!("APIGroupDiscoveryList"), &json!(format!("apidiscovery.k8s.io/{version}")))
        );
        let etag = answer.headers["etag"].to_str().unwrap().to_owned();
        let request = http::Request::get("/clusters/two/apis")
            .header("accept", &one.accept)
            .header("x-remote-user", "a")
            .header("if-none-match", &etag);
        let again = server.handle(request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap(), one.trust).await;
        assert_eq!(again.status(), 304);
        let core = one.get("/api").await.ok();
        assert_eq!(core["items"][0]["versions"][0]["version"], "v1");
    }
    let refused = Client::new(&server, "one").wants("application/json;g=apidiscovery.k8s.io;v=v2");
    assert_eq!(refused.get("/apis").await.code, 406);
}

#[tokio::test]
async fn openapi_stays_in_the_workspace() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let index = one.get("/openapi/v3").await.ok();
    let url = index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap();
    assert!(url.starts_with("/clusters/one/openapi/v3/api/v1?hash="), "{url}");
    let bare = Client { prefix: String::new(), ..one.clone() };
    let document = bare.get(url).await;
    assert_eq!(document.headers["cache-control"], "public, immutable");
    let document = document.ok();
    assert_eq!(document["openapi"], "3.0.0");
    assert!(document["components"]["schemas"]["io.k8s.api.core.v1.ConfigMap"].is_object());
    let stale = one.get("/openapi/v3/api/v1?hash=AA").await;
    assert_eq!((stale.code, stale.headers["location"].to_str().unwrap()), (301, url));
    assert_eq!(one.get("/openapi/v3/apis/none.dev/v1").await.code, 404);
    let request = http::Request::get("/clusters/one/openapi/v3")
        .header("x-remote-user", "a")
        .header("x-forwarded-prefix", "/clusters/root:org");
    let seen = server.handle(request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap(), one.trust).await;
    let bytes = http_body_util::BodyExt::collect(seen.into_body()).await.unwrap().to_bytes();
    let index: Value = serde_json::from_slice(&bytes).unwrap();
    assert!(
        index["paths"]["api/v1"]["serverRelativeURL"].as_str().unwrap().starts_with("/clusters/root:org/openapi/v3/")
    );
}

#[tokio::test]
async fn openapi_v2_in_both_encodings() {
    const ASKED: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let server = server().await;
    let one = Client::new(&server, "one").user("alice", &["system:authenticated"]);
    let json = one.get("/openapi/v2").await;
    assert_eq!((&json.ok()["swagger"], &json.headers["vary"]), (&json!("2.0"), &"Accept".parse().unwrap()));
    let protobuf = one.wants(ASKED).get("/openapi/v2").await;
    assert_eq!(protobuf.headers["content-type"], ASKED.replace('@', "."));
    assert_eq!(protobuf.headers["etag"], json.headers["etag"]);
    assert!(protobuf.bytes.starts_with(b"\x0a\x032.0"));
    let refused = one.wants("text/plain").get("/openapi/v2").await;
    assert_eq!((refused.code, refused.bytes.len(), &refused.headers["vary"]), (406, 0, &"Accept".parse().unwrap()));
    let request = http::Request::get("/clusters/two/openapi/v2")
        .header("accept", ASKED)
        .header("x-remote-user", "a")
        .header("if-none-match", &json.headers["etag"]);
    let again = server.handle(request.body(http_body_util::Empty::<bytes::Bytes>::new()).unwrap(), one.trust).await;
    assert_eq!(again.status(), 304);
}

#[tokio::test]
async fn addresses_compression_and_checks() {
    let server = server().await;
    let one = Client::new(&server, "one");
    let api = one.get("/api").await.ok();
    let entry = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": "localhost:6443"}]);
    assert_eq!(api["serverAddressByClientCIDRs"], entry);
    for check in ["storage-readiness", "poststarthook/bootstrap"] {
        assert_eq!(&one.get(&format!("/readyz/{check}")).await.bytes[..], b"ok");
    }
    let request = http::Request::get("/clusters/one/version").header("accept-encoding", "gzip");
    let packed = server.handle(request.body(http_body_util::Full::new(bytes::Bytes::new())).unwrap(), one.trust).await;
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    assert!(one.get("/openapi/v2").await.headers["last-modified"].to_str().unwrap().ends_with(" GMT"));
    let review = json!({"kind": "SelfSubjectReview", "apiVersion": "authentication.k8s.io/v1beta1"});
    let answer = one.post("/apis/authentication.k8s.io/v1beta1/selfsubjectreviews", &review).await.ok();
    assert_eq!(answer["status"]["userInfo"]["username"], "admin");
    let finalize = "/api/v1/namespaces/default/finalize";
    assert_eq!((one.get(finalize).await.code, one.merge(finalize, &json!({})).await.code), (405, 405));
}

#[tokio::test]
async fn readiness_waits_for_what_it_names() {
    let server = ApiServer::new(Arc::new(Embedded::in_memory()), Options::default());
    let bare = Client { prefix: String::new(), ..Client::new(&server, "root") };
    let hook = "[-]poststarthook/bootstrap failed: reason withheld\n";
    let text = |answer: support::Answer| (answer.code, String::from_utf8(answer.bytes.to_vec()).unwrap());
    for kind in ["readyz", "livez"] {
        let (code, lines) = text(bare.get(&format!("/{kind}")).await);
        assert!(code == 500 && lines.contains(hook) && !lines.contains("informer-sync"), "{lines}");
    }
    server.bootstrap().await.unwrap();
    assert_eq!(text(bare.get("/readyz").await), (200, "ok".into()));
    let [first, second] = [(); 2].map(|()| server.registry().informing());
    for informing in [first, second] {
        let (code, lines) = text(bare.get("/readyz?verbose").await);
        assert!(code == 500 && lines.contains("[-]informer-sync failed: reason withheld\n"), "{lines}");
        assert_eq!(bare.get("/livez").await.code, 200);
        drop(informing);
    }
    assert!(text(bare.get("/readyz?verbose").await).1.contains("[+]informer-sync ok\n"));
}

#[tokio::test]
async fn discovery_in_yaml_and_openapi_v3_in_protobuf() {
    const V2: &str = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let server = server().await;
    let one = Client::new(&server, "one");
    for (path, parameters) in
        [("/api", ""), ("/apis", ""), ("/apis/coordination.k8s.io", ""), ("/api/v1", ""), ("/api", V2), ("/apis/", V2)]
    {
        let json = one.wants(&format!("application/json{parameters}")).get(path).await;
        let yaml = one.wants(&format!("application/yaml{parameters}")).get(path).await;
        assert_eq!(yaml.headers["content-type"], format!("application/yaml{parameters}").as_str());
        assert_eq!(yaml.headers["etag"], json.headers["etag"]);
        assert_eq!(serde_yaml::from_slice::<Value>(&yaml.bytes).unwrap(), json.json(), "{path}");
    }
    let asked = one.wants("application/com.github.proto-openapi.spec.v3@v1.0+protobuf");
    let answer = asked.get("/openapi/v3/api/v1").await;
    assert_eq!(answer.headers["content-type"], "application/com.github.proto-openapi.spec.v3.v1.0+protobuf");
    assert!(answer.bytes.starts_with(b"\x0a\x053.0.0\x12"));
    let refused = one.wants("text/html").get("/openapi/v3/api/v1").await;
    assert_eq!((refused.code, refused.bytes.len()), (406, 0));
    let paths = one.get("/").await.ok()["paths"].clone();
    assert!(
        ["/openapi/v2", "/openapi/v3", "/livez"].iter().all(|path| paths.as_array().unwrap().contains(&json!(path)))
    );
    assert!(!paths.as_array().unwrap().contains(&json!("/metrics")));
}
