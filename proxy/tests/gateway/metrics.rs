//! What `/metrics` shows after every kind of event: nothing that docs/metrics.md does not tell, and all that it tells.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::collections::{BTreeMap, BTreeSet};

use crate::support::*;
use config::{AccessLog, Compat, FairnessConfig, Sink};
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use observers::Observers;
use proxy::{Body, Gateway, GatewayOptions, RemoteOptions, ShardOptions, Upstream};

fn fairness() -> FairnessConfig {
    rules::parse(&rules::refusals())
}

/// Families as `# TYPE` and docs/metrics.md have them: name, then type and labels.
type Families = BTreeMap<String, (String, BTreeSet<String>)>;

fn documented() -> Families {
    let doc = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md")).unwrap();
    let rows = doc.lines().filter(|l| l.starts_with("| `fairgate_") || l.starts_with("| `apiserver_"));
    rows.map(|row| {
        let cells: Vec<_> = row.split('|').map(|cell| cell.trim().replace('`', "")).collect();
        let labels = cells[3].split(", ").filter(|l| !l.is_empty()).map(str::to_owned).collect();
        (cells[1].clone(), (cells[2].clone(), labels))
    })
    .collect()
}

/// The families of an exposition that have a series. Each must have had its `HELP` and `TYPE` just before.
fn shown(text: &str) -> Families {
    let mut families = Families::new();
    let (mut helped, mut head) = (BTreeSet::new(), (String::new(), String::new()));
    let body = text.split_once("\r\n\r\n").unwrap().1;
    for line in body.lines().filter(|line| !line.is_empty()) {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap();
            assert!(helped.insert(name.to_owned()) && !help.is_empty(), "twice, or without words: {line}");
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(helped.contains(name), "no HELP before {line}");
            head = (name.to_owned(), kind.to_owned());
        } else {
            let (series, value) = line.rsplit_once(' ').unwrap();
            assert!(value.parse::<f64>().is_ok(), "{line}");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let ends: &[&str] = if head.1 == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(ends.iter().any(|end| name == format!("{}{end}", head.0)), "{line} stands below {head:?}");
            let labels = labels.trim_end_matches('}').split("\",").filter_map(|l| l.split_once("=\""));
            let labels: BTreeSet<_> = labels.map(|(label, _)| label.to_owned()).filter(|l| l != "le").collect();
            let (kind, told) = families.entry(head.0.clone()).or_insert((head.1.clone(), labels.clone()));
            assert!(*kind == head.1 && *told == labels, "{line} has other labels than the line before");
        }
    }
    families
}

/// A shard that answers, one that nobody listens for, and everything that can be counted of both.
fn gateway(compat: Compat) -> Gateway {
    let mut shard = local(|request| async move {
        match request.uri().path().ends_with("/broken") {
            true => Response::new(Body::new(http_body_util::StreamBody::new(futures_util::stream::iter([Err::<
                http_body::Frame<bytes::Bytes>,
                _,
            >(
                std::io::Error::other("broken"),
            )])))),
            false => ok("ok"),
        }
    });
    shard.observers = Some((Observers::new(observers::Options::default()), tokio::sync::mpsc::channel(1).0));
    let nobody = listener().local_addr().unwrap();
    let options_of = |name: &str, shard: ShardOptions| ShardOptions { name: name.into(), ..shard };
    let gone = shard_of(nobody);
    let shards = match compat {
        Compat::Fairgate => vec![options_of("root", shard)],
        Compat::Upstream => vec![options_of("root", gone)],
    };
    let access_log = Some(AccessLog { sink: Sink::File("/dev/null".into()), per_million: 0, errors_per_second: 0 });
    Gateway::start(GatewayOptions { fairness: Some(fairness()), compat, access_log, ..options(shards) }).unwrap()
}

fn shard_of(address: std::net::SocketAddr) -> ShardOptions {
    shard(Upstream::Remote(RemoteOptions {
        url: format!("http://{address}"),
        protocol: config::Protocol::Http1,
        tls: None,
    }))
}

#[tokio::test]
async fn the_documentation_tells_what_is_shown() {
    let (one, other) = (gateway(Compat::Fairgate), gateway(Compat::Upstream));
    for (gateway, path, want) in [
        (&one, "/clusters/a/api/v1/namespaces/n/pods", StatusCode::OK),
        (&one, "/clusters/a/api/v1/pods?watch=1", StatusCode::OK),
        (&one, "/clusters/a/api/v1/secrets", StatusCode::TOO_MANY_REQUESTS),
        (&one, "/clusters/A/api", StatusCode::FORBIDDEN),
        (&one, "/clusters/slow/api", StatusCode::OK),
        (&one, "/version", StatusCode::OK),
        (&one, "/livez", StatusCode::OK),
        (&other, "/clusters/a/api", StatusCode::SERVICE_UNAVAILABLE),
    ] {
        assert_eq!(once(gateway, get(path)).await.0, want, "{path}");
    }
    let mut refused = false;
    for _ in 0..20 {
        refused |= once(&one, get("/clusters/slow/api")).await.0 == StatusCode::TOO_MANY_REQUESTS;
    }
    assert!(refused, "the rate of one a second was never exceeded");
    let broken = h1(&one).await.send_request(get("/clusters/a/broken")).await;
    assert!(match broken {
        Ok(answer) => answer.into_body().collect().await.is_err(),
        Err(_) => true,
    });
    let post = http::Request::post("/clusters/a/api/v1/namespaces/n/pods").header("host", "door");
    once(&one, post.body(full("{}")).unwrap()).await;
    one.reload_fairness(&fairness());
    let (told, text) = (documented(), admin(&one, "/metrics").await);
    let mut seen = shown(&text);
    seen.extend(shown(&admin(&other, "/metrics").await));
    for (name, family) in &seen {
        assert_eq!(told.get(name), Some(family), "docs/metrics.md tells otherwise of {name}");
    }
    let missing: Vec<_> = told.keys().filter(|name| !seen.contains_key(*name)).collect();
    assert!(missing.is_empty(), "not shown: {missing:?}");
    for (series, want) in [
        (r#"apiserver_request_total{code="429",verb="LIST"}"#, 1.0),
        (r#"apiserver_request_total{code="403",verb="other"}"#, 1.0),
        (r#"fairgate_request_phase_duration_seconds_count{phase="total",verb="LIST",outcome="served"}"#, 1.0),
        (r#"fairgate_request_phase_duration_seconds_count{phase="total",verb="LIST",outcome="rejected"}"#, 1.0),
        (r#"fairgate_request_phase_duration_seconds_count{phase="total",verb="GET",outcome="upstream-error"}"#, 1.0),
        (r#"fairgate_request_phase_duration_seconds_count{phase="first_byte",verb="WATCH",outcome="served"}"#, 1.0),
        (r#"fairgate_stream_duration_seconds_count{verb="WATCH",outcome="served"}"#, 1.0),
        (
            r#"fairgate_request_phase_duration_seconds_bucket{phase="total",verb="POST",outcome="served",le="+Inf"}"#,
            1.0,
        ),
    ] {
        assert_eq!(sum(&text, series), want, "{series}");
    }
    for (family, without) in [
        ("apiserver_request_total", &[r#"code="201""#][..]),
        ("fairgate_request_phase_duration_seconds_count", &[r#"phase="total""#, r#"verb="WATCH""#]),
        ("fairgate_request_phase_duration_seconds_count", &[r#"verb="other""#, r#"outcome="served""#]),
    ] {
        let lines: Vec<_> = text.lines().filter(|line| line.starts_with(&format!("{family}{{"))).collect();
        let each = without.iter().map(|label| lines.iter().filter(|line| line.contains(label)).count());
        assert!(lines.len() > 1 && (without.len() == 1 || each.min() > Some(0)), "{family} has no such labels");
        let found = lines.iter().find(|line| without.iter().all(|label| line.contains(label)));
        assert_eq!(found, None, "a client's probe, a watch and what nobody answered are not there");
    }
}
