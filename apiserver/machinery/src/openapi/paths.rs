//! The paths of a resource and their operations.

use serde_json::{Map, Value, json};

use super::{group_version_kind, schemas};
use crate::{discovery, negotiate, object::set, resource::Resource};

/// Adds all paths of `resource`; `base` is for example `/api/v1`.
pub(super) fn add(resource: &Resource, base: &str, paths: &mut Map<String, Value>) {
    let plural = resource.plural;
    let collection = if resource.is_namespaced() {
        format!("{base}/namespaces/{{namespace}}/{plural}")
    } else {
        format!("{base}/{plural}")
    };
    if resource.is_namespaced() && resource.has_verb("list") {
        let list = operation(resource, "list", "get", "ForAllNamespaces");
        paths.insert(format!("{base}/{plural}"), json!({ "get": list }));
    }
    let item = format!("{collection}/{{name}}");
    let of_collection = [("list", "get"), ("create", "post"), ("deletecollection", "delete")];
    let of_item = [("get", "get"), ("update", "put"), ("patch", "patch"), ("delete", "delete")];
    if resource.has_verb("watch") {
        add_watches(resource, base, collection.strip_prefix(base).unwrap_or_default(), paths);
    }
    paths.insert(collection, path(resource, &of_collection, "", false));
    if !resource.has_verb("get") {
        return;
    }
    if let Some((sub, of)) = discovery::action(resource) {
        let mut action = path(of, &[("create", "post")], "", true);
        set(&mut action, "parameters", json!([path_parameter("name"), path_parameter("namespace")]));
        let id = format!("create{}Namespaced{}{}", id_of_group(resource), resource.kind, capitalised(sub));
        action.get_mut("post").into_iter().for_each(|post| set(post, "operationId", id.as_str()));
        paths.insert(format!("{item}/{sub}"), action);
    }
    paths.insert(item.clone(), path(resource, &of_item, "", true));
    for sub in resource.subresources {
        let verbs: &[_] = if *sub == "finalize" {
            &[("update", "put")]
        } else {
            &[("get", "get"), ("update", "put"), ("patch", "patch")]
        };
        paths.insert(format!("{item}/{sub}"), path(resource, verbs, sub, true));
    }
}

/// The older paths of watches; `collection` is the path behind `base`.
fn add_watches(resource: &Resource, base: &str, collection: &str, paths: &mut Map<String, Value>) {
    let mut add = |behind: &str, action: &str, suffix: &str, names: &[&str]| {
        let mut watch = operation(resource, "watch", "get", suffix);
        set(&mut watch, "x-kubernetes-action", action);
        let names: Vec<Value> = names.iter().map(|name| path_parameter(name)).collect();
        paths.insert(format!("{base}/watch{behind}"), json!({"get": watch, "parameters": names}));
    };
    let item = format!("{collection}/{{name}}");
    if resource.is_namespaced() {
        add(&format!("/{}", resource.plural), "watchlist", "ListForAllNamespaces", &[]);
        add(collection, "watchlist", "List", &["namespace"]);
        add(&item, "watch", "", &["name", "namespace"]);
    } else {
        add(collection, "watchlist", "List", &[]);
        add(&item, "watch", "", &["name"]);
    }
}

fn path(resource: &Resource, verbs: &[(&str, &str)], sub: &str, is_item: bool) -> Value {
    let mut members = Map::new();
    for (verb, method) in verbs {
        if resource.has_verb(verb) {
            let suffix = capitalised(sub);
            members.insert((*method).to_owned(), operation(resource, verb, method, &suffix));
        }
    }
    let mut parameters = Vec::new();
    if is_item {
        parameters.push(path_parameter("name"));
    }
    if resource.is_namespaced() {
        parameters.push(path_parameter("namespace"));
    }
    members.insert("parameters".into(), Value::from(parameters));
    Value::Object(members)
}

fn capitalised(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|c| c.to_ascii_uppercase()).into_iter().chain(chars).collect()
}

/// `Core`, `TenancyKcpIo`: how operation ids name a group.
pub(super) fn id_of(group: &str) -> String {
    let group = if group.is_empty() { "core" } else { group.trim_end_matches(".k8s.io") };
    group.split(['.', '-']).map(capitalised).collect()
}

/// `CoreV1`, `TenancyKcpIoV1alpha1`: how operation ids name a group and version.
fn id_of_group(resource: &Resource) -> String {
    format!("{}{}", id_of(resource.group), capitalised(resource.version))
}

fn path_parameter(name: &str) -> Value {
    json!({"name": name, "in": "path", "required": true, "schema": {"type": "string", "uniqueItems": true}})
}

fn query_parameter(name: &str) -> Value {
    let kind = match name {
        "force" | "watch" | "allowWatchBookmarks" | "sendInitialEvents" => "boolean",
        "limit" | "timeoutSeconds" => "integer",
        _ => "string",
    };
    json!({"name": name, "in": "query", "schema": {"type": kind, "uniqueItems": true}})
}

fn parameters(verb: &str) -> &'static [&'static str] {
    const LIST: &[&str] = &[
        "allowWatchBookmarks",
        "continue",
        "fieldSelector",
        "labelSelector",
        "limit",
        "resourceVersion",
        "resourceVersionMatch",
        "sendInitialEvents",
        "timeoutSeconds",
        "watch",
    ];
    match verb {
        "list" | "watch" => LIST,
        "deletecollection" => {
            &["continue", "dryRun", "fieldSelector", "labelSelector", "limit", "propagationPolicy", "resourceVersion"]
        }
        "create" | "update" => &["dryRun", "fieldManager", "fieldValidation"],
        "patch" => &["dryRun", "fieldManager", "fieldValidation", "force"],
        "delete" => &["dryRun", "gracePeriodSeconds", "orphanDependents", "propagationPolicy"],
        _ => &[],
    }
}

fn operation(resource: &Resource, verb: &str, method: &str, suffix: &str) -> Value {
    let word = match verb {
        "get" => "read",
        "update" => "replace",
        "deletecollection" => "deleteCollection",
        other => other,
    };
    // A list over all namespaces is named after them instead.
    let scope = if resource.is_namespaced() && !suffix.ends_with("ForAllNamespaces") { "Namespaced" } else { "" };
    let id = format!("{word}{}{scope}{}{suffix}", id_of_group(resource), resource.kind);
    let reference = schemas::reference(&schemas::name(resource));
    let content = |types: &[&str], schema: &Value| -> Value {
        types.iter().map(|t| ((*t).to_owned(), json!({ "schema": schema }))).collect::<Map<_, _>>().into()
    };
    let answer = match verb {
        "list" | "deletecollection" => schemas::reference(&format!("{}List", schemas::name(resource))),
        "watch" => schemas::reference(schemas::WATCH_EVENT),
        _ => reference.clone(),
    };
    let mut operation = json!({
        "operationId": id,
        "parameters": parameters(verb).iter().map(|p| query_parameter(p)).collect::<Vec<_>>(),
        "responses": {"200": {"description": "OK", "content": content(&["application/json"], &answer)}},
        "x-kubernetes-action": if verb == "create" { "post" } else if verb == "update" { "put" } else { verb },
        "x-kubernetes-group-version-kind": group_version_kind(resource),
    });
    let body = match method {
        "post" | "put" => Some(content(&["application/json", "application/yaml"], &reference)),
        "patch" => Some(content(&negotiate::patch_types(resource), &json!({"type": "object"}))),
        _ => None,
    };
    if let Some(body) = body {
        set(&mut operation, "requestBody", json!({"content": body, "required": true}));
    }
    operation
}
