//! Fairness configurations, put together from parts.

use std::path::Path;

use config::FairnessConfig;

/// What becomes of requests when a level is full: they wait in one queue, or are refused.
pub const QUEUE: &str = "{ type: Queue, queuing: { queues: 1, handSize: 1, queueLengthLimit: 50 } }";
pub const REJECT: &str = "{ type: Reject }";

pub fn parse(text: &str) -> FairnessConfig {
    FairnessConfig::parse(text, Path::new("fairness.yaml")).unwrap()
}

/// A level, with these fields of its `limited` block.
pub fn level(name: &str, limited: &str) -> String {
    format!(
        "---\napiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: PriorityLevelConfiguration\nmetadata: {{ name: {name} }}\n\
         spec: {{ type: Limited, limited: {{ {limited} }} }}\n"
    )
}

/// Puts everybody's requests for these resources into the level of this name; for `'*'` also what is for no resource.
pub fn schema(name: &str, precedence: u32, distinguisher: &str, resources: &str) -> String {
    let others = if resources == "'*'" { "nonResourceRules: [{ verbs: ['*'], nonResourceURLs: ['*'] }]" } else { "" };
    format!(
        r#"---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {{ name: {name} }}
spec:
  priorityLevelConfiguration: {{ name: {name} }}
  matchingPrecedence: {precedence}
  {distinguisher}
  rules:
  - subjects: [{{ kind: Group, group: {{ name: "*" }} }}]
    resourceRules: [{{ verbs: ["*"], apiGroups: ["*"], resources: [{resources}], clusterScope: true, namespaces: ["*"] }}]
    {others}
"#
    )
}

/// One level for everything, with this response when it is full.
pub fn one_level(response: &str) -> FairnessConfig {
    let limited = format!("nominalConcurrencyShares: 100, lendablePercent: 0, limitResponse: {response}");
    parse(&(level("all", &limited) + &schema("all", 100, "", "'*'")))
}

/// A class of workspaces.
pub fn class(name: &str, paths: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: fairgate.dev/v1alpha1\nkind: WorkspaceClass\nmetadata: {{ name: {name} }}\n\
         spec: {{ match: {{ paths: [\"{paths}\"] }}, {spec} }}\n"
    )
}

/// The level `closed`, which refuses whoever asks for secrets, and the class `slow`, whose users have one request a second.
pub fn refusals() -> String {
    let limited = "nominalConcurrencyShares: 0, lendablePercent: 0, borrowingLimitPercent: 0, \
                   limitResponse: { type: Reject }";
    let slow = "nominalConcurrencyShares: 10, rateLimit: { perUser: { requestsPerSecond: 1, burst: 1 } }";
    level("closed", limited) + &schema("closed", 100, "", "secrets") + &class("slow", "slow", slow)
}
