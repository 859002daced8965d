use super::*;
use crate::vectors;

fn parse<'a>(method: &str, uri: &'a str) -> RequestInfo<'a> {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    RequestInfo::parse(method, path, query).unwrap()
}

fn cluster(name: &str) -> ClusterName {
    name.parse().unwrap()
}

fn tracker(compat: Compat) -> Arc<WatchTracker> {
    WatchTracker::new(WatchOptions { compat, ..WatchOptions::default() })
}

#[test]
fn upstream_counts_are_those_of_kubernetes() {
    let cases = vectors::cases("watch_tracker.json");
    for case in &cases {
        let (tracker, here) = (tracker(Compat::Upstream), cluster("here"));
        let mut guards = std::collections::BTreeMap::new();
        for op in case["ops"].as_array().unwrap() {
            let watch = vectors::number(op, "watch");
            if op["op"] == "forget" {
                guards.remove(&watch);
                continue;
            }
            let guard = tracker.register(Some(&here), &parse("GET", op["uri"].as_str().unwrap())).unwrap();
            guards.insert(watch, guard);
        }
        for query in case["queries"].as_array().unwrap() {
            let info = parse(query["method"].as_str().unwrap(), query["uri"].as_str().unwrap());
            let count = tracker.interested(&here, &info);
            assert_eq!(i64::from(count), vectors::number(query, "count"), "{query} after {}", case["ops"]);
        }
    }
    assert_eq!(cases.len(), 20);
}

fn watch(tracker: &Arc<WatchTracker>, workspace: Option<&ClusterName>, uri: &str) -> WatchGuard {
    tracker.register(workspace, &parse("GET", uri)).unwrap()
}

#[test]
fn ours_counts_single_objects_in_all_namespaces_and_the_watch_of_the_node() {
    let here = cluster("here");
    let put = "/api/v1/namespaces/a/pods/p";
    for (compat, want) in [(Compat::Upstream, 0), (Compat::Fairgate, 2)] {
        let tracker = tracker(compat);
        let _guards = [
            "/api/v1/pods?watch=1&fieldSelector=metadata.name%3Dp",
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3Dn1",
            "/api/v1/pods?watch=1&fieldSelector=spec.nodeName%3D%3Dn2",
        ]
        .map(|uri| watch(&tracker, Some(&here), uri));
        assert_eq!(tracker.interested(&here, &parse("PUT", put)), want);
        assert_eq!(tracker.interested(&here, &parse("GET", put)), 0, "reads wake up nobody");
    }
}

#[test]
fn workspaces_do_not_see_each_other_and_the_wildcard_sees_all() {
    let (tracker, a, b) = (tracker(Compat::Fairgate), cluster("a"), cluster("b"));
    let write = parse("POST", "/api/v1/namespaces/n/pods");
    let _own = watch(&tracker, Some(&a), "/api/v1/pods?watch=1");
    assert_eq!((tracker.interested(&a, &write), tracker.interested(&b, &write)), (1, 0));
    let everywhere = watch(&tracker, None, "/api/v1/pods?watch=1");
    assert_eq!((tracker.interested(&a, &write), tracker.interested(&b, &write)), (2, 1));
    drop(everywhere);
    assert_eq!(tracker.interested(&b, &write), 0);
}

#[test]
fn the_books_go_with_the_last_watch() {
    let (tracker, a) = (tracker(Compat::Fairgate), cluster("a"));
    let guards = [watch(&tracker, Some(&a), "/api/v1/pods?watch=1"), watch(&tracker, Some(&a), "/api/v1/pods?watch=1")];
    assert_eq!(tracker.workspaces.len(), 1);
    drop(guards);
    assert!(tracker.workspaces.is_empty());
    drop(watch(&tracker, Some(&a), "/api/v1/pods"));
    assert!(tracker.workspaces.is_empty(), "a list is no watch");
}

#[test]
fn a_late_guard_does_not_touch_the_workspace_made_anew() {
    let (tracker, a) = (tracker(Compat::Fairgate), cluster("a"));
    let write = parse("POST", "/api/v1/pods");
    let old = watch(&tracker, Some(&a), "/api/v1/pods?watch=1");
    tracker.forget_workspace(&a);
    assert_eq!(tracker.interested(&a, &write), 0);
    let _new = watch(&tracker, Some(&a), "/api/v1/pods?watch=1");
    drop(old);
    assert_eq!(tracker.interested(&a, &write), 1);
}

#[test]
fn open_watches_are_bounded_per_workspace() {
    let tracker = WatchTracker::new(WatchOptions { per_workspace_max: 1, ..WatchOptions::default() });
    let (a, b, list) = (cluster("a"), cluster("b"), "/api/v1/pods?watch=1");
    let first = watch(&tracker, Some(&a), list);
    assert_eq!(tracker.register(Some(&a), &parse("GET", list)).unwrap_err(), TooManyWatches { limit: 1 });
    let _other = watch(&tracker, Some(&b), list);
    drop(first);
    let _again = watch(&tracker, Some(&a), list);
    let none = WatchTracker::new(WatchOptions { per_workspace_max: 0, ..WatchOptions::default() });
    assert!(none.register(Some(&a), &parse("GET", list)).is_err());
    assert!(none.workspaces.is_empty());
}
