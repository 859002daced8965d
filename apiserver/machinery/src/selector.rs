//! Label and field selectors (api-server.md 3.4): parsed once per request, then matched against objects
//! without allocation.

mod field;
mod label;

use serde_json::Value;

pub use self::{field::FieldSelector, label::LabelSelector};

/// Both selectors of a list, watch or deletecollection; an object must match both.
#[derive(Clone, Debug, Default)]
pub struct Selector {
    /// Over `metadata.labels`.
    pub labels: LabelSelector,
    /// Over the resource's selectable fields.
    pub fields: FieldSelector,
}

impl Selector {
    /// Whether everything matches.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// Whether `object` matches.
    pub fn matches(&self, object: &Value) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }
}
