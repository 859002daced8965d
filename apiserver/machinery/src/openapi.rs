//! OpenAPI of both versions, made from the types of the kinds: v3 as an index and one document per group and version, v2
//! as one document (api-server.md 1.5, 1.6).
//!
//! What clients take from them: whether a kind's PATCH knows `fieldValidation` and `dryRun`, the merge keys of its
//! lists, and the fields for validation and `kubectl explain`. Hashes do not depend on the workspace.

mod discovery;
mod gnostic;
mod paths;
mod schemas;
mod texts;
mod v2;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{LazyLock, OnceLock},
};

use serde_json::{Map, Value, json};

pub use self::v2::OpenApiV2;
use crate::{builtin, discovery::Rendered, resource::Resource};

/// The documents of a set of resources.
#[derive(Debug)]
pub struct OpenApi {
    /// Of v3, by their place: `api/v1`, `apis/<group>/<version>`, and those of [`discovery`].
    documents: BTreeMap<String, Document>,
    v2: OpenApiV2,
}

/// A document of v3.
#[derive(Debug)]
struct Document {
    json: Rendered,
    /// Made when it is first asked for.
    protobuf: OnceLock<Vec<u8>>,
}

impl OpenApi {
    /// Renders the documents of these resources.
    pub fn new<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> Self {
        let all: Vec<&Resource> = resources.into_iter().collect();
        let mut places: BTreeMap<String, Vec<&Resource>> = BTreeMap::new();
        all.iter().for_each(|resource| places.entry(place(resource)).or_default().push(resource));
        let groups: BTreeSet<&str> = all.iter().map(|resource| resource.group).filter(|g| !g.is_empty()).collect();
        let kinds = places.into_iter().map(|(place, list)| (place, document(&list)));
        let documents = kinds.chain(discovery::documents(groups.into_iter()));
        let document = |document| Document { json: Rendered::new(&document), protobuf: OnceLock::new() };
        let documents = documents.map(|(place, value)| (place, document(value))).collect();
        Self { documents, v2: OpenApiV2::new(&paths_of(&all), &schemas::all(&all)) }
    }

    /// `/openapi/v3`. `prefix` is the path in front of it as the client sees it, for example `/clusters/root`,
    /// or empty: clients take the URLs of the index as they are.
    pub fn index(&self, prefix: &str) -> Rendered {
        let entry = |place: &String, hash: &str| json!({"serverRelativeURL": format!("{prefix}/openapi/v3/{place}?hash={hash}")});
        let paths: Map<String, Value> =
            self.documents.iter().map(|(place, d)| (place.clone(), entry(place, &d.json.hash))).collect();
        Rendered::new(&json!({ "paths": paths }))
    }

    /// `/openapi/v3/<place>`, for example `api/v1` or `apis/tenancy.kcp.io/v1alpha1`.
    pub fn document(&self, place: &str) -> Option<&Rendered> {
        self.documents.get(place).map(|document| &document.json)
    }

    /// The same document as `openapi.v3.Document`.
    pub fn protobuf(&self, place: &str) -> Option<&[u8]> {
        let Document { json, protobuf } = self.documents.get(place)?;
        Some(protobuf.get_or_init(|| {
            let document: Value = serde_json::from_slice(&json.body).expect("it was written as JSON");
            gnostic::v3::encode(&document)
        }))
    }

    /// `/openapi/v2`.
    pub fn v2(&self) -> &OpenApiV2 {
        &self.v2
    }
}

/// The documents of the built-in resources.
pub fn builtin() -> &'static OpenApi {
    static BUILTIN: LazyLock<OpenApi> =
        LazyLock::new(|| OpenApi::new(builtin::served().iter().chain(builtin::reviews())));
    &BUILTIN
}

fn place(resource: &Resource) -> String {
    let prefix = if resource.group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", resource.api_version())
}

fn paths_of(resources: &[&Resource]) -> Map<String, Value> {
    let mut all = Map::new();
    resources.iter().for_each(|resource| paths::add(resource, &format!("/{}", place(resource)), &mut all));
    all
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": "v1.34.1"})
}

fn document(resources: &[&Resource]) -> Value {
    let mut schemas = Value::Object(schemas::all(resources));
    wrap_references(&mut schemas);
    json!({
        "openapi": "3.0.0",
        "info": info(),
        "paths": paths_of(resources),
        "components": {"schemas": schemas},
    })
}

/// In v3 a reference stands alone: what has more to say holds it in an `allOf`.
fn wrap_references(value: &mut Value) {
    match value {
        Value::Object(members) => {
            if members.len() > 1
                && let Some(reference @ Value::String(_)) = members.get("$ref").cloned()
            {
                members.remove("$ref");
                members.insert("allOf".into(), json!([{ "$ref": reference }]));
            }
            members.values_mut().for_each(wrap_references);
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        _ => {}
    }
}

fn group_version_kind(resource: &Resource) -> Value {
    json!({"group": resource.group, "version": resource.version, "kind": resource.kind})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(document: &Rendered) -> Value {
        serde_json::from_slice(&document.body).unwrap()
    }

    /// What kubectl looks for before it trusts the server with validation (query_param_verifier_v3.go).
    #[test]
    fn every_kind_has_a_patch_with_its_parameters() {
        for resource in builtin::all() {
            let document = read(super::builtin().document(&place(resource)).unwrap());
            let mut patches = 0;
            for path in document["paths"].as_object().unwrap().values() {
                let patch = &path["patch"];
                if patch["x-kubernetes-group-version-kind"] != group_version_kind(resource) {
                    continue;
                }
                patches += 1;
                let names: Vec<&str> =
                    patch["parameters"].as_array().unwrap().iter().map(|p| p["name"].as_str().unwrap()).collect();
                for name in ["dryRun", "fieldManager", "fieldValidation", "force"] {
                    assert!(names.contains(&name), "{name} of {}", resource.plural);
                }
                let strategic = &patch["requestBody"]["content"]["application/strategic-merge-patch+json"];
                assert_eq!(strategic.is_object(), resource.protobuf);
            }
            let has_status = usize::from(resource.has_subresource("status"));
            assert_eq!(patches, 1 + has_status, "{}", resource.plural);
        }
    }

    #[test]
    fn schemas_of_the_kinds() {
        let document = read(super::builtin().document("api/v1").unwrap());
        let schemas = &document["components"]["schemas"];
        let map = &schemas["io.k8s.api.core.v1.ConfigMap"];
        assert_eq!(
            map["x-kubernetes-group-version-kind"],
            json!([{"group": "", "version": "v1", "kind": "ConfigMap"}])
        );
        assert_eq!(map["properties"]["data"]["additionalProperties"]["type"], "string");
        assert_eq!(
            map["properties"]["metadata"]["allOf"][0]["$ref"],
            "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert!(map["description"].as_str().is_some_and(|text| text.contains("configuration")));
        let secrets = &schemas["io.k8s.api.core.v1.ServiceAccount"]["properties"]["secrets"];
        assert_eq!(secrets["x-kubernetes-patch-merge-key"], "name");
        let document = read(super::builtin().document("apis/tenancy.kcp.io/v1alpha1").unwrap());
        assert!(document["components"]["schemas"]["io.kcp.tenancy.v1alpha1.Workspace"].is_object());
    }

    /// What is only asked and answered has one operation, and no list.
    #[test]
    fn reviews() {
        let v2 = read(&super::builtin().v2().json);
        for review in builtin::reviews() {
            let document = read(super::builtin().document(&place(review)).unwrap());
            let gvk = group_version_kind(review);
            let of = |document: &Value| {
                let operations: Vec<String> = document["paths"]
                    .as_object()
                    .unwrap()
                    .values()
                    .flat_map(|path| path.as_object().unwrap())
                    .filter(|(_, operation)| operation["x-kubernetes-group-version-kind"] == gvk)
                    .map(|(method, _)| method.clone())
                    .collect();
                operations
            };
            assert_eq!((of(&document), of(&v2)), (vec!["post".to_owned()], vec!["post".to_owned()]), "{}", review.kind);
            let schemas = &document["components"]["schemas"];
            assert!(schemas[schemas::name(review)]["properties"]["status"].is_object(), "{}", review.kind);
            assert!(schemas[format!("{}List", schemas::name(review))].is_null());
        }
        let core = read(super::builtin().document("api/v1").unwrap());
        let token = &core["paths"]["/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"]["post"];
        assert_eq!(token["x-kubernetes-group-version-kind"]["kind"], "TokenRequest");
        assert!(core["components"]["schemas"]["io.k8s.api.authentication.v1.TokenRequest"].is_object());
    }

    #[test]
    fn the_index_carries_prefix_and_hash() {
        let hash = &super::builtin().document("api/v1").unwrap().hash;
        let index = read(&super::builtin().index("/clusters/root"));
        let url = format!("/clusters/root/openapi/v3/api/v1?hash={hash}");
        assert_eq!(index["paths"]["api/v1"]["serverRelativeURL"], url);
        let served = builtin::served().iter().chain(builtin::reviews());
        let versions: BTreeSet<String> = served.clone().map(place).collect();
        let groups: BTreeSet<&str> = served.map(|r| r.group).filter(|g| !g.is_empty()).collect();
        assert_eq!(index["paths"].as_object().unwrap().len(), versions.len() + groups.len() + 3);
        for place in ["api", "apis", "apis/events.k8s.io", "version"] {
            assert!(index["paths"][place].is_object(), "{place}");
        }
    }

    #[test]
    fn the_older_form_says_the_same() {
        let v2 = super::builtin().v2();
        let document = read(&v2.json);
        let text = std::str::from_utf8(&v2.json.body).unwrap();
        assert!(!text.contains("components/schemas") && !text.contains("requestBody"));
        for resource in builtin::all() {
            let gvk = group_version_kind(resource);
            let paths = document["paths"].as_object().unwrap();
            let patch = paths.values().map(|p| &p["patch"]).find(|p| p["x-kubernetes-group-version-kind"] == gvk);
            let parameters = patch.unwrap()["parameters"].as_array().unwrap();
            for name in ["dryRun", "fieldManager", "fieldValidation", "force", "body"] {
                assert!(parameters.iter().any(|p| p["name"] == name && p.get("schema").is_some() == (name == "body")));
            }
            let definition = &document["definitions"][schemas::name(resource)];
            assert_eq!(definition["x-kubernetes-group-version-kind"], json!([gvk]));
            assert!(definition["properties"]["metadata"]["$ref"].as_str().unwrap().starts_with("#/definitions/"));
        }
        // Swagger 2, the first field of the encoded document.
        assert!(v2.protobuf.starts_with(b"\x0a\x032.0"));
    }

    #[test]
    fn operation_ids_are_unique() {
        for document in super::builtin().documents.values() {
            let mut ids = Vec::new();
            for path in read(&document.json)["paths"].as_object().unwrap().values() {
                let operations = path.as_object().unwrap().values();
                ids.extend(operations.filter_map(|o| o.get("operationId")).map(ToString::to_string));
            }
            let count = ids.len();
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), count);
        }
    }
}
