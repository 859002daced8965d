//! From objects to a [`Profile`]: what is broken or dangling is left out and reported, what is mandatory is
//! supplied (apf.md 2.4, 2.5 and 3.2).

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
};

use apiserver_api::flowcontrol::{
    FlowSchema as SchemaObject, ObjectMeta, PolicyRules, PriorityLevelConfiguration as LevelObject,
    PriorityLevelConfigurationSpec, Subject, bootstrap,
};

use super::{
    CATCH_ALL, Condition, EXEMPT, Flow, FlowSchema, Identity, Profile,
    matching::{PathRule, Paths, ResourceRule, Rule, Subjects, Verbs, Words, sorted},
};
use crate::{Level, LevelKind, Queuing, shuffle};

/// Objects of one kind that a profile takes: their indices, two supplied ones included, must fit in 16 bits.
const OBJECTS_MAX: usize = 10_000;
/// Shares of a level that does not say.
const DEFAULT_SHARES: i32 = 30;

/// Profiles made by this process so far.
static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);

impl Profile {
    /// The mandatory and suggested objects of Kubernetes (apf.md 2.6).
    pub fn bootstrap() -> Self {
        Self::compile(&bootstrap::flow_schemas(), &bootstrap::priority_levels())
    }

    /// Compiles objects that have been defaulted and validated. Those that validation would have refused
    /// take no part, and are named in [`Profile::problems`].
    ///
    /// The objects are the operator's: this does not keep anybody from being exempt.
    pub fn compile(schemas: &[SchemaObject], levels: &[LevelObject]) -> Self {
        let mut problems = Vec::new();
        let schemas = by_name(schemas, |schema| &schema.metadata, "FlowSchema", &mut problems);
        let mut levels: BTreeMap<&str, (Level, Identity)> =
            by_name(levels, |level| &level.metadata, "PriorityLevelConfiguration", &mut problems)
                .into_iter()
                .filter_map(|(name, object)| match level(object) {
                    Ok(level) => Some((name, (level, Identity::new(&object.metadata)))),
                    Err(why) => {
                        problems.push(format!("PriorityLevelConfiguration {name:?} takes no part: {why}"));
                        None
                    }
                })
                .collect();
        let conditions = schemas.values().map(|object| condition(object, &levels)).collect();
        let mut order: Vec<&SchemaObject> =
            schemas.into_values().filter(|object| levels.contains_key(level_name(object))).collect();
        // The sort is stable and they come sorted by name, which therefore breaks ties.
        order.sort_by_key(|object| object.spec.matching_precedence);

        let (mandatory_levels, mandatory_schemas) = mandatory();
        for object in &mandatory_levels {
            let supplied = || level(object).ok().map(|level| (level, Identity::new(&object.metadata)));
            if !levels.contains_key(&*object.metadata.name) {
                levels.extend(supplied().map(|level| (&*object.metadata.name, level)));
            }
        }
        for object in &mandatory_schemas {
            let name = &object.metadata.name;
            if !order.iter().any(|present| present.metadata.name == *name) {
                order.insert(if name == EXEMPT { 0 } else { order.len() }, object);
            }
        }
        let (levels, level_ids): (Vec<Level>, Vec<Identity>) = levels.into_values().unzip();
        Self {
            flow_schemas: order.iter().map(|object| link(object, &levels)).collect(),
            flow_schema_ids: order.iter().map(|object| Identity::new(&object.metadata)).collect(),
            catch_all: order.iter().position(|object| object.metadata.name == CATCH_ALL).unwrap_or_default() as u16,
            levels: levels.into(),
            level_ids: level_ids.into(),
            conditions,
            problems: problems.into(),
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Identity {
    fn new(metadata: &ObjectMeta) -> Self {
        // Anything but the text of a UUID would not fit the header.
        let uid = metadata.uid.as_bytes().try_into().ok();
        Self { uid, generation: metadata.generation }
    }
}

/// The built-in levels and FlowSchemas that a profile cannot do without.
fn mandatory() -> (Vec<LevelObject>, Vec<SchemaObject>) {
    let (mut levels, mut schemas) = (bootstrap::priority_levels(), bootstrap::flow_schemas());
    let mandatory = |metadata: &ObjectMeta| metadata.name == EXEMPT || metadata.name == CATCH_ALL;
    levels.retain(|level| mandatory(&level.metadata));
    schemas.retain(|schema| mandatory(&schema.metadata));
    (levels, schemas)
}

/// Sorts by name. Of two objects with one name the later counts; beyond the limit none does.
fn by_name<'a, T>(
    objects: &'a [T],
    metadata: fn(&T) -> &ObjectMeta,
    kind: &str,
    problems: &mut Vec<String>,
) -> BTreeMap<&'a str, &'a T> {
    let mut map = BTreeMap::new();
    for object in objects {
        let name = &*metadata(object).name;
        if map.len() >= OBJECTS_MAX && !map.contains_key(name) {
            problems.push(format!("{kind} {name:?} takes no part: there are more than {OBJECTS_MAX}"));
        } else if map.insert(name, object).is_some() {
            problems.push(format!("{kind} {name:?} is given twice: the last one counts"));
        }
    }
    map
}

fn level_name(object: &SchemaObject) -> &str {
    &object.spec.priority_level_configuration.name
}

fn condition(object: &SchemaObject, levels: &BTreeMap<&str, (Level, Identity)>) -> Condition {
    Condition {
        flow_schema: (*object.metadata.name).into(),
        level: level_name(object).into(),
        dangling: !levels.contains_key(level_name(object)),
    }
}

/// A level, or what is wrong with the object: the checks that Kubernetes' controller makes before use.
fn level(object: &LevelObject) -> Result<Level, String> {
    let name = &*object.metadata.name;
    let spec = &object.spec;
    if (name == EXEMPT) != (spec.kind == "Exempt") {
        return Err(format!("spec.type is {:?}; it is Exempt for the level \"exempt\" and for no other", spec.kind));
    }
    let (kind, shares, lendable, borrowing) = match (&*spec.kind, &spec.limited, &spec.exempt) {
        ("Exempt", None, exempt) => {
            let exempt = exempt.clone().unwrap_or_default();
            (LevelKind::Exempt, exempt.nominal_concurrency_shares.unwrap_or(0), exempt.lendable_percent, None)
        }
        ("Limited", Some(limited), None) => (
            limited_kind(spec)?,
            limited.nominal_concurrency_shares.unwrap_or(DEFAULT_SHARES),
            limited.lendable_percent,
            limited.borrowing_limit_percent,
        ),
        _ => return Err(format!("spec.type is {:?}: want just the member spec.limited or spec.exempt", spec.kind)),
    };
    let lendable_percent = number("lendablePercent", lendable.unwrap_or(0))?;
    if lendable_percent > 100 {
        return Err(format!("lendablePercent is {lendable_percent}: want 0 to 100"));
    }
    Ok(Level {
        name: name.into(),
        kind,
        shares: number("nominalConcurrencyShares", shares)?,
        lendable_percent,
        borrowing_limit_percent: borrowing.map(|limit| number("borrowingLimitPercent", limit)).transpose()?,
    })
}

fn limited_kind(spec: &PriorityLevelConfigurationSpec) -> Result<LevelKind, String> {
    let response = spec.limited.as_ref().map(|limited| &limited.limit_response);
    let (kind, queuing) = response.map_or(("", None), |r| (&*r.kind, r.queuing.as_ref()));
    match (kind, queuing) {
        ("Reject", None) => Ok(LevelKind::Reject),
        ("Queue", Some(q)) => {
            let (queues, hand_size) = (number("queues", q.queues)?, number("handSize", q.hand_size)?);
            shuffle::check(queues, hand_size).map_err(|e| e.to_string())?;
            let queue_length_limit = number("queueLengthLimit", q.queue_length_limit)?.max(1);
            Ok(LevelKind::Queue(Queuing { queues, hand_size, queue_length_limit }))
        }
        _ => Err(format!("limitResponse.type is {kind:?}: want Reject without queuing or Queue with it")),
    }
}

fn number(field: &str, value: i32) -> Result<u32, String> {
    u32::try_from(value).map_err(|_| format!("{field} is {value}: want 0 or more"))
}

/// Compiles a FlowSchema whose level is among `levels`, which are sorted by name.
fn link(object: &SchemaObject, levels: &[Level]) -> FlowSchema {
    let name = &*object.metadata.name;
    let level = levels.binary_search_by(|level| (*level.name).cmp(level_name(object))).unwrap_or_default();
    let hashes = matches!(levels.get(level).map(|l| l.kind), Some(LevelKind::Queue(q)) if q.queues > 1);
    let flow = match object.spec.distinguisher_method.as_ref().map(|method| &*method.kind) {
        _ if !hashes => Flow::Unhashed,
        Some("ByUser") => Flow::ByUser,
        Some("ByNamespace") => Flow::ByNamespace,
        _ => Flow::Whole,
    };
    FlowSchema { name: name.into(), level: level as u16, flow, rules: rules(object) }
}

/// The rules of one object.
pub(super) fn rules(object: &SchemaObject) -> Box<[Rule]> {
    object.spec.rules.iter().map(rule).collect()
}

fn rule(rule: &PolicyRules) -> Rule {
    let resource_rule = |rule: &apiserver_api::flowcontrol::ResourceRule| ResourceRule {
        verbs: Verbs::new(&rule.verbs),
        api_groups: Words::new(&rule.api_groups),
        resources: Words::new(&rule.resources),
        cluster_scope: rule.cluster_scope,
        namespaces: Words::new(&rule.namespaces),
    };
    let path_rule = |rule: &apiserver_api::flowcontrol::NonResourceRule| PathRule {
        verbs: Verbs::new(&rule.verbs),
        paths: Paths::new(&rule.non_resource_urls),
    };
    Rule {
        subjects: subjects(&rule.subjects),
        resource_rules: rule.resource_rules.iter().map(resource_rule).collect(),
        path_rules: rule.non_resource_rules.iter().map(path_rule).collect(),
    }
}

/// A subject without the body of its kind, or of an unknown kind, is nobody.
fn subjects(list: &[Subject]) -> Subjects {
    let (mut users, mut groups, mut accounts, mut namespaces) = (vec![], vec![], vec![], vec![]);
    let mut anybody = false;
    for subject in list {
        match (&*subject.kind, &subject.user, &subject.group, &subject.service_account) {
            ("User", Some(named), ..) | ("Group", _, Some(named), _) if named.name == "*" => anybody = true,
            ("User", Some(user), ..) => users.push((*user.name).into()),
            ("Group", _, Some(group), _) => groups.push((*group.name).into()),
            ("ServiceAccount", _, _, Some(account)) if account.name == "*" => {
                namespaces.push(format!("{}:", account.namespace).into());
            }
            ("ServiceAccount", _, _, Some(account)) => {
                accounts.push(format!("{}:{}", account.namespace, account.name).into());
            }
            _ => {}
        }
    }
    Subjects {
        anybody,
        users: sorted(users),
        groups: sorted(groups),
        service_accounts: sorted(accounts),
        service_account_namespaces: sorted(namespaces),
    }
}
