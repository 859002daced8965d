//! `ListOptions`: list, watch and deletecollection.

use std::time::Duration;

use apiserver_api::{
    Status,
    field::{Error, Path},
};
use serde_json::json;

use super::check;
use crate::{
    resource::Resource,
    selector::{FieldSelector, LabelSelector, Selector},
};

/// How a list's `resourceVersion` is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionMatch {
    /// Exactly that state.
    Exact,
    /// That state or a newer one.
    NotOlderThan,
}

/// Parsed and checked list options.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    /// Both selectors.
    pub selector: Selector,
    /// Whether it is a watch.
    pub watch: bool,
    /// Most items of one page; `None` for all.
    pub limit: Option<usize>,
    /// The opaque token of a further page; empty for the first.
    pub continue_token: String,
    /// `None` when absent.
    pub resource_version: Option<u64>,
    /// As given; `None` leaves the legacy meaning.
    pub version_match: Option<VersionMatch>,
    /// Whether a watch begins with the present state (WatchList).
    pub send_initial_events: Option<bool>,
    /// Whether the client understands bookmarks.
    pub allow_bookmarks: bool,
    /// When a watch ends by itself.
    pub timeout: Option<Duration>,
}

impl ListOptions {
    /// Reads the options of a list, watch or deletecollection of `resource`.
    ///
    /// # Errors
    /// 400 for what cannot be read, 422 for combinations that mean nothing (api-server.md 3.2).
    pub fn parse(resource: &Resource, raw: &apiserver_api::ListOptions<'_>) -> Result<Self, Status> {
        let seconds = raw.timeout_seconds.and_then(|s| u64::try_from(s).ok()).filter(|s| *s > 0);
        let mut options = Self {
            selector: Selector {
                labels: LabelSelector::parse(&raw.label_selector)?,
                fields: FieldSelector::parse(resource, &raw.field_selector)?,
            },
            watch: raw.watch,
            limit: raw.limit.and_then(|l| usize::try_from(l).ok()),
            continue_token: raw.continue_token.clone().into_owned(),
            resource_version: None,
            version_match: None,
            send_initial_events: raw.send_initial_events,
            allow_bookmarks: raw.allow_watch_bookmarks,
            timeout: seconds.map(Duration::from_secs),
        };
        options.check_match(&raw.resource_version, &raw.resource_version_match)?;
        if !raw.resource_version.is_empty() {
            options.resource_version = Some(raw.revision()?);
        }
        if !options.continue_token.is_empty() && options.resource_version.is_some_and(|v| v != 0) {
            return Err(Status::bad_request("specifying resource version is not allowed when using continue"));
        }
        Ok(options)
    }

    /// The version that the answer to a first page may not be older than; `None` when it must be exactly that of
    /// `resource_version` or when nothing is said (the table of api-server.md 3.2).
    pub fn not_older_than(&self) -> Option<u64> {
        let is_lower_bound = match self.version_match {
            Some(VersionMatch::Exact) => false,
            Some(VersionMatch::NotOlderThan) => true,
            // The legacy meaning of a version beside a limit.
            None => self.limit.is_none(),
        };
        self.resource_version.filter(|version| is_lower_bound && *version > 0)
    }

    /// Upstream's `ValidateListOptions`.
    fn check_match(&mut self, version: &str, version_match: &str) -> Result<(), Status> {
        const FIELD: &str = "resourceVersionMatch";
        let mut errors = Vec::new();
        self.version_match = match version_match {
            "Exact" => Some(VersionMatch::Exact),
            "NotOlderThan" => Some(VersionMatch::NotOlderThan),
            _ => None,
        };
        let known = version_match.is_empty() || self.version_match.is_some();
        if self.watch {
            if !version_match.is_empty() && self.send_initial_events.is_none() {
                let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                errors.push(Error::forbidden(&Path::new(FIELD), why));
            } else if self.send_initial_events.is_some() && version_match != "NotOlderThan" {
                let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
                errors.push(Error::forbidden(&Path::new(FIELD), why));
            }
        } else if self.send_initial_events.is_some() {
            errors.push(Error::forbidden(&Path::new("sendInitialEvents"), "sendInitialEvents is forbidden for list"));
        } else if !version_match.is_empty() && !self.continue_token.is_empty() {
            errors.push(Error::forbidden(
                &Path::new(FIELD),
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        } else if !version_match.is_empty() && version.is_empty() {
            let why = "resourceVersionMatch is forbidden unless resourceVersion is provided";
            errors.push(Error::forbidden(&Path::new(FIELD), why));
        } else if !known {
            let supported = &["Exact", "NotOlderThan", ""];
            errors.push(Error::not_supported(&Path::new(FIELD), json!(version_match), supported));
        } else if version_match == "Exact" && version == "0" {
            let why = "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"";
            errors.push(Error::forbidden(&Path::new(FIELD), why));
        }
        check("ListOptions", errors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    fn parse(query: &str) -> Result<ListOptions, Status> {
        ListOptions::parse(builtin::find("", "v1", "configmaps").unwrap(), &apiserver_api::ListOptions::parse(query)?)
    }

    #[test]
    fn everything_at_once() {
        let options = parse(
            "watch=1&labelSelector=l+in+(a,b)&fieldSelector=metadata.name%3Dx&limit=-1&resourceVersion=5\
             &resourceVersionMatch=NotOlderThan&sendInitialEvents=true&allowWatchBookmarks=true&timeoutSeconds=7&odd=1",
        )
        .unwrap();
        assert!(options.watch && options.allow_bookmarks && options.send_initial_events == Some(true));
        assert_eq!((options.limit, options.resource_version), (None, Some(5)));
        assert_eq!(options.timeout, Some(Duration::from_secs(7)));
        assert_eq!(options.selector.fields.exact_name(), Some("x"));
        assert!(!parse("watch=false").unwrap().watch);
        assert!(parse("watch").unwrap().watch);
    }

    /// The refusals as recorded from upstream.
    #[test]
    fn refusals() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/kubectl/http-probes.json");
        let probes: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let mut seen = 0;
        for probe in probes["entries"].as_array().unwrap().iter().filter(|p| p["set"] == "list-watch") {
            let path = probe["request"]["path"].as_str().unwrap();
            let Some((_, query)) = path.split_once('?').filter(|(p, _)| p.ends_with("/configmaps")) else { continue };
            let id = probe["id"].as_str().unwrap();
            let refused = probe["response"]["status"].as_u64().unwrap() >= 400;
            // Not refused by the options alone: the token's content, a version beyond the store's, the
            // deadline of the request.
            let elsewhere = ["bad-continue", "bad-continue2", "rv-future-list", "rv-future-exact", "bad-timeout"];
            if !refused || elsewhere.contains(&id) {
                assert!(parse(query).is_ok(), "{id}");
                continue;
            }
            let status = parse(query).expect_err(id);
            assert_eq!(status.message, probe["response"]["body"]["message"].as_str().unwrap(), "{id}");
            assert_eq!(u64::from(status.code), probe["response"]["status"].as_u64().unwrap(), "{id}");
            seen += 1;
        }
        assert_eq!(seen, 12);
    }
}
