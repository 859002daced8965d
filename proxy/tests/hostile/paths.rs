//! Paths that two parsers could read differently (SE-08, PX-20 to PX-22).

use crate::{Row, excerpt};

const BAD: &str = "400 BadRequest, open";
const UNKNOWN: &str = "403 Forbidden, open";

fn get(what: &'static str, path: &str, answer: &'static str) -> Row {
    let mut row = Row::h1(what, format!("GET {path} HTTP/1.1\r\nHost: door\r\n\r\n"), answer);
    row.shown = excerpt(path.escape_default());
    row
}

pub fn rows() -> Vec<Row> {
    vec![
        get("an ordinary path", "/clusters/org:acme/api", "200, open").seen(&["GET /clusters/org:acme/api"]),
        get("an encoded colon", "/clusters/org%3Aacme/api", "200, open").seen(&["GET /clusters/org%3Aacme/api"]),
        get("an encoded slash in a name", "/clusters/org:acme/api/v1/namespaces/n/services/s/proxy/a%2Fb", "200, open")
            .seen(&["GET /clusters/org:acme/api/v1/namespaces/n/services/s/proxy/a%2Fb"]),
        get("a resource called clusters", "/clusters/org:acme/apis/e.io/v1/namespaces/n/clusters/x", "200, open")
            .seen(&["GET /clusters/org:acme/apis/e.io/v1/namespaces/n/clusters/x"]),
        get(
            "a query with everything in it",
            "/clusters/org:acme/api?p=/clusters/org:beta&p=..&p=%2e%2e&q=a+b&q=&&e=%zz",
            "200, open",
        )
        .seen(&["GET /clusters/org:acme/api?p=/clusters/org:beta&p=..&p=%2e%2e&q=a+b&q=&&e=%zz"]),
        get("dot segments", "/clusters/org:acme/../org:beta/api", BAD),
        get("encoded dot segments", "/clusters/org:acme/%2e%2e/org:beta/api", BAD),
        get("half-encoded dot segments", "/clusters/org:acme/.%2E/org:beta/api", BAD),
        get("a dot segment at the end", "/clusters/org:acme/api/..", BAD),
        get("a single dot", "/clusters/./org:acme/api", BAD),
        get("dots as the cluster", "/clusters/../clusters/org:beta/api", BAD),
        get("dots behind an encoded slash", "/clusters/org:acme/api/v1/a%2f..%2f..%2forg:beta", BAD),
        get("dots behind a back-slash", "/clusters/org:acme/..\\org:beta/api", BAD),
        get("an encoded back-slash", "/clusters/org:acme/..%5corg:beta/api", BAD),
        get("two slashes in front", "//clusters/org:acme/api", BAD),
        get("an empty cluster: none, as in kcp", "/clusters//org:acme/api", "200, open").seen(&["GET /org:acme/api"]),
        get("two slashes behind the cluster", "/clusters/org:acme//api", BAD),
        get("two slashes before a second prefix", "/clusters/org:acme//clusters/org:beta/api", BAD),
        get("an encoded slash in the cluster", "/clusters/org:acme%2Fapi", BAD),
        get("an encoded slash for the first", "/%2fclusters/org:acme/api", BAD),
        get("an encoded slash behind the prefix", "/clusters%2forg:beta/api", BAD),
        get("an encoded prefix", "/%63lusters/org:beta/api", BAD),
        get("a prefix in capitals", "/CLUSTERS/org:beta/api", "200, open").seen(&["GET /CLUSTERS/org:beta/api"]),
        get("a second prefix", "/clusters/org:acme/clusters/org:beta/api/v1/configmaps", "404 NotFound, open"),
        get("an encoded second prefix", "/clusters/org:acme/%63lusters/org:beta/api", "404 NotFound, open"),
        get("a doubly encoded cluster", "/clusters/org%253Aacme/api", BAD),
        get("doubly encoded dots", "/clusters/org:acme/%252e%252e/org:beta", "200, open")
            .seen(&["GET /clusters/org:acme/%252e%252e/org:beta"]),
        get("an overlong UTF-8 dot", "/clusters/org:acme/%c0%ae%c0%ae/org:beta", "200, open")
            .seen(&["GET /clusters/org:acme/%c0%ae%c0%ae/org:beta"]),
        get("an encoded NUL", "/clusters/org:acme/api/v1/a%00b", BAD),
        get("an encoded NUL in the cluster", "/clusters/org:acme%00.beta/api", BAD),
        get("an encoded line end", "/clusters/org:acme/api%0d%0aX-Remote-User:%20admin", BAD),
        get("an encoded space in the cluster", "/clusters/org:acme%20/api", BAD),
        get("an escape that is none", "/clusters/org:acme/api/%zz", BAD),
        get("an escape that is cut off", "/clusters/org:acme/api/%2", BAD),
        get("an IIS escape", "/clusters/org:acme/%u002e%u002e/org:beta", BAD),
        get("an encoded question mark", "/clusters/org:acme%3F/../org:beta/api", BAD),
        get("a path parameter on the cluster", "/clusters/org:acme;v=1/api", UNKNOWN),
        get("a path parameter on dots", "/clusters/org:acme/..;/org:beta/api", "200, open")
            .seen(&["GET /clusters/org:acme/..;/org:beta/api"]),
        get("a cluster in capitals", "/clusters/ORG:ACME/api", UNKNOWN),
        get("a cluster with an underscore", "/clusters/Bad_Name/api", UNKNOWN),
        get("a cluster that begins with a colon", "/clusters/:acme/api", UNKNOWN),
        get("a cluster that ends with a colon", "/clusters/acme:/api", UNKNOWN),
        get("a cluster with an empty part", "/clusters/a::b/api", UNKNOWN),
        get("a cluster that is a domain name", "/clusters/org.acme/api", UNKNOWN),
        get("services of an empty cluster", "/clusters//services/cache/x", BAD),
        get("an empty virtual workspace", "/services//x", BAD),
        get("a fragment: not a part of a target", "/clusters/org:acme/api#/../org:beta", "200, open")
            .seen(&["GET /clusters/org:acme/api"]),
        get("a time that is none", "/clusters/org:acme/api/v1/pods?timeout=soon", BAD),
        get("another server as target", "http://door/clusters/org:acme/api", "200, open")
            .seen(&["GET /clusters/org:acme/api"]),
        get("another server than the host", "http://elsewhere/clusters/org:acme/api", "400 BadRequest, closed"),
        get("a target with a query and no path", "http://door?x=1", "400 BadRequest, closed"),
        get("a user in the target", "http://u:p@door/clusters/org:acme/api", "400 BadRequest, closed"),
        get("a target without a slash", "clusters/org:acme/api", "400 BadRequest, closed"),
        get("the target *", "*", "400 BadRequest, closed"),
        get("a space in the target", "/clusters/org:acme/api v1", "400 BadRequest, closed"),
        get("a tab in the target", "/clusters/org:acme/\tapi", "400 BadRequest, closed"),
        get("a NUL in the target", "/clusters/org:acme/\0api", "400 BadRequest, closed"),
        get(
            "a target of 70,000 bytes",
            &format!("/clusters/org:acme/api?{}", "x".repeat(70_000)),
            "414 Status, closed",
        ),
    ]
}
