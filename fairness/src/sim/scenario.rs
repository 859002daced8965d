//! What is simulated, as data.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Traffic for one shard, and what to measure.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Seats of the shard.
    pub seats: u32,
    /// Length in seconds.
    pub end_s: f64,
    /// Metrics leave out what came before.
    pub warmup_s: f64,
    /// Window of Jain's index in seconds; 0: it is not computed.
    pub window_s: f64,
    /// Start of the random numbers.
    pub seed: u64,
    /// The tenants.
    pub workspaces: Vec<Workspace>,
    /// Who sends.
    pub sources: Vec<Source>,
    /// What is reconfigured on the way.
    pub changes: Vec<Change>,
    /// Prefixes of the names of workspaces that are compared with one another.
    pub backlogged: Vec<String>,
    /// How soon a workspace must get its seats.
    pub reach: Option<Reach>,
    /// Prefixes of names of workspaces that are reported together; each entry of `workspaces` by default.
    pub groups: BTreeMap<String, Vec<String>>,
}

/// One workspace, or several alike.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workspace {
    /// Its name; with a `count` above 1, the beginning of their names.
    pub name: String,
    /// How many.
    #[serde(default = "one")]
    pub count: u32,
    /// Its shares.
    pub weight: Option<u32>,
    /// Or its seats.
    pub seats: Option<u32>,
    /// Per cent of `seats` that others may use; all of them by default.
    pub lendable: Option<u32>,
    /// Per cent of its seats or shares that it may use more; no limit by default.
    pub borrow: Option<u32>,
    /// Its levels; one by default. All workspaces that have any must have the same.
    pub levels: Vec<LevelSpec>,
}

fn one() -> u32 {
    1
}

/// One level.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub struct LevelSpec {
    /// Its name.
    pub name: String,
    /// Its shares.
    pub shares: u32,
    /// Per cent of its seats that other levels may use.
    pub lendable: u32,
    /// Per cent of its seats that it may use more.
    pub borrow: Option<u32>,
    /// Queues over which flows are shuffle-sharded; by default each source has queues of its own.
    pub queues: Option<u32>,
    /// How many of them one flow uses; 1 by default.
    pub hand_size: Option<u32>,
    /// Requests that may wait in one queue; no limit by default.
    pub queue_length: Option<u32>,
    /// Nobody waits: who cannot be started at once is refused.
    pub reject: bool,
}

impl LevelSpec {
    /// A level that lends nothing, borrows without limit, and lets any number wait.
    pub fn named(name: &str, shares: u32) -> Self {
        Self { name: name.to_owned(), shares, ..Self::default() }
    }
}

/// Requests for one workspace, or for each of several alike.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Source {
    /// The entry of `workspaces`, or one of its copies.
    pub workspace: String,
    /// The level; by default that of the request, or the only one.
    pub level: Option<String>,
    /// What is asked for, by which FlowSchemas find the level and the flow.
    pub request: Option<RequestSpec>,
    /// The flow that they found.
    #[serde(skip)]
    pub flow: Option<u64>,
    /// Closed loop: so many clients send, wait for the end, think, and send again.
    pub clients: u32,
    /// Seconds that a client thinks.
    pub think_s: f64,
    /// Open loop: so many requests a second, at random.
    pub rate: f64,
    /// So many requests at once ...
    pub burst: u32,
    /// ... every so many seconds.
    pub burst_every_s: f64,
    /// Flows over which they are spread.
    #[serde(default = "one")]
    pub flows: u32,
    /// How long the shard works on one.
    pub service_s: Distribution,
    /// How long it keeps its seats after that.
    #[serde(default = "zero")]
    pub tail_s: Distribution,
    /// Seats of one.
    #[serde(default = "narrow")]
    pub width: Distribution,
    /// When it sends, as pairs of from and to; always by default.
    pub on_s: Vec<(f64, f64)>,
    /// Whoever has waited that long is rejected; a client sends again a second later.
    #[serde(default = "wait_limit")]
    pub wait_limit_s: f64,
    /// A client that has waited that long cancels and sends again at once.
    pub give_up_s: Option<f64>,
    /// Runs at once and is only counted.
    pub exempt: bool,
}

/// What FlowSchemas look at: who asks, and for a resource or a path.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RequestSpec {
    /// Name of the user, or `system:serviceaccount:<namespace>:<name>` of the workspace.
    pub user: String,
    /// Groups of the user, besides those that everybody with a credential, and every service account, is in.
    pub groups: Vec<String>,
    /// The API verb, for a path the lower-case method; `get` by default.
    pub verb: Option<String>,
    /// API group of the resource; the core group by default.
    pub api_group: String,
    /// Plural resource, with a subresource as in `pods/log`.
    pub resource: String,
    /// Its namespace; by default it is asked for without one.
    pub namespace: String,
    /// Name of the object, if it is about one.
    pub name: String,
    /// Or a path that is no resource's.
    pub path: String,
}

fn zero() -> Distribution {
    Distribution::Const { v: 0.0 }
}

fn narrow() -> Distribution {
    Distribution::Const { v: 1.0 }
}

fn wait_limit() -> f64 {
    15.0
}

/// Where durations and widths are drawn from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(from = "RawDistribution")]
pub enum Distribution {
    /// Always the same.
    Const {
        /// The value.
        v: f64,
    },
    /// Exponential.
    Exp {
        /// Its mean.
        mean: f64,
    },
    /// Heavy-tailed.
    Pareto {
        /// The smallest value.
        min: f64,
        /// Its shape; the smaller, the heavier the tail.
        alpha: f64,
        /// Larger values are cut to this.
        max: f64,
    },
    /// One of two.
    Two {
        /// The one.
        a: f64,
        /// The other.
        b: f64,
        /// Its probability.
        p_b: f64,
    },
    /// Not given, or not one of the above: no scenario with it is played.
    #[default]
    Unknown,
}

/// A distribution as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawDistribution {
    dist: String,
    v: Option<f64>,
    mean: Option<f64>,
    min: Option<f64>,
    alpha: Option<f64>,
    max: Option<f64>,
    a: Option<f64>,
    b: Option<f64>,
    p_b: Option<f64>,
}

impl From<RawDistribution> for Distribution {
    fn from(raw: RawDistribution) -> Self {
        let RawDistribution { dist, v, mean, min, alpha, max, a, b, p_b } = raw;
        match (&*dist, v, mean, [min, alpha, max], [a, b, p_b]) {
            ("const", Some(v), None, [None, None, None], [None, None, None]) => Self::Const { v },
            ("exp", None, Some(mean), [None, None, None], [None, None, None]) => Self::Exp { mean },
            ("pareto", None, None, [Some(min), Some(alpha), Some(max)], [None, None, None]) => {
                Self::Pareto { min, alpha, max }
            }
            ("two", None, None, [None, None, None], [Some(a), Some(b), Some(p_b)]) => Self::Two { a, b, p_b },
            _ => Self::Unknown,
        }
    }
}

/// A reconfiguration.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Change {
    /// When.
    pub at_s: f64,
    /// And again each so many seconds: weights alternate with 1 and 3, seats with 2 and 12.
    pub every_s: Option<f64>,
    /// Whose.
    pub workspace: Option<String>,
    /// New shares.
    pub weight: Option<u32>,
    /// New seats.
    pub seats: Option<u32>,
    /// New seats of the shard.
    pub shard_seats: Option<u32>,
}

/// After `from_s`, when does the workspace have at least `seats` on the average of `hold_s`?
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reach {
    /// Whose seats.
    pub workspace: String,
    /// From when on.
    pub from_s: f64,
    /// How many.
    pub seats: f64,
    /// For how long.
    pub hold_s: f64,
}

/// A scenario that cannot be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScenarioError {
    /// A name that nothing has.
    #[error("{place} names {name:?}, which is not there")]
    Unknown {
        /// Where.
        place: &'static str,
        /// The name.
        name: String,
    },
    /// A workspace with neither or both of weight and seats.
    #[error("workspace {0:?} must have either a weight or seats")]
    Quota(String),
    /// Two sets of levels.
    #[error("workspace {0:?} has other levels than another one; all must have the same")]
    Levels(String),
}
