//! From objects to a [`Profile`]: what is broken or dangling is left out and reported, what is mandatory is
//! supplied (apf.md 2.4, 2.5 and 3.2).

use std::collections::BTreeMap;

use super::{
    CATCH_ALL, Condition, EXEMPT, Flow, FlowSchema, Identity, Profile,
    matching::{PathRule, Paths, ResourceRule, Rule, Subjects, Verbs, Words},
};
use crate::{Level, LevelKind, Queuing, shuffle};

/// Objects of one kind that a profile takes: their indices must fit in 16 bits, two names are supplied.
const OBJECTS_MAX: usize = 10_000;

/// One FlowSchema before its level is looked up.
#[derive(Debug)]
pub(super) struct Schema {
    pub(super) name: Box<str>,
    pub(super) precedence: i32,
    pub(super) level: Box<str>,
    pub(super) distinguisher: Distinguisher,
    pub(super) rules: Box<[Rule]>,
    pub(super) id: Identity,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Distinguisher {
    None,
    User,
    Namespace,
}

/// Makes the profile of levels and schemas that are well formed.
pub(super) fn assemble(levels: Vec<(Level, Identity)>, schemas: Vec<Schema>, mut problems: Vec<String>) -> Profile {
    let mut levels = by_name(levels, |(level, _)| level.name.clone(), "PriorityLevelConfiguration", &mut problems);
    let schemas = by_name(schemas, |schema| schema.name.clone(), "FlowSchema", &mut problems);
    let conditions: Box<[Condition]> = schemas
        .values()
        .map(|schema| Condition {
            flow_schema: schema.name.clone(),
            level: schema.level.clone(),
            dangling: !levels.contains_key(&schema.level),
        })
        .collect();
    let mut schemas: Vec<Schema> = schemas.into_values().filter(|s| levels.contains_key(&s.level)).collect();
    // The sort is stable and they come sorted by name, which therefore breaks ties.
    schemas.sort_by_key(|schema| schema.precedence);

    for (name, kind, shares) in [(EXEMPT, LevelKind::Exempt, 0), (CATCH_ALL, LevelKind::Reject, 5)] {
        levels.entry(name.into()).or_insert_with(|| (mandatory_level(name, kind, shares), Identity::default()));
    }
    if !schemas.iter().any(|schema| &*schema.name == EXEMPT) {
        schemas.insert(0, mandatory_schema(EXEMPT, Distinguisher::None, &["system:masters"]));
    }
    if !schemas.iter().any(|schema| &*schema.name == CATCH_ALL) {
        let everybody = &["system:unauthenticated", "system:authenticated"];
        schemas.push(mandatory_schema(CATCH_ALL, Distinguisher::User, everybody));
    }

    let (levels, level_ids): (Vec<Level>, Vec<Identity>) = levels.into_values().unzip();
    let catch_all = schemas.iter().position(|schema| &*schema.name == CATCH_ALL).unwrap_or_default() as u16;
    let (flow_schemas, flow_schema_ids): (Vec<FlowSchema>, Vec<Identity>) =
        schemas.into_iter().map(|schema| link(schema, &levels)).unzip();
    Profile {
        levels: levels.into(),
        level_ids: level_ids.into(),
        flow_schemas: flow_schemas.into(),
        flow_schema_ids: flow_schema_ids.into(),
        catch_all,
        conditions,
        problems: problems.into(),
    }
}

/// Sorts by name. Of two objects with one name the later counts; beyond the limit none does.
fn by_name<T>(
    objects: Vec<T>,
    name: impl Fn(&T) -> Box<str>,
    kind: &str,
    problems: &mut Vec<String>,
) -> BTreeMap<Box<str>, T> {
    let mut map = BTreeMap::new();
    for object in objects {
        let name = name(&object);
        if map.len() >= OBJECTS_MAX && !map.contains_key(&name) {
            problems.push(format!("{kind} {name:?} takes no part: there are more than {OBJECTS_MAX}"));
        } else if map.insert(name.clone(), object).is_some() {
            problems.push(format!("{kind} {name:?} is given twice: the last one counts"));
        }
    }
    map
}

fn link(schema: Schema, levels: &[Level]) -> (FlowSchema, Identity) {
    let level = levels.binary_search_by(|level| level.name.cmp(&schema.level)).unwrap_or_default();
    let hashes = matches!(levels.get(level).map(|l| l.kind), Some(LevelKind::Queue(q)) if q.queues > 1);
    let flow = match schema.distinguisher {
        _ if !hashes => Flow::Fixed(0),
        Distinguisher::None => Flow::Fixed(shuffle::flow_hash(&schema.name, &[])),
        Distinguisher::User => Flow::ByUser,
        Distinguisher::Namespace => Flow::ByNamespace,
    };
    (FlowSchema { name: schema.name, level: level as u16, flow, rules: schema.rules }, schema.id)
}

fn mandatory_level(name: &str, kind: LevelKind, shares: u32) -> Level {
    Level { name: name.into(), kind, shares, lendable_percent: 0, borrowing_limit_percent: None }
}

/// A FlowSchema for everything that these groups do.
fn mandatory_schema(name: &str, distinguisher: Distinguisher, groups: &[&str]) -> Schema {
    let everything = Rule {
        subjects: Subjects {
            groups: super::matching::sorted(groups.iter().map(|&group| group.into()).collect()),
            ..Subjects::default()
        },
        resource_rules: Box::new([ResourceRule {
            verbs: Verbs::new(&["*"]),
            api_groups: Words::Any,
            resources: Words::Any,
            cluster_scope: true,
            namespaces: Words::Any,
        }]),
        path_rules: Box::new([PathRule { verbs: Verbs::new(&["*"]), paths: Paths::new(&["*"]) }]),
    };
    // The precedence plays no part any more: they are put first and last.
    Schema {
        name: name.into(),
        precedence: 0,
        level: name.into(),
        distinguisher,
        rules: Box::new([everything]),
        id: Identity::default(),
    }
}

impl Profile {
    /// The mandatory and suggested objects of Kubernetes (apf.md 2.6).
    pub fn bootstrap() -> Self {
        let queue = |queues, hand_size| LevelKind::Queue(Queuing { queues, hand_size, queue_length_limit: 50 });
        let level = |(name, shares, lendable_percent, kind): (&str, u32, u32, LevelKind)| {
            (Level { lendable_percent, ..mandatory_level(name, kind, shares) }, Identity::default())
        };
        let levels = [
            ("system", 30, 33, queue(64, 6)),
            ("node-high", 40, 25, queue(64, 6)),
            ("leader-election", 10, 0, queue(16, 4)),
            ("workload-high", 40, 50, queue(128, 6)),
            ("workload-low", 100, 90, queue(128, 6)),
            ("global-default", 20, 50, queue(128, 6)),
        ];
        let by_group = |name: &str, precedence, level: &str, distinguisher, groups: &[&str]| Schema {
            precedence,
            level: level.into(),
            ..mandatory_schema(name, distinguisher, groups)
        };
        let everybody = &["system:unauthenticated", "system:authenticated"];
        let schemas = vec![
            by_group("system-nodes", 500, "system", Distinguisher::User, &["system:nodes"]),
            by_group("service-accounts", 9000, "workload-low", Distinguisher::User, &["system:serviceaccounts"]),
            by_group("global-default", 9900, "global-default", Distinguisher::User, everybody),
        ];
        assemble(levels.into_iter().map(level).collect(), schemas, Vec::new())
    }
}
