//! What differs between two gateway files, and what of it needs a restart.
//!
//! Every structure is taken apart here without `..`: a new field that nobody has decided on does not compile.

use std::{fmt::Display, path::PathBuf, time::Duration};

use serde::Serialize;

use crate::gateway::{
    Admin, Authentication, Compat, Fairness, GatewayConfig, Listen, ListenTls, Observers, Shard, ShardTls, Shutdown,
};
use crate::{
    access_log::{AccessLog, Sink},
    limits::Limits,
};

/// When a change comes into force.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Effect {
    /// Now, in the running gateway.
    AtOnce,
    /// When the gateway is started again.
    Restart,
}

/// One field with another value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Change {
    /// Its path in the file, with shards by name: `shards[amber].seats`.
    pub field: String,
    /// The value before.
    pub from: String,
    /// The value now.
    pub to: String,
    /// When it counts.
    pub effect: Effect,
}

impl Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { field, from, to, effect } = self;
        let note = if *effect == Effect::Restart { " (needs a restart)" } else { "" };
        write!(f, "{field}: {from} -> {to}{note}")
    }
}

impl GatewayConfig {
    /// Everything in which `to` differs, in the order of the file.
    pub fn changes(&self, to: &Self) -> Vec<Change> {
        let mut diff = Diff(Vec::new());
        diff.config(self, to);
        diff.0
    }

    /// What is in force in a gateway that runs by `self` and has read `to`: all of it but what needs a restart.
    #[must_use]
    pub fn followed_by(&self, to: &Self) -> Self {
        Self {
            workers: self.workers,
            listen: Listen { address: self.listen.address, tls: to.listen.tls.clone() },
            admin: self.admin.clone(),
            authentication: to.authentication.clone(),
            shards: to.shards.clone(),
            fairness: Fairness {
                enabled: self.fairness.enabled,
                file: to.fairness.file.clone(),
                compat: self.fairness.compat,
            },
            observers: self.observers.clone(),
            limits: limits_after(&self.limits, &to.limits),
            access_log: to.access_log.clone(),
            shutdown: to.shutdown,
        }
    }
}

/// Those of `to`, but for those of connections to shards, which are read when a shard is made.
fn limits_after(from: &Limits, to: &Limits) -> Limits {
    Limits {
        connections: to.connections,
        connections_per_address: to.connections_per_address,
        handshakes: to.handshakes,
        header_bytes: to.header_bytes,
        header_count: to.header_count,
        body_bytes: to.body_bytes,
        streams: to.streams,
        resets_per_minute: to.resets_per_minute,
        control_frames_per_minute: to.control_frames_per_minute,
        head_timeout: to.head_timeout,
        idle_timeout: to.idle_timeout,
        stall_timeout: to.stall_timeout,
        connection_age: to.connection_age,
        goaways_per_million: to.goaways_per_million,
        tunnels: to.tunnels,
        tunnel_idle_timeout: to.tunnel_idle_timeout,
        upstream_connections: from.upstream_connections,
        ping_interval: from.ping_interval,
        ping_timeout: from.ping_timeout,
        connect_timeout: from.connect_timeout,
        request_timeout: to.request_timeout,
        watch_start_timeout: to.watch_start_timeout,
        ahead_bytes: to.ahead_bytes,
        ahead_bytes_per_worker: to.ahead_bytes_per_worker,
        lookup_wait: to.lookup_wait,
    }
}

/// Collects differences.
struct Diff(Vec<Change>);

impl Diff {
    fn add(&mut self, effect: Effect, field: impl Into<String>, from: String, to: String) {
        if from != to {
            self.0.push(Change { field: field.into(), from, to, effect });
        }
    }

    fn config(&mut self, from: &GatewayConfig, to: &GatewayConfig) {
        use Effect::{AtOnce, Restart};
        let GatewayConfig {
            workers,
            listen,
            admin,
            authentication,
            shards,
            fairness,
            observers,
            limits,
            access_log,
            shutdown,
        } = from;
        self.add(Restart, "workers", workers.to_string(), to.workers.to_string());
        let Listen { address, tls } = listen;
        self.add(Restart, "listen.address", address.to_string(), to.listen.address.to_string());
        self.listen_tls(tls.as_ref(), to.listen.tls.as_ref());
        let Admin { address } = admin;
        self.add(Restart, "admin.address", address.to_string(), to.admin.address.to_string());
        let Authentication { anonymous, drop_groups } = authentication;
        self.add(AtOnce, "authentication.anonymous", anonymous.to_string(), to.authentication.anonymous.to_string());
        let groups = |list: &[String]| format!("[{}]", list.join(", "));
        self.add(AtOnce, "authentication.dropGroups", groups(drop_groups), groups(&to.authentication.drop_groups));
        self.shards(shards, &to.shards);
        let Fairness { enabled, file, compat } = fairness;
        self.add(Restart, "fairness.enabled", enabled.to_string(), to.fairness.enabled.to_string());
        self.add(AtOnce, "fairness.file", path(file.as_ref()), path(to.fairness.file.as_ref()));
        let rules = |compat: Compat| match compat {
            Compat::Fairgate => "fairgate".to_owned(),
            Compat::Upstream => "upstream".to_owned(),
        };
        self.add(Restart, "fairness.compat", rules(*compat), rules(to.fairness.compat));
        let Observers { resync_interval } = observers;
        let field = "observers.resyncInterval";
        self.add(Restart, field, time(*resync_interval), time(to.observers.resync_interval));
        self.limits(limits, &to.limits);
        self.access_log(access_log.as_ref(), to.access_log.as_ref());
        let Shutdown { delay, grace } = shutdown;
        self.add(AtOnce, "shutdown.delay", time(*delay), time(to.shutdown.delay));
        self.add(AtOnce, "shutdown.grace", time(*grace), time(to.shutdown.grace));
    }

    fn listen_tls(&mut self, from: Option<&ListenTls>, to: Option<&ListenTls>) {
        let files = |tls: Option<&ListenTls>| match tls {
            None => [NONE.to_owned(), NONE.to_owned(), NONE.to_owned()],
            Some(ListenTls { certificate_file, key_file, client_ca_file }) => {
                [certificate_file.display().to_string(), key_file.display().to_string(), path(client_ca_file.as_ref())]
            }
        };
        let names = ["certificateFile", "keyFile", "clientCAFile"];
        for ((name, from), to) in names.into_iter().zip(files(from)).zip(files(to)) {
            self.add(Effect::AtOnce, format!("listen.tls.{name}"), from, to);
        }
    }

    fn access_log(&mut self, from: Option<&AccessLog>, to: Option<&AccessLog>) {
        let values = |log: Option<&AccessLog>| match log {
            None => [NONE.to_owned(), NONE.to_owned(), NONE.to_owned()],
            Some(AccessLog { sink, per_million, errors_per_second }) => {
                let file = match sink {
                    Sink::Stdout => "-".to_owned(),
                    Sink::File(file) => file.display().to_string(),
                };
                let share = f64::from(*per_million) / f64::from(AccessLog::MILLION);
                [file, share.to_string(), errors_per_second.to_string()]
            }
        };
        let names = ["file", "sample", "errorsPerSecond"];
        for ((name, from), to) in names.into_iter().zip(values(from)).zip(values(to)) {
            self.add(Effect::AtOnce, format!("accessLog.{name}"), from, to);
        }
    }

    fn limits(&mut self, from: &Limits, to: &Limits) {
        use Effect::{AtOnce, Restart};
        let Limits {
            connections,
            connections_per_address,
            handshakes,
            header_bytes,
            header_count,
            body_bytes,
            streams,
            resets_per_minute,
            control_frames_per_minute,
            head_timeout,
            idle_timeout,
            stall_timeout,
            connection_age,
            goaways_per_million,
            tunnels,
            tunnel_idle_timeout,
            upstream_connections,
            ping_interval,
            ping_timeout,
            connect_timeout,
            request_timeout,
            watch_start_timeout,
            ahead_bytes,
            ahead_bytes_per_worker,
            lookup_wait,
        } = from;
        let any = |value: Option<String>| value.unwrap_or_else(|| NONE.to_owned());
        for (field, effect, from, to) in [
            ("connections", AtOnce, connections.to_string(), to.connections.to_string()),
            (
                "connectionsPerAddress",
                AtOnce,
                connections_per_address.to_string(),
                to.connections_per_address.to_string(),
            ),
            ("handshakes", AtOnce, handshakes.to_string(), to.handshakes.to_string()),
            ("headerBytes", AtOnce, header_bytes.to_string(), to.header_bytes.to_string()),
            ("headerCount", AtOnce, header_count.to_string(), to.header_count.to_string()),
            ("bodyBytes", AtOnce, any(body_bytes.map(|n| n.to_string())), any(to.body_bytes.map(|n| n.to_string()))),
            ("streams", AtOnce, streams.to_string(), to.streams.to_string()),
            ("resetsPerMinute", AtOnce, resets_per_minute.to_string(), to.resets_per_minute.to_string()),
            (
                "controlFramesPerMinute",
                AtOnce,
                control_frames_per_minute.to_string(),
                to.control_frames_per_minute.to_string(),
            ),
            ("headTimeout", AtOnce, time(*head_timeout), time(to.head_timeout)),
            ("idleTimeout", AtOnce, time(*idle_timeout), time(to.idle_timeout)),
            ("stallTimeout", AtOnce, time(*stall_timeout), time(to.stall_timeout)),
            ("connectionAge", AtOnce, any(connection_age.map(time)), any(to.connection_age.map(time))),
            ("goawaysPerMillion", AtOnce, goaways_per_million.to_string(), to.goaways_per_million.to_string()),
            ("tunnels", AtOnce, tunnels.to_string(), to.tunnels.to_string()),
            ("tunnelIdleTimeout", AtOnce, time(*tunnel_idle_timeout), time(to.tunnel_idle_timeout)),
            ("upstreamConnections", Restart, upstream_connections.to_string(), to.upstream_connections.to_string()),
            ("pingInterval", Restart, time(*ping_interval), time(to.ping_interval)),
            ("pingTimeout", Restart, time(*ping_timeout), time(to.ping_timeout)),
            ("connectTimeout", Restart, time(*connect_timeout), time(to.connect_timeout)),
            ("requestTimeout", AtOnce, time(*request_timeout), time(to.request_timeout)),
            ("watchStartTimeout", AtOnce, time(*watch_start_timeout), time(to.watch_start_timeout)),
            ("aheadBytes", AtOnce, ahead_bytes.to_string(), to.ahead_bytes.to_string()),
            ("aheadBytesPerWorker", AtOnce, ahead_bytes_per_worker.to_string(), to.ahead_bytes_per_worker.to_string()),
            ("lookupWait", AtOnce, time(*lookup_wait), time(to.lookup_wait)),
        ] {
            self.add(effect, format!("limits.{field}"), from, to);
        }
    }

    fn shards(&mut self, from: &[Shard], to: &[Shard]) {
        let named = |list: &[Shard], name: &str| list.iter().find(|shard| shard.name == name).cloned();
        for Shard { name, url, seats, protocol, tls } in from {
            let Some(now) = named(to, name) else {
                self.add(Effect::AtOnce, format!("shards[{name}]"), url.to_string(), NONE.to_owned());
                continue;
            };
            self.add(Effect::AtOnce, format!("shards[{name}].url"), url.to_string(), now.url.to_string());
            self.add(Effect::AtOnce, format!("shards[{name}].seats"), seats.to_string(), now.seats.to_string());
            let (from, to) = (protocol.to_string(), now.protocol.to_string());
            self.add(Effect::AtOnce, format!("shards[{name}].protocol"), from, to);
            let files = |tls: Option<&ShardTls>| match tls {
                None => [NONE.to_owned(), NONE.to_owned(), NONE.to_owned()],
                Some(ShardTls { ca_file, client_certificate }) => {
                    let (certificate, key) = client_certificate.clone().unzip();
                    [path(Some(ca_file)), path(certificate.as_ref()), path(key.as_ref())]
                }
            };
            let names = ["caFile", "clientCertificateFile", "clientKeyFile"];
            for ((file, from), to) in names.into_iter().zip(files(tls.as_ref())).zip(files(now.tls.as_ref())) {
                self.add(Effect::AtOnce, format!("shards[{name}].tls.{file}"), from, to);
            }
        }
        for Shard { name, url, .. } in to.iter().filter(|shard| named(from, &shard.name).is_none()) {
            self.add(Effect::AtOnce, format!("shards[{name}]"), NONE.to_owned(), url.to_string());
        }
    }
}

const NONE: &str = "none";

fn path(file: Option<&PathBuf>) -> String {
    file.map_or_else(|| NONE.to_owned(), |file| file.display().to_string())
}

fn time(time: Duration) -> String {
    format!("{time:?}")
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, path::Path};

    use super::*;

    const FILE: &str = "
apiVersion: fairgate.dev/v1alpha1
kind: GatewayConfiguration
workers: 2
authentication: { anonymous: true, dropGroups: [ops] }
listen: { address: '127.0.0.1:1', tls: { certificateFile: a, keyFile: b } }
admin: { address: 127.0.0.1:2 }
shards:
- { name: root, url: https://h:1, seats: 600, tls: { caFile: s } }
- { name: amber, url: http://h:2, seats: 1 }
observers: { resyncInterval: 90s }
fairness: { enabled: true, file: f, compat: fairgate }
limits: { streams: 9, idleTimeout: 8m }
accessLog: { file: '-', sample: 0.5 }
shutdown: { delay: 1s, grace: 2s }
";

    fn parse(text: &str) -> GatewayConfig {
        GatewayConfig::parse(text, Path::new("/e/gateway.yaml")).unwrap()
    }

    #[test]
    fn every_field_is_told_and_what_needs_a_restart_stays() {
        let old = parse(FILE);
        let mut told = BTreeSet::new();
        for (from, to, line) in [
            ("workers: 2", "workers: 3", "workers: 2 -> 3 (needs a restart)"),
            ("127.0.0.1:1'", "127.0.0.1:9'", "listen.address: 127.0.0.1:1 -> 127.0.0.1:9 (needs a restart)"),
            ("certificateFile: a", "certificateFile: c", "listen.tls.certificateFile: /e/a -> /e/c"),
            ("keyFile: b", "keyFile: c", "listen.tls.keyFile: /e/b -> /e/c"),
            ("keyFile: b", "keyFile: b, clientCAFile: c", "listen.tls.clientCAFile: none -> /e/c"),
            ("127.0.0.1:2", "127.0.0.1:9", "admin.address: 127.0.0.1:2 -> 127.0.0.1:9 (needs a restart)"),
            ("anonymous: true", "anonymous: false", "authentication.anonymous: true -> false"),
            ("[ops]", "[ops, dev]", "authentication.dropGroups: [ops] -> [ops, dev]"),
            ("https://h:1", "https://h:3", "shards[root].url: https://h:1/ -> https://h:3/"),
            ("seats: 600", "seats: 60", "shards[root].seats: 600 -> 60"),
            ("caFile: s", "caFile: t", "shards[root].tls.caFile: /e/s -> /e/t"),
            (
                "caFile: s",
                "caFile: s, clientCertificateFile: c, clientKeyFile: k",
                "shards[root].tls.clientCertificateFile: none -> /e/c",
            ),
            ("seats: 1 }", "seats: 1, protocol: http2 }", "shards[amber].protocol: auto -> http2"),
            ("name: amber", "name: blue", "shards[amber]: http://h:2/ -> none"),
            (
                "- { name: amber",
                "- { name: blue, url: 'http://h:3', seats: 1 }\n- { name: amber",
                "shards[blue]: none -> http://h:3/",
            ),
            ("90s", "91s", "observers.resyncInterval: 90s -> 91s (needs a restart)"),
            ("enabled: true", "enabled: false", "fairness.enabled: true -> false (needs a restart)"),
            ("file: f", "file: g", "fairness.file: /e/f -> /e/g"),
            ("compat: fairgate", "compat: upstream", "fairness.compat: fairgate -> upstream (needs a restart)"),
            ("8m", "8m, connections: 9000", "limits.connections: 20000 -> 9000"),
            ("8m", "8m, connectionsPerAddress: 9", "limits.connectionsPerAddress: 10000 -> 9"),
            ("8m", "8m, handshakes: 9", "limits.handshakes: 10000 -> 9"),
            ("8m", "8m, headerBytes: 9000", "limits.headerBytes: 65536 -> 9000"),
            ("8m", "8m, headerCount: 90", "limits.headerCount: 100 -> 90"),
            ("8m", "8m, bodyBytes: 2000", "limits.bodyBytes: none -> 2000"),
            ("streams: 9", "streams: 8", "limits.streams: 9 -> 8"),
            ("8m", "8m, resetsPerMinute: 90", "limits.resetsPerMinute: 1000 -> 90"),
            ("8m", "8m, controlFramesPerMinute: 900", "limits.controlFramesPerMinute: 6000 -> 900"),
            ("8m", "8m, headTimeout: 9s", "limits.headTimeout: 15s -> 9s"),
            ("8m", "9m", "limits.idleTimeout: 480s -> 540s"),
            ("8m", "8m, stallTimeout: 9s", "limits.stallTimeout: 30s -> 9s"),
            ("8m", "8m, connectionAge: 90s", "limits.connectionAge: none -> 90s"),
            ("8m", "8m, goawaysPerMillion: 9", "limits.goawaysPerMillion: 0 -> 9"),
            ("8m", "8m, tunnels: 9", "limits.tunnels: 1000 -> 9"),
            ("8m", "8m, tunnelIdleTimeout: 90s", "limits.tunnelIdleTimeout: 14400s -> 90s"),
            ("8m", "8m, upstreamConnections: 9", "limits.upstreamConnections: 10000 -> 9 (needs a restart)"),
            ("8m", "8m, pingInterval: 9s", "limits.pingInterval: 30s -> 9s (needs a restart)"),
            ("8m", "8m, pingTimeout: 9s", "limits.pingTimeout: 10s -> 9s (needs a restart)"),
            ("8m", "8m, connectTimeout: 9s", "limits.connectTimeout: 5s -> 9s (needs a restart)"),
            ("8m", "8m, requestTimeout: 9s", "limits.requestTimeout: 60s -> 9s"),
            ("8m", "8m, watchStartTimeout: 9s", "limits.watchStartTimeout: 30s -> 9s"),
            ("8m", "8m, aheadBytes: 9", "limits.aheadBytes: 1048576 -> 9"),
            ("8m", "8m, aheadBytesPerWorker: 9", "limits.aheadBytesPerWorker: 67108864 -> 9"),
            ("8m", "8m, lookupWait: 9s", "limits.lookupWait: 100ms -> 9s"),
            ("sample: 0.5", "sample: 0.25", "accessLog.sample: 0.5 -> 0.25"),
            ("file: '-'", "file: log", "accessLog.file: - -> /e/log"),
            ("sample: 0.5", "sample: 0.5, errorsPerSecond: 9", "accessLog.errorsPerSecond: 100 -> 9"),
            ("delay: 1s", "delay: 3s", "shutdown.delay: 1s -> 3s"),
            ("grace: 2s", "grace: 3s", "shutdown.grace: 2s -> 3s"),
        ] {
            assert!(FILE.contains(from), "{from}");
            told.insert(line.split(": ").next().unwrap());
            let new = parse(&FILE.replacen(from, to, 1));
            let changes = old.changes(&new);
            assert_eq!(changes[0].to_string(), line);
            // What is then in force differs from the file by exactly what needs a restart.
            let now = old.followed_by(&new);
            let left = now.changes(&new);
            let restart: Vec<_> = changes.iter().filter(|c| c.effect == Effect::Restart).cloned().collect();
            assert_eq!(left, restart, "{line}");
        }
        let limits = told.iter().filter(|field| field.starts_with("limits.")).count();
        assert_eq!(limits, format!("{:?}", old.limits).matches(": ").count(), "a limit is not in the table");
        assert_eq!(old.changes(&old), []);
        assert_eq!(old.followed_by(&old), old);
    }
}
