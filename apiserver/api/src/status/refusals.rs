//! The refusals of Kubernetes, worded as upstream words them (api-server.md 2.10, recorded answers).

use std::collections::HashSet;

use super::{Cause, Details, Reason, Status};
use crate::{RequestInfo, field};

/// Most faults that one refusal names: a small body can have very many.
const CAUSES_MAX: usize = 256;

/// The message of a 409 for a stale `resourceVersion`.
const MODIFIED: &str = "the object has been modified; please apply your changes to the latest version and try again";

impl Status {
    /// 400: the request cannot be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(Reason::BadRequest, message)
    }

    /// 401: no or bad credentials.
    pub fn unauthorized() -> Self {
        Self::new(Reason::Unauthorized, "Unauthorized")
    }

    /// 403 of the authorizer for `user` and the request; `why` may be empty. To be sent with
    /// `X-Content-Type-Options: nosniff`.
    pub fn forbidden(user: &str, info: &RequestInfo<'_>, why: &str) -> Self {
        let verb = info.verb.as_str();
        let text = if info.is_resource {
            let resource = match &*info.subresource {
                "" => info.resource.to_string(),
                sub => format!("{}/{sub}", info.resource),
            };
            let scope = match &*info.namespace {
                "" => "at the cluster scope".to_owned(),
                namespace => format!("in the namespace {namespace:?}"),
            };
            format!("User {user:?} cannot {verb} resource {resource:?} in API group {:?} {scope}", info.api_group)
        } else {
            format!("User {user:?} cannot {verb} path {:?}", info.path)
        };
        let text = escape(&text);
        let text = if why.is_empty() { text } else { format!("{text}: {why}") };
        if info.is_resource {
            Self::forbidden_object(&info.api_group, &info.resource, &info.name, &text)
        } else {
            Self::forbidden_object("", "", "", &text)
        }
    }

    /// 403 with a reason of its own, as admission and quota give. `resource` and `name` may be empty.
    pub fn forbidden_object(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = match (resource, name) {
            ("", "") => format!("forbidden: {why}"),
            (_, "") => format!("{} is forbidden: {why}", qualified(resource, group)),
            _ => format!("{} {name:?} is forbidden: {why}", qualified(resource, group)),
        };
        Self::new(Reason::Forbidden, message).with_details(object(group, resource, name))
    }

    /// 404: the object does not exist.
    pub fn not_found(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} not found", qualified(resource, group));
        Self::new(Reason::NotFound, message).with_details(object(group, resource, name))
    }

    /// 404: the path or the resource does not exist.
    pub fn no_such_resource() -> Self {
        Self::new(Reason::NotFound, "the server could not find the requested resource").with_details(Details::default())
    }

    /// 405.
    pub fn method_not_allowed() -> Self {
        let message = "the server does not allow this method on the requested resource";
        Self::new(Reason::MethodNotAllowed, message).with_details(Details::default())
    }

    /// 406: none of the `accepted` media types is wanted.
    pub fn not_acceptable(accepted: &[&str]) -> Self {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Self::new(Reason::NotAcceptable, message)
    }

    /// 409: the name is taken.
    pub fn already_exists(group: &str, resource: &str, name: &str) -> Self {
        let message = format!("{} {name:?} already exists", qualified(resource, group));
        Self::new(Reason::AlreadyExists, message).with_details(object(group, resource, name))
    }

    /// 409: the write is not possible now, for the reason `why`.
    pub fn conflict(group: &str, resource: &str, name: &str, why: &str) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", qualified(resource, group));
        Self::new(Reason::Conflict, message).with_details(object(group, resource, name))
    }

    /// 409: the `resourceVersion` is not the stored one.
    pub fn modified(group: &str, resource: &str, name: &str) -> Self {
        Self::conflict(group, resource, name, MODIFIED)
    }

    /// 410: what was asked for is no longer served.
    pub fn gone(message: impl Into<String>) -> Self {
        Self::new(Reason::Gone, message)
    }

    /// 410: the revision has been compacted away; clients list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(Reason::Expired, message)
    }

    /// 413: the body is longer than `limit` bytes.
    pub fn too_large(limit: usize) -> Self {
        Self::new(Reason::RequestEntityTooLarge, format!("Request entity too large: limit is {limit}"))
    }

    /// 415: the body is of none of the `accepted` media types.
    pub fn unsupported_media_type(accepted: &[&str]) -> Self {
        let list = accepted.join(", ");
        let message =
            format!("the body of the request was in an unknown format - accepted media types include: {list}");
        Self::new(Reason::UnsupportedMediaType, message)
    }

    /// 422: the object breaks rules. Equal faults are told once.
    pub fn invalid(group: &str, kind: &str, name: &str, errors: &[field::Error]) -> Self {
        let mut texts: Vec<String> = Vec::new();
        let mut seen = HashSet::new();
        let mut details = object(group, kind, name);
        for (at, error) in errors.iter().enumerate() {
            if texts.len() == CAUSES_MAX {
                texts.push(format!("... and {} more", errors.len() - at));
                break;
            }
            let text = error.to_string();
            if seen.insert(text.clone()) {
                texts.push(text);
                details.causes.push(Cause::from(error));
            }
        }
        let list = if let [only] = &*texts { only.clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{} {name:?} is invalid: {list}", qualified(kind, group));
        Self::new(Reason::Invalid, message).with_details(details)
    }

    /// 429: try again after `retry_after` seconds.
    pub fn too_many_requests(message: impl Into<String>, retry_after: u32) -> Self {
        Self::new(Reason::TooManyRequests, message).with_details(retry(retry_after))
    }

    /// 500: a fault of ours.
    pub fn internal_error(message: impl Into<String>) -> Self {
        let message = message.into();
        let causes = vec![Cause { message: message.clone(), ..Cause::default() }];
        Self::new(Reason::InternalError, format!("Internal error occurred: {message}"))
            .with_details(Details { causes, ..Details::default() })
    }

    /// 503: try again after `retry_after` seconds.
    pub fn service_unavailable(message: impl Into<String>, retry_after: u32) -> Self {
        Self::new(Reason::ServiceUnavailable, message).with_details(retry(retry_after))
    }

    /// 504: it took too long. `retry_after` of 0 is left out.
    pub fn timeout(message: &str, retry_after: u32) -> Self {
        let status = Self::new(Reason::Timeout, format!("Timeout: {message}"));
        status.with_details(if retry_after == 0 { Details::default() } else { retry(retry_after) })
    }
}

/// `widgets.example.dev`, or `configmaps` in the core group.
fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// Names of users and paths may come to stand in a web page.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn object(group: &str, kind: &str, name: &str) -> Details {
    Details { name: name.to_owned(), group: group.to_owned(), kind: kind.to_owned(), ..Details::default() }
}

fn retry(seconds: u32) -> Details {
    Details { retry_after_seconds: Some(seconds), ..Details::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::{Error, Path};

    const TYPES: [&str; 3] = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];

    /// Answers as a real API server gave them.
    #[test]
    fn refusals_are_upstreams_byte_for_byte() {
        let info = |path| RequestInfo::parse("GET", path, "").unwrap();
        let invalid = Error::required(&Path::new("metadata").child("name"), "name or generateName is required");
        for (status, want) in [
            (Status::unauthorized(), r#""message":"Unauthorized","reason":"Unauthorized","code":401"#),
            (
                Status::forbidden("system:anonymous", &info("/api/v1/namespaces/p/configmaps/x"), ""),
                r#""message":"configmaps \"x\" is forbidden: User \"system:anonymous\" cannot get resource \"configmaps\" in API group \"\" in the namespace \"p\"","reason":"Forbidden","details":{"name":"x","kind":"configmaps"},"code":403"#,
            ),
            (
                Status::forbidden("<a&b>", &info("/metrics"), "access denied"),
                r#""message":"forbidden: User \"&lt;a&amp;b&gt;\" cannot get path \"/metrics\": access denied","reason":"Forbidden","details":{},"code":403"#,
            ),
            (
                Status::forbidden("u", &info("/apis/e.io/v1/widgets"), ""),
                r#""message":"widgets.e.io is forbidden: User \"u\" cannot list resource \"widgets\" in API group \"e.io\" at the cluster scope","reason":"Forbidden","details":{"group":"e.io","kind":"widgets"},"code":403"#,
            ),
            (
                Status::not_found("crd.dev", "foos", "f"),
                r#""message":"foos.crd.dev \"f\" not found","reason":"NotFound","details":{"name":"f","group":"crd.dev","kind":"foos"},"code":404"#,
            ),
            (
                Status::method_not_allowed(),
                r#""message":"the server does not allow this method on the requested resource","reason":"MethodNotAllowed","details":{},"code":405"#,
            ),
            (
                Status::not_acceptable(&TYPES),
                r#""message":"only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf","reason":"NotAcceptable","code":406"#,
            ),
            (
                Status::modified("", "configmaps", "a"),
                r#""message":"Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again","reason":"Conflict","details":{"name":"a","kind":"configmaps"},"code":409"#,
            ),
            (
                Status::invalid("", "ConfigMap", "", &[invalid.clone(), invalid]),
                r#""message":"ConfigMap \"\" is invalid: metadata.name: Required value: name or generateName is required","reason":"Invalid","details":{"kind":"ConfigMap","causes":[{"reason":"FieldValueRequired","message":"Required value: name or generateName is required","field":"metadata.name"}]},"code":422"#,
            ),
            (
                Status::too_many_requests("Too many requests, please try again later.", 1),
                r#""message":"Too many requests, please try again later.","reason":"TooManyRequests","details":{"retryAfterSeconds":1},"code":429"#,
            ),
            (
                Status::internal_error("x"),
                r#""message":"Internal error occurred: x","reason":"InternalError","details":{"causes":[{"message":"x"}]},"code":500"#,
            ),
        ] {
            let want = format!(r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure",{want}}}"#);
            assert_eq!(String::from_utf8(status.to_json()).unwrap(), want);
        }
        let expired = Status { continue_token: Some("t".into()), ..Status::expired("old") };
        assert!(String::from_utf8(expired.to_json()).unwrap().contains(r#""metadata":{"continue":"t"}"#));
    }
}
