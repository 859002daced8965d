//! The header Accept: clauses by quality, then by position; the order of a clause's parameters does not
//! matter.

use apiserver_api::{Reason, Status, status::Details};

use super::{BodyFormat, JSON, PROTOBUF, YAML};
use crate::resource::Resource;

/// How objects are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What of them.
    pub form: AnswerForm,
    /// How it is written.
    pub format: BodyFormat,
}

/// What of objects is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerForm {
    /// As they are.
    Object,
    /// As a Table of `meta.k8s.io/<version>`.
    Table(&'static str),
    /// Their metadata only, as PartialObjectMetadata or its list of `meta.k8s.io/<version>`.
    Partial(&'static str),
}

/// How `/api` and `/apis` are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscoveryForm {
    /// `APIVersions`, `APIGroupList`.
    Legacy,
    /// `APIGroupDiscoveryList` of `v2` or `v2beta1`.
    Aggregated(&'static str),
}

/// How OpenAPI is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenApiForm {
    /// As JSON.
    Json,
    /// As gnostic's protobuf, sent under this media type.
    Protobuf(&'static str),
}

/// What client-go asks for and what it gets: no media type may have an `@` in it.
const OPENAPI_V2: (&str, &str) = (
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
);
const OPENAPI_V3: (&str, &str) = (
    "application/com.github.proto-openapi.spec.v3@v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v3.v1.0+protobuf",
);

/// The form of `/openapi/v2`; `None` when no clause can be served.
pub fn openapi_v2_form(accept: Option<&str>) -> Option<OpenApiForm> {
    openapi_form(accept, OPENAPI_V2)
}

/// The form of a document below `/openapi/v3`; `None` when no clause can be served.
pub fn openapi_v3_form(accept: Option<&str>) -> Option<OpenApiForm> {
    openapi_form(accept, OPENAPI_V3)
}

fn openapi_form(accept: Option<&str>, (asked, answered): (&str, &'static str)) -> Option<OpenApiForm> {
    clauses(accept).iter().find_map(|clause| match &*clause.media_type {
        _ if clause.is_json() => Some(OpenApiForm::Json),
        protobuf if protobuf == asked || protobuf == answered => Some(OpenApiForm::Protobuf(answered)),
        _ => None,
    })
}

/// Most clauses that are looked at; clients send three.
const CLAUSES_MAX: usize = 64;

/// One clause of an Accept header.
#[derive(Debug, Default)]
struct Clause<'a> {
    media_type: String,
    /// In thousandths.
    quality: u32,
    g: &'a str,
    v: &'a str,
    kind: &'a str,
    stream: &'a str,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
        let mut clause = Self { media_type, quality: 1000, ..Self::default() };
        for (name, value) in parts.filter_map(|p| p.split_once('=')) {
            let value = value.trim().trim_matches('"');
            match name.trim() {
                "q" => clause.quality = quality(value),
                "g" => clause.g = value,
                "v" => clause.v = value,
                "as" => clause.kind = value,
                "stream" => clause.stream = value,
                _ => {}
            }
        }
        clause
    }

    fn is_json(&self) -> bool {
        matches!(&*self.media_type, JSON | "application/*" | "*/*")
    }

    /// `None` for what nothing is written in.
    fn format(&self) -> Option<BodyFormat> {
        match &*self.media_type {
            _ if self.is_json() => Some(BodyFormat::Json),
            YAML => Some(BodyFormat::Yaml),
            PROTOBUF => Some(BodyFormat::Protobuf),
            _ => None,
        }
    }
}

fn quality(text: &str) -> u32 {
    let mut digits = text.bytes().filter(|b| *b != b'.').chain(std::iter::repeat(b'0'));
    let value = digits.by_ref().take(4).fold(0, |n, b| n * 10 + u32::from(b.wrapping_sub(b'0').min(9)));
    value.min(1000)
}

/// The clauses, best first; those of quality 0 are refusals. No header: anything.
fn clauses(accept: Option<&str>) -> Vec<Clause<'_>> {
    let text = accept.filter(|a| !a.trim().is_empty()).unwrap_or("*/*");
    let mut clauses: Vec<_> = text.split(',').take(CLAUSES_MAX).map(Clause::parse).collect();
    clauses.retain(|c| c.quality > 0);
    clauses.sort_by_key(|c| std::cmp::Reverse(c.quality));
    clauses
}

fn not_acceptable(accepted: &[&str]) -> Status {
    Status::not_acceptable(accepted)
}

/// Nothing that is named is a media type that we could ever answer with.
fn no_media_type() -> Status {
    let message = format!("406: Not Acceptable\n\nAvailable representations: {}", [JSON, YAML, PROTOBUF].join(", "));
    Status { details: Some(Box::new(Details::default())), ..Status::new(Reason::NotAcceptable, message) }
}

fn meta_version(v: &str) -> Option<&'static str> {
    match v {
        "v1" => Some("v1"),
        "v1beta1" => Some("v1beta1"),
        _ => None,
    }
}

/// How an answer with objects of a resource is written; `is_list` for lists.
///
/// # Errors
/// 406: no clause can be served.
pub fn object_answer(accept: Option<&str>, resource: &Resource, is_list: bool) -> Result<Answer, Status> {
    let (mut refused, mut known) = (None, false);
    for clause in clauses(accept) {
        let Some(format) = clause.format() else { continue };
        known = true;
        if !clause.stream.is_empty() {
            continue;
        }
        let of_meta = clause.g == "meta.k8s.io";
        let form = match (clause.kind, meta_version(clause.v)) {
            ("", _) if clause.g.is_empty() && clause.v.is_empty() => AnswerForm::Object,
            ("Table", Some(version)) if of_meta => AnswerForm::Table(version),
            ("PartialObjectMetadata", Some(version)) if of_meta && !is_list => AnswerForm::Partial(version),
            ("PartialObjectMetadataList", Some(version)) if of_meta && is_list => AnswerForm::Partial(version),
            (kind @ ("PartialObjectMetadata" | "PartialObjectMetadataList"), Some(_)) if of_meta => {
                refused = refused.or_else(|| Some(wrong_form(kind, is_list, &resource.list_kind())));
                continue;
            }
            _ => continue,
        };
        if has_message(form, format, resource) {
            return Ok(Answer { form, format });
        }
    }
    Err(refused.unwrap_or_else(|| if known { not_acceptable(&written_in(resource)) } else { no_media_type() }))
}

/// Whether protobuf has a message for it, when it is to be protobuf: Tables have none, and custom kinds only that of their
/// metadata.
fn has_message(form: AnswerForm, format: BodyFormat, resource: &Resource) -> bool {
    format != BodyFormat::Protobuf
        || match form {
            AnswerForm::Object => resource.protobuf,
            AnswerForm::Partial(_) => true,
            AnswerForm::Table(_) => false,
        }
}

fn written_in(resource: &Resource) -> Vec<&'static str> {
    if resource.protobuf { vec![JSON, YAML, PROTOBUF] } else { vec![JSON, YAML] }
}

/// How a Status is written for whoever accepts this: as JSON when nothing else can be.
pub fn status_format(accept: Option<&str>) -> BodyFormat {
    clauses(accept).iter().find_map(Clause::format).unwrap_or(BodyFormat::Json)
}

/// One asked for the form of single objects where a list is, or the other way round.
fn wrong_form(kind: &str, is_list: bool, list_kind: &str) -> Status {
    let found = if is_list { format!("a list ({list_kind})") } else { "not a list".to_owned() };
    Status::new(Reason::NotAcceptable, format!("you requested {kind}, but the requested object is {found}"))
}

/// How the events of a watch are written. There is no stream of YAML.
///
/// # Errors
/// 406: no clause can be served.
pub fn watch_answer(accept: Option<&str>, resource: &Resource) -> Result<Answer, Status> {
    for clause in clauses(accept) {
        let Some(format) = clause.format().filter(|format| *format != BodyFormat::Yaml) else { continue };
        if !matches!(clause.stream, "" | "watch") {
            continue;
        }
        let of_meta = clause.g == "meta.k8s.io";
        let form = match (clause.kind, meta_version(clause.v)) {
            ("", _) => AnswerForm::Object,
            ("Table", Some(version)) if of_meta => AnswerForm::Table(version),
            ("PartialObjectMetadata", Some(version)) if of_meta => AnswerForm::Partial(version),
            _ => continue,
        };
        if has_message(form, format, resource) {
            return Ok(Answer { form, format });
        }
    }
    let streams: &[&str] = &["application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"];
    Err(not_acceptable(if resource.protobuf { streams } else { streams.get(..1).unwrap_or(streams) }))
}

/// The form of `/api` and `/apis`, and whether it is written in JSON or in YAML.
///
/// # Errors
/// 406: no clause can be served.
pub fn discovery_form(accept: Option<&str>) -> Result<(DiscoveryForm, BodyFormat), Status> {
    for clause in clauses(accept) {
        let Some(format @ (BodyFormat::Json | BodyFormat::Yaml)) = clause.format() else { continue };
        match (clause.g, clause.kind, clause.v) {
            ("", "", "") => return Ok((DiscoveryForm::Legacy, format)),
            ("apidiscovery.k8s.io", "APIGroupDiscoveryList", "v2") => {
                return Ok((DiscoveryForm::Aggregated("v2"), format));
            }
            ("apidiscovery.k8s.io", "APIGroupDiscoveryList", "v2beta1") => {
                return Ok((DiscoveryForm::Aggregated("v2beta1"), format));
            }
            _ => {}
        }
    }
    Err(not_acceptable(&[JSON, YAML]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::builtin;

    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

    fn of(plural: &str) -> &'static Resource {
        builtin::all().iter().find(|r| r.plural == plural).unwrap()
    }

    #[test]
    fn objects() {
        use AnswerForm::{Object, Partial, Table};
        use BodyFormat::{Json, Protobuf, Yaml};
        const PARTIAL: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";
        for (plural, accept, is_list, form, format) in [
            ("configmaps", None, false, Object, Json),
            ("configmaps", Some("*/*"), false, Object, Json),
            ("configmaps", Some("application/yaml"), false, Object, Yaml),
            ("configmaps", Some("application/vnd.kubernetes.protobuf,application/json"), false, Object, Protobuf),
            ("workspaces", Some("application/vnd.kubernetes.protobuf,application/json"), true, Object, Json),
            ("configmaps", Some("text/html, */*;q=0.1"), false, Object, Json),
            ("configmaps", Some(TABLE), true, Table("v1"), Json),
            ("configmaps", Some("application/json;as=Table;v=v1beta1;g=meta.k8s.io"), false, Table("v1beta1"), Json),
            ("configmaps", Some("application/json;as=Table;v=v9;g=meta.k8s.io,application/json"), false, Object, Json),
            (
                "configmaps",
                Some("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io,application/yaml"),
                false,
                Object,
                Yaml,
            ),
            (
                "configmaps",
                Some("application/json;q=0.5,application/json;as=Table;g=meta.k8s.io;v=v1"),
                false,
                Table("v1"),
                Json,
            ),
            ("configmaps", Some(PARTIAL), false, Partial("v1"), Protobuf),
            ("workspaces", Some(PARTIAL), false, Partial("v1"), Protobuf),
            (
                "configmaps",
                Some("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"),
                true,
                Partial("v1"),
                Json,
            ),
        ] {
            let got = object_answer(accept, of(plural), is_list).unwrap();
            assert_eq!(got, Answer { form, format }, "{plural} {accept:?}");
        }
    }

    #[test]
    fn refusals() {
        let message = |accept, is_list| object_answer(Some(accept), of("configmaps"), is_list).unwrap_err();
        assert_eq!(
            message("text/html", false).message,
            "406: Not Acceptable\n\nAvailable representations: application/json, application/yaml, application/vnd.kubernetes.protobuf"
        );
        assert_eq!(message("application/json;as=Table;v=v2;g=meta.k8s.io", false).code, 406);
        assert_eq!(
            message("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1", true).message,
            "you requested PartialObjectMetadata, but the requested object is a list (ConfigMapList)"
        );
        assert_eq!(message("application/vnd.kubernetes.protobuf;as=Table;v=v1;g=meta.k8s.io", false).code, 406);
        assert_eq!(message("application/json;q=0", false).code, 406);
        let custom = object_answer(Some("application/vnd.kubernetes.protobuf"), of("workspaces"), false).unwrap_err();
        assert!(custom.message.ends_with("application/json, application/yaml"), "{}", custom.message);
        assert_eq!(watch_answer(Some("application/yaml"), of("configmaps")).unwrap_err().code, 406);
    }

    #[test]
    fn watches() {
        use BodyFormat::{Json, Protobuf};
        for (plural, accept, form, format) in [
            ("configmaps", "application/json;stream=watch", AnswerForm::Object, Json),
            ("configmaps", "application/vnd.kubernetes.protobuf,application/json", AnswerForm::Object, Protobuf),
            ("configmaps", "application/vnd.kubernetes.protobuf;stream=watch", AnswerForm::Object, Protobuf),
            ("workspaces", "application/vnd.kubernetes.protobuf,application/json", AnswerForm::Object, Json),
            ("configmaps", TABLE, AnswerForm::Table("v1"), Json),
            (
                "configmaps",
                "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
                AnswerForm::Partial("v1"),
                Json,
            ),
        ] {
            assert_eq!(watch_answer(Some(accept), of(plural)).unwrap(), Answer { form, format }, "{plural} {accept}");
        }
    }

    #[test]
    fn statuses() {
        for (accept, want) in [
            (None, BodyFormat::Json),
            (Some("text/html"), BodyFormat::Json),
            (Some(TABLE), BodyFormat::Json),
            (Some("application/vnd.kubernetes.protobuf,application/json"), BodyFormat::Protobuf),
            (Some("application/yaml"), BodyFormat::Yaml),
        ] {
            assert_eq!(status_format(accept), want, "{accept:?}");
        }
    }

    #[test]
    fn discovery() {
        const BOTH: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
        const YAML_V2: &str = "application/yaml;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        use BodyFormat::{Json, Yaml};
        use DiscoveryForm::{Aggregated, Legacy};
        for (accept, want) in [
            (BOTH, (Aggregated("v2"), Json)),
            (
                "application/json;as=APIGroupDiscoveryList;v=v2beta1;g=apidiscovery.k8s.io",
                (Aggregated("v2beta1"), Json),
            ),
            ("application/json, */*", (Legacy, Json)),
            ("application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList,application/json", (Legacy, Json)),
            (YAML_V2, (Aggregated("v2"), Yaml)),
            ("application/yaml", (Legacy, Yaml)),
            ("application/vnd.kubernetes.protobuf,application/json", (Legacy, Json)),
        ] {
            assert_eq!(discovery_form(Some(accept)).unwrap(), want, "{accept}");
        }
        for refused in [
            "application/json;g=apidiscovery.k8s.io;v=v2",
            "application/json;g=apidiscovery.k8s.io;v=v3;as=APIGroupDiscoveryList",
            "application/vnd.kubernetes.protobuf",
            "text/html",
        ] {
            assert_eq!(discovery_form(Some(refused)).unwrap_err().code, 406, "{refused}");
        }
    }

    #[test]
    fn qualities() {
        for (text, want) in [("1", 1000), ("0.5", 500), ("0.125", 125), ("0", 0), ("1.000", 1000), ("9", 1000)] {
            assert_eq!(quality(text), want, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_panics(accept in "[a-z/*;,=q.0-9 ä]*") {
            let _ = object_answer(Some(&accept), of("configmaps"), true);
            let _ = watch_answer(Some(&accept), of("workspaces"));
            let _ = status_format(Some(&accept));
            let _ = discovery_form(Some(&accept));
        }
    }
}
