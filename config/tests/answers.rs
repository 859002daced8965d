//! What a user is told: the whole answer to a file with many faults, and files as kubectl prints them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::path::Path;

use config::{FairnessConfig, GatewayConfig, Limits};

const FAULTY: &str = include_str!("../../docs/faults/fairness.yaml");
const ANSWER: &str = include_str!("../../docs/faults/answer.txt");

/// docs/faults: place, field, what is wrong and what would be right, of everything, at once.
#[test]
fn a_file_with_many_faults_gets_one_answer() {
    let error = FairnessConfig::parse(FAULTY, Path::new("fairness.yaml")).unwrap_err();
    let told = error.to_string();
    assert_eq!(told.lines().collect::<Vec<_>>(), ANSWER.lines().collect::<Vec<_>>(), "\n{told}");
    assert!(error.faults().len() >= 10);
    for fault in error.faults() {
        let says_what_is_right = ["want ", "supported values", "required when", "must be between", "is not YAML"];
        assert!(says_what_is_right.iter().any(|words| fault.message.contains(words)), "{fault:?}");
        assert!(fault.position.is_some(), "{fault:?}");
    }
}

/// Both kinds in one version, as `kubectl get -o yaml` prints them.
fn printed(version: &str, shares: &str, kind: &str) -> String {
    let spec = match kind {
        "FlowSchema" => {
            "  spec:
    distinguisherMethod:
      type: ByNamespace
    matchingPrecedence: 800
    priorityLevelConfiguration:
      name: workload-high
    rules:
    - nonResourceRules:
      - nonResourceURLs:
        - '*'
        verbs:
        - '*'
      resourceRules:
      - apiGroups:
        - '*'
        clusterScope: true
        namespaces:
        - '*'
        resources:
        - '*'
        verbs:
        - '*'
      subjects:
      - kind: User
        user:
          name: system:kube-scheduler
      - kind: ServiceAccount
        serviceAccount:
          name: '*'
          namespace: kube-system
  status:
    conditions:
    - lastTransitionTime: \"2026-01-02T03:04:05Z\"
      message: This FlowSchema references the PriorityLevelConfiguration object named
        \"workload-high\" and it exists
      reason: Found
      status: \"False\"
      type: Dangling
"
        }
        _ => &format!(
            "  spec:
    limited:
      {shares}: 40
      limitResponse:
        queuing:
          handSize: 6
          queueLengthLimit: 50
          queues: 128
        type: Queue
    type: Limited
  status: {{}}
"
        ),
    };
    format!(
        "- apiVersion: flowcontrol.apiserver.k8s.io/{version}
  kind: {kind}
  metadata:
    annotations:
      apf.kubernetes.io/autoupdate-spec: \"true\"
      kubectl.kubernetes.io/last-applied-configuration: |
        {{\"apiVersion\":\"flowcontrol.apiserver.k8s.io/{version}\",\"kind\":\"{kind}\"}}
    creationTimestamp: \"2026-01-02T03:04:05Z\"
    generation: 1
    managedFields:
    - apiVersion: flowcontrol.apiserver.k8s.io/{version}
      fieldsType: FieldsV1
      fieldsV1:
        f:metadata:
          f:annotations:
            .: {{}}
            f:apf.kubernetes.io/autoupdate-spec: {{}}
        f:spec:
          f:type: {{}}
      manager: api-priority-and-fairness-config-producer-v1
      operation: Apply
      subresource: status
      time: \"2026-01-02T03:04:05Z\"
    name: workload-high
    resourceVersion: \"63\"
    uid: 7e8eff19-bfe9-4dac-8ac4-0ea1b2e1d4c3
{spec}"
    )
}

const KINDS: [&str; 2] = ["FlowSchema", "PriorityLevelConfiguration"];
const VERSIONS: [(&str, &str); 4] = [
    ("v1", "nominalConcurrencyShares"),
    ("v1beta3", "nominalConcurrencyShares"),
    ("v1beta2", "assuredConcurrencyShares"),
    ("v1beta1", "assuredConcurrencyShares"),
];

fn is_read(text: &str, version: &str) {
    let config = FairnessConfig::parse(text, Path::new("f.yaml")).unwrap_or_else(|e| panic!("{version}: {e}\n{text}"));
    assert_eq!(config.flow_schemas[0].metadata.name, "workload-high", "{version}");
    assert_eq!(config.flow_schemas[0].spec.rules[0].subjects.len(), 2);
    let limited = config.priority_levels[0].spec.limited.as_ref().unwrap();
    assert_eq!(limited.nominal_concurrency_shares, Some(40), "{version}");
    assert_eq!((config.warnings.as_slice(), config.flow_schemas.len()), (&[][..], 3));
}

#[test]
fn every_served_version_is_read_as_kubectl_prints_it() {
    let outdented = |item: &str| item.lines().map(|l| format!("{}\n", &l[2..])).collect::<String>();
    for (version, shares) in VERSIONS {
        let items = KINDS.map(|kind| printed(version, shares, kind));
        // kubectl get flowschemas,prioritylevelconfigurations -o yaml
        let list =
            format!("apiVersion: v1\nitems:\n{}kind: List\nmetadata:\n  resourceVersion: \"\"\n", items.concat());
        is_read(&list, version);
        // kubectl get flowschema NAME -o yaml, one after the other
        let documents = format!("---\n{}---\n{}...\n---\n", outdented(&items[0]), outdented(&items[1]));
        is_read(&documents, version);
        // the same, from Windows
        is_read(&documents.replace('\n', "\r\n"), version);
        // kubectl get --raw /apis/flowcontrol.apiserver.k8s.io/VERSION/flowschemas
        let raw = KINDS.map(|kind| {
            let group = format!("flowcontrol.apiserver.k8s.io/{version}");
            let mut item = printed(version, shares, kind).replace(&format!("- apiVersion: {group}\n"), "-\n");
            item = item.replace(&format!("  kind: {kind}\n"), "");
            format!(
                "---\nkind: {kind}List\napiVersion: {group}\nmetadata: {{ resourceVersion: \"7\" }}\nitems:\n{item}"
            )
        });
        is_read(&raw.concat(), version);
    }
}

#[test]
fn an_empty_file_is_refused_and_one_that_says_so_is_not() {
    for empty in ["", " \n\n", "# soon\n", "---\n---\n", "\u{feff}", "null\n", "~"] {
        let error = FairnessConfig::parse(empty, Path::new("f.yaml")).unwrap_err().to_string();
        assert!(error.starts_with("f.yaml:1:1: is empty; want FlowSchema, "), "{empty:?}: {error}");
        assert!(error.contains("kind: List, items: []"), "{error}");
    }
    let said = FairnessConfig::parse("{ apiVersion: v1, kind: List, items: [] }", Path::new("f.yaml")).unwrap();
    assert_eq!(said.priority_levels, FairnessConfig::default().priority_levels);
}

#[test]
fn faults_in_a_list_name_their_item() {
    let text = "apiVersion: v1\nkind: List\nitem: []\nitems:\n- kind: Pod\n- {apiVersion: fairgate.dev/v1alpha1, kind: WorkspaceClass, metadata: {name: a}, spec: {match: {paths: ['*']}}}\n";
    let error = FairnessConfig::parse(text, Path::new("f")).unwrap_err();
    let told: Vec<_> = error.faults().iter().map(|f| format!("{}: {}", f.position.unwrap(), f.field)).collect();
    assert_eq!(told, ["3:1: item", "5:9: items[0].kind", "6:88: items[1].spec"], "{error}");
}

/// docs/gateway-file.md: its example is a good file, and its table has every limit with the default in force.
#[test]
fn the_reference_of_the_gateway_file_is_true() {
    let doc = include_str!("../../docs/gateway-file.md");
    let example = doc.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let limits = GatewayConfig::parse(example, Path::new("gateway.yaml")).unwrap().limits;
    assert_eq!((limits.connections_per_address, limits.body_bytes), (2000, Some(100 << 20)));
    let rows: Vec<_> = doc.split("## limits").nth(1).unwrap().lines().filter(|l| l.starts_with("| `")).collect();
    // Fields of the type, as its Debug form names them.
    let debug = format!("{:?}", Limits::default());
    let fields: Vec<_> = debug.trim_start_matches("Limits { ").trim_end_matches(" }").split(", ").collect();
    assert_eq!(rows.len(), fields.len());
    for (row, field) in rows.iter().zip(fields) {
        let (name, value) = field.split_once(": ").unwrap();
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        assert_eq!(cells[1].trim_matches('`').to_lowercase(), name.replace('_', ""), "{row}");
        let default = cells[2].split(',').next().unwrap();
        let told = match default {
            "any" => "None".into(),
            "3m" => "180s".into(),
            "4h" => "14400s".into(),
            other => other.to_owned(),
        };
        assert_eq!(told, value, "{row}");
    }
}
