//! The built-in kinds: one table, in the order of discovery.

mod columns;
mod config_map;
mod event;
mod events_v1;
mod flowcontrol;
mod lease;
mod limit_range;
mod logical_cluster;
mod namespace;
mod resource_quota;
mod reviews;
mod secret;
mod service_account;
mod workspace;

use serde_json::Value;

pub use self::reviews::{TOKEN_REQUESTS, reviews};
use crate::resource::{ErrorList, Resource};

const VERBS: &[&str] = &["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"];

/// How many of [`SERVED`] have objects of their own: all but the views, which stand last.
const STORED: usize = 12;

static SERVED: [Resource; STORED + 1] = [
    config_map::CONFIG_MAPS,
    event::EVENTS,
    limit_range::LIMIT_RANGES,
    namespace::NAMESPACES,
    resource_quota::RESOURCE_QUOTAS,
    secret::SECRETS,
    service_account::SERVICE_ACCOUNTS,
    lease::LEASES,
    flowcontrol::FLOW_SCHEMAS,
    flowcontrol::PRIORITY_LEVEL_CONFIGURATIONS,
    logical_cluster::LOGICAL_CLUSTERS,
    workspace::WORKSPACES,
    events_v1::EVENTS,
];

/// All built-in resources that have objects of their own, those of one group and version side by side, core first.
pub fn all() -> &'static [Resource] {
    SERVED.split_at(STORED).0
}

/// The same, and behind them those that show objects of others ([`Resource::view`]).
pub fn served() -> &'static [Resource] {
    &SERVED
}

/// The resource of this group (empty for core), version and plural.
pub fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    all().iter().find(|r| r.plural == plural && r.group == group && r.version == version)
}

fn prepare_nothing(_: &mut Value, _: Option<&Value>) {}

fn validate_nothing(_: &Value, _: Option<&Value>, _: &mut ErrorList) {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_found_and_consistent() {
        for r in served() {
            assert_eq!(find(r.group, r.version, r.plural).is_some(), r.view.is_none());
            assert_eq!(r.schema.name, r.kind);
            assert!(r.has_verb("get") && r.has_verb("list") && r.has_verb("watch"));
            assert_eq!(r.has_subresource("status"), r.schema.field("status").is_some(), "{}", r.plural);
            if r.protobuf {
                assert!(r.schema.fields.iter().all(|f| f.number != 0 || ["kind", "apiVersion"].contains(&f.name)));
            }
            assert_eq!(r.columns.first().map(|c| c.priority), Some(0));
        }
        assert!(find("", "v1", "pods").is_none());
        assert!(find("apps", "v1", "configmaps").is_none());
    }

    #[test]
    fn those_of_one_group_and_version_stand_together() {
        let mut seen = Vec::new();
        for r in served() {
            if seen.last() != Some(&(r.group, r.version)) {
                assert!(!seen.contains(&(r.group, r.version)), "{}", r.group);
                seen.push((r.group, r.version));
            }
        }
    }
}
