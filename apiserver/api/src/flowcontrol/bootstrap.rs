//! The mandatory and suggested objects of Kubernetes (apf.md 2.6), in force when nothing is configured.

use super::{
    AUTO_UPDATE, DistinguisherMethod, ExemptLevel, FlowSchema, FlowSchemaSpec, LevelReference, LimitResponse,
    LimitedLevel, NamedSubject, NonResourceRule, ObjectMeta, PolicyRules, PriorityLevelConfiguration,
    PriorityLevelConfigurationSpec, Queuing, ResourceRule, ServiceAccountSubject, Subject,
};
use crate::user::{GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_UNAUTHENTICATED};

const NODES: &str = "system:nodes";
const MANAGER: &str = "system:kube-controller-manager";
const SCHEDULER: &str = "system:kube-scheduler";
const EVERYBODY: [&str; 2] = [GROUP_UNAUTHENTICATED, GROUP_AUTHENTICATED];

/// The priority levels, defaulted; `exempt` and `catch-all` are the mandatory ones.
pub fn priority_levels() -> Vec<PriorityLevelConfiguration> {
    let exempt = PriorityLevelConfigurationSpec {
        kind: "Exempt".into(),
        exempt: Some(ExemptLevel { nominal_concurrency_shares: Some(0), lendable_percent: Some(0) }),
        limited: None,
    };
    let exempt = PriorityLevelConfiguration { metadata: metadata("exempt"), spec: exempt, ..Default::default() };
    vec![
        exempt,
        limited("catch-all", 5, 0, None),
        limited("system", 30, 33, Some((64, 6))),
        limited("node-high", 40, 25, Some((64, 6))),
        limited("leader-election", 10, 0, Some((16, 4))),
        limited("workload-high", 40, 50, Some((128, 6))),
        limited("workload-low", 100, 90, Some((128, 6))),
        limited("global-default", 20, 50, Some((128, 6))),
    ]
}

/// The FlowSchemas in the order in which they are tried; `exempt` and `catch-all` are the mandatory ones.
pub fn flow_schemas() -> Vec<FlowSchema> {
    let by_user = Some("ByUser");
    let by_namespace = Some("ByNamespace");
    let probes =
        NonResourceRule { verbs: words(&["get"]), non_resource_urls: words(&["/healthz", "/readyz", "/livez"]) };
    let probes = PolicyRules { subjects: groups(&EVERYBODY), non_resource_rules: vec![probes], ..Default::default() };
    let leases = |verbs| resources(verbs, "coordination.k8s.io", &["leases"], false);
    let election = PolicyRules {
        subjects: vec![user(MANAGER), user(SCHEDULER), kube_system()],
        resource_rules: vec![leases(&["get", "create", "update"])],
        ..Default::default()
    };
    let node_high = PolicyRules {
        subjects: groups(&[NODES]),
        resource_rules: vec![resources(&["*"], "", &["nodes", "nodes/status"], true), leases(&["*"])],
        ..Default::default()
    };
    vec![
        schema("exempt", 1, "exempt", None, everything(groups(&[GROUP_MASTERS]))),
        schema("probes", 2, "exempt", None, probes),
        schema("system-leader-election", 100, "leader-election", by_user, election),
        schema("system-node-high", 400, "node-high", by_user, node_high),
        schema("system-nodes", 500, "system", by_user, everything(groups(&[NODES]))),
        schema("kube-controller-manager", 800, "workload-high", by_namespace, everything(vec![user(MANAGER)])),
        schema("kube-scheduler", 800, "workload-high", by_namespace, everything(vec![user(SCHEDULER)])),
        schema("kube-system-service-accounts", 900, "workload-high", by_namespace, everything(vec![kube_system()])),
        schema("service-accounts", 9000, "workload-low", by_user, everything(groups(&["system:serviceaccounts"]))),
        schema("global-default", 9900, "global-default", by_user, everything(groups(&EVERYBODY))),
        schema("catch-all", 10000, "catch-all", by_user, everything(groups(&EVERYBODY))),
    ]
}

/// The spec that the mandatory FlowSchema of this name must have.
pub fn mandatory_flow_schema(name: &str) -> Option<FlowSchemaSpec> {
    let mandatory = matches!(name, "exempt" | "catch-all");
    mandatory.then(|| flow_schemas().into_iter().find(|s| s.metadata.name == name)).flatten().map(|s| s.spec)
}

/// The spec that the mandatory level of this name must have.
pub fn mandatory_level(name: &str) -> Option<PriorityLevelConfigurationSpec> {
    let mandatory = matches!(name, "exempt" | "catch-all");
    mandatory.then(|| priority_levels().into_iter().find(|l| l.metadata.name == name)).flatten().map(|l| l.spec)
}

fn metadata(name: &str) -> ObjectMeta {
    let annotations = [(AUTO_UPDATE.to_owned(), "true".to_owned())].into();
    ObjectMeta { name: name.into(), annotations, ..Default::default() }
}

fn limited(name: &str, shares: i32, lendable: i32, queues: Option<(i32, i32)>) -> PriorityLevelConfiguration {
    let queuing = queues.map(|(queues, hand_size)| Queuing { queues, hand_size, queue_length_limit: 50 });
    let limited = LimitedLevel {
        nominal_concurrency_shares: Some(shares),
        lendable_percent: Some(lendable),
        borrowing_limit_percent: None,
        limit_response: LimitResponse { kind: if queuing.is_some() { "Queue" } else { "Reject" }.into(), queuing },
    };
    let spec = PriorityLevelConfigurationSpec { kind: "Limited".into(), limited: Some(limited), exempt: None };
    PriorityLevelConfiguration { metadata: metadata(name), spec, ..Default::default() }
}

fn schema(name: &str, precedence: i32, level: &str, distinguisher: Option<&str>, rule: PolicyRules) -> FlowSchema {
    let spec = FlowSchemaSpec {
        priority_level_configuration: LevelReference { name: level.into() },
        matching_precedence: precedence,
        distinguisher_method: distinguisher.map(|kind| DistinguisherMethod { kind: kind.into() }),
        rules: vec![rule],
    };
    FlowSchema { metadata: metadata(name), spec, ..Default::default() }
}

fn everything(subjects: Vec<Subject>) -> PolicyRules {
    let paths = NonResourceRule { verbs: words(&["*"]), non_resource_urls: words(&["*"]) };
    PolicyRules {
        subjects,
        resource_rules: vec![resources(&["*"], "*", &["*"], true)],
        non_resource_rules: vec![paths],
    }
}

fn resources(verbs: &[&str], group: &str, resources: &[&str], cluster_scope: bool) -> ResourceRule {
    ResourceRule {
        verbs: words(verbs),
        api_groups: words(&[group]),
        resources: words(resources),
        cluster_scope,
        namespaces: words(&["*"]),
    }
}

fn groups(names: &[&str]) -> Vec<Subject> {
    let group = |name: &&str| Some(NamedSubject { name: (*name).into() });
    names.iter().map(|n| Subject { kind: "Group".into(), group: group(n), ..Default::default() }).collect()
}

fn user(name: &str) -> Subject {
    Subject { kind: "User".into(), user: Some(NamedSubject { name: name.into() }), ..Default::default() }
}

fn kube_system() -> Subject {
    let account = ServiceAccountSubject { namespace: "kube-system".into(), name: "*".into() };
    Subject { kind: "ServiceAccount".into(), service_account: Some(account), ..Default::default() }
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|w| (*w).to_owned()).collect()
}
