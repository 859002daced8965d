//! The two headers that tell a client how its request was classified (apf.md 7.1), by UID so that no names leak.

use std::time::Duration;

use apiserver_api::ClusterName;
use fairness::{Classified, Profile};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::recent::Recent;

pub(crate) const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
pub(crate) const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// A made-up UID costs a SHA-1, so the headers are kept per workspace and FlowSchema.
#[derive(Debug)]
pub(crate) struct UidHeaders(Recent<Vec<Entry>>);

/// Longer than most clients pause.
const KEEP: Duration = Duration::from_secs(60);

impl Default for UidHeaders {
    fn default() -> Self {
        Self(Recent::new(KEEP))
    }
}

#[derive(Clone, Debug)]
struct Entry {
    flow_schema: u16,
    headers: [HeaderValue; 2],
}

impl UidHeaders {
    /// Writes both headers; what the shard said in their place is dropped (apf.md 9, row 18).
    pub(crate) fn write(
        &self,
        profile: &Profile,
        workspace: Option<&ClusterName>,
        class: Classified,
        headers: &mut HeaderMap,
    ) {
        let platform;
        let workspace = match workspace {
            Some(name) => name,
            None => {
                platform = ClusterName::standing_for("");
                &platform
            }
        };
        let find = |entries: &Vec<Entry>| {
            entries.iter().find(|e| e.flow_schema == class.flow_schema).map(|e| e.headers.clone())
        };
        let known = self.0.read(workspace, find).flatten();
        let [flow_schema, level] = known.unwrap_or_else(|| self.make(profile, workspace, class));
        headers.insert(FLOW_SCHEMA, flow_schema);
        headers.insert(PRIORITY_LEVEL, level);
    }

    fn make(&self, profile: &Profile, workspace: &ClusterName, class: Classified) -> [HeaderValue; 2] {
        let uids = profile.uids(workspace, class);
        let value = |uid: &[u8]| HeaderValue::from_bytes(uid).expect("a UID is plain text");
        let headers = [value(&uids.flow_schema), value(&uids.level)];
        let entry = Entry { flow_schema: class.flow_schema, headers: headers.clone() };
        // Without room for it they are made anew each time.
        self.0.write(workspace, Vec::new, |entries| {
            // Another request may have been faster.
            if entries.iter().all(|e| e.flow_schema != entry.flow_schema) {
                entries.push(entry);
            }
        });
        headers
    }

    /// The workspace is gone.
    pub(crate) fn forget(&self, workspace: &ClusterName) {
        self.0.forget(workspace);
    }

    /// Drops what has not been used for long.
    pub(crate) fn sweep(&self) {
        self.0.sweep();
    }
}
