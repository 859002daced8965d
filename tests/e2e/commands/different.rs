//! Which recorded commands do something else, and why.

/// What is not served, why, and the commands of it.
pub(crate) const NOT_SERVED: &[(&str, &str, &[&str])] = &[
    (
        "custom resources",
        "definitions are not served yet",
        &[
            "api-resources-wide-group",
            "get-crd-kind-cold-cache",
            "get-crd-selectable-field",
            "get-group-qualified",
            "get-all-category",
            "get-from-file",
            "get-crd-list",
            "get-crd-wide",
            "get-crd-name-yaml",
            "get-subresource-status",
            "get-crds",
            "get-watch-events",
            "create-multi-doc",
            "create-crd-invalid",
            "create-crd-unknown-strict",
            "create-deprecated-version",
            "apply-over-created",
            "apply-crd-object-changed",
            "apply-ssa-crd",
            "apply-invalid",
            "edit-crd",
            "patch-crd-strategic-415",
            "patch-crd-merge",
            "patch-status",
            "patch-unchanged",
            "scale-crd",
            "scale-crd-precondition",
            "describe-crd-object",
            "describe-crd",
            "explain-field",
            "explain-recursive",
            "explain-openapi-v2",
            "wait-condition",
            "wait-jsonpath",
            "wait-condition-timeout",
            "wait-label-all",
            "wait-crd-established",
            "delete-cascade-orphan",
            "delete-cascade-foreground",
            "delete-all-all",
            "create-crd",
            "get-new-crd-immediately",
            "delete-crd",
        ],
    ),
    (
        "roles",
        "RBAC is not served yet",
        &[
            "get-wide",
            "get-roles",
            "create-role",
            "create-rolebinding",
            "create-clusterrole",
            "create-clusterrolebinding",
            "set-subject",
            "describe-role",
            "auth-reconcile",
        ],
    ),
];

/// Commands with the same exit code and another output.
pub(crate) const OTHERWISE: &[(&str, &str)] = &[
    ("version", "the version carries `+fairgate` and our own"),
    ("api-versions", "other groups are served"),
    ("api-resources-cold", "other resources are served"),
    ("api-resources-warm", "other resources are served"),
    ("raw-readyz", "other checks are made"),
    ("raw-openapi-v3", "the hashes are of our documents"),
    ("get-namespaces", "the recorded server had other namespaces"),
    ("get-all-namespaces", "the recorded server had other namespaces"),
    ("get-ns-name-yaml", "the namespace has its finalizer, which the recorded server did not set"),
    ("describe-namespace", "the quota counts, which that of the recorded server did not"),
    ("patch-json-fail", "says which operation failed, and why"),
    ("impersonate-get", "`access denied` behind the same words, as kcp has it"),
    ("create-token", "gives a token; the recorded server had none"),
    ("auth-can-i-as", "says no instead of refusing the question: whoever is authenticated may ask"),
    ("config-view", "another kubeconfig"),
];

/// The group of a command that is not served.
pub(crate) fn not_served(id: &str) -> Option<&'static str> {
    NOT_SERVED.iter().find(|(.., ids)| ids.contains(&id)).map(|(what, ..)| *what)
}
