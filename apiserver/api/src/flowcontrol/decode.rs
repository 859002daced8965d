//! Reading objects of any served version, and defaulting.

use serde_json::Value;

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

/// A version of the group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `v1`.
    V1,
    /// `v1beta3`.
    V1Beta3,
    /// `v1beta1` and `v1beta2`, which differ in nothing that matters here.
    Older,
}

impl Version {
    /// Reads an `apiVersion`; `None` for another group or version.
    pub fn parse(api_version: &str) -> Option<Self> {
        match api_version.strip_prefix(GROUP)?.strip_prefix('/')? {
            "v1" => Some(Self::V1),
            "v1beta3" => Some(Self::V1Beta3),
            "v1beta2" | "v1beta1" => Some(Self::Older),
            _ => None,
        }
    }
}

impl FlowSchema {
    /// Reads an object of any served version and defaults it.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn from_json(value: Value) -> Result<Self, DecodeError> {
        version_of(&value, "FlowSchema")?;
        let mut schema: Self = serde_json::from_value(value).map_err(DecodeError::Field)?;
        schema.set_defaults();
        Ok(schema)
    }

    /// Fills in what is not given. The versions do not differ in it.
    pub fn set_defaults(&mut self) {
        if self.spec.matching_precedence == 0 {
            self.spec.matching_precedence = 1000;
        }
    }
}

impl PriorityLevelConfiguration {
    /// Reads an object of any served version, converts it to v1 and defaults it.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub fn from_json(value: Value) -> Result<Self, DecodeError> {
        let version = version_of(&value, "PriorityLevelConfiguration")?;
        let mut level: Self = serde_json::from_value(value).map_err(DecodeError::Field)?;
        level.set_defaults(version);
        Ok(level)
    }

    /// Turns an object as `version` has it into v1 and fills in what is not given. Beyond upstream's
    /// defaults, an `Exempt` level gets the `exempt` block that upstream's controller insists on.
    pub fn set_defaults(&mut self, version: Version) {
        if self.spec.kind == "Exempt" {
            self.spec.exempt.get_or_insert(ExemptLevel::default());
        }
        if let Some(exempt) = &mut self.spec.exempt {
            exempt.nominal_concurrency_shares.get_or_insert(0);
            exempt.lendable_percent.get_or_insert(0);
        }
        // In the beta versions shares of 0 mean "not given", unless the annotation says otherwise.
        let keeps_zero = match version {
            Version::V1 => true,
            Version::V1Beta3 => self.metadata.annotations.remove(PRESERVE_ZERO).is_some(),
            Version::Older => false,
        };
        if let Some(limited) = &mut self.spec.limited {
            let shares = limited.nominal_concurrency_shares.filter(|n| keeps_zero || *n != 0);
            limited.nominal_concurrency_shares = Some(shares.unwrap_or(30));
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
    Version::parse(text("apiVersion")).ok_or_else(|| DecodeError::Version(text("apiVersion").to_owned()))
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
