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
        let current = fair_alloc::current_limits(&demands, Compat::Upstream).unwrap();
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
