//! Workload files: scenarios as people write them, checked, with what a fairness file adds.

use std::{collections::HashSet, path::Path};

use config::{ConfigError, FairnessConfig, Faults, File, Weight};

use super::{Change, Distribution, LevelSpec, Scenario, Source, Workspace, classify::classify};
use crate::{LevelKind, Profile, profile::EXEMPT, shuffle};

/// Longest run: a week.
const MAX_S: f64 = 604_800.0;
const MAX_SEATS: u32 = 1_000_000;
const MAX_WORKSPACES: u32 = 100_000;
/// Clients of one source, queues of one source, requests of one burst.
const MAX_PER_SOURCE: u32 = 100_000;
/// Requests a second of one source and workspace.
const MAX_RATE: f64 = 1e6;

impl Scenario {
    /// Reads and checks a workload file: YAML or JSON, the scenario itself or under the key `scenario`.
    ///
    /// With a fairness file, workspaces that say nothing of their own have the quota of the class that matches
    /// their name as a path (without class: 30 shares) and the levels of the file. Its FlowSchemas find the
    /// level and the flow of sources with a request; without a file the bootstrap objects do.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(path: &Path, fairness: Option<&FairnessConfig>) -> Result<Self, ConfigError> {
        Self::read(File::load(path)?, fairness)
    }

    /// Checks a text as the content of the file at `path`, which is not read.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &str, path: &Path, fairness: Option<&FairnessConfig>) -> Result<Self, ConfigError> {
        Self::read(File::parse(text, path)?, fairness)
    }

    fn read(file: File, fairness: Option<&FairnessConfig>) -> Result<Self, ConfigError> {
        file.within("scenario").read(|mut scenario: Self, faults| {
            let profile = match fairness {
                Some(file) => Some(Profile::compile(&file.flow_schemas, &file.priority_levels)),
                None => scenario.sources.iter().any(|s| s.request.is_some()).then(Profile::bootstrap),
            };
            if let Some(profile) = &profile {
                scenario.take_levels(profile);
                classify(&mut scenario, profile, faults);
            }
            if let Some(fairness) = fairness {
                scenario.take_classes(fairness);
            }
            check(&mut scenario, faults);
            scenario
        })
    }

    /// The levels of the profile, unless the workspaces have their own.
    fn take_levels(&mut self, profile: &Profile) {
        if self.workspaces.iter().any(|w| !w.levels.is_empty()) {
            return;
        }
        let of_profile = profile.levels().iter().filter(|level| level.kind != LevelKind::Exempt);
        let levels: Vec<LevelSpec> = of_profile
            .map(|level| {
                let queuing = match level.kind {
                    LevelKind::Queue(queuing) => Some(queuing),
                    LevelKind::Reject | LevelKind::Exempt => None,
                };
                LevelSpec {
                    name: level.name.to_string(),
                    shares: level.shares,
                    lendable: level.lendable_percent,
                    borrow: level.borrowing_limit_percent,
                    queues: queuing.map(|q| q.queues),
                    hand_size: queuing.map(|q| q.hand_size),
                    queue_length: queuing.map(|q| q.queue_length_limit),
                    reject: level.kind == LevelKind::Reject,
                }
            })
            .collect();
        self.workspaces.iter_mut().for_each(|workspace| workspace.levels.clone_from(&levels));
    }

    /// The quotas of classes, for workspaces that have none of their own.
    fn take_classes(&mut self, fairness: &FairnessConfig) {
        for workspace in &mut self.workspaces {
            if workspace.weight.is_some() || workspace.seats.is_some() {
                continue;
            }
            let labels = std::collections::BTreeMap::new();
            match fairness.classes.iter().find(|class| class.matches(&workspace.name, &labels)) {
                Some(class) => {
                    workspace.borrow = workspace.borrow.or(class.borrowing_limit_percent);
                    match class.weight {
                        Weight::Shares(shares) => workspace.weight = Some(shares),
                        Weight::Seats(seats) => {
                            workspace.seats = Some(seats);
                            workspace.lendable = workspace.lendable.or(Some(class.lendable_percent));
                        }
                    }
                }
                None => workspace.weight = Some(30),
            }
        }
    }

    /// Whether a workspace, or one of several alike, has this name.
    fn has(&self, name: &str) -> bool {
        self.workspaces.iter().any(|w| match name.strip_prefix(w.name.as_str()) {
            Some("") => w.count <= 1,
            Some(number) => w.count > 1 && number.parse().is_ok_and(|n: u32| n < w.count),
            None => false,
        })
    }
}

fn check(scenario: &mut Scenario, faults: &mut Faults<'_>) {
    for source in scenario.sources.iter_mut().filter(|s| s.level.as_deref() == Some(EXEMPT)) {
        (source.exempt, source.level) = (true, None);
    }
    let scenario = &*scenario;
    seats(faults, "seats", scenario.seats);
    let end = scenario.end_s;
    if !(end > 0.0 && end <= MAX_S) {
        faults.add("end_s", format!("is {end} or missing; want the seconds to play, above 0, at most {MAX_S}"));
    }
    if end > 0.0 && !(0.0..end).contains(&scenario.warmup_s) {
        faults.add("warmup_s", format!("is {}; want 0 to less than end_s ({end})", scenario.warmup_s));
    }
    if end > scenario.warmup_s && !(0.0..=end - scenario.warmup_s).contains(&scenario.window_s) {
        let rest = end - scenario.warmup_s;
        faults.add(
            "window_s",
            format!("is {}; want at most what is left behind the warm-up ({rest})", scenario.window_s),
        );
    }
    workspaces(scenario, faults);
    if scenario.sources.is_empty() {
        faults.add("sources", "is missing or empty; want at least one source");
    }
    for (i, source) in scenario.sources.iter().enumerate() {
        check_source(scenario, source, &format!("sources[{i}]"), faults);
    }
    for (i, change) in scenario.changes.iter().enumerate() {
        check_change(scenario, change, &format!("changes[{i}]"), faults);
    }
    let begins = |prefix: &String| scenario.workspaces.iter().any(|w| w.name.starts_with(prefix.as_str()));
    let prefixes = scenario.groups.iter().map(|(name, list)| (format!("groups.{name}"), list));
    for (field, list) in prefixes.chain([("backlogged".to_owned(), &scenario.backlogged)]) {
        for (i, prefix) in list.iter().enumerate().filter(|(_, prefix)| !begins(prefix)) {
            faults.add(
                format!("{field}[{i}]"),
                format!("is {prefix:?}, with which no workspace's name begins; {}", known(scenario)),
            );
        }
    }
    if let Some(reach) = &scenario.reach {
        if !scenario.has(&reach.workspace) {
            faults.add("reach.workspace", format!("is {:?}, which is not there; {}", reach.workspace, known(scenario)));
        }
        if !(0.0..end).contains(&reach.from_s) || reach.hold_s < 0.01 {
            faults.add("reach", format!("is impossible; want from_s within end_s ({end}) and hold_s of at least 0.01"));
        }
    }
}

fn seats(faults: &mut Faults<'_>, field: &str, seats: u32) {
    if !(1..=MAX_SEATS).contains(&seats) {
        faults.add(field, format!("is {seats} or missing; want 1 to {MAX_SEATS}"));
    }
}

/// What a name may be.
fn known(scenario: &Scenario) -> String {
    let names: Vec<&str> = scenario.workspaces.iter().map(|w| w.name.as_str()).take(10).collect();
    format!("want one of {}", names.join(", "))
}

fn workspaces(scenario: &Scenario, faults: &mut Faults<'_>) {
    if scenario.workspaces.is_empty() {
        faults.add("workspaces", "is missing or empty; want at least one workspace");
    }
    let count: u32 = scenario.workspaces.iter().map(|w| w.count.max(1)).fold(0, u32::saturating_add);
    if count > MAX_WORKSPACES {
        faults.add("workspaces", format!("are {count}; want at most {MAX_WORKSPACES}"));
    }
    let mut names = HashSet::new();
    let first = scenario.workspaces.iter().find(|w| !w.levels.is_empty());
    for (i, workspace) in scenario.workspaces.iter().enumerate() {
        let field = format!("workspaces[{i}]");
        if workspace.name.is_empty() || !names.insert(&workspace.name) {
            let name = &workspace.name;
            faults
                .add(format!("{field}.name"), format!("is {name:?}, which is empty or taken; want a name of its own"));
        }
        if workspace.count == 0 {
            faults.add(format!("{field}.count"), "is 0; want at least 1");
        }
        quota(workspace, &field, faults);
        let own = |first: &&Workspace| !workspace.levels.is_empty() && workspace.levels != first.levels;
        if let Some(first) = first.filter(own) {
            let message =
                format!("are others than those of {:?}; all workspaces must have the same levels", first.name);
            faults.add(format!("{field}.levels"), message);
        }
        check_levels(&workspace.levels, &field, faults);
    }
}

fn quota(workspace: &Workspace, field: &str, faults: &mut Faults<'_>) {
    match (workspace.weight, workspace.seats) {
        (Some(weight), None) => seats(faults, &format!("{field}.weight"), weight),
        (None, Some(own)) => seats(faults, &format!("{field}.seats"), own),
        _ => faults.add(field, "has neither or both of weight and seats; want one of them, or a fairness file"),
    }
    match workspace.lendable {
        Some(_) if workspace.weight.is_some() => {
            faults
                .add(format!("{field}.lendable"), "goes with seats only: a weight reserves nothing; want no such key");
        }
        Some(percent) if percent > 100 => {
            faults.add(format!("{field}.lendable"), format!("is {percent}; want per cent, 0 to 100"));
        }
        _ => {}
    }
}

fn check_levels(levels: &[LevelSpec], field: &str, faults: &mut Faults<'_>) {
    let mut names = HashSet::new();
    for (i, level) in levels.iter().enumerate() {
        let field = format!("{field}.levels[{i}]");
        if level.name.is_empty() || level.name == EXEMPT || !names.insert(&level.name) {
            let message = format!("is {:?}, which is empty, taken or {EXEMPT}; want a name of its own", level.name);
            faults.add(format!("{field}.name"), message);
        }
        if level.lendable > 100 {
            faults.add(format!("{field}.lendable"), format!("is {}; want per cent, 0 to 100", level.lendable));
        }
        if level.queue_length == Some(0) {
            faults.add(format!("{field}.queue_length"), "is 0; want at least 1, or reject: true");
        }
        let hand = level.hand_size.unwrap_or(1);
        match level.queues {
            None if level.hand_size.is_some() => {
                faults.add(format!("{field}.hand_size"), "goes with queues only; want both, or neither");
            }
            Some(queues) if queues > MAX_PER_SOURCE => {
                faults.add(format!("{field}.queues"), format!("is {queues}; want 1 to {MAX_PER_SOURCE}"));
            }
            Some(queues) => {
                if let Err(error) = shuffle::check(queues, hand) {
                    faults.add(format!("{field}.queues"), format!("and hand_size are {queues} and {hand}: {error}"));
                }
            }
            None => {}
        }
    }
}

fn check_source(scenario: &Scenario, source: &Source, field: &str, faults: &mut Faults<'_>) {
    let whole = scenario.workspaces.iter().any(|w| w.name == source.workspace);
    if !whole && !scenario.has(&source.workspace) {
        faults.add(
            format!("{field}.workspace"),
            format!("is {:?}, which is not there; {}", source.workspace, known(scenario)),
        );
    }
    let levels = scenario.workspaces.iter().find(|w| !w.levels.is_empty()).map_or(&[][..], |w| &w.levels);
    let names: Vec<&str> = levels.iter().map(|l| l.name.as_str()).chain([EXEMPT]).collect();
    match &source.level {
        Some(level) if !(names.contains(&level.as_str()) || levels.is_empty() && level == "all") => {
            let want = names.join(", ");
            faults.add(format!("{field}.level"), format!("is {level:?}, which is not there; want one of {want}"));
        }
        None if levels.len() > 1 && !source.exempt && source.request.is_none() => {
            let want = names.join(", ");
            faults.add(format!("{field}.level"), format!("is missing, and so is request; want one of {want}"));
        }
        _ => {}
    }
    let ways = [source.clients > 0, source.rate != 0.0, source.burst > 0];
    if ways.iter().filter(|way| **way).count() != 1 {
        faults.add(field, "sends in no way or in several; want one of clients, rate, or burst with burst_every_s");
    }
    let positive = |value: f64| (1e-6..=MAX_S).contains(&value);
    if source.burst > 0 && !positive(source.burst_every_s) {
        faults.add(format!("{field}.burst_every_s"), "is missing or impossible; want seconds, at least 0.000001");
    }
    if source.rate != 0.0 && !(source.rate > 0.0 && source.rate <= MAX_RATE) {
        faults.add(format!("{field}.rate"), format!("is {}; want requests a second, at most {MAX_RATE}", source.rate));
    }
    for (key, value) in [("clients", source.clients), ("burst", source.burst), ("flows", source.flows)] {
        if value > MAX_PER_SOURCE || (key == "flows" && value == 0) {
            faults.add(format!("{field}.{key}"), format!("is {value}; want 1 to {MAX_PER_SOURCE}"));
        }
    }
    if !(0.0..=MAX_S).contains(&source.think_s) {
        faults.add(format!("{field}.think_s"), format!("is {}; want seconds from 0", source.think_s));
    }
    for (key, value) in [("wait_limit_s", Some(source.wait_limit_s)), ("give_up_s", source.give_up_s)] {
        if let Some(value) = value.filter(|value| !positive(*value)) {
            faults.add(format!("{field}.{key}"), format!("is {value}; want seconds, at least 0.000001"));
        }
    }
    for (key, distribution, least) in
        [("service_s", source.service_s, 0.0), ("tail_s", source.tail_s, 0.0), ("width", source.width, 1.0)]
    {
        check_distribution(distribution, least, &format!("{field}.{key}"), faults);
    }
    if source.clients > 0 && mean(source.service_s) + source.think_s < 1e-6 {
        faults.add(
            format!("{field}.service_s"),
            "is none, as is think_s: time would never pass; want a mean of 0.000001 s together at least",
        );
    }
    for (i, (from, to)) in source.on_s.iter().enumerate() {
        if !(*from >= 0.0 && from < to && *to <= MAX_S) {
            let message = format!("is [{from}, {to}]; want from and to in seconds, from 0 and from before to");
            faults.add(format!("{field}.on_s[{i}]"), message);
        }
    }
}

/// The mean; the least value where there is a heavy tail.
fn mean(distribution: Distribution) -> f64 {
    match distribution {
        Distribution::Const { v } => v,
        Distribution::Exp { mean } => mean,
        Distribution::Pareto { min, .. } => min,
        Distribution::Two { a, b, p_b } => a * (1.0 - p_b) + b * p_b,
        Distribution::Unknown => f64::INFINITY,
    }
}

fn check_distribution(distribution: Distribution, least: f64, field: &str, faults: &mut Faults<'_>) {
    let fits = |value: f64| (least..=1e6).contains(&value);
    let fine = match distribution {
        Distribution::Const { v } => fits(v),
        Distribution::Exp { mean } => mean > 0.0 && mean <= 1e6,
        Distribution::Pareto { min, alpha, max } => min > 0.0 && fits(min) && fits(max) && min <= max && alpha > 0.0,
        Distribution::Two { a, b, p_b } => fits(a) && fits(b) && (0.0..=1.0).contains(&p_b),
        Distribution::Unknown => false,
    };
    if !fine {
        let want = "want {dist: const, v: V}, {dist: exp, mean: M}, {dist: pareto, min: A, alpha: K, max: B} or {dist: two, a: A, b: B, p_b: P}";
        faults.add(field, format!("is missing or no distribution; {want}, of values from {least}"));
    }
}

fn check_change(scenario: &Scenario, change: &Change, field: &str, faults: &mut Faults<'_>) {
    if !(0.0..=scenario.end_s).contains(&change.at_s) {
        faults.add(format!("{field}.at_s"), format!("is {}; want 0 to end_s ({})", change.at_s, scenario.end_s));
    }
    if change.every_s.is_some_and(|every| !(0.001..=MAX_S).contains(&every)) {
        faults.add(format!("{field}.every_s"), "is impossible; want seconds, at least 0.001");
    }
    if let Some(new) = change.shard_seats {
        seats(faults, &format!("{field}.shard_seats"), new);
    }
    let of_workspace = change.weight.is_some() || change.seats.is_some();
    if of_workspace != change.workspace.is_some() || !(of_workspace || change.shard_seats.is_some()) {
        faults.add(field, "changes nothing; want shard_seats, or workspace with weight or seats");
    }
    let Some(name) = &change.workspace else { return };
    if !scenario.has(name) {
        faults.add(format!("{field}.workspace"), format!("is {name:?}, which is not there; {}", known(scenario)));
    }
    let is =
        |w: &&Workspace| name.strip_prefix(w.name.as_str()).is_some_and(|n| n.is_empty() || n.parse::<u32>().is_ok());
    let weighted = scenario.workspaces.iter().find(is).is_some_and(|w| w.weight.is_some());
    if (weighted && change.seats.is_some()) || (!weighted && change.weight.is_some()) {
        let (has, key) = if weighted { ("a weight", "weight") } else { ("seats", "seats") };
        faults.add(field, format!("is not of the kind of {name:?}, which has {has}; want {key}"));
    }
    for (key, value) in [("weight", change.weight), ("seats", change.seats)] {
        if let Some(value) = value {
            seats(faults, &format!("{field}.{key}"), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(text: &str) -> String {
        Scenario::parse(text, Path::new("w.yaml"), None).unwrap_err().to_string()
    }

    #[test]
    fn time_must_pass() {
        let text = "seats: 1\nend_s: 9\nworkspaces: [{name: a, weight: 1}]\nsources: [{workspace: a, clients: 1, service_s: {dist: const, v: 0}}]\n";
        assert!(faults(text).contains("sources[0].service_s: is none, as is think_s"), "{}", faults(text));
    }

    #[test]
    fn every_fault_has_its_place() {
        let text = "seats: 4\nend_s: 10\nwarmup_s: 12\nworkspaces:\n- {name: a, weight: 1}\n- {name: a, wieght: 2}\nsources:\n- {workspace: b, clients: 1, service_s: {dist: exp, v: 1}}\n- workspace: a\n  service_s: {dist: const, v: 1}\n  on_s: [[3, 2]]\nchanges:\n- {at_s: 11, workspace: a, seats: 3}\n";
        let found = faults(text);
        let starts = [
            "w.yaml:3:11: warmup_s: is 12; want 0 to less than end_s (10)",
            "w.yaml:6:3: workspaces[1]: has neither or both of weight and seats",
            "w.yaml:6:10: workspaces[1].name: is \"a\", which is empty or taken",
            "w.yaml:6:13: workspaces[1].wieght: is no known key; want weight, perhaps",
            "w.yaml:8:15: sources[0].workspace: is \"b\", which is not there; want one of a",
            "w.yaml:8:41: sources[0].service_s: is missing or no distribution; want {dist: const, v: V}",
            "w.yaml:9:3: sources[1]: sends in no way or in several",
            "w.yaml:13:10: changes[0].at_s: is 11; want 0 to end_s (10)",
        ];
        for start in starts {
            assert!(found.lines().any(|line| line.starts_with(start)), "{start}\nis not in\n{found}");
        }
    }

    #[test]
    fn a_fairness_file_gives_levels_and_classes() {
        let class = "apiVersion: fairgate.dev/v1alpha1\nkind: WorkspaceClass\nmetadata: {name: gold}\nspec: {match: {paths: [\"root:acme:*\"]}, seats: 7, lendablePercent: 50}\n";
        let fairness = FairnessConfig::parse(class, Path::new("f.yaml")).unwrap();
        let text = "seats: 100\nend_s: 1\nworkspaces: [{name: \"root:acme:x\"}, {name: y}]\nsources: [{workspace: y, level: workload-low, clients: 1, service_s: {dist: const, v: 1}}]\n";
        let scenario = Scenario::parse(text, Path::new("w.yaml"), Some(&fairness)).unwrap();
        let quotas: Vec<_> = scenario.workspaces.iter().map(|w| (w.weight, w.seats, w.lendable)).collect();
        assert_eq!(quotas, [(None, Some(7), Some(50)), (Some(30), None, None)]);
        let levels = &scenario.workspaces[1].levels;
        assert!(levels.iter().any(|l| l.name == "catch-all" && l.reject), "{levels:?}");
        assert!(levels.iter().any(|l| l.name == "workload-low" && l.queue_length == Some(50)), "{levels:?}");
    }
}
