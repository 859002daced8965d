//! `flowcontrol.apiserver.k8s.io`: FlowSchema and PriorityLevelConfiguration (apf.md 2 and 3).
//!
//! The types are the v1 wire form, and hold whatever decodes: enumerations are strings and numbers signed,
//! so that validation can tell what is wrong. Use them behind [`FlowSchema::validate`] only. Fields that are
//! not known here are dropped. Lists written as `null` are read as empty.

pub mod bootstrap;
mod decode;
mod validation;

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub use self::decode::{DecodeError, Version};

/// The API group.
pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
/// Annotation on bootstrap objects: whether Kubernetes keeps the spec up to date.
pub const AUTO_UPDATE: &str = "apf.kubernetes.io/autoupdate-spec";
/// Annotation on v1beta3 levels whose shares are really 0; forbidden in v1.
pub const PRESERVE_ZERO: &str = "flowcontrol.k8s.io/v1beta3-preserve-zero-concurrency-shares";

/// The `apiVersion` of everything here: always v1, since older versions are converted when read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct V1;

impl Serialize for V1 {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("flowcontrol.apiserver.k8s.io/v1")
    }
}

/// The part of `metav1.ObjectMeta` that matters here.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The object's name, unique per kind.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Empty for objects that come from a file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Annotations.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub annotations: BTreeMap<String, String>,
    /// Labels.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", deserialize_with = "or_default")]
    pub labels: BTreeMap<String, String>,
    /// Counts changes of the spec; 0 when unknown.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// Empty for objects that come from a file.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
}

/// Decides which priority level and which flow a request belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub struct FlowSchema {
    /// Always v1.
    #[serde(skip_deserializing)]
    pub api_version: V1,
    /// Name and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: FlowSchemaSpec,
    /// What was observed.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

/// The spec of a [`FlowSchema`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FlowSchemaSpec {
    /// The level that matching requests go to.
    pub priority_level_configuration: LevelReference,
    /// 1 to 10000; the lowest matching number wins, then the name.
    pub matching_precedence: i32,
    /// How matching requests are divided into flows; `None`: one flow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub distinguisher_method: Option<DistinguisherMethod>,
    /// A request matches if any of these does.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<PolicyRules>,
}

/// Names a PriorityLevelConfiguration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LevelReference {
    /// Its name.
    pub name: String,
}

/// See [`FlowSchemaSpec::distinguisher_method`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DistinguisherMethod {
    /// `ByUser` or `ByNamespace`.
    #[serde(rename = "type")]
    pub kind: String,
}

/// Matches a request whose user is one of `subjects` and which any of the rules matches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicyRules {
    /// Who asks; at least one.
    #[serde(deserialize_with = "or_default")]
    pub subjects: Vec<Subject>,
    /// What is asked for, among API resources.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub resource_rules: Vec<ResourceRule>,
    /// What is asked for, among other paths.
    #[serde(deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub non_resource_rules: Vec<NonResourceRule>,
}

/// A user, a group or a service account, as `kind` says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Subject {
    /// `User`, `Group` or `ServiceAccount`.
    pub kind: String,
    /// Only for `User`; the name may be `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<NamedSubject>,
    /// Only for `Group`; the name may be `*`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<NamedSubject>,
    /// Only for `ServiceAccount`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ServiceAccountSubject>,
}

/// A user or a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NamedSubject {
    /// Its name, or `*`.
    pub name: String,
}

/// A service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ServiceAccountSubject {
    /// Its namespace.
    pub namespace: String,
    /// Its name, or `*`.
    pub name: String,
}

/// Matches resource requests. `*` alone in a list matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceRule {
    /// API verbs.
    #[serde(deserialize_with = "or_default")]
    pub verbs: Vec<String>,
    /// API groups; `""` is the core group.
    #[serde(deserialize_with = "or_default")]
    pub api_groups: Vec<String>,
    /// `pods`, `pods/status`.
    #[serde(deserialize_with = "or_default")]
    pub resources: Vec<String>,
    /// Whether requests without a namespace match.
    #[serde(skip_serializing_if = "is_false")]
    pub cluster_scope: bool,
    /// Namespaces of requests that have one; `*` does not match requests without.
    #[serde(deserialize_with = "or_default")]
    pub namespaces: Vec<String>,
}

/// Matches requests for other paths.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NonResourceRule {
    /// `get` and so on, or `*`.
    #[serde(deserialize_with = "or_default")]
    pub verbs: Vec<String>,
    /// Paths; a trailing `/*` matches everything below.
    #[serde(rename = "nonResourceURLs", deserialize_with = "or_default")]
    pub non_resource_urls: Vec<String>,
}

/// The limits of one priority level.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub struct PriorityLevelConfiguration {
    /// Always v1.
    #[serde(skip_deserializing)]
    pub api_version: V1,
    /// Name and so on.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: PriorityLevelConfigurationSpec,
    /// What was observed.
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

/// The spec of a [`PriorityLevelConfiguration`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PriorityLevelConfigurationSpec {
    /// `Exempt` or `Limited`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Only for `Limited`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limited: Option<LimitedLevel>,
    /// Only for `Exempt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exempt: Option<ExemptLevel>,
}

/// A level whose requests are limited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LimitedLevel {
    /// Weight of this level when the seats are divided. Default 30; an explicit 0 stays 0. Read also under
    /// the name that v1beta1 and v1beta2 have for it.
    #[serde(alias = "assuredConcurrencyShares", skip_serializing_if = "Option::is_none")]
    pub nominal_concurrency_shares: Option<i32>,
    /// Per cent of its seats that others may borrow. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lendable_percent: Option<i32>,
    /// Per cent of its seats that it may borrow on top; `None`: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub borrowing_limit_percent: Option<i32>,
    /// What happens to requests that cannot run at once.
    pub limit_response: LimitResponse,
}

/// See [`LimitedLevel::limit_response`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitResponse {
    /// `Queue` or `Reject`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Only for `Queue`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queuing: Option<Queuing>,
}

/// Shuffle-sharded queues. A 0 stands for the default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Queuing {
    /// Number of queues. Default 64.
    pub queues: i32,
    /// Queues a flow is dealt. Default 8.
    pub hand_size: i32,
    /// Longest queue, in requests. Default 50.
    pub queue_length_limit: i32,
}

/// A level whose requests are not limited; its seats can still be lent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExemptLevel {
    /// Weight of this level when the seats are divided. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nominal_concurrency_shares: Option<i32>,
    /// Per cent of its seats that others may borrow. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lendable_percent: Option<i32>,
}

/// The status of either kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ObjectStatus {
    /// At most one of each type.
    #[serde(deserialize_with = "or_default")]
    pub conditions: Vec<Condition>,
}

impl ObjectStatus {
    fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }
}

/// One observation, for example `Dangling`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Condition {
    /// Its type.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// When `status` changed last, RFC 3339.
    pub last_transition_time: Option<String>,
    /// One word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Text for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn is_zero(n: &i64) -> bool {
    *n == 0
}

fn is_false(b: &bool) -> bool {
    !b
}
