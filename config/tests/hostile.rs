//! Any text at all: never a panic, always a configuration or a fault with its place, in bounded size.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::path::Path;

use config::{ConfigError, FairnessConfig, GatewayConfig};
use proptest::prelude::*;

const FAIRNESS: &str = include_str!("../../docs/faults/fairness.yaml");
const VALID: &str = r#"
apiVersion: v1
kind: List
items:
- apiVersion: flowcontrol.apiserver.k8s.io/v1
  kind: PriorityLevelConfiguration
  metadata: &m { name: low, labels: { a: b } }
  spec: { type: Limited, limited: { limitResponse: { type: Queue, queuing: { queues: 64, handSize: 8 } } } }
- apiVersion: flowcontrol.apiserver.k8s.io/v1beta3
  kind: FlowSchema
  metadata: *m
  spec:
    matchingPrecedence: 500
    priorityLevelConfiguration: { name: low }
    rules:
    - subjects: [{ kind: Group, group: { name: "system:authenticated" } }]
      nonResourceRules: [{ verbs: ["*"], nonResourceURLs: ["*"] }]
---
apiVersion: fairgate.dev/v1alpha1
kind: WorkspaceClass
metadata: { name: gold }
spec:
  match: { paths: ["root:acme:*"] }
  seats: 10
  rateLimit: { requestsPerSecond: 5, perUser: { requestsPerSecond: 1 } }
"#;
const GATEWAY: &str = r#"
apiVersion: fairgate.dev/v1alpha1
kind: GatewayConfiguration
listen: { address: 0.0.0.0:6443, tls: { certificateFile: tls.crt, keyFile: tls.key, clientCAFile: ca.crt } }
admin: { address: 127.0.0.1:9443 }
shards:
- { name: root, url: "http://10.0.0.4:6444", seats: 600 }
observers: { resyncInterval: 5m }
fairness: { file: fairness.yaml }
"#;

/// Longest answer: a hundred faults of a thousand characters or so.
const ANSWER_MAX: usize = 1 << 18;

fn holds<T>(read: Result<T, ConfigError>, text: &str) {
    let Err(error) = read else { return };
    let lines = text.split(['\n', '\r']).count() as u64;
    assert!((1..=101).contains(&error.faults().len()), "{}", error.faults().len());
    for fault in error.faults() {
        let position = fault.position.unwrap_or_else(|| panic!("no place: {fault:?}"));
        assert!((1..=lines).contains(&position.line) && position.column >= 1, "{fault:?} of {lines} lines");
        assert!(!fault.message.is_empty());
    }
    assert!(error.to_string().len() <= ANSWER_MAX, "{}", error.to_string().len());
}

fn read_both(text: &str) {
    holds(FairnessConfig::parse(text, Path::new("f")), text);
    holds(GatewayConfig::parse(text, Path::new("g")), text);
}

/// One change to a text: at a place, take some bytes away and put something in.
fn mutate(text: &str, changes: &[(prop::sample::Index, usize, String)]) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for (at, gone, new) in changes {
        let at = at.index(bytes.len() + 1);
        let end = (at + gone).min(bytes.len());
        bytes.splice(at..end, new.bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn piece() -> impl Strategy<Value = String> {
    const TOKENS: &[&str] = &[
        "---\n",
        "\n",
        "\n  ",
        "- ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        "\"",
        "'",
        "&a ",
        "*a",
        "*m",
        "<<: *m\n",
        "!!str ",
        "!!binary ",
        "|\n",
        ">-\n",
        "? ",
        "#",
        "null",
        "~",
        "-1",
        "1e999",
        ".nan",
        "0x7fffffffffffffffffff",
        "99999999999999999999",
        "true",
        "\t",
        "\r",
        "\u{feff}",
        "\u{0}",
        "\u{2028}",
        "%YAML 1.2\n",
        "...\n",
        "apiVersion: v1\n",
        "kind: List\n",
        "items: ",
        "spec: ",
        "é",
    ];
    prop_oneof![4 => prop::sample::select(TOKENS).prop_map(str::to_owned), 1 => ".{0,4}", 2 => Just(String::new())]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read_both(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn random_yaml(pieces in prop::collection::vec(piece(), 0..60)) {
        read_both(&pieces.concat());
    }

    #[test]
    fn mutated_documents(
        text in prop::sample::select(&[VALID, FAIRNESS, GATEWAY][..]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), 0_usize..12, piece()), 1..6),
    ) {
        read_both(&mutate(text, &changes));
    }

    /// What a writer that was interrupted leaves.
    #[test]
    fn truncated_documents(text in prop::sample::select(&[VALID, FAIRNESS, GATEWAY][..]), at in any::<prop::sample::Index>()) {
        let mut end = at.index(text.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        read_both(&text[..end]);
    }
}

#[test]
fn the_documents_that_are_mutated_are_valid() {
    FairnessConfig::parse(VALID, Path::new("f")).unwrap();
    GatewayConfig::parse(GATEWAY, Path::new("g")).unwrap();
}

/// Texts that are cheap to write and could be dear to read. That this test ends is what it says about time.
#[test]
fn deep_wide_and_long_texts_are_read_in_bounded_time_and_size() {
    let class = "apiVersion: fairgate.dev/v1alpha1\nkind: WorkspaceClass\n";
    let schema = "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\n";
    let long = "x".repeat(1 << 20);
    let numbered = |n: usize, line: fn(usize) -> String| (0..n).map(line).collect::<String>();
    let texts = [
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "? ".repeat(100_000),
        "a:\n ".repeat(10_000),
        "---\n".repeat(100_000),
        "--- {kind: Pod}\n".repeat(1000),
        "--- {kind: Pod}\n".repeat(100_000),
        format!("{}\n---\na: [", "--- {kind: Pod}\n".repeat(500)),
        // Long keys and values, and many values below a long key.
        format!("{class}metadata: {{ name: {long} }}\n"),
        format!("{class}{long}: 1\n"),
        format!("{schema}metadata: {{ name: a }}\nspec: {{ \"{long}\": [{}] }}\n", "1,".repeat(10_000)),
        format!(
            "{schema}metadata: {{ name: a, labels: {{ \"{long}\": {{ {} }} }} }}\n",
            numbered(10_000, |i| format!("a{i}: 1,"))
        ),
        format!("{class}spec: {{ match: {{ paths: [{}] }} }}\n", "\"?\",".repeat(20_000)),
        // Many keys, twice each.
        format!("{class}{}{}", numbered(10_000, |i| format!("k{i}: 1\n")), numbered(10_000, |i| format!("k{i}: 1\n"))),
        format!(
            "{class}metadata: {{ name: a }}\nspec: {{ match: {{ labels: {{ {} }} }} }}\n",
            numbered(10_000, |i| format!("\"! {i}\": b,"))
        ),
        // Many items of each list of an object.
        format!("{schema}status: {{ conditions: [{}] }}\n", "{ type: a },".repeat(20_000)),
        format!("{schema}metadata: {{ name: a }}\nspec: {{ rules: [{}] }}\n", "{},".repeat(20_000)),
        format!(
            "{schema}metadata: {{ name: a }}\nspec: {{ rules: [{{ nonResourceRules: [{{ verbs: [{}] }}] }}] }}\n",
            "x,".repeat(20_000)
        ),
        // Aliases.
        format!("a0: &a0 x\n{}", numbered(40, |i| format!("a{}: &a{} [*a{i}, *a{i}]\n", i + 1, i + 1))),
        format!("a: &a \"{long}\"\nb: [{}]\n", "*a,".repeat(5000)),
        "a: &a {b: *a}\n".to_owned(),
        "a: &a [*a]\nb: *c\n".to_owned(),
    ];
    for text in &texts {
        read_both(text);
    }
}
