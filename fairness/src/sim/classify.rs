//! Which level and flow a source's request belongs to, found as the gateway finds it.

use std::borrow::Cow;

use apiserver_api::{
    ClusterName, RequestInfo, UserInfo, Verb,
    user::{GROUP_AUTHENTICATED, USER_ANONYMOUS},
};
use config::Faults;

use super::{RequestSpec, Scenario};
use crate::{Profile, profile::EXEMPT};

/// Verbs of resources, then methods of paths.
const RESOURCE_VERBS: [Verb; 9] = [
    Verb::Get,
    Verb::List,
    Verb::Watch,
    Verb::Create,
    Verb::Update,
    Verb::Patch,
    Verb::Delete,
    Verb::DeleteCollection,
    Verb::Proxy,
];
const PATH_VERBS: [Verb; 7] = [Verb::Get, Verb::Post, Verb::Put, Verb::Patch, Verb::Delete, Verb::Head, Verb::Options];

/// Gives the sources with a request the level and the flow that the profile finds.
pub(super) fn classify(scenario: &mut Scenario, profile: &Profile, faults: &mut Faults<'_>) {
    // No service account is of another workspace here, so the workspace's name decides nothing.
    let workspace: ClusterName = "simulated".parse().expect("a name of small letters is a cluster's name");
    let levels: Vec<String> = scenario
        .workspaces
        .iter()
        .find(|w| !w.levels.is_empty())
        .map_or(vec![], |w| w.levels.iter().map(|level| level.name.clone()).collect());
    for (i, source) in scenario.sources.iter_mut().enumerate() {
        let Some(request) = &source.request else { continue };
        let field = format!("sources[{i}]");
        if source.level.is_some() || source.exempt {
            faults.add(format!("{field}.request"), "stands beside level or exempt; want one of them");
            continue;
        }
        let Some(info) = info(request, &format!("{field}.request"), faults) else { continue };
        let class = profile.classify(&workspace, &user(request), &info);
        let level = profile.levels().get(usize::from(class.level)).map_or("", |level| &*level.name);
        if level == EXEMPT {
            source.exempt = true;
        } else if levels.iter().any(|name| name == level) {
            source.level = Some(level.to_owned());
            source.flow = Some(class.flow);
        } else {
            let want = levels.join(", ");
            let message = format!("is for the level {level:?}, which the workspaces do not have; they have {want}");
            faults.add(format!("{field}.request"), message);
            // What follows from it is no fault of its own.
            source.level = levels.first().cloned();
        }
    }
}

/// With the groups that the front door adds.
fn user(request: &RequestSpec) -> UserInfo {
    if request.user == USER_ANONYMOUS {
        return UserInfo::anonymous();
    }
    let mut groups: Vec<&str> = request.groups.iter().map(String::as_str).collect();
    let account = request.user.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let of_namespace = account.map(|(namespace, _)| format!("system:serviceaccounts:{namespace}"));
    if let Some(group) = &of_namespace {
        groups.extend(["system:serviceaccounts", group]);
    }
    groups.push(GROUP_AUTHENTICATED);
    UserInfo::new(&request.user, &groups)
}

/// What the gateway would have read from the request's line. `None` after a fault.
fn info<'a>(request: &'a RequestSpec, field: &str, faults: &mut Faults<'_>) -> Option<RequestInfo<'a>> {
    let RequestSpec { user, verb, api_group, resource, namespace, name, path, .. } = request;
    if user.is_empty() {
        faults.add(format!("{field}.user"), format!("is missing; want a name, {USER_ANONYMOUS} for nobody's"));
        return None;
    }
    let of_resource = !resource.is_empty();
    let resource_only = [api_group, namespace, name].iter().any(|part| !part.is_empty());
    if of_resource == path.starts_with('/') || (!of_resource && resource_only) {
        let want = "want resource (and api_group, namespace, name), or path, which begins with a slash";
        faults.add(field, format!("is for no resource and no path, or for both; {want}"));
        return None;
    }
    let verbs = if of_resource { &RESOURCE_VERBS[..] } else { &PATH_VERBS[..] };
    let asked = verb.as_deref().unwrap_or("get");
    let Some(verb) = verbs.iter().find(|verb| verb.as_str() == asked) else {
        let want: Vec<&str> = verbs.iter().map(|verb| verb.as_str()).collect();
        faults.add(format!("{field}.verb"), format!("is {asked:?}; want one of {}", want.join(", ")));
        return None;
    };
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let api_prefix = match (of_resource, api_group.is_empty()) {
        (false, _) => "",
        (true, true) => "api",
        (true, false) => "apis",
    };
    Some(RequestInfo {
        is_resource: of_resource,
        path: Cow::Borrowed(path),
        verb: *verb,
        api_prefix: Cow::Borrowed(api_prefix),
        api_group: Cow::Borrowed(api_group),
        api_version: Cow::Borrowed(""),
        namespace: Cow::Borrowed(namespace),
        resource: Cow::Borrowed(resource),
        subresource: Cow::Borrowed(subresource),
        name: Cow::Borrowed(name),
        query: "",
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::FairnessConfig;

    use super::*;

    fn scenario(sources: &str, levels: &str, fairness: Option<&FairnessConfig>) -> Result<Scenario, String> {
        let text = format!("seats: 9\nend_s: 1\nworkspaces: [{{name: a, weight: 1{levels}}}]\nsources:\n{sources}");
        Scenario::parse(&text, Path::new("w.yaml"), fairness).map_err(|error| error.to_string())
    }

    fn source(request: &str) -> String {
        format!("- {{workspace: a, clients: 1, service_s: {{dist: const, v: 1}}, request: {{{request}}}}}\n")
    }

    #[test]
    fn the_bootstrap_profile_finds_levels_and_flows() {
        let cases = [
            ("user: alice, resource: pods", Some("global-default")),
            ("user: 'system:serviceaccount:shop:web', resource: pods", Some("workload-low")),
            ("user: 'system:kube-scheduler', resource: pods, verb: list", Some("workload-high")),
            ("user: 'system:node:n1', groups: ['system:nodes'], resource: pods", Some("system")),
            (
                "user: 'system:node:n1', groups: ['system:nodes'], resource: nodes/status, verb: patch, name: n1",
                Some("node-high"),
            ),
            ("user: 'system:anonymous', path: /healthz", None),
            ("user: root, groups: ['system:masters'], resource: pods", None),
        ];
        let text: String = cases.iter().map(|(request, _)| source(request)).collect();
        let scenario = scenario(&text, "", None).unwrap();
        for ((request, level), found) in cases.iter().zip(&scenario.sources) {
            assert_eq!((found.level.as_deref(), found.exempt), (*level, level.is_none()), "{request}");
        }
        let [alice, web, ..] = &scenario.sources[..] else { panic!() };
        assert!(alice.flow.is_some() && alice.flow != web.flow);
        let low = scenario.workspaces[0].levels.iter().find(|l| l.name == "workload-low").unwrap();
        assert_eq!((low.queues, low.hand_size, low.queue_length), (Some(128), Some(6), Some(50)));
    }

    #[test]
    fn the_profile_of_the_configuration_is_asked() {
        let text = "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata: {name: batch}\nspec:\n  matchingPrecedence: 500\n  priorityLevelConfiguration: {name: batch}\n  distinguisherMethod: {type: ByNamespace}\n  rules:\n  - subjects: [{kind: User, user: {name: batch}}]\n    resourceRules: [{verbs: [list], apiGroups: [apps], resources: [deployments], namespaces: ['*']}]\n---\napiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: PriorityLevelConfiguration\nmetadata: {name: batch}\nspec:\n  type: Limited\n  limited: {nominalConcurrencyShares: 10, limitResponse: {type: Queue, queuing: {queues: 8, handSize: 2, queueLengthLimit: 5}}}\n";
        let fairness = FairnessConfig::parse(text, Path::new("f.yaml")).unwrap();
        let list = "user: batch, api_group: apps, resource: deployments, verb: list, namespace";
        let text =
            [format!("{list}: x"), format!("{list}: y"), format!("{list}: x"), "user: batch, resource: pods".into()]
                .map(|request| source(&request))
                .concat();
        let scenario = scenario(&text, "", Some(&fairness)).unwrap();
        let levels: Vec<_> = scenario.sources.iter().map(|s| s.level.as_deref().unwrap()).collect();
        assert_eq!(levels[..3], ["batch"; 3]);
        assert_ne!(levels[3], "batch");
        let flows: Vec<_> = scenario.sources.iter().map(|s| s.flow).collect();
        assert!(flows[0] == flows[2] && flows[0] != flows[1], "{flows:?}");
    }

    #[test]
    fn what_cannot_be_classified_is_told() {
        let cases = [
            ("resource: pods", "sources[0].request.user: is missing; want a name"),
            ("user: a", "is for no resource and no path, or for both"),
            ("user: a, path: /x, resource: pods", "is for no resource and no path, or for both"),
            ("user: a, path: /x, namespace: b", "is for no resource and no path, or for both"),
            ("user: a, path: x", "is for no resource and no path, or for both"),
            ("user: a, path: /x, verb: list", "sources[0].request.verb: is \"list\"; want one of get, post"),
            ("user: a, resource: pods, verb: post", "sources[0].request.verb: is \"post\"; want one of get, list"),
            ("user: a, resource: pods, verbs: get", "sources[0].request.verbs: is no known key"),
        ];
        for (request, want) in cases {
            let found = scenario(&source(request), "", None).unwrap_err();
            assert!(found.contains(want), "{request}: {found}");
        }
        let own = ", levels: [{name: x, shares: 1}]";
        let found = scenario(&source("user: a, resource: pods"), own, None).unwrap_err();
        assert!(found.contains("is for the level \"global-default\", which the workspaces do not have"), "{found}");
        assert_eq!(found.lines().count(), 1, "{found}");
        let both = source("user: a, resource: pods").replace("clients", "level: x, clients");
        let found = scenario(&both, own, None).unwrap_err();
        assert!(found.contains("stands beside level or exempt"), "{found}");
    }
}
