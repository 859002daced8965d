//! Reading objects of any served version, and defaulting.

use serde_json::{Map, Value};

use super::{ExemptLevel, FlowSchema, GROUP, PRESERVE_ZERO, PriorityLevelConfiguration, Queuing};

/// Why an object could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// Neither v1 nor one of the beta versions.
    #[error("apiVersion {0:?} is not served: want {GROUP}/v1, or v1beta1 to v1beta3 of it")]
    Version(String),
    /// Another kind than asked for.
    #[error("kind {found:?} found: want {want:?}")]
    Kind {
        /// As written.
        found: String,
        /// As asked for.
        want: &'static str,
    },
    /// A field is of a wrong type or out of the range of its integer type.
    #[error("{0}")]
    Field(#[source] serde_json::Error),
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    V1,
    V1Beta3,
    /// v1beta1 and v1beta2, which differ in nothing that matters here.
    Older,
}

impl FlowSchema {
    /// Reads an object of any served version and defaults it.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn from_json(value: Value) -> Result<Self, DecodeError> {
        version_of(&value, "FlowSchema")?;
        let mut schema: Self = serde_json::from_value(value).map_err(DecodeError::Field)?;
        if schema.spec.matching_precedence == 0 {
            schema.spec.matching_precedence = 1000;
        }
        Ok(schema)
    }
}

impl PriorityLevelConfiguration {
    /// Reads an object of any served version, converts it to v1 and defaults it. Beyond upstream's
    /// defaults, an `Exempt` level gets the `exempt` block that upstream's controller insists on.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn from_json(mut value: Value) -> Result<Self, DecodeError> {
        match version_of(&value, "PriorityLevelConfiguration")? {
            Version::V1 => {}
            Version::V1Beta3 => {
                let annotations = value.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut);
                let keeps_zero = annotations.is_some_and(|a| a.remove(PRESERVE_ZERO).is_some());
                if let Some(limited) = limited(&mut value).filter(|_| !keeps_zero) {
                    drop_zero(limited);
                }
            }
            Version::Older => {
                if let Some(limited) = limited(&mut value) {
                    if let Some(shares) = limited.remove("assuredConcurrencyShares") {
                        limited.insert("nominalConcurrencyShares".into(), shares);
                    }
                    drop_zero(limited);
                }
            }
        }
        let mut level: Self = serde_json::from_value(value).map_err(DecodeError::Field)?;
        level.set_defaults();
        Ok(level)
    }

    fn set_defaults(&mut self) {
        if self.spec.kind == "Exempt" {
            self.spec.exempt.get_or_insert(ExemptLevel::default());
        }
        if let Some(exempt) = &mut self.spec.exempt {
            exempt.nominal_concurrency_shares.get_or_insert(0);
            exempt.lendable_percent.get_or_insert(0);
        }
        if let Some(limited) = &mut self.spec.limited {
            limited.nominal_concurrency_shares.get_or_insert(30);
            limited.lendable_percent.get_or_insert(0);
            if let Some(queuing) = &mut limited.limit_response.queuing {
                queuing.set_defaults();
            }
        }
    }
}

impl Queuing {
    fn set_defaults(&mut self) {
        for (field, default) in [(&mut self.queues, 64), (&mut self.hand_size, 8), (&mut self.queue_length_limit, 50)] {
            if *field == 0 {
                *field = default;
            }
        }
    }
}

fn version_of(value: &Value, want: &'static str) -> Result<Version, DecodeError> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    if text("kind") != want {
        return Err(DecodeError::Kind { found: text("kind").to_owned(), want });
    }
    match text("apiVersion").split_once('/') {
        Some((GROUP, "v1")) => Ok(Version::V1),
        Some((GROUP, "v1beta3")) => Ok(Version::V1Beta3),
        Some((GROUP, "v1beta2" | "v1beta1")) => Ok(Version::Older),
        _ => Err(DecodeError::Version(text("apiVersion").to_owned())),
    }
}

fn limited(value: &mut Value) -> Option<&mut Map<String, Value>> {
    value.pointer_mut("/spec/limited")?.as_object_mut()
}

/// In the beta versions a 0 means "not given".
fn drop_zero(limited: &mut Map<String, Value>) {
    if limited.get("nominalConcurrencyShares").and_then(Value::as_i64) == Some(0) {
        limited.remove("nominalConcurrencyShares");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shares(version: &str, annotations: Value, limited: Value) -> Option<i32> {
        let level = PriorityLevelConfiguration::from_json(json!({
            "apiVersion": format!("{GROUP}/{version}"), "kind": "PriorityLevelConfiguration",
            "metadata": {"name": "a", "annotations": annotations, "creationTimestamp": null, "managedFields": []},
            "spec": {"type": "Limited", "limited": limited},
        }))
        .unwrap();
        assert!(level.metadata.annotations.is_empty());
        level.spec.limited?.nominal_concurrency_shares
    }

    #[test]
    fn older_versions_are_converted() {
        assert_eq!(shares("v1", Value::Null, json!({"nominalConcurrencyShares": 0})), Some(0));
        assert_eq!(shares("v1beta3", Value::Null, json!({"nominalConcurrencyShares": 0})), Some(30));
        assert_eq!(shares("v1beta3", json!({PRESERVE_ZERO: ""}), json!({"nominalConcurrencyShares": 0})), Some(0));
        assert_eq!(shares("v1beta2", Value::Null, json!({"assuredConcurrencyShares": 7})), Some(7));
        assert_eq!(shares("v1beta1", Value::Null, json!({"assuredConcurrencyShares": 0})), Some(30));
    }

    #[test]
    fn other_objects_are_refused() {
        let text = |value| FlowSchema::from_json(value).unwrap_err().to_string();
        assert!(text(json!({"apiVersion": "v1", "kind": "FlowSchema"})).starts_with("apiVersion \"v1\" is not served"));
        assert_eq!(text(json!({"kind": "Pod"})), "kind \"Pod\" found: want \"FlowSchema\"");
        assert!(
            text(json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "spec": {"rules": 1}}))
                .contains("invalid type")
        );
    }

    #[test]
    fn what_is_written_can_be_read() {
        for level in super::super::bootstrap::priority_levels() {
            let value = serde_json::to_value(&level).unwrap();
            assert_eq!(value["apiVersion"], "flowcontrol.apiserver.k8s.io/v1");
            assert_eq!(PriorityLevelConfiguration::from_json(value).unwrap(), level);
        }
    }
}
