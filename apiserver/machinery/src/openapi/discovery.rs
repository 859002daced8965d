//! The paths of discovery and of the version, as documents of their own in OpenAPI v3 (api-server.md 1.6).

use k8s_openapi::{
    apimachinery::pkg::{
        apis::meta::v1::{APIGroup, APIGroupList, APIVersions},
        version::Info,
    },
    schemars::{SchemaGenerator, generate::SchemaSettings},
};
use serde_json::{Value, json};

use super::schemas;

/// The documents by their places: `api`, `apis`, `apis/<group>` and `version`. `groups` are those with a name.
pub(super) fn documents<'a>(groups: impl Iterator<Item = &'a str>) -> impl Iterator<Item = (String, Value)> {
    const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";
    let meta = |kind: &str| format!("{META}{kind}");
    let fixed = [
        ("api".to_owned(), "getCoreAPIVersions".to_owned(), meta("APIVersions")),
        ("apis".to_owned(), "getAPIVersions".to_owned(), meta("APIGroupList")),
        ("version".to_owned(), "getCodeVersion".to_owned(), "io.k8s.apimachinery.pkg.version.Info".to_owned()),
    ];
    let of_group = |group: &str| {
        let id = format!("get{}APIGroup", super::paths::id_of(group));
        (format!("apis/{group}"), id, meta("APIGroup"))
    };
    let groups: Vec<_> = groups.map(of_group).collect();
    fixed.into_iter().chain(groups).map(|(place, id, answer)| {
        let document = document(&place, &id, &answer);
        (place, document)
    })
}

fn document(place: &str, id: &str, answer: &str) -> Value {
    let mut generator = SchemaSettings::openapi3().into_generator();
    for add in [
        SchemaGenerator::subschema_for::<APIGroup>,
        SchemaGenerator::subschema_for::<APIGroupList>,
        SchemaGenerator::subschema_for::<APIVersions>,
        SchemaGenerator::subschema_for::<Info>,
    ] {
        add(&mut generator);
    }
    let content = json!({"application/json": {"schema": schemas::reference(answer)}});
    let mut components = Value::Object(generator.take_definitions(false));
    super::wrap_references(&mut components);
    json!({
        "openapi": "3.0.0",
        "info": super::info(),
        "paths": {format!("/{place}/"): {"get": {
            "operationId": id,
            "responses": {"200": {"description": "OK", "content": content}},
        }}},
        "components": {"schemas": components},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_answers_with_a_schema_it_has() {
        let documents: Vec<_> = documents(["events.k8s.io"].into_iter()).collect();
        let places: Vec<&str> = documents.iter().map(|(place, _)| &**place).collect();
        assert_eq!(places, ["api", "apis", "version", "apis/events.k8s.io"]);
        for (place, document) in &documents {
            let operation = &document["paths"][format!("/{place}/")]["get"];
            let answer = operation["responses"]["200"]["content"]["application/json"]["schema"]["$ref"].as_str();
            let name = answer.unwrap().strip_prefix(schemas::PLACE).unwrap();
            assert!(document["components"]["schemas"][name].is_object(), "{name}");
        }
        assert_eq!(documents[3].1["paths"]["/apis/events.k8s.io/"]["get"]["operationId"], "getEventsAPIGroup");
    }
}
