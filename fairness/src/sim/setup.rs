//! From a scenario to what is played: tenants, streams of requests, levels.

use super::{LevelSpec, Scenario, ScenarioError};
use crate::{Level, LevelKind, Queuing, scheduler::WorkspaceClass, shuffle::flow_hash};

/// A workspace of the scenario.
pub(super) struct Tenant {
    pub(super) name: String,
    pub(super) class: WorkspaceClass,
    /// Names of the groups it is in, as indices.
    pub(super) groups: Vec<usize>,
}

/// A source, for one workspace. Small: there may be a hundred thousand.
pub(super) struct Stream {
    /// Index of the source.
    pub(super) source: u32,
    pub(super) tenant: u32,
    pub(super) level: u32,
    /// Flow 0, and the distance of the next.
    first_flow: u64,
    flow_step: u64,
}

impl Stream {
    /// What tells the flow with this number from others at the level: the number of a queue, or a hash.
    pub(super) fn flow(&self, number: u32) -> u64 {
        self.first_flow.wrapping_add(u64::from(number).wrapping_mul(self.flow_step))
    }
}

/// Odd, and without pattern in its bits.
const FLOW_STEP: u64 = 0x9e37_79b9_7f4a_7c15;

impl LevelSpec {
    /// How the level treats requests that exceed its seats; `queues` and `hand_size` where it says nothing.
    pub(super) fn kind(&self, queues: u32, hand_size: u32) -> LevelKind {
        if self.reject {
            return LevelKind::Reject;
        }
        let (queues, hand_size) = self.queues.map_or((queues, hand_size), |n| (n, self.hand_size.unwrap_or(1)));
        LevelKind::Queue(Queuing { queues, hand_size, queue_length_limit: self.queue_length.unwrap_or(u32::MAX) })
    }
}

pub(super) fn level(spec: &LevelSpec, kind: LevelKind) -> Level {
    Level {
        name: spec.name.as_str().into(),
        kind,
        shares: spec.shares,
        lendable_percent: spec.lendable,
        borrowing_limit_percent: spec.borrow,
    }
}

pub(super) fn levels(scenario: &Scenario) -> Result<Vec<LevelSpec>, ScenarioError> {
    let single = || vec![LevelSpec::named("all", 1)];
    let mut with = scenario.workspaces.iter().filter(|w| !w.levels.is_empty());
    let Some(first) = with.next() else { return Ok(single()) };
    match with.find(|other| other.levels != first.levels) {
        Some(other) => Err(ScenarioError::Levels(other.name.clone())),
        None => Ok(first.levels.clone()),
    }
}

pub(super) fn weight(class: WorkspaceClass) -> f64 {
    match class {
        WorkspaceClass::Shares { shares, .. } => shares.into(),
        WorkspaceClass::Seats { seats, .. } => seats.into(),
    }
}

/// The tenants, and the names of the groups they are in.
pub(super) fn tenants(scenario: &Scenario) -> Result<(Vec<Tenant>, Vec<String>), ScenarioError> {
    let groups: Vec<(String, Vec<String>)> = if scenario.groups.is_empty() {
        scenario.workspaces.iter().map(|w| (w.name.clone(), vec![w.name.clone()])).collect()
    } else {
        scenario.groups.clone().into_iter().collect()
    };
    let mut all = Vec::new();
    for spec in &scenario.workspaces {
        let class = match (spec.weight, spec.seats) {
            (Some(shares), None) => WorkspaceClass::Shares { shares, borrowing_limit_percent: spec.borrow },
            (None, Some(seats)) => WorkspaceClass::Seats {
                seats,
                lendable_percent: spec.lendable.unwrap_or(100),
                borrowing_limit_percent: spec.borrow,
            },
            _ => return Err(ScenarioError::Quota(spec.name.clone())),
        };
        // By prefix, so that groups may overlap.
        let begins = |names: &[String]| names.iter().any(|n| spec.name.starts_with(n.as_str()));
        let of: Vec<usize> = (0..).zip(&groups).filter(|(_, (_, names))| begins(names)).map(|(at, _)| at).collect();
        for copy in 0..spec.count.max(1) {
            let name = if spec.count > 1 { format!("{}{copy}", spec.name) } else { spec.name.clone() };
            all.push(Tenant { name, class, groups: of.clone() });
        }
    }
    Ok((all, groups.into_iter().map(|(name, _)| name).collect()))
}

pub(super) fn streams(
    scenario: &Scenario,
    tenants: &[Tenant],
    levels: &[LevelSpec],
) -> Result<Vec<Stream>, ScenarioError> {
    let (mut all, mut first_queue) = (Vec::new(), 0);
    for (index, source) in (0..).zip(&scenario.sources) {
        let unknown = |place, name: &str| ScenarioError::Unknown { place, name: name.to_owned() };
        let level = match &source.level {
            _ if source.exempt => levels.len(),
            None => 0,
            Some(name) => {
                levels.iter().position(|l| l.name == *name).ok_or_else(|| unknown("a source's level", name))?
            }
        };
        let (first_flow, flow_step) = match levels.get(level) {
            Some(LevelSpec { queues: Some(_), .. }) => {
                let own = || flow_hash("source", &[&index.to_string()]);
                (source.flow.unwrap_or_else(own), FLOW_STEP)
            }
            // Each source has queues of its own.
            _ => (u64::from(first_queue), 1),
        };
        let entry = scenario.workspaces.iter().find(|w| w.name == source.workspace && w.count > 1);
        let is_for = |tenant: &Tenant| match entry {
            Some(entry) => tenant.name.strip_prefix(entry.name.as_str()).is_some_and(|n| n.parse::<u32>().is_ok()),
            None => tenant.name == source.workspace,
        };
        let before = all.len();
        for (at, tenant) in (0..).zip(tenants) {
            if is_for(tenant) {
                all.push(Stream { source: index, tenant: at, level: level as u32, first_flow, flow_step });
            }
        }
        first_queue += source.flows.max(1);
        if all.len() == before {
            return Err(unknown("a source's workspace", &source.workspace));
        }
    }
    Ok(all)
}
