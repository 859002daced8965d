//! A set of FlowSchemas and priority levels, compiled once per configuration snapshot (apf.md 2).
//!
//! # Invariants
//! * The levels `exempt` and `catch-all` and the FlowSchemas of the same names always exist; what the
//!   configuration does not have is supplied, `exempt` tried first and `catch-all` last.
//! * Every FlowSchema names a level of the profile: those that dangle take no part and are reported as
//!   [`conditions`](Profile::conditions).
//! * Levels are sorted by name, so the same objects in any order make the same profile.
//!
//! [`Profile::classify`] allocates nothing and takes no lock. It costs a few string comparisons for each
//! FlowSchema tried, and one SHA-256 when the flow depends on the request.

use apiserver_api::{ClusterName, RequestInfo, UserInfo};
use uuid::Uuid;

use self::matching::{Requester, Rule};
use crate::{Level, shuffle};

mod compile;
mod matching;

/// The name of the level and of the FlowSchema that bypass the limits.
pub const EXEMPT: &str = "exempt";
/// The name of the level and of the FlowSchema that take whatever nothing else matches.
pub const CATCH_ALL: &str = "catch-all";

/// Separates the home workspace of a foreign service account from the rest of its flow distinguisher.
const HOME_SEPARATOR: &str = "\0";

/// Which FlowSchema, level and flow a request belongs to. Indices into the [`Profile`] that said so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Classified {
    /// Index into [`Profile::flow_schemas`].
    pub flow_schema: u16,
    /// Index into [`Profile::levels`].
    pub level: u16,
    /// Hash of FlowSchema and distinguisher; 0 unless the level has more than one queue.
    pub flow: u64,
}

/// One FlowSchema of a profile.
#[derive(Clone, Debug)]
pub struct FlowSchema {
    /// Its name.
    pub name: Box<str>,
    /// Index of its level.
    pub level: u16,
    flow: Flow,
    rules: Box<[Rule]>,
}

/// How the flow of a request is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    /// Not at all: the level has at most one queue.
    Unhashed,
    /// All requests of the FlowSchema are one flow.
    Whole,
    ByUser,
    ByNamespace,
}

/// What the controller reports about a FlowSchema object: whether its level exists (apf.md 2.4).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The FlowSchema.
    pub flow_schema: Box<str>,
    /// The level that it names.
    pub level: Box<str>,
    /// Status of the condition of type `Dangling`: the level does not exist, or is not usable.
    pub dangling: bool,
}

impl Condition {
    /// The reason word of the condition.
    pub fn reason(&self) -> &'static str {
        if self.dangling { "NotFound" } else { "Found" }
    }
}

/// What tells an object from others of its kind, for the UID headers.
#[derive(Clone, Debug, Default)]
struct Identity {
    uid: Option<[u8; 36]>,
    generation: i64,
}

/// The UIDs of a FlowSchema and of its level, as lower-case text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Uids {
    /// For `X-Kubernetes-PF-FlowSchema-UID`.
    pub flow_schema: [u8; 36],
    /// For `X-Kubernetes-PF-PriorityLevel-UID`.
    pub level: [u8; 36],
}

/// The compiled set.
#[derive(Debug)]
pub struct Profile {
    levels: Box<[Level]>,
    level_ids: Box<[Identity]>,
    flow_schemas: Box<[FlowSchema]>,
    flow_schema_ids: Box<[Identity]>,
    /// Index of the FlowSchema `catch-all`.
    catch_all: u16,
    conditions: Box<[Condition]>,
    problems: Box<[String]>,
    serial: u64,
}

impl Profile {
    /// A number that no other profile of this process has.
    pub(crate) fn serial(&self) -> u64 {
        self.serial
    }

    /// The levels, sorted by name.
    pub fn levels(&self) -> &[Level] {
        &self.levels
    }

    /// The FlowSchemas in the order in which they are tried.
    pub fn flow_schemas(&self) -> &[FlowSchema] {
        &self.flow_schemas
    }

    /// Index of the level of this name.
    pub fn level_named(&self, name: &str) -> Option<u16> {
        // `compile` bounds the number of levels, so the index fits.
        self.levels.binary_search_by(|level| (*level.name).cmp(name)).ok().map(|at| at as u16)
    }

    /// Index of the level `catch-all`.
    pub fn catch_all_level(&self) -> u16 {
        self.flow_schemas.get(usize::from(self.catch_all)).map_or(0, |schema| schema.level)
    }

    /// What to report in the status of each FlowSchema object that went in, in the order of their names.
    pub fn conditions(&self) -> &[Condition] {
        &self.conditions
    }

    /// Objects that went in and take no part, one sentence each: which one, and why.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }

    /// Classifies one request of `workspace`. Allocates nothing.
    pub fn classify(&self, workspace: &ClusterName, user: &UserInfo, info: &RequestInfo<'_>) -> Classified {
        self.classify_by(workspace.as_str(), user, info, shuffle::flow_hash)
    }

    /// Classifies one request for a level that several workspaces share (those of unknown workspaces and of
    /// the platform, where `workspace` may be `*`): as [`Profile::classify`], but flows of different
    /// workspaces are different flows.
    pub fn classify_shared(&self, workspace: &str, user: &UserInfo, info: &RequestInfo<'_>) -> Classified {
        self.classify_by(workspace, user, info, |schema, parts| shuffle::shared_flow_hash(workspace, schema, parts))
    }

    fn classify_by(
        &self,
        workspace: &str,
        user: &UserInfo,
        info: &RequestInfo<'_>,
        hash: impl Fn(&str, &[&str]) -> u64,
    ) -> Classified {
        let who = Requester::new(user, workspace);
        let matches = |schema: &FlowSchema| schema.rules.iter().any(|rule| rule.matches(&who, info));
        let index = self.flow_schemas.iter().position(matches).unwrap_or(usize::from(self.catch_all));
        let schema = self.flow_schemas.get(index).expect("the index of catch-all is within the list");
        let flow = distinguisher(schema.flow, &who, info).map_or(0, |parts| hash(&schema.name, &parts));
        // `compile` bounds the number of FlowSchemas, so the index fits.
        Classified { flow_schema: index as u16, level: schema.level, flow }
    }

    /// The flow distinguisher of a request that was classified so, as text; empty where flows are not told apart.
    pub fn distinguisher(&self, workspace: &str, user: &UserInfo, info: &RequestInfo<'_>, class: Classified) -> String {
        let who = Requester::new(user, workspace);
        let flow = self.flow_schemas.get(usize::from(class.flow_schema)).map_or(Flow::Unhashed, |schema| schema.flow);
        distinguisher(flow, &who, info).map_or_else(String::new, |parts| parts.concat())
    }

    /// The UIDs that a response's headers carry: the objects' own if they have any, otherwise UUIDs of
    /// version 5 over workspace, kind, name and generation (apf.md 9, row 18).
    ///
    /// A made-up UID costs a SHA-1, so do not ask per request: the answer depends on `workspace` and
    /// `class.flow_schema` only, and may be kept beside the state of the workspace's level for as long as
    /// the profile lives.
    pub fn uids(&self, workspace: &ClusterName, class: Classified) -> Uids {
        let schema = self.flow_schemas.get(usize::from(class.flow_schema));
        let level = self.levels.get(usize::from(class.level));
        let schema_id = self.flow_schema_ids.get(usize::from(class.flow_schema));
        let level_id = self.level_ids.get(usize::from(class.level));
        Uids {
            flow_schema: uid(workspace, "FlowSchema", schema.map_or("", |s| &s.name), schema_id),
            level: uid(workspace, "PriorityLevelConfiguration", level.map_or("", |l| &l.name), level_id),
        }
    }

    /// The same profile for workspaces that only inherit it: the objects' own UIDs are forgotten, so that no
    /// two workspaces see equal values and nobody learns which template they share.
    #[must_use]
    pub fn inherited(mut self) -> Self {
        self.level_ids.iter_mut().chain(&mut self.flow_schema_ids).for_each(|id| id.uid = None);
        self
    }
}

/// The parts of the distinguisher that is to be hashed, if any. What a service account of another workspace
/// does is never in one flow with what an account of the same name at home does.
fn distinguisher<'a>(flow: Flow, who: &Requester<'a>, info: &'a RequestInfo<'_>) -> Option<[&'a str; 3]> {
    let own = match flow {
        Flow::Unhashed => return None,
        Flow::Whole => return Some([""; 3]),
        Flow::ByUser => &*who.user.name,
        Flow::ByNamespace => &*info.namespace,
    };
    Some(match who.foreign_home {
        Some(home) => [home, HOME_SEPARATOR, own],
        None => [own, "", ""],
    })
}

fn uid(workspace: &ClusterName, kind: &str, name: &str, id: Option<&Identity>) -> [u8; 36] {
    if let Some(uid) = id.and_then(|id| id.uid) {
        return uid;
    }
    let generation = id.map_or(0, |id| id.generation);
    let text = format!("{workspace}\0{kind}\0{name}\0{generation}");
    let mut uid = [0; 36];
    Uuid::new_v5(&Uuid::NAMESPACE_URL, text.as_bytes()).hyphenated().encode_lower(&mut uid);
    uid
}

#[cfg(test)]
mod tests;
