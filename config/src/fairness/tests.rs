use std::io::Write;

use super::*;
use crate::{PathPattern, RateLimit, Source, Weight};

fn parse(text: &str) -> Result<FairnessConfig, Vec<String>> {
    FairnessConfig::parse(text, Path::new("f.yaml"))
        .map_err(|e| e.to_string().lines().map(|l| l.replace("f.yaml:", "")).collect())
}

/// As `kubectl get flowschemas,prioritylevelconfigurations -o yaml` prints them, shortened.
const KUBECTL: &str = r#"
apiVersion: v1
items:
- apiVersion: flowcontrol.apiserver.k8s.io/v1
  kind: FlowSchema
  metadata:
    annotations: { apf.kubernetes.io/autoupdate-spec: "true" }
    creationTimestamp: "2026-08-07T10:00:00Z"
    generation: 1
    managedFields:
    - { apiVersion: flowcontrol.apiserver.k8s.io/v1, fieldsType: FieldsV1, fieldsV1: { "f:spec": {} }, manager: api }
    name: service-accounts
    resourceVersion: "63"
    uid: 7e8eff19-bfe9-4dac-8ac4-0ea1b2e1d4c3
  spec:
    distinguisherMethod: { type: ByUser }
    matchingPrecedence: 9000
    priorityLevelConfiguration: { name: workload-low }
    rules:
    - nonResourceRules:
      - { nonResourceURLs: ["*"], verbs: ["*"] }
      resourceRules: null
      subjects:
      - { group: { name: "system:serviceaccounts" }, kind: Group }
  status:
    conditions:
    - { lastTransitionTime: "2026-08-07T10:00:00Z", message: ok, reason: Found, status: "False", type: Dangling, observed: 1 }
- apiVersion: flowcontrol.apiserver.k8s.io/v1beta2
  kind: PriorityLevelConfiguration
  metadata: { creationTimestamp: null, name: workload-low }
  spec:
    limited:
      assuredConcurrencyShares: 100
      limitResponse:
        queuing: { handSize: 6, queueLengthLimit: 50, queues: 128 }
        type: Queue
    type: Limited
  status: {}
kind: List
metadata: { resourceVersion: "" }
"#;

#[test]
fn a_class_of_paths_that_no_workspace_has_is_told() {
    let text = "apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: gold }
spec: { match: { paths: ['*', team-a, 'root:*', root, 'rooted:*'] }, nominalConcurrencyShares: 1 }
";
    let config = FairnessConfig::parse(text, Path::new("f.yaml")).unwrap();
    let told = |place: &str, path: &str| {
        format!(
            "f.yaml:{place}: WorkspaceClass \"gold\" names the path {path}, which does not begin with root: as those of \
             workspaces do; it matches nothing; want root:{path}, perhaps"
        )
    };
    assert_eq!(
        config.warnings,
        [told("4:31: spec.match.paths[1]", "team-a"), told("4:55: spec.match.paths[4]", "rooted:*")]
    );
}

#[test]
fn objects_are_read_as_kubectl_prints_them() {
    let config = parse(KUBECTL).unwrap();
    let schema = &config.flow_schemas[0];
    assert_eq!(
        (&*schema.metadata.uid, &*schema.metadata.resource_version),
        ("7e8eff19-bfe9-4dac-8ac4-0ea1b2e1d4c3", "63")
    );
    let limited = config.priority_levels[0].spec.limited.clone().unwrap();
    assert_eq!((limited.nominal_concurrency_shares, limited.lendable_percent), (Some(100), Some(0)));
    let names = |list: Vec<&String>| list.into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(
        names(config.flow_schemas.iter().map(|s| &s.metadata.name).collect()),
        ["service-accounts", "exempt", "catch-all"]
    );
    assert_eq!(
        names(config.priority_levels.iter().map(|l| &l.metadata.name).collect()),
        ["workload-low", "exempt", "catch-all"]
    );
    assert_eq!(config.warnings, [""; 0]);
}

#[test]
fn the_bootstrap_objects_can_be_written_and_read_back() {
    let default = FairnessConfig::default();
    let mut text = String::new();
    for object in default
        .flow_schemas
        .iter()
        .map(|o| serde_yaml::to_string(o).unwrap())
        .chain(default.priority_levels.iter().map(|o| serde_yaml::to_string(o).unwrap()))
    {
        text += &format!("---\n{object}");
    }
    let unnamed = |text: &str| FairnessConfig { source: None, ..parse(text).unwrap() };
    assert_eq!(unnamed(&text), default);
    assert_eq!(unnamed("{ apiVersion: v1, kind: List, items: [] }"), default);
}

#[test]
fn classes_are_read_beside_the_bootstrap_objects() {
    let config = parse(
        r#"
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: gold }
spec:
  match: { paths: ["root:acme:*", root:solo], labels: { tier: gold } }
  nominalConcurrencyShares: 100
  borrowingLimitPercent: 200
  rateLimit: { requestsPerSecond: 500, perUser: { requestsPerSecond: 5, burst: 10 } }
  profile: default
---
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: rest }
spec: { match: { paths: ["*"] }, seats: 0, lendablePercent: 50, rateLimit: { perUser: { requestsPerSecond: 2 } } }
"#,
    )
    .unwrap();
    assert_eq!(config.flow_schemas, FairnessConfig::default().flow_schemas);
    let [gold, rest] = &config.classes[..] else { panic!("want two classes") };
    assert_eq!((gold.weight, rest.weight), (Weight::Shares(100), Weight::Seats(0)));
    assert_eq!((gold.borrowing_limit_percent, rest.lendable_percent), (Some(200), 50));
    assert_eq!(gold.rate_limit, Some(RateLimit { requests_per_second: 500, burst: 500 }));
    assert_eq!(gold.user_rate_limit, Some(RateLimit { requests_per_second: 5, burst: 10 }));
    assert_eq!((rest.rate_limit, rest.user_rate_limit.map(|l| l.burst)), (None, Some(2)));
    assert_eq!(gold.paths[0], PathPattern::Below("root:acme".into()));
    let labels = [("tier".to_owned(), "gold".to_owned())].into();
    for (path, matches) in [("root:acme:x:y", true), ("root:acme", false), ("root:acmes:x", false), ("root:solo", true)]
    {
        assert_eq!(gold.matches(path, &labels), matches, "{path}");
        assert!(!gold.matches(path, &Default::default()) && rest.matches(path, &labels));
    }
}

#[test]
fn a_reference_to_no_level_is_a_warning() {
    let text = "{apiVersion: flowcontrol.apiserver.k8s.io/v1, kind: FlowSchema, metadata: {name: a}, spec: {priorityLevelConfiguration: {name: gone}}}";
    let config = parse(text).unwrap();
    assert_eq!(
        config.warnings,
        [format!(
            "f.yaml:1:{}: spec.priorityLevelConfiguration.name: FlowSchema \"a\" names the level \"gone\", which is not in the file; it matches nothing",
            text.find("gone").unwrap() + 1
        )]
    );
}

#[test]
fn all_faults_of_a_file_are_told_at_once() {
    let faults = parse(
        r#"apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: { name: low }
spec:
  type: Limited
  limited:
    nominalConcurrencyShare: 30
    limitResponse: { type: Queue, queuing: { queues: "64", handSize: 99 } }
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: { name: low }
spec: { type: Limited, limited: { assuredConcurrencyShares: 3, limitResponse: { type: Reject } } }
---
apiVersion: flowcontrol.apiserver.k8s.io/v1alpha1
kind: FlowSchema
---
kind: Pod
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: { name: Bad }
spec:
  matchingPrecedence: 0x4000
  rules: [{ subjects: [{ kind: Robot }], nonResourceRules: [{ verbs: [get], nonResourceURLs: [x] }] }]
---
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: gold }
spec: { match: { paths: ["root:*:x"], labels: { "a b": c } }, seats: 1, nominalConcurrencyShares: 1, lendablePercent: 101, rateLimit: { burst: 0 }, profile: other }
---
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: iron }
spec: { match: { paths: ["*"] }, seats: 1, rateLimit: { perUser: { burst: 3 } } }
---
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: lead }
spec: { match: { paths: ["*"] }, nominalConcurrencyShares: 0, lendablePercent: 0 }
---
apiVersion: v1
kind: List
items: {}
--- 7
"#,
    )
    .unwrap_err();
    let want = [
        "7:5: spec.limited.nominalConcurrencyShare: is no known key; want nominalConcurrencyShares, perhaps",
        "8:54: spec.limited.limitResponse.queuing.queues: is the text \"64\"; want an integer, without quotes",
        "8:70: spec.limited.limitResponse.queuing.handSize: Invalid value: 99: should not be greater than queues (64)",
        "12:19: metadata.name: is \"low\", as of the PriorityLevelConfiguration at 3:19; want a name of its own",
        "13:61: spec.limited.assuredConcurrencyShares: is of another apiVersion; want nominalConcurrencyShares",
        "15:13: apiVersion: is \"flowcontrol.apiserver.k8s.io/v1alpha1\"; want flowcontrol.apiserver.k8s.io/v1 (or v1beta1 to v1beta3)",
        "18:7: kind: is the text \"Pod\"; want FlowSchema, PriorityLevelConfiguration, WorkspaceClass or List",
        "22:19: metadata.name: Invalid value: \"Bad\": a lowercase RFC 1123 subdomain",
        "24:23: spec.matchingPrecedence: Invalid value: 16384: must not be greater than 10000",
        "24:3: spec.priorityLevelConfiguration.name: Required value: must reference a priority level",
        "25:32: spec.rules[0].subjects[0].kind: Unsupported value: \"Robot\": supported values: \"Group\", \"ServiceAccount\", \"User\"",
        "25:95: spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"x\": must start with slash",
        "30:26: spec.match.paths[0]: is \"root:*:x\"; want a workspace path (root:org), all below one (root:org:*), or *",
        "30:56: spec.match.labels.a b: is no label; name part must consist of",
        "30:70: spec.seats: is given beside nominalConcurrencyShares; want one of the two",
        "30:119: spec.lendablePercent: is 101; want 0 to 100",
        "30:135: spec.rateLimit.requestsPerSecond: is missing; want 1 to 1000000",
        "30:144: spec.rateLimit.burst: is 0; want 1 to 1000000",
        "30:158: spec.profile: is \"other\"; want default: this release serves no other",
        "35:66: spec.rateLimit.perUser.requestsPerSecond: is missing; want 1 to 1000000",
        "40:60: spec.nominalConcurrencyShares: is 0; want 1 to 1000000",
        "40:80: spec.lendablePercent: is given beside nominalConcurrencyShares, of which others use all that is free; want it beside seats only",
        "44:8: items: is a map; want a list of objects",
        "45:5: kind: the document is the number 7; want FlowSchema, PriorityLevelConfiguration, WorkspaceClass or List",
    ];
    for want in want {
        assert!(faults.iter().any(|fault| fault.starts_with(want)), "missing: {want}\nfound: {faults:#?}");
    }
    assert_eq!(faults.len(), want.len(), "{faults:#?}");
}

#[test]
fn files_are_loaded() {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(KUBECTL.as_bytes()).unwrap();
    let config = FairnessConfig::load(file.path()).unwrap();
    assert_eq!(config, FairnessConfig::parse(KUBECTL, file.path()).unwrap());
    assert_eq!(config.source.unwrap().file, file.path());
    let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(Source::new(file.path(), "abc").sha256, abc, "FIPS 180-2, appendix B.1");
    file.write_all(b"\xff").unwrap();
    let error = FairnessConfig::load(file.path()).unwrap_err();
    assert!(error.to_string().ends_with("want UTF-8 text"), "{error}");
    assert_eq!(error.path(), file.path());
}
