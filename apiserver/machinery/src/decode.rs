//! From the body of a request to an object: JSON, YAML or protobuf; unknown and duplicate fields found; types
//! checked; unknown fields and empty values dropped, so that equal objects are equal bytes (api-server.md 2.3,
//! 2.8).

mod conform;
mod fields;

use std::borrow::Cow;

use apiserver_api::Status;
use serde_json::Value;
use serde_yaml::{MessageFormatter, UserMessageFormatter, options::AliasLimits};

pub use self::fields::FINDINGS_MAX;
use crate::{
    negotiate::BodyFormat, object, options::FieldValidation, protobuf, resource::Resource, schema::meta::DELETE_OPTIONS,
};

/// A decoded body.
#[derive(Clone, Debug, PartialEq)]
pub struct Decoded {
    /// The object. Its kind and apiVersion are those of the resource.
    pub object: Value,
    /// What strict validation complains about, for example `unknown field "spec.bogus"`, in the order of the
    /// body; at most [`FINDINGS_MAX`].
    pub findings: Vec<String>,
}

impl Decoded {
    /// Applies the client's choice: the object and the texts of the warnings that are due.
    ///
    /// # Errors
    /// 400 that names all findings when the choice is Strict and there are any.
    pub fn validated(self, resource: &Resource, choice: FieldValidation) -> Result<(Value, Vec<String>), Status> {
        match choice {
            FieldValidation::Strict if !self.findings.is_empty() => {
                Err(cannot_handle(resource, &format!("strict decoding error: {}", self.findings.join(", "))))
            }
            FieldValidation::Warn => Ok((self.object, self.findings)),
            _ => Ok((self.object, vec![])),
        }
    }
}

/// Decodes the body of a create or update of `resource`.
///
/// # Errors
/// 400: not of the format, of another kind or version, or with a value of a wrong type.
pub fn body(resource: &Resource, format: BodyFormat, bytes: &[u8]) -> Result<Decoded, Status> {
    let (mut object, findings) = match format {
        BodyFormat::Protobuf => {
            let envelope = protobuf::open(bytes).map_err(|e| unrecognized(resource, &e.to_string(), bytes))?;
            check_kind(resource, &envelope.kind, &envelope.api_version)?;
            let object = protobuf::decode(resource.schema, envelope.raw)
                .map_err(|e| unrecognized(resource, &e.to_string(), bytes))?;
            (object, vec![])
        }
        _ => text_body(resource, format, bytes)?,
    };
    check_kind(resource, object::text(&object, &["kind"]), object::text(&object, &["apiVersion"]))?;
    mark_reset(&mut object);
    conform::conform(resource.schema, &mut object).map_err(|e| cannot_handle(resource, &e.to_string()))?;
    object::set(&mut object, "kind", resource.kind);
    object::set(&mut object, "apiVersion", resource.api_version());
    object::metadata_mut(&mut object);
    Ok(Decoded { object, findings })
}

fn text_body(resource: &Resource, format: BodyFormat, bytes: &[u8]) -> Result<(Value, Vec<String>), Status> {
    let parsed = if format == BodyFormat::Yaml {
        yaml(bytes).map(|value| fields::from_value(resource.schema, value)).map_err(|e| format!("yaml: {e}"))
    } else {
        fields::from_json(resource.schema, bytes).map_err(|e| format!("json parse error: {e}"))
    };
    let (object, findings) =
        parsed.map_err(|e| unrecognized(resource, &format!("couldn't get version/kind; {e}"), bytes))?;
    if !object.is_object() {
        let found = conform::type_name(&object);
        let why = format!("couldn't get version/kind; json parse error: want an object, found {found}");
        return Err(unrecognized(resource, &why, bytes));
    }
    Ok((object, findings))
}

/// An empty list of `managedFields` asks for them to be forgotten, as a list of one empty entry does, which is what
/// remains of it when empty lists are dropped.
fn mark_reset(object: &mut Value) {
    if let Some(Value::Array(list)) = object.pointer_mut("/metadata/managedFields")
        && list.is_empty()
    {
        list.push(Value::Object(serde_json::Map::new()));
    }
}

/// Reads the body of a server-side apply, YAML or JSON: the object as it is written, and the texts of the warnings that
/// are due.
///
/// # Errors
/// 400: cannot be read, or is of another kind or version; with Strict also when a key occurs twice.
pub fn applied(resource: &Resource, bytes: &[u8], choice: FieldValidation) -> Result<(Value, Vec<String>), Status> {
    let (config, findings) =
        applied_tree(bytes).map_err(|e| Status::bad_request(format!("error decoding YAML: {e}")))?;
    let (kind, version) = (object::text(&config, &["kind"]), object::text(&config, &["apiVersion"]));
    if kind != resource.kind || version != resource.api_version() {
        let found = crate::managed::describe_kind(version, kind);
        return Err(Status::bad_request(format!("invalid object type: {found}")));
    }
    match choice {
        FieldValidation::Strict if !findings.is_empty() => {
            Err(Status::bad_request(format!("error strict decoding YAML: {}", findings.join(", "))))
        }
        FieldValidation::Warn => Ok((config, findings)),
        _ => Ok((config, vec![])),
    }
}

fn applied_tree(bytes: &[u8]) -> Result<(Value, Vec<String>), String> {
    // kubectl sends JSON, which is YAML too, and in which duplicates can be named.
    let is_json = bytes.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
    let parsed = if is_json { fields::from_any_json(bytes).ok() } else { None };
    let (tree, findings) = match parsed {
        Some(parsed) => parsed,
        None if bytes.iter().all(u8::is_ascii_whitespace) => (Value::Null, vec![]),
        None => match yaml(bytes) {
            Ok(tree) => (tree, vec![]),
            Err(why) => (lenient_yaml(bytes)?, vec![why]),
        },
    };
    match tree {
        Value::Object(_) => Ok((tree, findings)),
        Value::Null => Ok((Value::Object(serde_json::Map::new()), findings)),
        other => Err(format!("want an object, found {}", conform::type_name(&other))),
    }
}

/// The fields of a configuration that the kind does not have, as server-side apply complains of them.
pub(crate) fn undeclared(resource: &Resource, config: &Value) -> Vec<String> {
    fields::from_value(resource.schema, config.clone())
        .1
        .iter()
        .filter_map(|finding| fields::unknown(finding))
        .map(|path| format!(".{path}: field not declared in schema"))
        .collect()
}

/// The first value of a configuration that is of a wrong type.
pub(crate) fn mistyped(resource: &Resource, config: &Value) -> Option<String> {
    conform::conform(resource.schema, &mut config.clone()).err().map(|e| format!(".{}: {e}", e.path))
}

/// Reads the body of a patch: its tree, and the duplicates in it.
pub(crate) fn patch_body(bytes: &[u8]) -> Result<(Value, Vec<String>), String> {
    fields::from_any_json(bytes).map_err(|e| e.to_string())
}

/// Decodes the result of a patch: the object, and what strict validation complains about.
///
/// # Errors
/// 422: a value is of a wrong type.
pub fn patched(resource: &Resource, value: Value) -> Result<Decoded, Status> {
    try_patched(resource, value).map_err(|why| patch_invalid("", &why))
}

/// The same; what is wrong otherwise, for whoever knows what to show of the patch.
pub(crate) fn try_patched(resource: &Resource, value: Value) -> Result<Decoded, String> {
    let (mut object, findings) = fields::from_value(resource.schema, value);
    mark_reset(&mut object);
    conform::conform(resource.schema, &mut object).map_err(|e| e.to_string())?;
    object::metadata_mut(&mut object);
    Ok(Decoded { object, findings })
}

/// The 422 for a patch whose result is wrong; `shown` is the result, or the patch itself.
pub(crate) fn patch_invalid(shown: &str, why: &str) -> Status {
    let error = apiserver_api::field::Error::invalid(&apiserver_api::field::Path::new("patch"), shown, why);
    Status::invalid("", "", "", &[error])
}

/// Decodes a body of DeleteOptions; `None` when it is empty.
///
/// # Errors
/// 400 when it is of another kind or cannot be read.
pub fn delete_options(format: BodyFormat, bytes: &[u8]) -> Result<Option<Value>, Status> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let wrong = |why: String| Status::bad_request(format!("the body is not DeleteOptions: {why}"));
    let mut object = match format {
        BodyFormat::Protobuf => {
            let envelope = protobuf::open(bytes).map_err(|e| wrong(e.to_string()))?;
            if !["", DELETE_OPTIONS.name].contains(&&*envelope.kind) {
                return Err(wrong(format!("it is {}", envelope.kind)));
            }
            protobuf::decode(&DELETE_OPTIONS, envelope.raw).map_err(|e| wrong(e.to_string()))?
        }
        BodyFormat::Yaml => fields::from_value(&DELETE_OPTIONS, yaml(bytes).map_err(wrong)?).0,
        BodyFormat::Json => fields::from_json(&DELETE_OPTIONS, bytes).map_err(|e| wrong(e.to_string()))?.0,
    };
    if !object.is_object() {
        return Err(wrong(format!("want an object, found {}", conform::type_name(&object))));
    }
    let kind = object::text(&object, &["kind"]);
    if !["", DELETE_OPTIONS.name].contains(&kind) {
        return Err(wrong(format!("it is {kind}")));
    }
    conform::conform(&DELETE_OPTIONS, &mut object).map_err(|e| wrong(e.to_string()))?;
    Ok(Some(object))
}

/// Bytes that aliases may add to a body, in about: each value that they repeat is shorter than the body.
const REPEATED_MAX: usize = 32 << 20;

/// How many values aliases may repeat: a few lines could become any number of them, and one of them very long.
fn aliases(bytes: &[u8]) -> AliasLimits {
    let values = (REPEATED_MAX / bytes.len().max(1)).clamp(16, 10_000);
    serde_yaml::alias_limits! { max_total_replayed_events: values, max_replay_stack_depth: 16 }
}

/// YAML in which keys may occur twice: the last one counts.
fn lenient_yaml(bytes: &[u8]) -> Result<Value, String> {
    let last = serde_yaml::options::DuplicateKeyPolicy::LastWins;
    let options = serde_yaml::options! { strict_booleans: true, with_snippet: false, duplicate_keys: last, alias_limits: aliases(bytes) };
    serde_yaml::from_slice_with_options(bytes, options).map_err(|e| e.without_snippet().render_with_formatter(&Texts))
}

fn yaml(bytes: &[u8]) -> Result<Value, String> {
    // YAML 1.2: `y` and `no` are text. Otherwise a ConfigMap named `y` could not be written.
    let options = serde_yaml::options! { strict_booleans: true, with_snippet: false, alias_limits: aliases(bytes) };
    serde_yaml::from_slice_with_options(bytes, options).map_err(|e| e.without_snippet().render_with_formatter(&Texts))
}

/// What the reader of YAML complains of, in words for those who write it: its own speak of how it is called.
struct Texts;

impl MessageFormatter for Texts {
    fn format_message<'a>(&self, error: &'a serde_yaml::Error) -> Cow<'a, str> {
        use serde_yaml::Error;
        match error {
            Error::DuplicateMappingKey { key: Some(key), .. } => format!("key \"{key}\" already set in map").into(),
            Error::DuplicateMappingKey { .. } => "a key is already set in its map".into(),
            Error::MultipleDocuments { .. } => "a second document; want one object and nothing more".into(),
            Error::RecursiveReferencesRequireWeakTypes { .. } => "an alias stands within what it stands for".into(),
            other => UserMessageFormatter.format_message(other),
        }
    }
}

/// Both may be left out: then they are the URL's.
fn check_kind(resource: &Resource, kind: &str, api_version: &str) -> Result<(), Status> {
    let want = resource.api_version();
    if !kind.is_empty() && kind != resource.kind {
        let version = if api_version.is_empty() { &want } else { api_version };
        return Err(Status::bad_request(format!(
            "{kind} in version \"{version}\" cannot be handled as a {}: the URL is that of {}",
            resource.kind,
            resource.qualified()
        )));
    }
    if !api_version.is_empty() && api_version != want {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({want})"
        )));
    }
    Ok(())
}

fn cannot_handle(resource: &Resource, why: &str) -> Status {
    let (kind, version) = (resource.kind, resource.api_version());
    Status::bad_request(format!("{kind} in version \"{version}\" cannot be handled as a {kind}: {why}"))
}

fn unrecognized(resource: &Resource, why: &str, bytes: &[u8]) -> Status {
    let kind = resource.kind;
    Status::bad_request(format!(
        "the object provided is unrecognized (must be of type {kind}): {why} ({})",
        beginning(bytes)
    ))
}

/// The first bytes of a body: text when it begins like JSON, hexadecimal otherwise.
fn beginning(bytes: &[u8]) -> String {
    const SHOWN: usize = 30;
    let (head, more) = (bytes.get(..SHOWN).unwrap_or(bytes), if bytes.len() > SHOWN { " ..." } else { "" });
    match bytes.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(head)),
        Some(_) => format!("{}{more}", head.iter().map(|b| format!("{b:02x}")).collect::<String>()),
    }
}

#[cfg(test)]
mod tests;
