use super::*;
use crate::Sink;

const GOOD: &str = "
apiVersion: fairgate.dev/v1alpha1
kind: GatewayConfiguration
workers: 2
authentication: { anonymous: true, dropGroups: [system:masters, 'ops:*'] }
listen: { address: '[::]:0', tls: { certificateFile: a.pem, keyFile: /k/b.pem, clientCAFile: ca.pem } }
admin:  { address: 127.0.0.1:0 }
shards:
- name: root
  url: https://10.0.0.4:6444
  seats: 600
  tls: { caFile: s.pem, clientCertificateFile: c.pem, clientKeyFile: ck.pem }
- name: amber
  url: http://localhost:8080/
  seats: 1
  protocol: http2
observers: { resyncInterval: 90s }
accessLog: { file: access.log, sample: 0.25, errorsPerSecond: 5 }
fairness: { enabled: false, file: fairness.yaml, compat: upstream }
limits: { connections: 500, bodyBytes: 3145728, headTimeout: 10s, connectionAge: 1h30m, lookupWait: 0s }
";

fn parse(text: &str) -> Result<GatewayConfig, Vec<String>> {
    GatewayConfig::parse(text, Path::new("/etc/fairgate/gateway.yaml"))
        .map_err(|e| e.to_string().lines().map(|l| l.replace("/etc/fairgate/gateway.yaml:", "")).collect())
}

#[test]
fn a_full_file_is_read() {
    let config = parse(GOOD).unwrap();
    assert_eq!(config.workers, 2);
    assert_eq!(config.listen.address.to_string(), "[::]:0");
    let tls = config.listen.tls.unwrap();
    assert_eq!(tls.certificate_file, Path::new("/etc/fairgate/a.pem"));
    assert_eq!((tls.key_file, tls.client_ca_file), ("/k/b.pem".into(), Some("/etc/fairgate/ca.pem".into())));
    assert_eq!(config.admin.address.port(), 0);
    assert_eq!(config.authentication.drop_groups, ["system:masters", "ops:*"]);
    let [root, amber] = &config.shards[..] else { panic!("want two shards") };
    assert_eq!(
        (&*root.name, root.url.host(), root.url.port_u16(), root.seats),
        ("root", Some("10.0.0.4"), Some(6444), 600)
    );
    let shown = ("/etc/fairgate/c.pem".into(), "/etc/fairgate/ck.pem".into());
    assert_eq!(root.tls.as_ref().unwrap().client_certificate, Some(shown));
    assert_eq!((amber.url.scheme_str(), &amber.tls), (Some("http"), &None));
    assert_eq!((root.protocol, amber.protocol), (Protocol::Auto, Protocol::Http2));
    let file = Some("/etc/fairgate/fairness.yaml".into());
    assert_eq!(config.fairness, Fairness { enabled: false, file, compat: Compat::Upstream });
    assert_eq!(config.observers.resync_interval, Duration::from_secs(90));
    let want = Limits {
        connections: 500,
        connections_per_address: 500,
        body_bytes: Some(3 << 20),
        head_timeout: Duration::from_secs(10),
        connection_age: Some(Duration::from_secs(5400)),
        lookup_wait: Duration::ZERO,
        ..Limits::default()
    };
    assert_eq!(config.limits, want);
    let sink = Sink::File("/etc/fairgate/access.log".into());
    assert_eq!(config.access_log, Some(AccessLog { sink, per_million: 250_000, errors_per_second: 5 }));
}

#[test]
fn what_is_left_out_has_defaults() {
    let config = parse(
        "{apiVersion: fairgate.dev/v1alpha1, kind: GatewayConfiguration, listen: {address: 127.0.0.1:6443}, \
         shards: [{name: a, url: 'http://[::1]:6444', seats: 5}]}",
    )
    .unwrap();
    assert_eq!((config.workers, config.listen.tls, config.authentication.anonymous), (0, None, false));
    assert_eq!(config.admin.address.to_string(), DEFAULT_ADMIN);
    assert_eq!(config.authentication.drop_groups, DROPPED_GROUPS);
    assert_eq!(config.fairness, Fairness { enabled: true, file: None, compat: Compat::Fairgate });
    assert_eq!(config.observers.resync_interval, Duration::from_secs(300));
    assert_eq!(config.limits, Limits::default());
}

#[test]
fn limits_have_bounds() {
    let limits = |text: &str| parse(&GOOD.replace("connections: 500,", &format!("connections: 500, {text},")));
    for (text, want) in [
        ("connectionsPerAddress: 501", "limits.connectionsPerAddress: is 501; want 1 to 500"),
        ("headerBytes: 1000", "limits.headerBytes: is 1000; want 4096 to 131072"),
        ("headerBytes: 64Ki", "limits.headerBytes: is the text \"64Ki\"; want an integer, without quotes"),
        ("streams: 0", "limits.streams: is 0; want 1 to 10000"),
        ("goawaysPerMillion: 20001", "limits.goawaysPerMillion: is 20001; want 0 to 20000"),
        ("idleTimeout: 500ms", "limits.idleTimeout: is \"500ms\"; want a duration from 1s to 24h, for example 3m"),
        ("idleTimeout: 30", "limits.idleTimeout: is \"30\"; want a duration from 1s to 24h"),
        ("streams: -1", "limits.streams: is -1; want 1 to 10000"),
        ("idleTimeout: true", "limits.idleTimeout: is the boolean true; want text: put it in quotes"),
        ("requestTimeout: 2h", "limits.requestTimeout: is \"2h\"; want a duration from 1s to 1h"),
        ("pingInterval: 5", "limits.pingInterval: is \"5\"; want a duration from 1s to 1h, for example 30s"),
        ("tunnelIdleTimeout: -1h", "limits.tunnelIdleTimeout: is \"-1h\"; want a duration from 10s to 720h"),
        ("stallTimout: 5s", "limits.stallTimout: is no known key; want stallTimeout"),
    ] {
        let faults = limits(text).unwrap_err();
        assert!(faults.len() == 1 && faults[0].contains(want), "{text}: {faults:?}");
    }
    assert_eq!(limits("connectionsPerAddress: 500, headerBytes: 131072, streams: 1").unwrap().limits.streams, 1);
}

#[test]
fn a_limit_without_a_default_has_an_example_too() {
    let faults = parse(&GOOD.replace("connectionAge: 1h30m", "connectionAge: 5")).unwrap_err();
    assert!(faults[0].ends_with("is \"5\"; want a duration from 10s to 720h, for example 1h"), "{faults:?}");
}

#[test]
fn only_two_sets_of_rules_are_known() {
    let compat = |word: &str| parse(&GOOD.replace("compat: upstream", &format!("compat: {word}")));
    assert_eq!(compat("fairgate").unwrap().fairness.compat, Compat::Fairgate);
    let faults = compat("kubernetes").unwrap_err();
    assert!(faults[0].ends_with("fairness.compat: is \"kubernetes\"; want fairgate or upstream"), "{faults:?}");
    assert_eq!(faults.len(), 1, "{faults:?}");
}

#[test]
fn a_shard_speaks_one_of_two_protocols() {
    let protocol = |word: &str| parse(&GOOD.replace("protocol: http2", &format!("protocol: {word}")));
    for (word, want) in [("auto", Protocol::Auto), ("http1", Protocol::Http1), ("http2", Protocol::Http2)] {
        assert_eq!(protocol(word).unwrap().shards[1].protocol, want);
    }
    let faults = protocol("h2c").unwrap_err();
    assert!(faults[0].ends_with("shards[1].protocol: is \"h2c\"; want auto, http1 or http2"), "{faults:?}");
    assert_eq!(faults.len(), 1, "{faults:?}");
}

#[test]
fn all_faults_of_a_file_are_told_at_once() {
    let faults = parse(
        "apiVersion: fairgate.dev/v1
kind: GatewayConfiguration
workers: '2'
worker: 3
authentication: { anonymous: yes, oidc: {}, dropGroups: ['a*b', '*'] }
listen: { address: localhost, tls: { certificateFile: a.pem } }
shards:
- name: root
  url: 10.0.0.4:6444
  seats: 0
- name: root
  url: ftp://host
  seats: -1
- { name: Bad_Name, url: 'http://user@h:1', seats: 600, tls: {} }
- { url: 'https://h:1/path', seats: 6, tls: { clientKeyFile: k } }
- { name: b, url: 'http://h:1', seats: 6, tls: { caFile: k } }
observers: { resyncInterval: 5 }
fairness:
",
    )
    .unwrap_err();
    let url = "want http or https, a host and a port, for example https://10.0.0.4:6444";
    let mut want = vec![
        "1:13: apiVersion: is \"fairgate.dev/v1\"; want fairgate.dev/v1alpha1".to_owned(),
        "3:10: workers: is the text \"2\"; want an integer, without quotes".to_owned(),
        "4:1: worker: is no known key; want workers, perhaps".to_owned(),
        "5:30: authentication.anonymous: is the text \"yes\"; want true or false, without quotes".to_owned(),
        "5:35: authentication.oidc: is not served by this release; want one of anonymous, dropGroups".to_owned(),
        "5:58: authentication.dropGroups[0]: is \"a*b\"; want a group, or the beginning of groups and one *".to_owned(),
        "6:20: listen.address: is \"localhost\"; want an IP address and port, for example 0.0.0.0:6443 or [::]:6443"
            .to_owned(),
        "6:36: listen.tls.keyFile: is missing; want the name of a file".to_owned(),
        "10:10: shards[0].seats: is 0; want 1 to 1000000".to_owned(),
        "11:9: shards[1].name: is \"root\", the name of shards[0] too; want a name of its own".to_owned(),
        format!("12:8: shards[1].url: is \"ftp://host\", of another scheme; {url}"),
        "13:10: shards[1].seats: is -1; want 1 to 1000000".to_owned(),
        format!("14:26: shards[2].url: is \"http://*@h:1\", with credentials; {url}"),
        format!("15:10: shards[3].url: is \"https://h:1/path\", with a path; {url}"),
        "15:45: shards[3].tls.clientCertificateFile: is missing; want the certificate of clientKeyFile".to_owned(),
        "14:62: shards[2].tls.caFile: is missing; want the CA of the shard's certificate, for an https url".to_owned(),
        "15:45: shards[3].tls.caFile: is missing; want the CA of the shard's certificate, for an https url".to_owned(),
        "16:48: shards[4].tls: is given with an http URL; want https, or no tls".to_owned(),
        "17:30: observers.resyncInterval: is \"5\"; want a duration from 1s to 24h, for example 5m".to_owned(),
        "18:9: fairness: is no value; want a map".to_owned(),
    ];
    let name = "want a DNS name: a lowercase RFC 1123 subdomain must";
    want.push(format!("9:8: shards[0].url: is \"10.0.0.4:6444\", without a scheme; {url}"));
    want.push(format!("14:11: shards[2].name: is \"Bad_Name\"; {name}"));
    want.push("15:3: shards[3].name: is missing; want the name of the shard".to_owned());
    for want in &want {
        assert!(faults.iter().any(|fault| fault.starts_with(want)), "missing: {want}\nfound: {faults:#?}");
    }
    assert_eq!(faults.len(), want.len(), "{faults:#?}");
    let line = |fault: &String| fault.split(':').next().unwrap().parse::<u32>().unwrap();
    assert!(faults.is_sorted_by_key(line), "{faults:#?}");
}

/// The faults of a file whose only shard's entry, or whose only list of shards, is this.
fn with_shards(shards: &str) -> Vec<String> {
    let head = "apiVersion: fairgate.dev/v1alpha1\nkind: GatewayConfiguration\nlisten: {address: '127.0.0.1:1'}\n";
    parse(&format!("{head}shards: {shards}\n")).err().unwrap_or_default()
}

#[test]
fn a_port_is_one_or_that_of_the_scheme() {
    for port in [":1", ":65535", "", "/"] {
        assert_eq!(with_shards(&format!("[{{name: a, url: 'http://[::1]{port}', seats: 1}}]")), [""; 0], "{port}");
    }
    for url in ["http://10.0.0.4:164440", "http://[::1]:65536", "http://h:0", "http://h:"] {
        let faults = with_shards(&format!("[{{name: a, url: '{url}', seats: 1}}]"));
        let want = format!("shards[0].url: is {url:?}, with a port that is none (1 to 65535 are); want http or https");
        assert!(faults.len() == 1 && faults[0].contains(&want), "{faults:?}");
    }
}

#[test]
fn two_shards_have_two_addresses() {
    let both = |a: &str, b: &str| {
        with_shards(&format!("[{{name: a, url: '{a}', seats: 1}}, {{name: b, url: '{b}', seats: 1}}]"))
    };
    assert_eq!(both("http://h:1", "http://h:2"), [""; 0]);
    assert_eq!(both("http://h:80", "http://H/").len(), 1);
    let want = "4:65: shards[1].url: is http://h:1/, where shards[0] is too; want an address of its own";
    assert_eq!(both("http://h:1", "http://h:1"), [want]);
}

#[test]
fn what_is_missing_is_said_to_be_missing_once() {
    let url = "want http or https, a host and a port, for example https://10.0.0.4:6444";
    assert_eq!(
        with_shards("[{name: a}]"),
        [
            "4:10: shards[0].seats: is missing; want 1 to 1000000".to_owned(),
            format!("4:10: shards[0].url: is missing; {url}")
        ]
    );
    let ca = "4:10: shards[0].tls.caFile: is missing; want the CA of the shard's certificate, for an https url";
    assert_eq!(with_shards("[{name: a, url: 'https://h', seats: 1}]"), [ca]);
    assert_eq!(with_shards("[]"), ["4:9: shards: is a list of 0; want 1 to 10000 entries"]);
    // A misspelt key is the cause of the one that is missing.
    let seats = "4:39: shards[0].seat: is no known key; want seats, perhaps";
    assert_eq!(with_shards("[{name: a, url: 'http://h:1', seat: 1}]"), [seats]);
    let text = "kind: GatewayConfiguration\nlisen: {address: '127.0.0.1:1'}\n";
    assert_eq!(
        parse(text).unwrap_err(),
        [
            "1:1: apiVersion: is missing; want fairgate.dev/v1alpha1",
            "1:1: shards: is missing; want 1 to 10000 entries",
            "2:1: lisen: is no known key; want listen, perhaps",
        ]
    );
    // Unless that is there too, and wrong.
    let faults = with_shards("[{name: a, url: 'http://h:1', seat: 1, seats: 0}]");
    assert!(faults.len() == 2 && faults[1].contains("seats: is 0"), "{faults:?}");
}

#[test]
fn other_files_are_refused() {
    assert_eq!(parse("").unwrap_err(), ["1:1: is empty; want one GatewayConfiguration"]);
    assert_eq!(
        parse("a: 1\n---\nb: 2\n").unwrap_err(),
        ["3:1: is the second of 2 documents; want one GatewayConfiguration"]
    );
    assert!(parse("a: [").unwrap_err()[0].contains("is not YAML"));
    let missing = GatewayConfig::load(Path::new("/nonexistent/gateway.yaml")).unwrap_err().to_string();
    assert!(missing.starts_with("/nonexistent/gateway.yaml: cannot be read: "), "{missing}");
}

#[test]
fn a_file_for_the_bundled_server_names_no_place() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("gateway.yaml");
    let head = "apiVersion: fairgate.dev/v1alpha1\nkind: GatewayConfiguration\n";
    std::fs::write(&path, format!("{head}workers: 2\nauthentication: {{ anonymous: true }}\n")).unwrap();
    let config = GatewayConfig::load_bundled(&path).unwrap();
    assert_eq!((config.workers, config.authentication.anonymous, config.shards.len()), (2, true, 0));
    let places = "listen: { address: 127.0.0.1:1 }\nadmin: { address: 127.0.0.1:2 }\n\
                  shards: [{ name: a, url: http://127.0.0.1:3, seats: 1 }]\n";
    std::fs::write(&path, format!("{head}{places}")).unwrap();
    let error = GatewayConfig::load_bundled(&path).unwrap_err();
    let fields: Vec<_> = error.faults().iter().map(|f| f.field.as_str()).collect();
    assert_eq!(fields, ["listen", "admin", "shards"]);
}

#[test]
fn an_access_log_has_a_place_and_a_share() {
    let parse = |log: &str| {
        parse(&format!(
            "{{apiVersion: fairgate.dev/v1alpha1, kind: GatewayConfiguration, listen: {{address: '127.0.0.1:1'}}, \
             shards: [{{name: a, url: 'http://a:1', seats: 5}}]{log}}}"
        ))
    };
    assert_eq!(parse("").unwrap().access_log, None);
    let log = parse(", accessLog: {file: '-'}").unwrap().access_log;
    assert_eq!(log, Some(AccessLog { sink: Sink::Stdout, per_million: 1_000_000, errors_per_second: 100 }));
    assert_eq!(parse(", accessLog: {file: '-', sample: 0}").unwrap().access_log.unwrap().per_million, 0);
    for (log, fault) in [
        ("{sample: 1}", "accessLog.file: is missing"),
        ("{file: a, sample: 1.5}", "accessLog.sample: is 1.5; want"),
        ("{file: a, sample: -0.1}", "accessLog.sample: is -0.1; want"),
        ("{file: a, sample: 5%}", "accessLog.sample: is the text \"5%\"; want a number"),
        ("{file: a, errorsPerSecond: 1000000}", "accessLog.errorsPerSecond: is 1000000; want"),
        ("{file: a, rate: 1}", "accessLog.rate: is no known key; want"),
    ] {
        let faults = parse(&format!(", accessLog: {log}")).unwrap_err();
        assert!(faults.iter().any(|f| f.contains(fault)), "{log}: {faults:?}");
    }
}
