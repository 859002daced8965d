//! Reload of `gateway.yaml`, the certificates it names, and `fairness.yaml` while the gateway runs: when a file changes,
//! and on SIGHUP.
//!
//! # Invariants
//! * What is wrong is refused whole: a `gateway.yaml` comes into force with all its certificates and its fairness file,
//!   or not at all.
//! * A content is judged once: it is put in force, or refused and counted, and not looked at again until it changes.

mod files;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use config::{Change, ConfigError, Effect, FairnessConfig, GatewayConfig, Shutdown, Source};
use proxy::{Gateway, Settings, ShardSettings};
use tokio::time::sleep;

use self::files::Files;
use crate::{Failure, run, tls::Pems};

/// A content counts when it is the same after this: a file that is written in place is read half at times.
const STEADY: Duration = Duration::from_millis(20);
const STEADY_TRIES: u32 = 10;

/// A `gateway.yaml` with everything it needs.
pub(crate) struct Loaded {
    pub(crate) source: Source,
    pub(crate) config: GatewayConfig,
    pub(crate) pems: Pems,
    /// `None`: plain text.
    pub(crate) tls: Option<Arc<rustls::ServerConfig>>,
    /// Towards each shard.
    pub(crate) shards: Vec<Option<Arc<rustls::ClientConfig>>>,
}

impl Loaded {
    /// Reads and checks the file and what it names.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub(crate) fn read(path: &Path) -> Result<Self, Failure> {
        let text = GatewayConfig::read(path).map_err(Failure::config)?;
        let config = GatewayConfig::parse(&text, path).map_err(Failure::config)?;
        let pems = Pems::read(&config);
        Self::check(Source::new(path, &text), config, pems).map_err(Failure::Usage)
    }

    fn check(source: Source, config: GatewayConfig, pems: Pems) -> anyhow::Result<Self> {
        let tls = config.listen.tls.as_ref().map(|files| pems.listen(files)).transpose()?.map(Arc::new);
        let shards = config.shards.iter().map(|shard| Ok(pems.shard(shard)?.map(Arc::new)));
        let shards = shards.collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { source, config, pems, tls, shards })
    }
}

/// Where the gateway's settings come from besides its file.
pub(crate) enum Base {
    /// From nowhere: `fairgate serve`.
    File,
    /// The bundled server brings its own TLS and its own shard: `fairgate dev`.
    Bundled(Arc<rustls::ServerConfig>),
}

/// Follows all files; without any it follows nothing.
pub(crate) struct Reloader {
    files: Files,
    gateway: Option<GatewayFile>,
    /// `None` when fairness is off, or by defaults.
    fairness: Option<FairnessFile>,
    is_fair: bool,
}

struct GatewayFile {
    path: PathBuf,
    base: Base,
    /// What the gateway runs by.
    in_force: GatewayConfig,
    /// Digests of the certificates in force.
    pems: BTreeMap<PathBuf, String>,
    /// What was last judged.
    seen: Seen,
}

/// The contents of the file and of the certificates it names.
type Seen = (Result<String, ConfigError>, Pems);

struct FairnessFile {
    path: PathBuf,
    /// SHA-256 of the content that was last put in force or refused, or why there was none.
    seen: Result<String, String>,
}

impl FairnessFile {
    /// `None` for the defaults, which are in no file.
    fn of(config: &FairnessConfig) -> Option<Self> {
        let Source { file, sha256 } = config.source.clone()?;
        Some(Self { path: file, seen: Ok(sha256) })
    }
}

impl Reloader {
    /// Follows the file that `fairness`, which is in force, was read from; `None`: fairness is off.
    pub(crate) fn new(fairness: Option<&FairnessConfig>) -> Self {
        let is_fair = fairness.is_some();
        let mut reloader =
            Self { files: Files::new(), gateway: None, fairness: fairness.and_then(FairnessFile::of), is_fair };
        reloader.arm();
        reloader
    }

    /// Follows `gateway.yaml` too, of which `config` is in force.
    pub(crate) fn with_gateway(mut self, source: &Source, config: GatewayConfig, pems: Pems, base: Base) -> Self {
        // As it was read at the start; if it is another one by now, that is news.
        let read = GatewayConfig::read(&source.file);
        let is_same = |text: &String| Source::new(&source.file, text) == *source;
        let text = read.map(|text| if is_same(&text) { text } else { String::new() });
        let path = source.file.clone();
        let digests = pems.digests();
        self.gateway = Some(GatewayFile { path, base, in_force: config, pems: digests, seen: (text, pems) });
        self.arm();
        self
    }

    /// How to end, as the file says now.
    pub(crate) fn shutdown(&self) -> Shutdown {
        self.gateway.as_ref().map_or(Shutdown::BUNDLED, |file| file.in_force.shutdown)
    }

    fn arm(&mut self) {
        let gateway = self.gateway.iter().flat_map(|g| g.seen.1.files().chain([g.path.as_path()]));
        self.files.arm(gateway.chain(self.fairness.iter().map(|f| f.path.as_path())));
    }

    /// Puts every new content in force, for ever.
    ///
    /// # Cancel safety
    /// Nothing is half done when this is dropped.
    pub(crate) async fn run(&mut self, gateway: &Gateway) {
        loop {
            self.files.changed().await;
            self.look(gateway).await;
        }
    }

    /// Looks at all files now.
    ///
    /// # Cancel safety
    /// As [`Reloader::run`].
    pub(crate) async fn look(&mut self, gateway: &Gateway) {
        if let Some(file) = &self.gateway
            && let Some(seen) = steady(|| file.read()).await
            && seen != file.seen
        {
            self.judge(gateway, seen);
        }
        if let Some(file) = &self.fairness
            && let Some(content) = steady(|| FairnessConfig::read(&file.path)).await
        {
            self.take(gateway, content);
        }
    }

    /// Puts a content of `gateway.yaml` and its certificates in force, or refuses it.
    fn judge(&mut self, gateway: &Gateway, seen: Seen) {
        let Some(file) = &mut self.gateway else { return };
        file.seen = seen;
        let outcome = file.plan(self.is_fair);
        match outcome {
            Err(error) => {
                tracing::error!("gateway configuration refused, the one before stays in force: {error}");
                gateway.refuse_config(&error);
            }
            Ok(Plan { loaded, changes, fairness }) => {
                gateway.apply(&file.settings(&loaded));
                if let Some(config) = fairness {
                    gateway.reload_fairness(&config);
                    self.fairness = FairnessFile::of(&config);
                }
                let is_trust =
                    |c: &Change| ["listen.tls.clientCAFile", "authentication.dropGroups"].contains(&&*c.field);
                if changes.iter().any(is_trust) {
                    gateway.renew_connections();
                }
                for change in &changes {
                    match change.effect {
                        Effect::AtOnce => tracing::info!("gateway configuration: {change}"),
                        Effect::Restart => tracing::warn!("gateway configuration: {change}"),
                    }
                }
                file.in_force = file.in_force.followed_by(&loaded.config);
                file.pems = loaded.pems.digests();
                gateway.show_config(&loaded.source, changes);
                tracing::info!(file = %file.path.display(), "gateway configuration in force");
            }
        }
        self.arm();
    }

    /// Puts a content of `fairness.yaml` in force or refuses it, unless that was done already.
    fn take(&mut self, gateway: &Gateway, content: Result<String, ConfigError>) {
        let Some(file) = &mut self.fairness else { return };
        let seen = match &content {
            Ok(text) => Ok(Source::new(&file.path, text).sha256),
            Err(error) => Err(error.to_string()),
        };
        if seen == file.seen {
            return;
        }
        file.seen = seen;
        match content.and_then(|text| FairnessConfig::parse(&text, &file.path)) {
            Ok(config) => {
                config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                gateway.reload_fairness(&config);
                tracing::info!(file = %file.path.display(), "fairness configuration in force");
            }
            Err(error) => {
                tracing::error!("fairness configuration refused, the one before stays in force: {error}");
                gateway.refuse_fairness(&error);
            }
        }
        self.arm();
    }
}

/// What a new content changes.
struct Plan {
    loaded: Loaded,
    changes: Vec<Change>,
    /// If another file is named.
    fairness: Option<FairnessConfig>,
}

impl GatewayFile {
    fn parse(&self, text: &str) -> Result<GatewayConfig, ConfigError> {
        match self.base {
            Base::File => GatewayConfig::parse(text, &self.path),
            Base::Bundled(_) => GatewayConfig::parse_bundled(text, &self.path),
        }
    }

    /// The certificates are those that the content names, or, if nobody can tell, those in force.
    fn read(&self) -> Seen {
        let text = GatewayConfig::read(&self.path);
        let named = text.as_ref().ok().and_then(|text| self.parse(text).ok());
        let pems = Pems::read(named.as_ref().unwrap_or(&self.in_force));
        (text, pems)
    }

    /// Checks everything that a new content needs.
    fn plan(&self, is_fair: bool) -> Result<Plan, String> {
        let (text, pems) = &self.seen;
        let text = text.as_ref().map_err(ToString::to_string)?;
        let config = self.parse(text).map_err(|error| error.to_string())?;
        let fairness = match is_fair && config.fairness.file != self.in_force.fairness.file {
            true => run::fairness_of(&config).map_err(|error| error.to_string())?.into(),
            false => None,
        };
        let mut changes = self.in_force.changes(&config);
        let digests = pems.digests();
        for (path, new) in &digests {
            if let Some(old) = self.pems.get(path).filter(|old| *old != new) {
                changes.push(content_changed(&config, path, old, new));
            }
        }
        let loaded = Loaded::check(Source::new(&self.path, text), config, pems.clone());
        Ok(Plan { loaded: loaded.map_err(|error| format!("{error:#}"))?, changes, fairness })
    }

    fn settings(&self, loaded: &Loaded) -> Settings {
        let authentication = &loaded.config.authentication;
        let shards = loaded.config.shards.iter();
        let shards = shards.map(|shard| ShardSettings { name: shard.name.clone(), seats: shard.seats }).collect();
        match &self.base {
            Base::File => Settings {
                tls: loaded.tls.clone(),
                anonymous: authentication.anonymous,
                drop_groups: authentication.drop_groups.clone(),
                shards,
                limits: loaded.config.limits,
            },
            Base::Bundled(tls) => Settings {
                tls: Some(tls.clone()),
                anonymous: authentication.anonymous,
                drop_groups: Vec::new(),
                shards: Vec::new(),
                limits: loaded.config.limits,
            },
        }
    }
}

/// The same name, another certificate.
fn content_changed(config: &GatewayConfig, path: &Path, old: &str, new: &str) -> Change {
    let tls = config.listen.tls.as_ref();
    let is_ca = tls.is_some_and(|tls| tls.client_ca_file.as_deref() == Some(path));
    let is_own = is_ca || tls.is_some_and(|tls| tls.certificate_file == path || tls.key_file == path);
    let field = if is_ca { "listen.tls.clientCAFile".to_owned() } else { format!("content of {}", path.display()) };
    let effect = if is_own { Effect::AtOnce } else { Effect::Restart };
    Change { field, from: format!("sha256 {old}"), to: format!("sha256 {new}"), effect }
}

/// What is read, if nobody is at work on it: a writer who takes longer is waited for at the next look.
async fn steady<T: PartialEq>(read: impl Fn() -> T) -> Option<T> {
    let mut before = read();
    for _ in 0..STEADY_TRIES {
        sleep(STEADY).await;
        let after = read();
        if before == after {
            return Some(after);
        }
        before = after;
    }
    None
}
