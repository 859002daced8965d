//! A client that talks to a server in the same process.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    reason = "a helper of tests; every test file uses its own part of it"
)]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::{pin::Pin, sync::Arc, time::Duration};

use apiserver_server::{ApiServer, Body, Options, Trust};
use apiserver_storage::Embedded;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

/// A fresh server with the clusters `root`, `system:admin`, `one` and `two`; the latter have namespace `default`.
pub async fn server() -> ApiServer {
    let server = ApiServer::new(Arc::new(Embedded::in_memory()), Options::default());
    server.bootstrap().await.unwrap();
    for cluster in ["one", "two"] {
        let client = Client::new(&server, cluster);
        let body =
            json!({"apiVersion": "core.kcp.io/v1alpha1", "kind": "LogicalCluster", "metadata": {"name": "cluster"}});
        client.post("/apis/core.kcp.io/v1alpha1/logicalclusters", &body).await.ok();
        let ready = json!({"status": {"phase": "Ready"}});
        client.merge("/apis/core.kcp.io/v1alpha1/logicalclusters/cluster/status", &ready).await.ok();
        client.namespace("default").await;
    }
    server
}

/// Sends requests to one cluster.
#[derive(Clone)]
pub struct Client {
    pub server: ApiServer,
    pub prefix: String,
    pub user: String,
    pub groups: Vec<String>,
    pub accept: String,
    pub trust: Trust,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub bytes: Bytes,
}

pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
pub const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
pub const PARTIAL_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

impl Client {
    pub fn new(server: &ApiServer, cluster: &str) -> Self {
        let groups = vec!["system:masters".to_owned()];
        Self {
            server: server.clone(),
            prefix: format!("/clusters/{cluster}"),
            user: "admin".into(),
            groups,
            accept: "application/json".into(),
            trust: Trust::Gateway,
        }
    }

    pub fn wants(&self, accept: &str) -> Self {
        Self { accept: accept.into(), ..self.clone() }
    }

    pub fn user(&self, user: &str, groups: &[&str]) -> Self {
        Self { user: user.into(), groups: groups.iter().map(|g| (*g).to_owned()).collect(), ..self.clone() }
    }

    pub async fn send(&self, method: &str, path: &str, content_type: &str, body: impl Into<Bytes>) -> Answer {
        let response = self.response(method, path, content_type, body.into()).await;
        let (parts, body) = response.into_parts();
        Answer { code: parts.status.as_u16(), headers: parts.headers, bytes: body.collect().await.unwrap().to_bytes() }
    }

    pub async fn response(&self, method: &str, path: &str, content_type: &str, body: Bytes) -> http::Response<Body> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header("accept", &self.accept)
            .header("x-remote-user", &self.user)
            .header("user-agent", "test/1");
        for group in &self.groups {
            request = request.header("x-remote-group", group);
        }
        if !content_type.is_empty() {
            request = request.header("content-type", content_type);
        }
        self.server.handle(request.body(Full::new(body)).unwrap(), self.trust).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, "", "").await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, "application/json", body.to_string()).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Answer {
        self.send("PUT", path, "application/json", body.to_string()).await
    }

    pub async fn merge(&self, path: &str, body: &Value) -> Answer {
        self.send("PATCH", path, "application/merge-patch+json", body.to_string()).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, "application/json", "").await
    }

    pub async fn namespace(&self, name: &str) {
        self.post("/api/v1/namespaces", &json!({"metadata": {"name": name}})).await.ok();
    }

    /// Creates a ConfigMap in `default`.
    pub async fn map(&self, name: &str, key: &str) -> Value {
        self.post("/api/v1/namespaces/default/configmaps", &json!({"metadata": {"name": name}, "data": {"k": key}}))
            .await
            .ok()
    }

    pub async fn watch(&self, path: &str) -> Watch {
        let response = self.response("GET", path, "", Bytes::new()).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        Watch { body: Box::pin(response.into_body()), buffer: Vec::new() }
    }
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.bytes).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&self.bytes)))
    }

    /// The object, of a request that must have succeeded.
    pub fn ok(&self) -> Value {
        assert!((200..300).contains(&self.code), "{} {}", self.code, String::from_utf8_lossy(&self.bytes));
        self.json()
    }

    /// Code, reason and message of a refusal.
    pub fn refusal(&self) -> (u16, String, String) {
        let value = self.json();
        assert_eq!(value["kind"], "Status", "{value}");
        assert_eq!(value["code"], self.code, "{value}");
        let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
        (self.code, text("reason"), text("message"))
    }
}

/// An open watch.
pub struct Watch {
    body: Pin<Box<Body>>,
    buffer: Vec<u8>,
}

impl Watch {
    /// The next event, `None` at the end of the stream.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            // Only a guard against a test that would hang; no test expects it to pass.
            let frame = tokio::time::timeout(Duration::from_secs(3600), self.body.frame()).await.expect("an event")?;
            self.buffer.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
    }

    /// Type and name of the next event that is no bookmark.
    pub async fn event(&mut self) -> Option<(String, String, Value)> {
        loop {
            let event = self.next().await?;
            if event["type"] != "BOOKMARK" {
                let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
                return Some((
                    text(&event["type"]),
                    text(&event["object"]["metadata"]["name"]),
                    event["object"].clone(),
                ));
            }
        }
    }
}

/// `metadata.<field>` as text.
pub fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}
