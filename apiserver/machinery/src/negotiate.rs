//! Which media types a client may send and gets back (api-server.md 1.3, 3.7 to 3.9).

mod accept;

use apiserver_api::Status;

pub use self::accept::{
    Answer, AnswerForm, DiscoveryForm, OpenApiForm, discovery_form, object_answer, openapi_v2_form, openapi_v3_form,
    status_format, watch_answer,
};
use crate::resource::Resource;

/// `application/json`.
pub const JSON: &str = "application/json";
/// `application/yaml`.
pub const YAML: &str = "application/yaml";
/// `application/vnd.kubernetes.protobuf`.
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BodyFormat {
    /// JSON; also when nothing is said.
    Json,
    /// YAML.
    Yaml,
    /// The envelope `k8s\0`.
    Protobuf,
}

/// Which kind of patch it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchType {
    /// RFC 6902.
    Json,
    /// RFC 7396.
    Merge,
    /// Kubernetes' strategic merge patch.
    Strategic,
    /// Server-side apply.
    Apply,
}

const PATCH_TYPES: [(&str, PatchType); 4] = [
    ("application/json-patch+json", PatchType::Json),
    ("application/merge-patch+json", PatchType::Merge),
    ("application/strategic-merge-patch+json", PatchType::Strategic),
    ("application/apply-patch+yaml", PatchType::Apply),
];

/// The essence of a media type: without parameters, in lower case.
fn essence(media_type: &str) -> String {
    media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// The format of the body of a create, update or delete.
///
/// # Errors
/// 415 that lists what is accepted.
pub fn body_format(resource: &Resource, content_type: Option<&str>) -> Result<BodyFormat, Status> {
    let given = content_type.map(essence).unwrap_or_default();
    match &*given {
        "" | JSON => Ok(BodyFormat::Json),
        YAML => Ok(BodyFormat::Yaml),
        PROTOBUF if resource.protobuf => Ok(BodyFormat::Protobuf),
        _ => {
            let accepted: &[&str] = if resource.protobuf { &[JSON, YAML, PROTOBUF] } else { &[JSON, YAML] };
            let mut status = Status::unsupported_media_type(accepted);
            // What curl sends when nobody told it better (kubernetes #22904).
            if given == "application/x-www-form-urlencoded" {
                status.message.push_str("; set the header Content-Type");
            }
            Err(status)
        }
    }
}

/// The kind of a patch. Custom kinds know no strategic merge.
///
/// # Errors
/// 415 that lists what is accepted: client tools look for it.
pub fn patch_type(resource: &Resource, content_type: Option<&str>) -> Result<PatchType, Status> {
    let given = content_type.map(essence).unwrap_or_default();
    let accepted = patch_types(resource);
    let found = PATCH_TYPES.iter().find(|(name, _)| *name == given && accepted.contains(name));
    found.map(|(_, patch)| *patch).ok_or_else(|| Status::unsupported_media_type(&accepted))
}

/// The media types of the patches that objects of a resource take.
pub fn patch_types(resource: &Resource) -> Vec<&'static str> {
    let accepted = PATCH_TYPES.iter().filter(|(_, t)| resource.protobuf || *t != PatchType::Strategic);
    accepted.map(|(name, _)| *name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    fn maps() -> &'static Resource {
        builtin::find("", "v1", "configmaps").unwrap()
    }

    fn workspaces() -> &'static Resource {
        builtin::find("tenancy.kcp.io", "v1alpha1", "workspaces").unwrap()
    }

    #[test]
    fn bodies() {
        for (given, want) in [
            (None, BodyFormat::Json),
            (Some(""), BodyFormat::Json),
            (Some("Application/JSON; charset=utf-8"), BodyFormat::Json),
            (Some(YAML), BodyFormat::Yaml),
            (Some(PROTOBUF), BodyFormat::Protobuf),
        ] {
            assert_eq!(body_format(maps(), given).unwrap(), want, "{given:?}");
        }
        assert_eq!(
            body_format(maps(), Some("text/plain")).unwrap_err().message,
            "the body of the request was in an unknown format - accepted media types include: application/json, \
             application/yaml, application/vnd.kubernetes.protobuf"
        );
        assert!(body_format(workspaces(), Some(PROTOBUF)).unwrap_err().message.ends_with("application/yaml"));
        let curl = body_format(maps(), Some("application/x-www-form-urlencoded")).unwrap_err();
        assert!(curl.message.ends_with("set the header Content-Type"));
    }

    #[test]
    fn patches() {
        for (name, patch) in PATCH_TYPES {
            assert_eq!(patch_type(maps(), Some(name)).unwrap(), patch);
        }
        for refused in [None, Some(JSON), Some("application/apply-patch+cbor")] {
            let status = patch_type(maps(), refused).unwrap_err();
            assert_eq!(status.code, 415);
            assert!(status.message.contains("application/strategic-merge-patch+json"));
        }
        let status = patch_type(workspaces(), Some("application/strategic-merge-patch+json")).unwrap_err();
        let accepted = "application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml";
        assert!(status.message.ends_with(accepted));
    }
}
