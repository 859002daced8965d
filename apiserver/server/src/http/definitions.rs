//! The list of CustomResourceDefinitions, which is empty: none are served.
//!
//! kubectl reads it before it sends an object of a kind that cannot be patched, as reviews cannot (its
//! query_param_verifier.go): no such path would be the end of `kubectl create`. Discovery does not name it.

use apiserver_api::{Status, Verb};
use http::{Response, StatusCode};
use serde_json::json;

use super::{authorization::Place, body::Body, respond};
use crate::server::Call;

/// Whether the request is for that list, where there are custom resources on Kubernetes: not in the cache server.
pub(crate) fn are_asked_for(call: &Call<'_>) -> bool {
    let info = call.info;
    let asked = (&*info.api_prefix, &*info.api_group, &*info.api_version, &*info.resource);
    asked == ("apis", "apiextensions.k8s.io", "v1", "customresourcedefinitions")
        && info.verb == Verb::List
        && call.destination.place == Place::Cluster
        && call.server.service().openapi.is_some()
}

/// The list.
pub(crate) fn list(call: &Call<'_>) -> Result<Response<Body>, Status> {
    let revision = call.registry.store().revision().to_string();
    Ok(respond::json(
        StatusCode::OK,
        &json!({
            "kind": "CustomResourceDefinitionList",
            "apiVersion": "apiextensions.k8s.io/v1",
            "metadata": {"resourceVersion": revision},
            "items": [],
        }),
    ))
}
