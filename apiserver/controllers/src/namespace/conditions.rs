//! The conditions of a terminating namespace: types, reasons and texts are upstream's, since clients and operators look
//! for them. The two about discovery never fail here: the store's counters are asked, not discovery.

use apiserver_api::Status;
use apiserver_machinery::object::text;
use serde_json::{Value, json};

use crate::{condition::now, content::Remaining};

/// What an attempt to empty a namespace found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) remaining: Remaining,
    failures: Vec<Status>,
}

impl Findings {
    /// The objects of a resource could not be deleted.
    pub(super) fn failed(&mut self, why: Status) {
        self.failures.push(why);
    }

    /// Whether nothing is left and nothing failed.
    pub(super) fn is_empty(&self) -> bool {
        self.remaining.is_empty() && self.failures.is_empty()
    }

    /// The first failure.
    pub(super) fn into_failure(self) -> Option<Status> {
        self.failures.into_iter().next()
    }

    fn all(&self) -> [Finding; 5] {
        let resources = self.remaining.resources().map(|text| ("SomeResourcesRemain", text));
        let finalizers = self.remaining.finalizers("the namespace").map(|text| ("SomeFinalizersRemain", text));
        let failure = self.failures.first().map(|first| {
            let n = self.failures.len();
            let text = format!("Failed to delete all resource types, {n} remaining: {}", first.message);
            ("ContentDeletionFailed", text)
        });
        let finding = |kind, trouble, reason, message| Finding { kind, trouble, well: (reason, message) };
        [
            finding(
                "NamespaceDeletionDiscoveryFailure",
                None,
                "ResourcesDiscovered",
                "All resources successfully discovered",
            ),
            finding(
                "NamespaceDeletionGroupVersionParsingFailure",
                None,
                "ParsedGroupVersions",
                "All legacy kube types successfully parsed",
            ),
            finding(
                "NamespaceDeletionContentFailure",
                failure,
                "ContentDeleted",
                "All content successfully deleted, may be waiting on finalization",
            ),
            finding("NamespaceContentRemaining", resources, "ContentRemoved", "All content successfully removed"),
            finding(
                "NamespaceFinalizersRemaining",
                finalizers,
                "ContentHasNoFinalizers",
                "All content-preserving finalizers finished",
            ),
        ]
    }
}

/// What one condition says: reason and message of the trouble, if there is any, and those without.
struct Finding {
    kind: &'static str,
    trouble: Option<(&'static str, String)>,
    well: (&'static str, &'static str),
}

/// The conditions after `findings`: the time of one whose status is the same is kept, and so are all others.
pub(super) fn conditions(before: &[Value], findings: &Findings) -> Vec<Value> {
    let mut conditions = before.to_vec();
    for Finding { kind, trouble, well } in findings.all() {
        let (status, reason, message) = match trouble {
            Some((reason, message)) => ("True", reason, message),
            None => ("False", well.0, well.1.to_owned()),
        };
        let old = conditions.iter_mut().find(|c| text(c, &["type"]) == kind);
        let kept = old.as_ref().filter(|c| text(c, &["status"]) == status).map(|c| text(c, &["lastTransitionTime"]));
        let since = kept.map_or_else(now, str::to_owned);
        let new = json!({
            "type": kind, "status": status, "lastTransitionTime": since, "reason": reason, "message": message,
        });
        match old {
            Some(old) => *old = new,
            None => conditions.push(new),
        }
    }
    conditions
}

#[cfg(test)]
mod tests {
    use apiserver_machinery::builtin;

    use super::*;
    use crate::content::Left;

    #[test]
    fn what_remains_is_named_and_the_time_is_that_of_the_last_change() {
        let mut findings = Findings::default();
        let left = |objects, finalizers: &[(&str, usize)]| Left {
            objects,
            finalizers: finalizers.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        };
        findings
            .remaining
            .add(builtin::find("coordination.k8s.io", "v1", "leases").unwrap(), left(1, &[("a.dev/x", 1)]));
        findings
            .remaining
            .add(builtin::find("", "v1", "configmaps").unwrap(), left(2, &[("a.dev/x", 1), ("b.dev/y", 2)]));
        let old = json!({"type": "NamespaceContentRemaining", "status": "True", "lastTransitionTime": "then"});
        let own = json!({"type": "Mine", "status": "True"});
        let found = conditions(&[own.clone(), old], &findings);
        assert_eq!(found.len(), 6);
        assert_eq!(found[0], own);
        assert_eq!(
            found[1],
            json!({"type": "NamespaceContentRemaining", "status": "True", "lastTransitionTime": "then",
                "reason": "SomeResourcesRemain", "message": "Some resources are remaining: configmaps. has 2 resource \
                 instances, leases.coordination.k8s.io has 1 resource instances"})
        );
        assert_eq!(
            text(&found[5], &["message"]),
            "Some content in the namespace has finalizers remaining: a.dev/x in 2 resource instances, b.dev/y in 2 \
             resource instances"
        );
        let again = conditions(&found, &findings);
        assert_eq!(again, found);
        let well = conditions(&found, &Findings::default());
        assert_eq!((&well[1]["status"], &well[1]["reason"]), (&json!("False"), &json!("ContentRemoved")));
        assert_ne!(well[1]["lastTransitionTime"], "then");
    }

    #[test]
    fn a_failure_is_told() {
        let mut findings = Findings::default();
        findings.failed(Status::internal_error("disk"));
        let found = conditions(&[], &findings);
        assert_eq!(text(&found[2], &["reason"]), "ContentDeletionFailed");
        assert!(text(&found[2], &["message"]).ends_with("1 remaining: Internal error occurred: disk"));
        assert!(!findings.is_empty() && findings.into_failure().is_some());
    }
}
