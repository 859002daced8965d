//! What is wrong with one field of an object, with upstream's texts (`field.Error`).

use std::fmt;

use serde_json::Value;

use crate::status::Cause;

/// The path of a field, for example `spec.rules[0].verbs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// A path that begins with `name`.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The field `name` below.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() { Self::new(name) } else { Self(format!("{}.{name}", self.0)) }
    }

    /// The element `index` of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// The entry `key` of this map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What kind of fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub enum Kind {
    Required,
    Invalid,
    NotSupported,
    Forbidden,
    Duplicate,
    TooLong,
    NotFound,
    Internal,
}

impl Kind {
    /// The `reason` of a Status cause.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::TooLong => "FieldValueTooLong",
            Self::NotFound => "FieldValueNotFound",
            Self::Internal => "InternalError",
        }
    }

    /// How the text begins.
    fn words(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            // A wrong type is worded like a wrong value, upstream too.
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::Duplicate => "Duplicate value",
            Self::TooLong => "Too long",
            Self::NotFound => "Not found",
            Self::Internal => "Internal error",
        }
    }
}

/// One fault. Its `Display` is the field, then the text of the cause.
#[derive(Clone, Debug, PartialEq)]
pub struct Error {
    /// What kind of fault.
    pub kind: Kind,
    /// Where.
    pub field: String,
    /// The value at fault; not shown for `Required`, `Forbidden`, `TooLong` and `Internal`.
    pub value: Value,
    /// What would be right, or more about what is wrong; may be empty.
    pub detail: String,
}

impl Error {
    fn new(kind: Kind, field: &Path, value: Value, detail: impl Into<String>) -> Self {
        Self { kind, field: field.0.clone(), value, detail: detail.into() }
    }

    /// Something must be given.
    pub fn required(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(Kind::Required, field, Value::Null, detail)
    }

    /// The value breaks a rule.
    pub fn invalid(field: &Path, value: impl Into<Value>, detail: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, field, value.into(), detail)
    }

    /// The value is none of `supported`.
    pub fn not_supported(field: &Path, value: impl Into<Value>, supported: &[&str]) -> Self {
        let list: Vec<_> = supported.iter().map(|s| format!("{s:?}")).collect();
        Self::new(Kind::NotSupported, field, value.into(), format!("supported values: {}", list.join(", ")))
    }

    /// The field must not be there.
    pub fn forbidden(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(Kind::Forbidden, field, Value::Null, detail)
    }

    /// The value occurs twice.
    pub fn duplicate(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(Kind::Duplicate, field, value.into(), "")
    }

    /// The text is longer than `max` bytes.
    pub fn too_long(field: &Path, max: usize) -> Self {
        Self::new(Kind::TooLong, field, Value::Null, format!("may not be more than {max} bytes"))
    }

    /// What the value names does not exist.
    pub fn not_found(field: &Path, value: impl Into<Value>) -> Self {
        Self::new(Kind::NotFound, field, value.into(), "")
    }

    /// The check itself failed.
    pub fn internal(field: &Path, detail: impl Into<String>) -> Self {
        Self::new(Kind::Internal, field, Value::Null, detail)
    }

    /// The text without the field: the `message` of a Status cause.
    pub fn body(&self) -> String {
        let mut text = self.kind.words().to_owned();
        if !matches!(self.kind, Kind::Required | Kind::Forbidden | Kind::TooLong | Kind::Internal) {
            text += &format!(": {}", self.value);
        }
        if !self.detail.is_empty() {
            text += ": ";
            text += &self.detail;
        }
        text
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body())
    }
}

impl std::error::Error for Error {}

impl From<&Error> for Cause {
    fn from(error: &Error) -> Self {
        Self { reason: error.kind.reason().to_owned(), message: error.body(), field: error.field.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_upstreams() {
        let at = Path::new("spec").child("list").index(0).child("map").key("k").child("x");
        for (error, want) in [
            (Error::required(&at, ""), "Required value"),
            (Error::required(&at, "d"), "Required value: d"),
            (Error::invalid(&at, "v", "d"), "Invalid value: \"v\": d"),
            (Error::invalid(&at, 7, "d"), "Invalid value: 7: d"),
            (Error::not_supported(&at, "x", &["a", "b"]), "Unsupported value: \"x\": supported values: \"a\", \"b\""),
            (Error::forbidden(&at, "d"), "Forbidden: d"),
            (Error::duplicate(&at, "v"), "Duplicate value: \"v\""),
            (Error::too_long(&at, 9), "Too long: may not be more than 9 bytes"),
            (Error::not_found(&at, "v"), "Not found: \"v\""),
            (Error::internal(&at, "d"), "Internal error: d"),
        ] {
            assert_eq!(error.to_string(), format!("spec.list[0].map[k].x: {want}"));
        }
        assert_eq!(Path::default().child("a").to_string(), "a");
    }
}
