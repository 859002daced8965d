//! Errors about single fields, and the 422 made of them (api-server.md 2.10).

use apiserver_api::{
    Reason, Status,
    status::{Cause, Details},
};
use serde_json::Value;

/// One wrong field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    reason: &'static str,
    field: String,
    message: String,
}

/// What a validation found, in the order in which it was found.
pub type ErrorList = Vec<FieldError>;

impl FieldError {
    fn new(reason: &'static str, field: impl Into<String>, message: String) -> Self {
        Self { reason, field: field.into(), message }
    }

    /// The field must be set.
    pub fn required(field: impl Into<String>, detail: &str) -> Self {
        let colon = if detail.is_empty() { "" } else { ": " };
        Self::new("FieldValueRequired", field, format!("Required value{colon}{detail}"))
    }

    /// The value is wrong.
    pub fn invalid(field: impl Into<String>, value: &Value, detail: &str) -> Self {
        Self::new("FieldValueInvalid", field, format!("Invalid value: {value}: {detail}"))
    }

    /// The value is none of the known ones.
    pub fn not_supported(field: impl Into<String>, value: &Value, supported: &[&str]) -> Self {
        let list = supported.iter().map(|s| format!("\"{s}\"")).collect::<Vec<_>>().join(", ");
        Self::new("FieldValueNotSupported", field, format!("Unsupported value: {value}: supported values: {list}"))
    }

    /// The field may not be set so.
    pub fn forbidden(field: impl Into<String>, detail: &str) -> Self {
        Self::new("FieldValueForbidden", field, format!("Forbidden: {detail}"))
    }

    /// The value is longer than `max` bytes.
    pub fn too_long(field: impl Into<String>, max: usize) -> Self {
        Self::new("FieldValueTooLong", field, format!("Too long: may not be more than {max} bytes"))
    }

    /// As it stands in a message: the field and what is wrong.
    pub fn text(&self) -> String {
        format!("{}: {}", self.field, self.message)
    }
}

/// 422 for an object of this kind and name. Equal errors are told once.
pub fn invalid(group: &str, kind: &str, name: &str, errors: ErrorList) -> Status {
    let mut unique: ErrorList = Vec::with_capacity(errors.len());
    for error in errors {
        if !unique.contains(&error) {
            unique.push(error);
        }
    }
    let texts = unique.iter().map(FieldError::text).collect::<Vec<_>>().join(", ");
    let texts = if unique.len() == 1 { texts } else { format!("[{texts}]") };
    let dot = if group.is_empty() { "" } else { "." };
    let mut status = Status::new(Reason::Invalid, format!("{kind}{dot}{group} \"{name}\" is invalid: {texts}"));
    status.details = Some(Box::new(Details {
        name: name.into(),
        group: group.into(),
        kind: kind.into(),
        causes: unique
            .into_iter()
            .map(|e| Cause { reason: e.reason.into(), message: e.message, field: e.field })
            .collect(),
        ..Details::default()
    }));
    status
}
