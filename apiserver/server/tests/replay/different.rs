//! Where answers to clients differ from the recorded ones on purpose.

use serde_json::Value;

/// Whether a recorded request is of a group.
type Applies = fn(&Value) -> bool;

fn path(request: &Value) -> &str {
    request["path"].as_str().unwrap()
}

/// Name, which requests, and why.
pub const DIFFERENT: &[(&str, Applies, &str)] = &[
    (
        "custom resources",
        |r| ["example.dev", "crd.dev", "apiextensions"].iter().any(|group| path(r).contains(group)),
        "custom resources and their definitions are not served yet",
    ),
    ("roles", |r| path(r).contains("rbac.authorization.k8s.io"), "roles are not served yet"),
    (
        "discovery for everybody",
        |r| r["status"] == 403 && (path(r) == "/api/v1" || path(r).ends_with("/selfsubjectaccessreviews")),
        "whoever is authenticated may read discovery and ask what he may, as in a whole Kubernetes; the recorded server knew \
         no such roles",
    ),
    (
        "aggregated discovery of v2beta1",
        |r| {
            let asked = r["headers"]["Accept"].as_str().unwrap();
            asked.starts_with("application/json;g=apidiscovery.k8s.io;v=v2beta1") && r["status"] == 200
        },
        "v1.34 no longer serves it and answers the older form; kept, since with it kubectl 1.26 to 1.29 and helm 3 need two \
         requests instead of one for each group",
    ),
];
