//! Reload of `gateway.yaml`, the certificates it names, and `fairness.yaml` while the gateway runs: when a file changes,
//! and on SIGHUP.
//!
//! # Invariants
//! * What is wrong is refused whole: a `gateway.yaml` comes into force with all its certificates and its fairness file,
//!   or not at all. Certificates of the configuration in force are renewed whatever is wrong with a later one.
//! * A content is judged once, with all that it names: it is put in force, or refused and counted, and not looked at again
//!   until something of that changes.

mod fairness;
mod files;
mod gateway;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use config::{FairnessConfig, GatewayConfig, Shard, Shutdown, Source};
use proxy::{Gateway, RemoteOptions, ShardOptions, Upstream};
use tokio::time::sleep;

use self::{fairness::FairnessFile, files::Files, gateway::GatewayFile};
use crate::{
    Failure,
    tls::{Faults, Pems},
};

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

    /// What the gateway is told of its shards.
    pub(crate) fn shard_options(&self) -> Vec<ShardOptions> {
        let remote = |(shard, tls): (&Shard, &Option<_>)| ShardOptions {
            name: shard.name.clone(),
            seats: shard.seats,
            upstream: Upstream::Remote(RemoteOptions {
                url: shard.url.to_string(),
                protocol: shard.protocol,
                tls: tls.clone(),
            }),
            observers: None,
        };
        self.config.shards.iter().zip(&self.shards).map(remote).collect()
    }

    /// Logs what is odd but no fault.
    pub(crate) fn warn(&self) {
        for warning in self.pems.warnings(&self.config, SystemTime::now()) {
            tracing::warn!("{}: {warning}", self.source.file.display());
        }
    }

    fn check(source: Source, config: GatewayConfig, pems: Pems) -> anyhow::Result<Self> {
        let mut faults = Faults::default();
        let tls = pems.listen(&config, &mut faults).map(Arc::new);
        let shards = config.shards.iter().map(|shard| pems.shard(shard, &mut faults).map(Arc::new)).collect();
        faults.none(&source.file)?;
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
        self.gateway = Some(GatewayFile::new(source, config, pems, base, self.is_fair));
        self.arm();
        self
    }

    /// How to end, as the file says now.
    pub(crate) fn shutdown(&self) -> Shutdown {
        self.gateway.as_ref().map_or(Shutdown::BUNDLED, |file| file.in_force.shutdown)
    }

    fn arm(&mut self) {
        let gateway = self.gateway.iter().flat_map(GatewayFile::files);
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
        let mut is_news = false;
        if let Some(file) = &mut self.gateway
            && let Some(seen) = steady(|| file.read()).await
            && seen != file.seen
        {
            is_news = true;
            if let Some(fairness) = file.judge(gateway, seen) {
                self.fairness = FairnessFile::of(&fairness);
            }
        }
        if let Some(file) = &mut self.fairness
            && let Some(content) = steady(|| FairnessConfig::read(&file.path)).await
        {
            is_news |= file.judge(gateway, content);
        }
        if is_news {
            self.arm();
        }
    }
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
