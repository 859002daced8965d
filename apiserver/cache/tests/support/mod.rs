//! A client that talks to a cache server in the same process.
#![allow(dead_code, unreachable_pub, reason = "every test file uses its own part of it")]
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test may panic")]

use std::sync::Arc;

use apiserver_cache::CacheServer;
use apiserver_server::{Body, Options, Trust};
use apiserver_storage::Embedded;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

pub const EXPORTS: &str = "/apis/apis.kcp.io/v1alpha2/apiexports";

/// Sends requests to one server as one user.
#[derive(Clone)]
pub struct Client {
    pub server: CacheServer,
    pub groups: &'static [&'static str],
    pub accept: &'static str,
}

/// An empty server, and an administrator of it.
pub fn admin() -> Client {
    let server = CacheServer::new(Arc::new(Embedded::in_memory()), Options::default());
    Client { server, groups: &["system:masters"], accept: "application/json" }
}

/// The path of something at a place.
pub fn at(shard: &str, cluster: &str, path: &str) -> String {
    format!("/services/cache/shards/{shard}/clusters/{cluster}{path}")
}

/// An object with a name and a content.
pub fn export(name: &str, spec: impl Into<Value>) -> Value {
    json!({"kind": "APIExport", "apiVersion": "apis.kcp.io/v1alpha2", "metadata": {"name": name}, "spec": spec.into()})
}

/// Shard, cluster and name of an object as it says itself.
pub fn place(object: &Value) -> String {
    let metadata = &object["metadata"];
    let text = |v: &Value| v.as_str().unwrap_or("-").to_owned();
    let annotations = &metadata["annotations"];
    format!(
        "{}|{}/{}",
        text(&annotations["kcp.io/shard"]),
        text(&annotations["kcp.io/cluster"]),
        text(&metadata["name"])
    )
}

impl Client {
    pub async fn response(&self, method: &str, path: &str, body: String) -> http::Response<Body> {
        let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let mut request = Request::builder().method(method).uri(path).header("content-type", content_type);
        request = request.header("x-remote-user", "u").header("accept", self.accept);
        for group in self.groups {
            request = request.header("x-remote-group", *group);
        }
        self.server.handle(request.body(Full::from(body)).unwrap(), Trust::Gateway).await
    }

    /// Code and body: JSON, or the text as a JSON string.
    pub async fn send(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let response = self.response(method, path, body.map(Value::to_string).unwrap_or_default()).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let text = || String::from_utf8_lossy(&bytes).into_owned().into();
        (code, serde_json::from_slice(&bytes).unwrap_or_else(|_| text()))
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.send("GET", path, None).await
    }

    /// Code and message of a refusal.
    pub async fn refused(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, String) {
        let (code, value) = self.send(method, path, body).await;
        (code, value["message"].as_str().or(value.as_str()).unwrap_or_default().to_owned())
    }

    /// Creates an export.
    pub async fn put(&self, shard: &str, cluster: &str, name: &str) -> Value {
        let (code, value) = self.send("POST", &at(shard, cluster, EXPORTS), Some(&export(name, json!({})))).await;
        assert_eq!(code, 201, "{value}");
        value
    }

    /// The places of what is listed.
    pub async fn list(&self, path: &str) -> Vec<String> {
        let (code, value) = self.get(path).await;
        assert_eq!(code, 200, "{value}");
        value["items"].as_array().unwrap().iter().map(place).collect()
    }
}

/// The events of a watch, one at a time.
pub struct Events {
    body: Body,
    buffer: Vec<u8>,
}

impl Events {
    pub async fn open(client: &Client, path: &str) -> Self {
        let response = client.response("GET", path, String::new()).await;
        assert_eq!(response.status(), 200);
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            self.buffer.extend_from_slice(&self.body.frame().await?.unwrap().into_data().unwrap());
        }
    }

    /// Kind and place of the next event.
    pub async fn told(&mut self) -> String {
        let event = self.next().await.unwrap();
        format!("{} {}", event["type"].as_str().unwrap(), place(&event["object"]))
    }
}
