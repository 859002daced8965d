//! `gateway.yaml`: where fairgate listens, whom it trusts, which shards it stands before.

use std::{
    borrow::Cow,
    collections::{HashMap, hash_map::Entry},
    fmt,
    net::SocketAddr,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    time::Duration,
};

use apiserver_api::{names, user::DROPPED_GROUPS};
use http::Uri;
use serde::Deserialize;

use crate::{
    access_log::{self, AccessLog, RawAccessLog},
    document,
    duration::RawDuration,
    fault::{ConfigError, Faults},
    limits::{Limits, RawLimits},
    read::{self, Rules},
};

const API_VERSION: &str = "fairgate.dev/v1alpha1";
const KIND: &str = "GatewayConfiguration";
const DEFAULT_ADMIN: &str = "127.0.0.1:9443";
const MAX_WORKERS: usize = 4096;
/// More seats than any API server has use for; keeps sums of seats far from overflow.
const MAX_SEATS: u32 = 1_000_000;
const MAX_SHARDS: usize = 10_000;

/// The checked file. File names are absolute, or relative to the working directory if the path of the
/// configuration file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayConfig {
    /// Threads; 0 stands for one per core.
    pub workers: usize,
    /// The front door.
    pub listen: Listen,
    /// Metrics, health and debug endpoints, on a listener of their own.
    pub admin: Admin,
    /// Who is let in, and as whom.
    pub authentication: Authentication,
    /// At least one; names are unique.
    pub shards: Vec<Shard>,
    /// Fair admission.
    pub fairness: Fairness,
    /// Counting of objects.
    pub observers: Observers,
    /// What one client may take, and how long things may last.
    pub limits: Limits,
    /// `None`: no request is logged.
    pub access_log: Option<AccessLog>,
    /// How it ends.
    pub shutdown: Shutdown,
}

/// See [`GatewayConfig::listen`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Port 0 lets the kernel choose.
    pub address: SocketAddr,
    /// `None`: plain HTTP.
    pub tls: Option<ListenTls>,
}

/// TLS towards clients. All files are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenTls {
    /// Certificate chain, leaf first.
    pub certificate_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// Authorities whose client certificates are believed; `None`: none are asked for.
    pub client_ca_file: Option<PathBuf>,
}

/// See [`GatewayConfig::admin`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admin {
    /// Default 127.0.0.1:9443.
    pub address: SocketAddr,
}

/// See [`GatewayConfig::authentication`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authentication {
    /// Whether requests without credentials pass as `system:anonymous`. Default false: they get 401.
    pub anonymous: bool,
    /// Groups taken from everybody; a trailing `*` stands for any ending. Default [`DROPPED_GROUPS`].
    pub drop_groups: Vec<String>,
}

/// One API server behind the door.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Its name, as kcp's Shard object has it.
    pub name: String,
    /// Scheme (http or https), host and port; no path.
    pub url: Uri,
    /// Its concurrency, from 1.
    pub seats: u32,
    /// What is spoken to it.
    pub protocol: Protocol,
    /// For https, always.
    pub tls: Option<ShardTls>,
}

/// The version of HTTP that is spoken to a shard. Requests to switch protocols (exec, port-forward) are HTTP/1.1 in
/// any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// What the shard chooses by ALPN; HTTP/1.1 without TLS.
    #[default]
    Auto,
    /// HTTP/1.1.
    Http1,
    /// HTTP/2; without TLS with prior knowledge.
    Http2,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Http1 => "http1",
            Self::Http2 => "http2",
        })
    }
}

/// TLS towards a shard. All files are PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardTls {
    /// Authorities that sign the shard's certificate.
    pub ca_file: PathBuf,
    /// Certificate and key that the door shows, so that the shard believes its identity headers.
    pub client_certificate: Option<(PathBuf, PathBuf)>,
}

/// See [`GatewayConfig::fairness`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fairness {
    /// Default true. False: requests are forwarded at once.
    pub enabled: bool,
    /// `None`: the bootstrap objects of Kubernetes, all workspaces alike.
    pub file: Option<PathBuf>,
    /// Whose rules order the requests of a workspace.
    pub compat: Compat,
}

/// Whether a rule that we changed on purpose is in force, or the one of Kubernetes v1.34 (apf.md 8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// Our rules.
    #[default]
    Fairgate,
    /// Those of Kubernetes v1.34, known defects included: for migrations and for tests of parity.
    Upstream,
}

/// See [`GatewayConfig::observers`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observers {
    /// How often counts are compared with the shard. Default 5 minutes, at least 1 second.
    pub resync_interval: Duration,
}

/// See [`GatewayConfig::shutdown`]. Together they should stay below the time after which whoever sent the signal kills
/// (Kubernetes: `terminationGracePeriodSeconds`, 30 seconds by default).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// From SIGTERM, which takes readiness down, to the refusal of new requests: the time load balancers have to notice.
    /// From 0 to 10 minutes; default 5 seconds, with the bundled server, which has none before it, 0.
    pub delay: Duration,
    /// How long running requests may take to finish after that, and within which watches end. From 1 second to 1 hour;
    /// default 20 seconds, with the bundled server 10.
    pub grace: Duration,
}

impl Shutdown {
    /// What holds for the bundled server without a file.
    pub const BUNDLED: Self = Self { delay: Duration::ZERO, grace: Duration::from_secs(10) };
    const DEFAULT: Self = Self { delay: Duration::from_secs(5), grace: Duration::from_secs(20) };
}

impl GatewayConfig {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Self::parse(&Self::read(path)?, path)
    }

    /// Reads and checks a file for a gateway that brings its own shard and takes its addresses from the command
    /// line: `listen`, `admin`, `shards` and `authentication.dropGroups` must not be given. In the result `shards` is empty and the addresses
    /// mean nothing.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn load_bundled(path: &Path) -> Result<Self, ConfigError> {
        Self::parse_bundled(&Self::read(path)?, path)
    }

    /// Reads a file as text, for [`GatewayConfig::parse`].
    ///
    /// # Errors
    /// It cannot be read, is too large or no UTF-8.
    pub fn read(path: &Path) -> Result<String, ConfigError> {
        document::read(path)
    }

    /// As [`GatewayConfig::load_bundled`], of a text as the content of the file at `path`, which is not read.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse_bundled(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::check(text, path, true)
    }

    /// Checks a text as the content of the file at `path`, which is not read.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::check(text, path, false)
    }

    fn check(text: &str, path: &Path, bundled: bool) -> Result<Self, ConfigError> {
        let fail = |faults| ConfigError::new(path, faults);
        let node = document::one(text, KIND).map_err(|fault| fail(vec![fault]))?;
        let node = &node;
        let mut found = Vec::new();
        let raw: Raw = read::read(node, "", RULES, &mut found);
        let mut faults = Faults::new(node, found);
        let checked =
            Checker { faults: &mut faults, directory: path.parent().unwrap_or(Path::new("")), bundled }.config(raw);
        match (checked, faults.into_list()) {
            (Some(config), faults) if faults.is_empty() => Ok(config),
            (_, faults) => Err(fail(faults)),
        }
    }
}

const RULES: Rules = Rules {
    null_is_absent: false,
    open: &[],
    later: &[
        ("RawAuthentication", "clientCertificates"),
        ("RawAuthentication", "tokenFile"),
        ("RawAuthentication", "oidc"),
        ("RawAuthentication", "tokenReview"),
        ("RawAuthentication", "requestHeader"),
    ],
};

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Raw {
    api_version: String,
    kind: String,
    workers: i64,
    listen: RawListen,
    admin: RawAdmin,
    authentication: RawAuthentication,
    shards: Vec<RawShard>,
    fairness: RawFairness,
    observers: RawObservers,
    limits: RawLimits,
    access_log: Option<RawAccessLog>,
    shutdown: RawShutdown,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawListen {
    address: String,
    tls: Option<RawListenTls>,
}

impl RawListen {
    /// Stands in for the address of the command line.
    fn bundled() -> Self {
        Self { address: DEFAULT_ADMIN.into(), tls: None }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawListenTls {
    certificate_file: String,
    key_file: String,
    #[serde(rename = "clientCAFile")]
    client_ca_file: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawAdmin {
    address: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawAuthentication {
    anonymous: bool,
    drop_groups: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawShard {
    name: String,
    url: String,
    seats: i64,
    protocol: Option<String>,
    tls: Option<RawShardTls>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawShardTls {
    ca_file: Option<String>,
    client_certificate_file: Option<String>,
    client_key_file: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawFairness {
    enabled: Option<bool>,
    file: Option<String>,
    compat: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawObservers {
    resync_interval: Option<RawDuration>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct RawShutdown {
    delay: Option<RawDuration>,
    grace: Option<RawDuration>,
}

/// Turns raw values into checked ones. `None` stands for a value whose fault is recorded.
struct Checker<'a, 'n> {
    faults: &'a mut Faults<'n>,
    directory: &'a Path,
    /// See [`GatewayConfig::load_bundled`].
    bundled: bool,
}

impl Checker<'_, '_> {
    fn config(&mut self, raw: Raw) -> Option<GatewayConfig> {
        for (field, found, want) in [("apiVersion", raw.api_version, API_VERSION), ("kind", raw.kind, KIND)] {
            if found != want {
                self.faults.unfit(field, format_args!("{found:?}"), want);
            }
        }
        let workers = usize::try_from(raw.workers).ok().filter(|workers| *workers <= MAX_WORKERS);
        if workers.is_none() {
            self.faults.add("workers", format!("is {}; want 0 (one per core) to {MAX_WORKERS}", raw.workers));
        }
        if self.bundled {
            let given = [
                ("listen", !raw.listen.address.is_empty() || raw.listen.tls.is_some()),
                ("admin", raw.admin.address.is_some()),
                ("shards", !raw.shards.is_empty()),
                ("authentication.dropGroups", raw.authentication.drop_groups.is_some()),
            ];
            for (field, _) in given.into_iter().filter(|(_, given)| *given) {
                self.faults.add(field, "is given, but the bundled server brings its own; want a file without it");
            }
        }
        let listen = if self.bundled { self.listen(RawListen::bundled()) } else { self.listen(raw.listen) };
        let admin = self.address("admin.address", raw.admin.address.as_deref().unwrap_or(DEFAULT_ADMIN));
        let authentication = self.authentication(raw.authentication);
        let shards = self.shards(raw.shards);
        let fairness = Fairness {
            enabled: raw.fairness.enabled.unwrap_or(true),
            file: self.optional_file("fairness.file", raw.fairness.file),
            compat: self.compat(raw.fairness.compat.as_deref()),
        };
        let observers = self.observers(&raw.observers);
        let limits = raw.limits.check(self.faults);
        let access_log = raw.access_log.map(|raw| access_log::check(&raw, self.directory, self.faults));
        let shutdown = self.shutdown(&raw.shutdown);
        Some(GatewayConfig {
            workers: workers?,
            listen: listen?,
            admin: Admin { address: admin? },
            authentication,
            shards,
            fairness,
            observers: observers?,
            limits,
            access_log: match access_log {
                Some(checked) => Some(checked?),
                None => None,
            },
            shutdown: shutdown?,
        })
    }

    fn listen(&mut self, raw: RawListen) -> Option<Listen> {
        let address = self.address("listen.address", &raw.address);
        let tls = raw.tls.map(|tls| ListenTls {
            certificate_file: self.file("listen.tls.certificateFile", &tls.certificate_file),
            key_file: self.file("listen.tls.keyFile", &tls.key_file),
            client_ca_file: self.optional_file("listen.tls.clientCAFile", tls.client_ca_file),
        });
        Some(Listen { address: address?, tls })
    }

    fn authentication(&mut self, raw: RawAuthentication) -> Authentication {
        let drop_groups = raw.drop_groups.unwrap_or_else(|| DROPPED_GROUPS.map(str::to_owned).to_vec());
        for (i, group) in drop_groups.iter().enumerate() {
            if group.is_empty() || group.strip_suffix('*').unwrap_or(group).contains('*') {
                let message = format!("is {group:?}; want a group, or the beginning of groups and one *");
                self.faults.add(format!("authentication.dropGroups[{i}]"), message);
            }
        }
        Authentication { anonymous: raw.anonymous, drop_groups }
    }

    fn shards(&mut self, raw: Vec<RawShard>) -> Vec<Shard> {
        if (raw.is_empty() && !self.bundled) || raw.len() > MAX_SHARDS {
            let found = format_args!("a list of {}", raw.len());
            self.faults.unfit("shards", found, format_args!("1 to {MAX_SHARDS} entries"));
        }
        let mut names: HashMap<String, usize> = HashMap::new();
        let mut urls: HashMap<String, usize> = HashMap::new();
        let mut shards = Vec::with_capacity(raw.len());
        for (i, shard) in raw.into_iter().enumerate() {
            let field = format!("shards[{i}]");
            if let Some(first) = names.get(&shard.name).filter(|_| !shard.name.is_empty()) {
                let message = format!("is {:?}, the name of shards[{first}] too; want a name of its own", shard.name);
                self.faults.add(format!("{field}.name"), message);
            }
            names.entry(shard.name.clone()).or_insert(i);
            let Some(shard) = self.shard(&field, shard) else { continue };
            match urls.entry(address(&shard.url)) {
                Entry::Occupied(first) => {
                    let (url, first) = (&shard.url, first.get());
                    let message = format!("is {url}, where shards[{first}] is too; want an address of its own");
                    self.faults.add(format!("{field}.url"), message);
                }
                Entry::Vacant(place) => drop(place.insert(i)),
            }
            shards.push(shard);
        }
        shards
    }

    fn shard(&mut self, field: &str, raw: RawShard) -> Option<Shard> {
        if raw.name.is_empty() {
            self.faults.add(format!("{field}.name"), "is missing; want the name of the shard");
        } else if let Err(messages) = names::dns_subdomain(&raw.name) {
            let message = format!("is {:?}; want a DNS name: {}", raw.name, messages.join("; "));
            self.faults.add(format!("{field}.name"), message);
        }
        let seats = u32::try_from(raw.seats).ok().filter(|seats| (1..=MAX_SEATS).contains(seats));
        if seats.is_none() {
            self.faults.unfit(&format!("{field}.seats"), raw.seats, format_args!("1 to {MAX_SEATS}"));
        }
        let url = self.faults.check(&format!("{field}.url"), shard_url(&raw.url));
        if raw.tls.is_some() && url.as_ref().is_some_and(|url| url.scheme_str() == Some("http")) {
            self.faults.add(format!("{field}.tls"), "is given with an http URL; want https, or no tls");
        }
        let protocol = self.protocol(&format!("{field}.protocol"), raw.protocol.as_deref());
        let is_https = url.as_ref().is_some_and(|url| url.scheme_str() == Some("https"));
        let tls = raw.tls.or_else(|| is_https.then(RawShardTls::default));
        let tls = tls.map(|tls| self.shard_tls(&format!("{field}.tls"), tls));
        Some(Shard { name: raw.name, url: url?, seats: seats?, protocol, tls })
    }

    fn protocol(&mut self, field: &str, text: Option<&str>) -> Protocol {
        match text {
            None | Some("auto") => Protocol::Auto,
            Some("http1") => Protocol::Http1,
            Some("http2") => Protocol::Http2,
            Some(other) => {
                self.faults.add(field, format!("is {other:?}; want auto, http1 or http2"));
                Protocol::Auto
            }
        }
    }

    fn shard_tls(&mut self, field: &str, raw: RawShardTls) -> ShardTls {
        let (certificate, key) = (format!("{field}.clientCertificateFile"), format!("{field}.clientKeyFile"));
        match (&raw.client_certificate_file, &raw.client_key_file) {
            (Some(_), None) => self.faults.add(&key, "is missing; want the key of clientCertificateFile"),
            (None, Some(_)) => self.faults.add(&certificate, "is missing; want the certificate of clientKeyFile"),
            _ => {}
        }
        ShardTls {
            ca_file: self.shard_ca(&format!("{field}.caFile"), raw.ca_file),
            client_certificate: self
                .optional_file(&certificate, raw.client_certificate_file)
                .zip(self.optional_file(&key, raw.client_key_file)),
        }
    }

    fn shard_ca(&mut self, field: &str, name: Option<String>) -> PathBuf {
        if name.is_none() {
            self.faults.add(field, "is missing; want the CA of the shard's certificate, for an https url");
        }
        self.directory.join(name.unwrap_or_default())
    }

    fn observers(&mut self, raw: &RawObservers) -> Option<Observers> {
        let (text, range) = (raw.resync_interval.as_ref(), 1..=86_400);
        let resync_interval = self.duration("observers.resyncInterval", text, Duration::from_secs(300), range)?;
        Some(Observers { resync_interval })
    }

    fn shutdown(&mut self, raw: &RawShutdown) -> Option<Shutdown> {
        let default = if self.bundled { Shutdown::BUNDLED } else { Shutdown::DEFAULT };
        let delay = self.duration("shutdown.delay", raw.delay.as_ref(), default.delay, 0..=600);
        let grace = self.duration("shutdown.grace", raw.grace.as_ref(), default.grace, 1..=3600);
        Some(Shutdown { delay: delay?, grace: grace? })
    }

    /// A duration within `seconds`.
    fn duration(
        &mut self,
        field: &str,
        text: Option<&RawDuration>,
        default: Duration,
        seconds: RangeInclusive<u64>,
    ) -> Option<Duration> {
        let Some(text) = text else { return Some(default) };
        self.faults.check(field, text.within(seconds, default))
    }

    fn compat(&mut self, text: Option<&str>) -> Compat {
        match text {
            None | Some("fairgate") => Compat::Fairgate,
            Some("upstream") => Compat::Upstream,
            Some(other) => {
                self.faults.add("fairness.compat", format!("is {other:?}; want fairgate or upstream"));
                Compat::Fairgate
            }
        }
    }

    fn address(&mut self, field: &str, text: &str) -> Option<SocketAddr> {
        let want = "want an IP address and port, for example 0.0.0.0:6443 or [::]:6443";
        let parsed = text
            .parse()
            .map_err(|_| if text.is_empty() { format!("is missing; {want}") } else { format!("is {text:?}; {want}") });
        self.faults.check(field, parsed)
    }

    fn file(&mut self, field: &str, name: &str) -> PathBuf {
        if name.is_empty() {
            self.faults.add(field, "is missing; want the name of a file");
        }
        self.directory.join(name)
    }

    fn optional_file(&mut self, field: &str, name: Option<String>) -> Option<PathBuf> {
        name.map(|name| self.file(field, &name))
    }
}

fn shard_url(text: &str) -> Result<Uri, String> {
    let want = "want http or https, a host and a port, for example https://10.0.0.4:6444";
    if text.is_empty() {
        return Err(format!("is missing; {want}"));
    }
    let wrong = |why: &str| format!("is {:?}, {why}; {want}", without_secret(text));
    let url: Uri = text.parse().map_err(|e| wrong(&format!("which is no URL ({e})")))?;
    match url.scheme_str() {
        Some("http" | "https") => {}
        Some(_) => return Err(wrong("of another scheme")),
        None => return Err(wrong("without a scheme")),
    }
    let authority = url.authority().map_or("", |a| a.as_str());
    if authority.contains('@') {
        return Err(wrong("with credentials"));
    }
    if url.host().is_none_or(str::is_empty) {
        return Err(wrong("without a host"));
    }
    // The type takes any number for a port, and then has none.
    let behind_host = authority.rsplit_once(']').map_or(authority, |(_, port)| port);
    let port = behind_host.split_once(':').map(|(_, port)| port);
    if port.is_some() && url.port_u16().is_none_or(|port| port == 0) {
        return Err(wrong("with a port that is none (1 to 65535 are)"));
    }
    if url.path_and_query().is_some_and(|p| p != "/") {
        return Err(wrong("with a path"));
    }
    Ok(url)
}

/// Where a URL leads, however it is spelt.
fn address(url: &Uri) -> String {
    let port = url.port_u16().unwrap_or(if url.scheme_str() == Some("https") { 443 } else { 80 });
    format!("{}:{port}", url.host().unwrap_or_default().to_ascii_lowercase())
}

/// A URL as it may be shown: credentials before its host are not.
fn without_secret(text: &str) -> Cow<'_, str> {
    let Some((before, host)) = text.rsplit_once('@') else { return text.into() };
    let scheme = before.split_once("://").map_or("", |(scheme, _)| scheme);
    format!("{scheme}://*@{host}").into()
}

#[cfg(test)]
mod tests;
