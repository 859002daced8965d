//! May somebody do something: the access reviews of `authorization.k8s.io` (api-server.md 5.13), answered by the function
//! that authorizes requests.

use std::borrow::Cow;

use apiserver_api::{
    RequestInfo, Status, UserInfo, Verb,
    field::{Error, Path},
    user::{GROUP_KCP_ADMIN, GROUP_MASTERS},
};
use apiserver_machinery::{
    Resource,
    object::{get, items, text},
};
use serde_json::{Value, json};

use super::authorization::authorize;
use crate::server::Call;

/// The status of a SelfSubjectAccessReview, SubjectAccessReview or LocalSubjectAccessReview.
///
/// # Errors
/// 422 for a review that asks nothing, two things, or about nobody.
pub(crate) fn review(call: &Call<'_>, resource: &Resource, review: &Value) -> Result<Value, Status> {
    let mut errors = Vec::new();
    let asked = question(resource, &call.info.namespace, review, &mut errors);
    let asker = if resource.plural == "selfsubjectaccessreviews" {
        call.user.clone()
    } else {
        let groups: Vec<&str> = items(review, &["spec", "groups"]).iter().filter_map(Value::as_str).collect();
        let user = text(review, &["spec", "user"]);
        if user.is_empty() && groups.is_empty() {
            let path = Path::new("spec.user");
            errors.push(Error::invalid(&path, user, "at least one of user or group must be specified"));
        }
        UserInfo::new(user, &groups)
    };
    match asked {
        Some(asked) if errors.is_empty() => Ok(match authorize(&asker, call.destination.place, &asked) {
            Ok(()) => json!({"allowed": true}),
            Err(_) => json!({"allowed": false, "reason": "access denied"}),
        }),
        _ => Err(Status::invalid(resource.group, resource.kind, "", &errors)),
    }
}

/// What is asked, as if it were a request.
fn question<'a>(
    resource: &Resource,
    namespace: &str,
    review: &'a Value,
    errors: &mut Vec<Error>,
) -> Option<RequestInfo<'a>> {
    let (resources, paths) = (
        get(review, &["spec", "resourceAttributes"]).filter(|a| a.is_object()),
        get(review, &["spec", "nonResourceAttributes"]).filter(|a| a.is_object()),
    );
    let at = |name: &str| Path::new("spec").child(name);
    match (resources, paths) {
        (Some(_), Some(given)) => {
            let why = "cannot be specified in combination with resourceAttributes";
            errors.push(Error::invalid(&at("nonResourceAttributes"), given.clone(), why));
            None
        }
        (None, None) => {
            let why = "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(Error::invalid(&at("resourceAttributes"), Value::Null, why));
            None
        }
        (None, Some(given)) if resource.is_namespaced() => {
            let why = "disallowed on this kind of request";
            errors.push(Error::invalid(&at("nonResourceAttributes"), given.clone(), why));
            None
        }
        (None, Some(given)) => Some(info(given, false)),
        (Some(given), None) => {
            let own = text(given, &["namespace"]);
            if resource.is_namespaced() && own != namespace {
                let why = "must match metadata.namespace";
                errors.push(Error::invalid(&at("resourceAttributes").child("namespace"), own, why));
            }
            Some(info(given, true))
        }
    }
}

fn info(attributes: &Value, is_resource: bool) -> RequestInfo<'_> {
    let part = |name: &str| Cow::Borrowed(text(attributes, &[name]));
    RequestInfo {
        is_resource,
        path: part("path"),
        verb: verb(text(attributes, &["verb"])),
        api_prefix: Cow::Borrowed("apis"),
        api_group: part("group"),
        api_version: part("version"),
        namespace: part("namespace"),
        resource: part("resource"),
        subresource: part("subresource"),
        name: part("name"),
        query: "",
    }
}

/// One that no request has is [`Verb::Other`]: only who may everything may that.
fn verb(text: &str) -> Verb {
    let known = [
        Verb::Get,
        Verb::List,
        Verb::Watch,
        Verb::Create,
        Verb::Update,
        Verb::Patch,
        Verb::Delete,
        Verb::DeleteCollection,
        Verb::Head,
        Verb::Post,
        Verb::Put,
        Verb::Options,
    ];
    known.into_iter().find(|verb| verb.as_str() == text).unwrap_or(Verb::Other)
}

/// The status of a SelfSubjectRulesReview: what [`authorize`] allows this user in a logical cluster.
pub(crate) fn rules(user: &UserInfo) -> Value {
    let (resources, paths) = if user.in_group(GROUP_MASTERS) || user.in_group(GROUP_KCP_ADMIN) {
        (
            json!([{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]),
            json!([{"verbs": ["*"], "nonResourceURLs": ["*"]}]),
        )
    } else {
        (
            json!([
                {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
                {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"],
                    "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"]},
            ]),
            json!([{"verbs": ["get"], "nonResourceURLs": ["/api", "/api/*", "/apis", "/apis/*", "/healthz", "/healthz/*",
                "/livez", "/livez/*", "/openapi", "/openapi/*", "/readyz", "/readyz/*", "/version", "/version/*"]}]),
        )
    };
    json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": false})
}
