//! One recorded session at work: what names a state of the recorded server is replaced by what ours has in its place.

use std::collections::HashMap;

use apiserver_server::{ApiServer, Trust};
use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use super::bodies;
use crate::support::{self, Client};

/// What of an answer was recorded.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub code: u64,
    pub content_type: Option<String>,
    pub warnings: Vec<String>,
}

impl Answer {
    /// The recorded one.
    pub fn recorded(request: &Value) -> Self {
        let warnings = request["response_warnings"].as_array().into_iter().flatten();
        Self {
            code: request["status"].as_u64().unwrap(),
            content_type: request["response_content_type"].as_str().map(str::to_owned),
            warnings: warnings.map(|w| w.as_str().unwrap().to_owned()).collect(),
        }
    }
}

/// See the module.
pub struct Session {
    server: ApiServer,
    one: Client,
    fixtures: Value,
    entry: Value,
    /// By path and what is accepted.
    etags: HashMap<(String, String), String>,
    /// The newest version that an answer has told.
    version: String,
    /// The token of the last page.
    token: String,
    /// Releases that helm has made.
    releases: u32,
    /// Namespaces that are being deleted.
    going: Vec<String>,
    last: Bytes,
}

impl Session {
    /// A server with what the recorded one had before: `before` in `fixtures.json`.
    pub async fn new(fixtures: Value) -> Self {
        let server = support::server().await;
        let one = Client::new(&server, "one");
        for namespace in ["kube-system", "demo", "h"] {
            one.namespace(namespace).await;
        }
        let objects = [
            ("configmaps", json!({"metadata": {"name": "a", "labels": {"app": "demo"}}, "data": {"k": "v"}})),
            ("configmaps", json!({"metadata": {"name": "b"}, "data": {"k": "v"}})),
            ("configmaps", json!({"metadata": {"name": "c"}, "data": {"k": "v"}})),
            ("configmaps", fixtures["manifests"]["cmfin.yaml"][0].clone()),
            ("secrets", json!({"metadata": {"name": "s"}})),
            ("serviceaccounts", json!({"metadata": {"name": "bot"}})),
            ("resourcequotas", json!({"metadata": {"name": "q"}, "spec": {"hard": {"configmaps": "500"}}})),
        ];
        for (plural, object) in objects {
            one.post(&format!("/api/v1/namespaces/demo/{plural}"), &object).await.ok();
        }
        Self {
            server,
            one,
            fixtures,
            entry: Value::Null,
            etags: HashMap::new(),
            version: String::new(),
            token: String::new(),
            releases: 0,
            going: Vec::new(),
            last: Bytes::new(),
        }
    }

    /// A command begins; before some the recorder tidied up, which is not among the requests.
    pub async fn begin(&mut self, file: &str, entry: &Value) {
        self.entry = entry.clone();
        let maps = "/api/v1/namespaces/demo/configmaps";
        match entry["id"].as_str().unwrap() {
            _ if file == "faults.json" => {}
            "create-unknown-field-ignore" => drop(self.one.delete(&format!("{maps}/cmunk")).await),
            "apply-new" | "apply-ssa-new" => drop(self.one.delete(&format!("{maps}/cmf")).await),
            "delete-file" | "delete-selector" => {
                self.one.post(maps, &self.fixtures["manifests"]["cm.yaml"][0]).await.ok();
            }
            "apply-ssa-migrate-csa" => {
                self.one.delete(&format!("{maps}/cmf")).await;
                let mut object = self.fixtures["manifests"]["cm.yaml"][0].clone();
                let last = json!({"kubectl.kubernetes.io/last-applied-configuration": format!("{object}\n")});
                object["metadata"]["annotations"] = last;
                self.one.post(&format!("{maps}?fieldManager=kubectl-client-side-apply"), &object).await.ok();
            }
            // The other helm had been there.
            "helm-install" if file == "helm-4.1.json" => self.one.namespace("hnew").await,
            _ => {}
        }
    }

    /// A command ends: what somebody did meanwhile is done, if its requests are not among the recorded ones.
    pub async fn end(&mut self, entry: &Value) {
        let maps = "/api/v1/namespaces/demo/configmaps";
        match entry["meanwhile"].as_str() {
            Some("kubectl delete cm b -n demo") => drop(self.one.delete(&format!("{maps}/b")).await),
            Some("kubectl create cm late -n demo") => self.create_late().await,
            Some(other) if other.starts_with("kubectl patch cm cmfin") => {
                self.one.merge(&format!("{maps}/cmfin"), &json!({"metadata": {"finalizers": null}})).await.ok();
            }
            _ => {}
        }
    }

    /// What somebody does while kubectl waits for it.
    async fn create_late(&self) {
        self.one.post("/api/v1/namespaces/demo/configmaps", &json!({"metadata": {"name": "late"}})).await;
    }

    /// The body of the last answer, for whoever looks for a fault.
    pub fn last_body(&self) -> String {
        String::from_utf8_lossy(&self.last).chars().take(600).collect()
    }

    /// Makes or removes the object of a request whose recorded answer needs it to be there, or not.
    pub async fn restore(&mut self, request: &Value) {
        let path = request["path"].as_str().unwrap().split('?').next().unwrap();
        let Some((collection, name)) = path.rsplit_once('/').filter(|(c, _)| c.ends_with("/configmaps")) else {
            if request["method"] == "POST" && path.ends_with("/configmaps") {
                let object = bodies::object(&self.fixtures, &self.entry, request, 0);
                self.one.delete(&format!("{path}/{}", object["metadata"]["name"].as_str().unwrap())).await;
            }
            return;
        };
        if request["status"] == 200 && self.one.get(path).await.code == 404 {
            let mut object = json!({"metadata": {"name": name}, "data": {"k": "v"}});
            if name == "cmfin" {
                object["metadata"]["finalizers"] = json!(["example.dev/hold"]);
            }
            self.one.post(collection, &object).await.ok();
        }
        if request["status"] == 404 {
            self.one.delete(path).await;
        }
    }

    /// Asks for a document.
    pub async fn get(&mut self, path: &str, accept: &str) -> Answer {
        self.send(&json!({"method": "GET", "path": path, "headers": {"Accept": accept}})).await
    }

    /// Sends a recorded request.
    pub async fn send(&mut self, request: &Value) -> Answer {
        let path = self.path(request["path"].as_str().unwrap()).await;
        let method = request["method"].as_str().unwrap();
        let accept = request["headers"]["Accept"].as_str().unwrap().to_owned();
        if method == "GET" {
            self.finish_deletion(&path).await;
        }
        if path.ends_with("/late") && request["status"] == 200 {
            self.create_late().await;
        }
        let mut built = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.one.prefix))
            .header("x-remote-user", "admin")
            .header("x-remote-group", "system:masters")
            .header("user-agent", "kubectl/v1.32.5");
        for (name, value) in request["headers"].as_object().unwrap() {
            let value = value.as_str().unwrap();
            let key = (path.clone(), accept.clone());
            let value = match name.as_str() {
                // What is unchanged there is unchanged here, under another tag.
                "If-None-Match" if request["status"] == 304 => self.etag(key).await,
                _ => value.to_owned(),
            };
            built = built.header(name, value);
        }
        let body = self.body(request).await;
        let response = self.server.handle(built.body(Full::new(body)).unwrap(), Trust::Gateway).await;
        let (parts, body) = response.into_parts();
        let text = |name: &str| parts.headers.get(name).map(|v| v.to_str().unwrap().to_owned());
        if let (Some(etag), "GET") = (text("etag"), method) {
            self.etags.insert((path.clone(), accept), etag);
        }
        // A watch has no end.
        let is_watch = path.contains("watch=true") && parts.status == 200;
        self.last =
            if is_watch { Bytes::new() } else { unpacked(&parts.headers, body.collect().await.unwrap().to_bytes()) };
        self.remember(method, &path, parts.status.as_u16());
        let warnings = parts.headers.get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned());
        Answer { code: parts.status.as_u16().into(), content_type: text("content-type"), warnings: warnings.collect() }
    }

    /// A path with our versions, tokens and hashes.
    async fn path(&mut self, recorded: &str) -> String {
        if let Some((document, _)) = recorded.split_once("?hash=") {
            let index = self.one.get("/openapi/v3").await.json();
            let url = index["paths"][document.trim_start_matches("/openapi/v3/")]["serverRelativeURL"].clone();
            return url.as_str().unwrap().trim_start_matches(&self.one.prefix).to_owned();
        }
        let Some((path, query)) = recorded.split_once('?') else { return recorded.to_owned() };
        let query: Vec<String> = query
            .split('&')
            .map(|pair| match pair.split_once('=') {
                Some(("continue", _)) => format!("continue={}", self.token),
                Some(("resourceVersion", version)) if version != "0" => format!("resourceVersion={}", self.version),
                _ => pair.to_owned(),
            })
            .collect();
        format!("{path}?{}", query.join("&"))
    }

    async fn etag(&mut self, key: (String, String)) -> String {
        if !self.etags.contains_key(&key) {
            let answer = self.one.wants(&key.1).get(&key.0).await;
            self.etags.insert(key.clone(), answer.headers["etag"].to_str().unwrap().to_owned());
        }
        self.etags[&key].clone()
    }

    async fn body(&mut self, request: &Value) -> Bytes {
        let mut object = match &request["body"] {
            Value::Null if request["body_bytes"].is_null() => return Bytes::new(),
            Value::Null => {
                if request["method"] == "POST" && bodies::resource(request) == "secrets" {
                    self.releases += 1;
                }
                bodies::object(&self.fixtures, &self.entry, request, self.releases)
            }
            // Protobuf: reviews and DeleteOptions.
            Value::String(_) if request["method"] == "DELETE" => {
                json!({"kind": "DeleteOptions", "apiVersion": "v1"})
            }
            Value::String(_) => bodies::review(request),
            recorded => recorded.clone(),
        };
        // Whoever names a version had just read it.
        if object["metadata"]["resourceVersion"].is_string() {
            object["metadata"]["resourceVersion"] = json!(self.version);
        }
        for operation in object.as_array_mut().into_iter().flatten() {
            if operation["path"] == "/metadata/resourceVersion" {
                operation["value"] = json!(self.version);
            }
        }
        if request["method"] == "PATCH" { object.to_string().into() } else { bodies::bytes(request, &object).into() }
    }

    /// What the controller of namespaces does: kubectl asks until it is done.
    async fn finish_deletion(&mut self, path: &str) {
        let Some(at) = self.going.iter().position(|namespace| path.ends_with(namespace.as_str())) else { return };
        let namespace = format!("/api/v1/namespaces/{}", self.going.remove(at));
        let mut object = self.one.get(&namespace).await.ok();
        object["spec"]["finalizers"] = json!([]);
        self.one.put(&format!("{namespace}/finalize"), &object).await.ok();
    }

    fn remember(&mut self, method: &str, path: &str, code: u16) {
        if let Some(namespace) = path.strip_prefix("/api/v1/namespaces/").filter(|n| !n.contains('/'))
            && (method, code) == ("DELETE", 200)
        {
            self.going.push(namespace.to_owned());
        }
        let Ok(body) = serde_json::from_slice::<Value>(&self.last) else { return };
        let text = |field: &str| body["metadata"][field].as_str().unwrap_or_default().to_owned();
        if !text("resourceVersion").is_empty() {
            self.version = text("resourceVersion");
        }
        self.token = text("continue");
    }
}

/// The bytes as they were before they were packed.
fn unpacked(headers: &HeaderMap, bytes: Bytes) -> Bytes {
    if headers.get("content-encoding").is_none_or(|encoding| encoding != "gzip") {
        return bytes;
    }
    let mut plain = Vec::new();
    std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut plain).unwrap();
    plain.into()
}
