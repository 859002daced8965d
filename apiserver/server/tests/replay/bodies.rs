//! Bodies that were not recorded: made anew from the manifests and from the commands.

use apiserver_machinery::{
    Resource, builtin, encode,
    negotiate::BodyFormat,
    schema::{Message, meta},
};
use serde_json::{Value, json};

/// The object that a POST or PUT of this command sent.
pub fn object(fixtures: &Value, entry: &Value, request: &Value, releases: u32) -> Value {
    let command = entry["command"].as_str().unwrap();
    let (kind, mut object) = match resource(request) {
        "secrets" if command.starts_with("helm") => ("Secret", release(request, releases)),
        "configmaps" if command.starts_with("helm") => ("ConfigMap", of_chart(command, request)),
        plural => {
            let kind = builtin::all().iter().find(|r| r.plural == plural).map_or("TokenRequest", |r| r.kind);
            (kind, from_file(fixtures, command, request, kind).unwrap_or_else(|| imperative(command, kind)))
        }
    };
    // Commands that wrote the object as it was read send its version; ours is another.
    object["kind"] = json!(kind);
    object["apiVersion"] = json!(if kind == "TokenRequest" { "authentication.k8s.io/v1" } else { "v1" });
    object
}

/// The plural in the path, `token` for that of a service account.
pub fn resource(request: &Value) -> &str {
    let path = request["path"].as_str().unwrap().split('?').next().unwrap();
    let segments: Vec<&str> = path.split('/').collect();
    match segments[..] {
        [_, "api", "v1", "namespaces", _, _, _, sub] => sub,
        [_, "api", "v1", "namespaces", _, plural, ..] => plural,
        [_, "api", "v1", plural, ..] => plural,
        [_, "apis", _, _, "namespaces", _, plural, ..] => plural,
        [_, "apis", _, _, plural, ..] => plural,
        _ => "",
    }
}

/// From the manifest behind `-f`, of which there may be several documents.
fn from_file(fixtures: &Value, command: &str, request: &Value, kind: &str) -> Option<Value> {
    let file = command.split(' ').skip_while(|word| *word != "-f").nth(1)?;
    let documents = fixtures["manifests"][file].as_array().unwrap();
    let mut object = documents.iter().find(|document| document["kind"] == kind)?.clone();
    if let Some(namespace) = namespace(request) {
        object["metadata"]["namespace"] = json!(namespace);
    }
    Some(object)
}

fn namespace(request: &Value) -> Option<&str> {
    let path = request["path"].as_str().unwrap();
    path.strip_prefix("/api/v1/namespaces/")?.split(['/', '?']).next().filter(|_| path.matches('/').count() > 4)
}

/// Of `kubectl create <what> <name>`.
fn imperative(command: &str, kind: &str) -> Value {
    let words: Vec<&str> = command.split(' ').collect();
    let name = match (words[0], words[1], kind) {
        // `--create-namespace`: of `-n <name>`.
        ("helm", ..) => words[5],
        // `kubectl wait cm/<name>`: what somebody else made meanwhile.
        (_, "wait", _) => words[2].split('/').nth(1).unwrap(),
        (.., "Secret") => words[4],
        _ => words[3],
    };
    let mut object = json!({"metadata": {"name": name}});
    match kind {
        "Secret" if words[3] == "docker-registry" => {
            object["type"] = json!("kubernetes.io/dockerconfigjson");
            object["data"] = json!({".dockerconfigjson": "e30="});
        }
        "Secret" => object["data"] = json!({"k": "dg=="}),
        "ConfigMap" => object["data"] = json!({"k": "v"}),
        // Not as few as were asked for: the recorded server kept no quota.
        "ResourceQuota" => object["spec"] = json!({"hard": {"configmaps": "500"}}),
        "TokenRequest" => object["metadata"] = json!({}),
        _ => {}
    }
    object
}

/// A release as helm keeps it: the newest on POST, the one in the path on PUT.
fn release(request: &Value, releases: u32) -> Value {
    let path = request["path"].as_str().unwrap();
    let in_new = path.contains("/hnew/");
    let (release, version) = if in_new { ("r2", 1) } else { ("r1", releases) };
    let name = match path.rsplit('/').next().unwrap() {
        "secrets" => format!("sh.helm.release.v1.{release}.v{version}"),
        name => name.to_owned(),
    };
    json!({
        "metadata": {"name": name, "labels": {"name": release, "owner": "helm", "status": "deployed"}},
        "type": "helm.sh/release.v1", "data": {"release": "SDRzSUFBQUFBQUFD"},
    })
}

/// The hook comes before the map of the release, and is deleted when it has run.
fn of_chart(command: &str, request: &Value) -> Value {
    let release = if command.contains(" r2 ") { "r2" } else { "r1" };
    if request["body_bytes"].as_u64().unwrap() < 200 {
        return json!({"metadata": {"name": "hook", "annotations": {"helm.sh/hook": "pre-install"}}});
    }
    json!({"metadata": {"name": format!("{release}-cm"), "labels": {"app.kubernetes.io/managed-by": "Helm"}}, "data": {"v": "a"}})
}

/// A review that asks the same kind of question.
pub fn review(request: &Value) -> Value {
    let maps = json!({"resourceAttributes": {"verb": "get", "resource": "configmaps", "namespace": "demo"}});
    let (kind, group, spec) = match resource(request) {
        "selfsubjectaccessreviews" => ("SelfSubjectAccessReview", "authorization.k8s.io", maps),
        "selfsubjectrulesreviews" => ("SelfSubjectRulesReview", "authorization.k8s.io", json!({"namespace": "demo"})),
        _ => ("SelfSubjectReview", "authentication.k8s.io", json!({})),
    };
    json!({"kind": kind, "apiVersion": format!("{group}/v1"), "spec": spec})
}

/// The bytes of a body in the format that the request names.
pub fn bytes(request: &Value, object: &Value) -> Vec<u8> {
    let is_protobuf = request["headers"]["Content-Type"].as_str().is_some_and(|t| t.ends_with("protobuf"));
    let format = if is_protobuf { BodyFormat::Protobuf } else { BodyFormat::Json };
    encode::value(format, message(request, object), object)
}

fn message(request: &Value, object: &Value) -> &'static Message {
    if request["method"] == "DELETE" {
        return &meta::DELETE_OPTIONS;
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    let of = |resources: &'static [Resource]| resources.iter().find(|r| r.kind == kind).map(|r| r.schema);
    of(builtin::all()).or_else(|| of(builtin::reviews())).unwrap_or(builtin::TOKEN_REQUESTS.schema)
}
