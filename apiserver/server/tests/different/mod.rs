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
];

/// Single requests, and why.
pub const DIFFERENT: &[(&str, &str)] = &[];
