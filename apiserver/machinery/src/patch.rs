//! Patches: RFC 6902, RFC 7396 and Kubernetes' strategic merge patch (api-server.md 2.5).
//!
//! A patch is read once and may then be applied several times, when somebody else was faster. It is applied to
//! a copy: nothing is half patched.

mod json;
mod strategic;

use apiserver_api::{
    Reason, Status,
    status::{Cause, Details},
};
use serde_json::{Map, Value};

use crate::{
    decode::{self, Decoded},
    negotiate::PatchType,
    options::FieldValidation,
    resource::Resource,
};

/// A patch that has been read.
#[derive(Clone, Debug)]
pub struct Patch {
    form: Form,
    /// Duplicate fields of the body.
    findings: Vec<String>,
}

#[derive(Clone, Debug)]
enum Form {
    Json(json_patch::Patch),
    Merge(Value),
    Strategic(Map<String, Value>),
}

impl Patch {
    /// Reads the body of a PATCH.
    ///
    /// # Errors
    /// 400 when it cannot be read, 413 for too many operations.
    pub fn parse(kind: PatchType, bytes: &[u8]) -> Result<Self, Status> {
        let (value, findings) = decode::patch_body(bytes).map_err(|e| undecodable(&e))?;
        let form = match (kind, value) {
            (PatchType::Json, value) => Form::Json(json::parse(value)?),
            (PatchType::Merge, value @ Value::Object(_)) => Form::Merge(value),
            (PatchType::Strategic, Value::Object(patch)) => Form::Strategic(patch),
            (PatchType::Apply, _) => return Err(undecodable("a configuration to apply is no patch")),
            _ => return Err(undecodable("want a JSON object")),
        };
        Ok(Self { form, findings })
    }

    /// What `old` becomes, decoded as a body would be, and the texts of the warnings that are due.
    ///
    /// # Errors
    /// 422 when the patch does not apply or its result is no object of this kind; 400 for wrong directives.
    pub fn apply(
        &self,
        resource: &Resource,
        old: &Value,
        validation: FieldValidation,
    ) -> Result<(Value, Vec<String>), Status> {
        let invalid = |why: &str| decode::patch_invalid(&self.shown(resource, old), why);
        let result = self.result(resource, old)?;
        // Of a strategic merge upstream does not look at them.
        if !matches!(self.form, Form::Strategic(_)) {
            other_kind(resource, &result).map_err(|why| invalid(&why))?;
        }
        let decoded = decode::try_patched(resource, result).map_err(|why| invalid(&why));
        let Decoded { object, findings: unknown } = decoded?;
        let findings: Vec<String> = self.findings.iter().cloned().chain(unknown).collect();
        match validation {
            FieldValidation::Strict if !findings.is_empty() => {
                Err(invalid(&format!("strict decoding error: {}", findings.join(", "))))
            }
            FieldValidation::Warn => Ok((object, findings)),
            _ => Ok((object, vec![])),
        }
    }

    /// What `old` becomes, whatever that is.
    fn result(&self, resource: &Resource, old: &Value) -> Result<Value, Status> {
        let mut new = old.clone();
        match &self.form {
            Form::Json(patch) => json::apply(patch, &mut new)?,
            Form::Merge(patch) => json_patch::merge(&mut new, patch),
            Form::Strategic(patch) => strategic::apply(resource.schema, patch, &mut new)?,
        }
        Ok(new)
    }

    /// What upstream shows of a patch whose result is no object of the kind: that result, of a strategic merge the patch.
    fn shown(&self, resource: &Resource, old: &Value) -> String {
        match &self.form {
            Form::Strategic(patch) => go_map(patch),
            _ => self.result(resource, old).map(|new| new.to_string()).unwrap_or_default(),
        }
    }
}

/// Refuses a result that says that it is an object of another kind; one that does not say it is of ours.
fn other_kind(resource: &Resource, result: &Value) -> Result<(), String> {
    let api_version = resource.api_version();
    for (field, own) in [("kind", resource.kind), ("apiVersion", &api_version)] {
        let found = crate::object::text(result, &[field]);
        if !["", own].contains(&found) {
            return Err(format!("{field} cannot be changed: {found:?} is not {own:?}"));
        }
    }
    Ok(())
}

/// As Go prints a map, with its keys in order.
fn go_map(members: &Map<String, Value>) -> String {
    let mut members: Vec<(&String, &Value)> = members.iter().collect();
    members.sort_by_key(|(key, _)| *key);
    let members: Vec<String> = members.into_iter().map(|(key, value)| format!("{key}:{}", go_value(value))).collect();
    format!("map[{}]", members.join(" "))
}

/// The same of any value; bodies are not nested deeply.
fn go_value(value: &Value) -> String {
    match value {
        Value::Null => "<nil>".into(),
        Value::String(text) => text.clone(),
        Value::Array(items) => format!("[{}]", items.iter().map(go_value).collect::<Vec<_>>().join(" ")),
        Value::Object(members) => go_map(members),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

fn undecodable(why: &str) -> Status {
    Status::bad_request(format!("error decoding patch: {why}"))
}

/// 422 with upstream's words, which do not say why; the cause does. `part` is that of the patch which is wrong: kubectl
/// shows it in front of the reason.
fn inapplicable(part: impl Into<String>, why: impl Into<String>) -> Status {
    let message = "the server rejected our request due to an error in our request";
    let cause = Cause { field: part.into(), message: why.into(), ..Cause::default() };
    let details = Details { causes: vec![cause], ..Details::default() };
    Status { details: Some(Box::new(details)), ..Status::new(Reason::Invalid, message) }
}

#[cfg(test)]
mod tests;
