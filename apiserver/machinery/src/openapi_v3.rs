//! OpenAPI v3: an index and one document per group and version, made from the table (api-server.md 1.6).
//!
//! What clients take from it: whether a kind's PATCH knows `fieldValidation` and `dryRun`, the merge keys of its
//! lists, and the fields for `kubectl explain`. Hashes do not depend on the workspace.

mod paths;
mod schemas;

use std::{collections::BTreeMap, sync::LazyLock};

use serde_json::{Map, Value, json};

use crate::{builtin, discovery::Rendered, resource::Resource};

/// The documents of a set of resources.
#[derive(Debug)]
pub struct OpenApiV3 {
    /// By their place: `api/v1`, `apis/<group>/<version>`.
    documents: BTreeMap<String, Rendered>,
}

impl OpenApiV3 {
    /// Renders the documents of these resources.
    pub fn new<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> Self {
        let mut places: BTreeMap<String, Vec<&Resource>> = BTreeMap::new();
        for resource in resources {
            places.entry(place(resource)).or_default().push(resource);
        }
        let documents = places.into_iter().map(|(place, list)| (place, Rendered::new(&document(&list)))).collect();
        Self { documents }
    }

    /// `/openapi/v3`. `prefix` is the path in front of it as the client sees it, for example `/clusters/root`,
    /// or empty: clients take the URLs of the index as they are.
    pub fn index(&self, prefix: &str) -> Rendered {
        let entry = |place: &String, hash: &str| json!({"serverRelativeURL": format!("{prefix}/openapi/v3/{place}?hash={hash}")});
        let paths: Map<String, Value> =
            self.documents.iter().map(|(place, d)| (place.clone(), entry(place, &d.hash))).collect();
        Rendered::new(&json!({ "paths": paths }))
    }

    /// `/openapi/v3/<place>`, for example `api/v1` or `apis/tenancy.kcp.io/v1alpha1`.
    pub fn document(&self, place: &str) -> Option<&Rendered> {
        self.documents.get(place)
    }
}

/// The documents of the built-in resources.
pub fn builtin() -> &'static OpenApiV3 {
    static BUILTIN: LazyLock<OpenApiV3> = LazyLock::new(|| OpenApiV3::new(builtin::all()));
    &BUILTIN
}

fn place(resource: &Resource) -> String {
    let prefix = if resource.group.is_empty() { "api" } else { "apis" };
    format!("{prefix}/{}", resource.api_version())
}

fn document(resources: &[&Resource]) -> Value {
    let mut all_paths = Map::new();
    let mut all_schemas = Map::new();
    all_schemas.insert(schemas::OBJECT_META.into(), schemas::object_meta());
    for resource in resources {
        paths::add(resource, &format!("/{}", place(resource)), &mut all_paths);
        all_schemas.insert(schemas::name(resource), schemas::kind(resource));
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.0"},
        "paths": all_paths,
        "components": {"schemas": all_schemas},
    })
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
            format!("#/components/schemas/{}", schemas::OBJECT_META)
        );
        let secrets = &schemas["io.k8s.api.core.v1.ServiceAccount"]["properties"]["secrets"];
        assert_eq!(secrets["x-kubernetes-patch-merge-key"], "name");
        let finalizers = &schemas[schemas::OBJECT_META]["properties"]["finalizers"];
        assert_eq!(finalizers["x-kubernetes-patch-strategy"], "merge");
        let document = read(super::builtin().document("apis/tenancy.kcp.io/v1alpha1").unwrap());
        assert!(document["components"]["schemas"]["io.kcp.tenancy.v1alpha1.Workspace"].is_object());
    }

    #[test]
    fn the_index_carries_prefix_and_hash() {
        let hash = &super::builtin().document("api/v1").unwrap().hash;
        let index = read(&super::builtin().index("/clusters/root"));
        let url = format!("/clusters/root/openapi/v3/api/v1?hash={hash}");
        assert_eq!(index["paths"]["api/v1"]["serverRelativeURL"], url);
        assert_eq!(index["paths"].as_object().unwrap().len(), 5);
    }

    #[test]
    fn operation_ids_are_unique() {
        for document in super::builtin().documents.values() {
            let mut ids = Vec::new();
            for path in read(document)["paths"].as_object().unwrap().values() {
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
