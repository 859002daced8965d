//! Where answers differ from the recorded ones on purpose.
#![allow(unreachable_pub, missing_docs, reason = "a part of a test")]

use serde_json::Value;

/// Whether a recorded request, its set and path first, is of a group.
type Applies = fn(&str, &str, &Value) -> bool;

/// Requests that cannot be asked here.
pub const GROUPS: &[(&str, Applies, &str)] = &[
    (
        "custom resources",
        |_, path, _| ["example.dev", "crd.dev", "apiextensions", "none.dev"].iter().any(|g| path.contains(g)),
        "custom resources and their definitions are not served yet",
    ),
    (
        "not recorded",
        |_, _, probe| probe["request"]["body"].as_str().is_some_and(|b| b.starts_with('<')),
        "the body was not recorded; the same cases are tested in `refusals.rs` and the unit tests",
    ),
    (
        "revisions and tokens",
        |set, _, _| matches!(set, "list-watch" | "compaction" | "snapshots"),
        "the requests name revisions and tokens of the recorded store; `lists.rs` asks the same with our own",
    ),
    ("authentication", |_, _, probe| probe["request"]["user"] == "invalid token", "the gateway authenticates"),
    (
        "documents of all resources",
        |set, path, _| {
            let documents =
                ["/", "/api", "/api/", "/api/v1", "/apis", "/apis/", "/openapi/v2", "/openapi/v3", "/version"];
            set == "discovery-crd" && documents.contains(&path)
        },
        "they tell of other resources; `discovery.rs` of both crates compares what is common, and asks for every form",
    ),
    ("roles", |_, path, _| path.contains("rbac.authorization.k8s.io"), "roles are not served yet"),
    (
        "watches of the recorded store",
        |set, _, probe| set == "discovery-crd" && probe["id"].as_str().is_some_and(|id| id.starts_with("watch")),
        "the objects were not recorded; `lists.rs` asks the same with our own",
    ),
];

/// Single requests, and why.
pub const DIFFERENT: &[(&str, &str)] = &[
    ("create-with-rv", "400 instead of 500 for a fault of the client"),
    ("create-wrong-kind", "our words behind the colon"),
    ("create-wrong-gv", "upstream names a file of its source; we name both versions"),
    ("create-bad-json", "our parser's words"),
    ("create-empty-body", "our parser's words"),
    ("create-wrong-type", "names the entry of the map"),
    ("create-unknown-strict", "the recorded body has lost the order of its keys"),
    ("unknown-path", "a Status instead of a list of paths"),
    ("pom-on-list", "the kind of the list instead of a Go type"),
    ("update-bad-uid", "without the store's own words and the key"),
    ("update-bad-rv", "400 instead of 500 for a fault of the client"),
    ("anon", "says that it is the authorizer who refuses"),
    ("anon-nonresource", "says that it is the authorizer who refuses"),
    ("jsonpatch-test-fail", "the cause says which operation failed"),
    ("jsonpatch-bad-path", "the cause says which operation failed"),
    ("jsonpatch-bad-body", "our parser's words"),
    ("jsonpatch-not-array", "our words"),
    ("patch-bad-json-merge", "our parser's words"),
    ("patch-bad-ctype", "upstream does not list what is accepted; we do"),
    ("patch-invalid-type", "the field instead of the whole object"),
    ("patch-unknown-strict", "the field instead of the whole object"),
    ("ssa-bad-yaml", "our parser's words"),
    ("ssa-unknown-field", "400 instead of 500 for a fault of the client"),
    ("ssa-dup-keys-strict", "names the field as everywhere else"),
    ("delete-body-protobuf-garbage", "400 instead of 500 for a fault of the client"),
    ("delete-bad-body", "400 instead of 500 for a fault of the client"),
    ("livez-none", "our words"),
    ("metrics", "of the process, not of a workspace"),
];
