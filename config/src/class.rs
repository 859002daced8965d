//! `WorkspaceClass`: what the operator gives to a group of workspaces.

use std::{collections::BTreeMap, fmt};

use apiserver_api::{cluster, names};
use serde::Deserialize;

use crate::fault::Faults;

/// The only profile of this release: the FlowSchemas and levels of the file.
const PROFILE: &str = "default";
const MAX_NUMBER: u32 = 1_000_000;

/// The checked rule. The first class of a file that matches a workspace is its class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceClass {
    /// Its name, unique among classes.
    pub name: String,
    /// A workspace must match one of these; empty: any path will do.
    pub paths: Vec<PathPattern>,
    /// A workspace must have all of these labels.
    pub labels: BTreeMap<String, String>,
    /// What each of its workspaces weighs.
    pub weight: Weight,
    /// Per cent of the seats of a workspace that others may use while it does not. Default 0, as in a
    /// PriorityLevelConfiguration; 0 for shares, which reserve nothing.
    pub lendable_percent: u32,
    /// Per cent of its seats that a workspace may use on top; `None`: no limit.
    pub borrowing_limit_percent: Option<u32>,
    /// Second line of defence: for each workspace as a whole.
    pub rate_limit: Option<RateLimit>,
    /// The same for each user of each workspace (`rateLimit.perUser`).
    pub user_rate_limit: Option<RateLimit>,
}

impl WorkspaceClass {
    /// Whether a workspace of this path and these labels belongs to the class.
    pub fn matches(&self, path: &str, labels: &BTreeMap<String, String>) -> bool {
        (self.paths.is_empty() || self.paths.iter().any(|pattern| pattern.matches(path)))
            && self.labels.iter().all(|(key, value)| labels.get(key) == Some(value))
    }
}

/// A workspace's claim on its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weight {
    /// In relation to other workspaces, from 1.
    Shares(u32),
    /// So many seats of the shard. 0: every request is refused.
    Seats(u32),
}

/// See [`WorkspaceClass::rate_limit`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// On average, from 1.
    pub requests_per_second: u32,
    /// At once, from 1. Default: `requests_per_second`.
    pub burst: u32,
}

/// Which workspace paths match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathPattern {
    /// `*`: all.
    All,
    /// `root:org`: this one.
    Exactly(String),
    /// `root:org:*`: all below this one at any depth, itself not.
    Below(String),
}

impl PathPattern {
    fn parse(text: &str) -> Option<Self> {
        match text.strip_suffix(":*") {
            _ if text == "*" => Some(Self::All),
            Some(parent) => cluster::is_path(parent).then(|| Self::Below(parent.to_owned())),
            None => cluster::is_path(text).then(|| Self::Exactly(text.to_owned())),
        }
    }

    /// Whether it may match a workspace: the paths of all of them begin with `root`.
    pub(crate) fn is_rooted(&self) -> bool {
        match self {
            Self::All => true,
            Self::Exactly(path) | Self::Below(path) => cluster::is_at_or_below(path, "root"),
        }
    }

    /// Whether a workspace path matches.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            Self::All => true,
            Self::Exactly(exactly) => path == exactly,
            Self::Below(parent) => path != parent && cluster::is_at_or_below(path, parent),
        }
    }
}

/// As it is written.
impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Exactly(path) => f.write_str(path),
            Self::Below(path) => write!(f, "{path}:*"),
        }
    }
}

/// The document as written, without `apiVersion` and `kind`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawClass {
    pub(crate) metadata: RawMetadata,
    spec: RawSpec,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct RawMetadata {
    pub(crate) name: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawSpec {
    r#match: RawMatch,
    nominal_concurrency_shares: Option<u32>,
    seats: Option<u32>,
    lendable_percent: Option<u32>,
    borrowing_limit_percent: Option<u32>,
    rate_limit: Option<RawRateLimit>,
    profile: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawMatch {
    paths: Vec<String>,
    labels: BTreeMap<String, String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawRateLimit {
    requests_per_second: Option<u32>,
    burst: Option<u32>,
    per_user: Option<RawUserRateLimit>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawUserRateLimit {
    requests_per_second: u32,
    burst: Option<u32>,
}

/// Turns the raw document into the checked class. `None` only if there is a fault.
pub(crate) fn check(raw: RawClass, faults: &mut Faults<'_>) -> Option<WorkspaceClass> {
    let spec = raw.spec;
    if raw.metadata.name.is_empty() {
        faults.add("metadata.name", "is missing; want the name of the class");
    } else if let Err(messages) = names::dns_subdomain(&raw.metadata.name) {
        faults.add("metadata.name", format!("is {:?}; want a DNS name: {}", raw.metadata.name, messages.join("; ")));
    }
    if spec.r#match.paths.is_empty() && spec.r#match.labels.is_empty() {
        faults.add("spec.match", "names no workspace; want paths or labels, for example paths: [\"*\"]");
    }
    let mut paths = Vec::new();
    for (i, text) in spec.r#match.paths.iter().enumerate() {
        let pattern = PathPattern::parse(text);
        let want = "want a workspace path (root:org), all below one (root:org:*), or *";
        paths.extend(faults.check(&format!("spec.match.paths[{i}]"), pattern.ok_or(format!("is {text:?}; {want}"))));
    }
    check_labels(&spec.r#match.labels, faults);
    let weight = match (spec.nominal_concurrency_shares, spec.seats) {
        (Some(shares), None) => Some(Weight::Shares(check_shares(shares, spec.lendable_percent, faults))),
        (None, Some(seats)) => Some(Weight::Seats(at_most(MAX_NUMBER, seats, "seats", faults))),
        (Some(_), Some(_)) => {
            faults.add("spec.seats", "is given beside nominalConcurrencyShares; want one of the two");
            None
        }
        (None, None) => {
            faults.add("spec", "has neither nominalConcurrencyShares nor seats; want one of the two");
            None
        }
    };
    if spec.profile.as_deref().is_some_and(|profile| profile != PROFILE) {
        faults.add(
            "spec.profile",
            format!("is {:?}; want {PROFILE}: this release serves no other", spec.profile.unwrap_or_default()),
        );
    }
    let lendable_percent = at_most(100, spec.lendable_percent.unwrap_or(0), "lendablePercent", faults);
    let borrowing = spec.borrowing_limit_percent;
    let borrowing_limit_percent =
        borrowing.map(|percent| at_most(MAX_NUMBER, percent, "borrowingLimitPercent", faults));
    let (rate_limit, user_rate_limit) = spec.rate_limit.map_or((None, None), |raw| check_rate_limits(&raw, faults));
    Some(WorkspaceClass {
        name: raw.metadata.name,
        paths,
        labels: spec.r#match.labels,
        weight: weight?,
        lendable_percent,
        borrowing_limit_percent,
        rate_limit,
        user_rate_limit,
    })
}

/// Shares are never kept for anybody: there is nothing to lend, and none at all would be no part of anything.
fn check_shares(shares: u32, lendable_percent: Option<u32>, faults: &mut Faults<'_>) -> u32 {
    if !(1..=MAX_NUMBER).contains(&shares) {
        faults.add("spec.nominalConcurrencyShares", format!("is {shares}; want 1 to {MAX_NUMBER}"));
    }
    if lendable_percent.is_some_and(|percent| percent <= 100) {
        let message =
            "is given beside nominalConcurrencyShares, of which others use all that is free; want it beside seats only";
        faults.add("spec.lendablePercent", message);
    }
    shares
}

fn at_most(max: u32, value: u32, key: &str, faults: &mut Faults<'_>) -> u32 {
    if value > max {
        faults.add(format!("spec.{key}"), format!("is {value}; want 0 to {max}"));
    }
    value
}

fn check_labels(labels: &BTreeMap<String, String>, faults: &mut Faults<'_>) {
    for (key, value) in labels {
        let messages = [names::qualified_name(key), names::label_value(value)];
        for message in messages.into_iter().filter_map(Result::err).flatten() {
            faults.add(format!("spec.match.labels.{key}"), format!("is no label; {message}"));
        }
    }
}

/// The limit of the whole workspace may be left out beside one of its users.
fn check_rate_limits(raw: &RawRateLimit, faults: &mut Faults<'_>) -> (Option<RateLimit>, Option<RateLimit>) {
    let is_whole = raw.requests_per_second.is_some() || raw.burst.is_some() || raw.per_user.is_none();
    let rate = raw.requests_per_second.unwrap_or_default();
    let whole = is_whole.then(|| check_rate_limit("spec.rateLimit", rate, raw.burst, faults));
    let user = raw.per_user.as_ref();
    let user = user.map(|raw| check_rate_limit("spec.rateLimit.perUser", raw.requests_per_second, raw.burst, faults));
    (whole, user)
}

fn check_rate_limit(field: &str, rate: u32, burst: Option<u32>, faults: &mut Faults<'_>) -> RateLimit {
    let limit = RateLimit { requests_per_second: rate, burst: burst.unwrap_or(rate) };
    for (key, value) in [("requestsPerSecond", rate), ("burst", burst.unwrap_or(1))] {
        if !(1..=MAX_NUMBER).contains(&value) {
            faults.unfit(&format!("{field}.{key}"), value, format_args!("1 to {MAX_NUMBER}"));
        }
    }
    limit
}
