use std::collections::BTreeMap;

use apiserver_api::flowcontrol::{FlowSchema as SchemaObject, PriorityLevelConfiguration as LevelObject};
use serde_json::Value;

use super::*;
use crate::{Compat, LevelKind, fair_alloc, levels, vectors};

fn workspace() -> ClusterName {
    "here".parse().unwrap()
}

fn text<'a>(of: &'a Value, field: &str) -> &'a str {
    of[field].as_str().unwrap_or_else(|| panic!("no text {field} in {of}"))
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().map(|list| list.iter().map(|name| name.as_str().unwrap()).collect()).unwrap_or_default()
}

fn parse<'a>(method: &str, uri: &'a str) -> RequestInfo<'a> {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    RequestInfo::parse(method, path, query).unwrap()
}

fn user(case: &Value) -> UserInfo {
    UserInfo::new(text(case, "user"), &names(&case["groups"]))
}

/// The objects of `rules.json`, by name. They are already defaulted.
fn objects<T: serde::de::DeserializeOwned>(of: &Value) -> BTreeMap<String, T> {
    let object = |(name, object): (&String, &Value)| (name.clone(), serde_json::from_value(object.clone()).unwrap());
    of.as_object().unwrap().iter().map(object).collect()
}

#[test]
fn configurations_compile_as_in_kubernetes() {
    let file = vectors::load("rules.json");
    let schemas = objects::<SchemaObject>(&file["flowSchemas"]);
    let levels = objects::<LevelObject>(&file["priorityLevels"]);
    let configs = file["configs"].as_array().unwrap();
    for config in configs {
        let profile = profile_of(config, &schemas, &levels);
        let order: Vec<&str> = profile.flow_schemas().iter().map(|schema| &*schema.name).collect();
        assert_eq!(order, names(&config["evaluationOrder"]), "{}", config["id"]);
        assert_eq!(profile.problems(), &[] as &[String]);
        let wanted = config["conditions"].as_array().map_or(&[][..], |list| list);
        assert_eq!(profile.conditions().len(), wanted.len());
        for (ours, want) in profile.conditions().iter().zip(wanted) {
            assert_eq!(*ours.flow_schema, *text(want, "flowSchema"));
            assert_eq!((ours.dangling, ours.reason()), (text(want, "status") == "True", text(want, "reason")));
            // The message is for people and in other words than upstream's: it must name the same level.
            assert!(text(want, "message").contains(&format!("{:?}", ours.level)), "{want}");
        }
    }
    assert_eq!(configs.len(), 15);
}

fn profile_of(
    config: &Value,
    schemas: &BTreeMap<String, SchemaObject>,
    levels: &BTreeMap<String, LevelObject>,
) -> Profile {
    let schemas: Vec<_> = names(&config["flowSchemas"]).into_iter().map(|name| schemas[name].clone()).collect();
    let levels: Vec<_> = names(&config["priorityLevels"]).into_iter().map(|name| levels[name].clone()).collect();
    Profile::compile(&schemas, &levels)
}

#[test]
fn requests_are_classified_as_in_kubernetes() {
    let file = vectors::load("rules.json");
    let schemas = objects::<SchemaObject>(&file["flowSchemas"]);
    let levels = objects::<LevelObject>(&file["priorityLevels"]);
    let configs: BTreeMap<&str, (&Value, Profile)> = file["configs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|config| (text(config, "id"), (config, profile_of(config, &schemas, &levels))))
        .collect();
    let cases = file["cases"].as_array().unwrap();
    for case in cases {
        let (config, profile) = &configs[text(case, "config")];
        let (user, info) = (user(case), parse(text(case, "method"), text(case, "uri")));
        let class = profile.classify(&workspace(), &user, &info);
        let level = &profile.levels()[usize::from(class.level)];
        assert_eq!(*profile.flow_schemas()[usize::from(class.flow_schema)].name, *text(case, "flowSchema"), "{case}");
        assert_eq!(*level.name, *text(case, "priorityLevel"), "{case}");
        assert_eq!(level.kind == LevelKind::Exempt, case["exempt"] == true, "{case}");
        assert_eq!(class.flow.to_string(), text(case, "hashValue"), "{case}");

        let who = Requester::new(&user, "here");
        let matching = |name: &&str| compile::rules(&schemas[*name]).iter().any(|rule| rule.matches(&who, &info));
        let mut ours: Vec<&str> = names(&config["flowSchemas"]).into_iter().filter(matching).collect();
        let mut want = names(&case["matchingFlowSchemas"]);
        ours.sort_unstable();
        want.sort_unstable();
        assert_eq!(ours, want, "{case}");
    }
    assert_eq!(cases.len(), 1408);
}

/// Every case of `concurrency_limits.json`, as upstream rounds.
#[test]
fn limits_are_those_of_kubernetes() {
    let cases = vectors::cases("concurrency_limits.json");
    for case in &cases {
        let objects: Vec<LevelObject> = case["priorityLevels"]
            .as_array()
            .unwrap()
            .iter()
            .map(|object| serde_json::from_value(object.clone()).unwrap())
            .collect();
        let profile = Profile::compile(&[], &objects);
        let seats = vectors::number(case, "serverConcurrencyLimit") as u32;
        let got = levels::limits(seats, profile.levels(), Compat::Upstream);
        let wanted = case["levels"].as_array().unwrap();
        assert_eq!(got.len(), wanted.len(), "{}", case["id"]);
        if case["wellDefined"] == false {
            // All shares are zero: upstream divides by zero. With us nobody owns anything and all may borrow.
            assert!(got.iter().all(|l| (l.nominal, l.max) == (0, seats)), "{}", case["id"]);
            continue;
        }
        let demand = |(level, &limits): (&Level, &levels::Limits)| fair_alloc::Demand {
            exempt: level.kind == LevelKind::Exempt,
            limits,
            high_watermark: 0,
            smoothed: 0.0,
        };
        let demands: Vec<_> = profile.levels().iter().zip(&got).map(demand).collect();
        let current = fair_alloc::current_limits(&demands).unwrap();
        let nominal: i64 = got.iter().map(|l| i64::from(l.nominal)).sum();
        assert_eq!(nominal, vectors::number(case, "nominalCLSum"), "{}", case["id"]);
        for (((level, got), current), want) in profile.levels().iter().zip(&got).zip(current).zip(wanted) {
            assert_eq!(*level.name, *text(want, "name"));
            let got = [got.nominal, got.lendable, got.min, got.borrowing, got.max, got.max_seats, current];
            let fields = ["nominalCL", "lendableCL", "minCL", "borrowingCL", "maxCL", "maxSeats", "currentCL"];
            let want = fields.map(|field| vectors::number(want, field) as u32);
            assert_eq!(got, want, "{} of {}", level.name, case["id"]);
        }
    }
    assert_eq!(cases.len(), 62);
}

fn level_of(profile: &Profile, class: Classified) -> &str {
    &profile.levels()[usize::from(class.level)].name
}

fn service_account(home: Option<&str>) -> UserInfo {
    let extra = home.map(|home| ("authentication.kcp.io/cluster-name".into(), vec![home.into()]));
    let groups = ["system:serviceaccounts", "system:authenticated"];
    let extra = extra.into_iter().collect();
    UserInfo { extra, ..UserInfo::new("system:serviceaccount:kube-system:robot", &groups) }
}

#[test]
fn service_accounts_of_other_workspaces_match_by_group_only_and_are_flows_of_their_own() {
    let profile = Profile::bootstrap();
    let info = parse("GET", "/api/v1/namespaces/n/pods/p");
    let classify = |home| profile.classify(&workspace(), &service_account(home), &info);
    assert_eq!(level_of(&profile, classify(Some("here"))), "workload-high");
    assert_eq!(classify(None), classify(Some("here")), "no extra: at home");
    assert_eq!(level_of(&profile, classify(Some("there"))), "workload-low");
    assert_ne!(classify(Some("there")).flow, classify(Some("elsewhere")).flow);
}

#[test]
fn whom_nothing_matches_is_caught() {
    let profile = Profile::bootstrap();
    let class = profile.classify(&workspace(), &UserInfo::new("nobody", &[]), &parse("GET", "/api/v1/pods"));
    assert_eq!(level_of(&profile, class), CATCH_ALL);
    assert_eq!((class.level, class.flow), (profile.catch_all_level(), 0), "a level without queues has no flows");
}

#[test]
fn flows_of_two_workspaces_differ_in_a_shared_level() {
    let profile = Profile::bootstrap();
    let (alice, info) = (UserInfo::new("alice", &["system:authenticated"]), parse("GET", "/api/v1/pods"));
    let [one, two] = ["a", "*"].map(|workspace| profile.classify_shared(workspace, &alice, &info));
    assert_eq!((one.flow_schema, one.level), (two.flow_schema, two.level));
    assert_ne!(one.flow, two.flow);
    let nobody = profile.classify_shared("a", &UserInfo::new("nobody", &[]), &info);
    assert_eq!(nobody.flow, 0);
}

#[test]
fn the_order_of_the_objects_does_not_matter() {
    use apiserver_api::flowcontrol::bootstrap;

    let (mut schemas, mut levels) = (bootstrap::flow_schemas(), bootstrap::priority_levels());
    schemas.reverse();
    levels.reverse();
    let (one, two) = (Profile::bootstrap(), Profile::compile(&schemas, &levels));
    assert_eq!(one.levels(), two.levels());
    let order =
        |profile: &Profile| profile.flow_schemas().iter().map(|s| (s.name.clone(), s.level)).collect::<Vec<_>>();
    assert_eq!(order(&one), order(&two));
    assert_eq!(order(&one).len(), 11);
}

#[test]
fn broken_and_double_objects_are_named() {
    use apiserver_api::flowcontrol::bootstrap;

    let mut levels = bootstrap::priority_levels();
    levels.iter_mut().filter(|level| level.metadata.name == "system").for_each(|level| level.spec.limited = None);
    levels.push(levels[0].clone());
    let profile = Profile::compile(&bootstrap::flow_schemas(), &levels);
    let problems = profile.problems().join("\n");
    assert!(problems.contains(r#"PriorityLevelConfiguration "exempt" is given twice"#), "{problems}");
    assert!(problems.contains(r#"PriorityLevelConfiguration "system" takes no part"#), "{problems}");
    let dangling: Vec<_> = profile.conditions().iter().filter(|c| c.dangling).map(|c| &*c.flow_schema).collect();
    assert_eq!(dangling, ["system-nodes"]);
}

#[test]
fn uids_are_the_objects_own_or_differ_per_workspace() {
    use apiserver_api::flowcontrol::bootstrap;

    const UID: &str = "0b9f2a44-7d5e-4d0c-9a44-3f1de1c2b3a4";
    let mut schemas = bootstrap::flow_schemas();
    schemas.iter_mut().for_each(|schema| schema.metadata.uid = UID.into());
    let profile = Profile::compile(&schemas, &bootstrap::priority_levels());
    let (a, b): (ClusterName, ClusterName) = ("a".parse().unwrap(), "b".parse().unwrap());
    let class = profile.classify(&a, &UserInfo::anonymous(), &parse("GET", "/version"));

    let (of_a, of_b) = (profile.uids(&a, class), profile.uids(&b, class));
    assert_eq!(of_a.flow_schema, of_b.flow_schema);
    assert_eq!(std::str::from_utf8(&of_a.flow_schema), Ok(UID));
    assert_ne!(of_a.level, of_b.level, "no UID of its own: made up per workspace");
    assert_eq!(of_a, profile.uids(&a, class), "the same each time");
    assert_eq!(of_a.level[14], b'5', "version 5");

    let inherited = profile.inherited();
    assert_ne!(inherited.uids(&a, class).flow_schema, inherited.uids(&b, class).flow_schema);
}

/// kcp #1271: 100 seats a workspace. Upstream's rounding hands out 105.
#[test]
fn our_division_of_the_default_levels_adds_up() {
    let profile = Profile::bootstrap();
    let nominal = |compat| levels::limits(100, profile.levels(), compat).iter().map(|l| l.nominal).collect::<Vec<_>>();
    // catch-all, exempt, global-default, leader-election, node-high, system, workload-high, workload-low
    assert_eq!(nominal(Compat::Upstream), [3, 0, 9, 5, 17, 13, 17, 41]);
    assert_eq!(nominal(Compat::Fairgate), [2, 0, 8, 4, 17, 12, 16, 41]);
}
