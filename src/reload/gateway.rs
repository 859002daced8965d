//! `gateway.yaml`, the certificates it names, and the fairness file it newly names, while they are followed.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use config::{Change, ConfigError, Effect, FairnessConfig, GatewayConfig, Source};
use proxy::{Gateway, Settings};

use super::{Base, Loaded};
use crate::{run, tls::Pems};

pub(super) struct GatewayFile {
    path: PathBuf,
    base: Base,
    /// Whether there is fairness, as was said at the start.
    is_fair: bool,
    /// What the gateway runs by.
    pub(super) in_force: GatewayConfig,
    /// Digests of the certificates in force.
    pems: BTreeMap<PathBuf, String>,
    /// What was last judged.
    pub(super) seen: Seen,
}

/// What the files say, as they were read together.
#[derive(PartialEq)]
pub(super) struct Seen {
    content: Content,
    /// The certificates of the configuration in force.
    running: Pems,
}

/// All that one `gateway.yaml` is judged by.
#[derive(PartialEq)]
struct Content {
    text: Result<String, ConfigError>,
    /// The certificates it names; none if nobody can tell.
    pems: Pems,
    /// The fairness file it names, if it is another one than that in force.
    fairness: Option<(PathBuf, Result<String, ConfigError>)>,
}

/// What a new content changes.
struct Plan {
    loaded: Loaded,
    changes: Vec<Change>,
    /// If another file is named, or none any more.
    fairness: Option<FairnessConfig>,
}

impl GatewayFile {
    /// `config` was read from `source`, with `pems`, and is in force.
    pub(super) fn new(source: &Source, config: GatewayConfig, pems: Pems, base: Base, is_fair: bool) -> Self {
        // As it was read at the start; if it is another one by now, that is news.
        let read = GatewayConfig::read(&source.file);
        let is_same = |text: &String| Source::new(&source.file, text) == *source;
        let text = read.map(|text| if is_same(&text) { text } else { String::new() });
        let digests = pems.digests();
        let seen = Seen { content: Content { text, pems: pems.clone(), fairness: None }, running: pems };
        Self { path: source.file.clone(), base, is_fair, in_force: config, pems: digests, seen }
    }

    /// All that is looked at.
    pub(super) fn files(&self) -> impl Iterator<Item = &Path> {
        let Seen { content, running } = &self.seen;
        let fairness = content.fairness.iter().map(|(path, _)| path.as_path());
        content.pems.files().chain(running.files()).chain(fairness).chain([self.path.as_path()])
    }

    pub(super) fn read(&self) -> Seen {
        let text = GatewayConfig::read(&self.path);
        let named = text.as_ref().ok().and_then(|text| self.parse(text).ok());
        let running = Pems::read(&self.in_force);
        let pems = named.as_ref().map(|named| running.and(named)).unwrap_or_default();
        let fairness = named.as_ref().filter(|named| self.changes_rules(named));
        let fairness = fairness.and_then(|named| named.fairness.file.clone());
        let fairness = fairness.map(|path| (path.clone(), FairnessConfig::read(&path)));
        Seen { content: Content { text, pems, fairness }, running }
    }

    /// Whether other rules are in force after it.
    fn changes_rules(&self, to: &GatewayConfig) -> bool {
        self.is_fair && to.fairness.file != self.in_force.fairness.file
    }

    /// Puts what was read in force, or refuses it: the new content, or if that is none or wrong, new certificates of the one
    /// in force. Returns the rules that are in force now, if they are from another file.
    pub(super) fn judge(&mut self, gateway: &Gateway, seen: Seen) -> Option<FairnessConfig> {
        let before = std::mem::replace(&mut self.seen, seen);
        if before.content != self.seen.content {
            match self.plan().and_then(|plan| self.apply(gateway, plan)) {
                Ok(fairness) => return fairness,
                Err(error) => {
                    tracing::error!("gateway configuration refused, the one before stays in force: {error}");
                    gateway.refuse_config(&error);
                }
            }
        }
        if before.running != self.seen.running
            && let Err(error) = self.renew(gateway)
            // What is wrong with those of the new content has been said.
            && self.seen.running != self.seen.content.pems
        {
            // What is shown is what is wrong with the new content, which was refused before.
            tracing::error!("certificates not renewed, those before stay in force: {error}");
        }
        None
    }

    fn parse(&self, text: &str) -> Result<GatewayConfig, ConfigError> {
        match self.base {
            Base::File => GatewayConfig::parse(text, &self.path),
            Base::Bundled(_) => GatewayConfig::parse_bundled(text, &self.path),
        }
    }

    /// Checks everything that a new content needs.
    fn plan(&self) -> Result<Plan, String> {
        let Content { text, pems, fairness } = &self.seen.content;
        let text = text.as_ref().map_err(ToString::to_string)?;
        let config = self.parse(text).map_err(|error| error.to_string())?;
        let fairness = match fairness {
            Some((path, Ok(text))) => Some(FairnessConfig::parse(text, path).map_err(|error| error.to_string())?),
            Some((_, Err(error))) => return Err(run::unreadable(&self.path, error).to_string()),
            None => self.changes_rules(&config).then(FairnessConfig::default),
        };
        let mut changes = self.in_force.changes(&config);
        changes.extend(self.renewed(&config, pems));
        let loaded = Loaded::check(Source::new(&self.path, text), config, pems.clone());
        Ok(Plan { loaded: loaded.map_err(|error| format!("{error:#}"))?, changes, fairness })
    }

    fn apply(&mut self, gateway: &Gateway, plan: Plan) -> Result<Option<FairnessConfig>, String> {
        let Plan { loaded, changes, fairness } = plan;
        gateway.apply(&self.settings(&loaded)).map_err(|error| error.to_string())?;
        if let Some(rules) = &fairness {
            rules.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            gateway.reload_fairness(rules);
        }
        tell(gateway, &changes);
        self.warn(&loaded);
        self.in_force = self.in_force.followed_by(&loaded.config);
        self.pems = loaded.pems.digests();
        // As the next look will find it when nothing has changed.
        self.seen.content.fairness = None;
        self.seen.running = loaded.pems;
        gateway.show_config(&loaded.source, changes);
        tracing::info!(file = %self.path.display(), "gateway configuration in force");
        Ok(fairness)
    }

    /// Puts new certificates of the configuration in force into force.
    fn renew(&mut self, gateway: &Gateway) -> Result<(), String> {
        let running = &self.seen.running;
        let changes = self.renewed(&self.in_force, running);
        let source = Source::new(&self.path, "");
        let loaded = Loaded::check(source, self.in_force.clone(), running.clone());
        let loaded = loaded.map_err(|error| format!("{error:#}"))?;
        gateway.apply(&self.settings(&loaded)).map_err(|error| error.to_string())?;
        tell(gateway, &changes);
        self.warn(&loaded);
        self.pems = loaded.pems.digests();
        Ok(())
    }

    /// The bundled server lets its administrator in, whatever the file says.
    fn warn(&self, loaded: &Loaded) {
        if matches!(self.base, Base::File) {
            loaded.warn();
        }
    }

    /// Those of `pems`, which `config` names, that have another content under the same name.
    fn renewed(&self, config: &GatewayConfig, pems: &Pems) -> Vec<Change> {
        let other = |(path, new): (&PathBuf, &String)| {
            let old = self.pems.get(path).filter(|old| *old != new)?;
            let tls = config.listen.tls.as_ref();
            let is_ca = tls.is_some_and(|tls| tls.client_ca_file.as_ref() == Some(path));
            let field = if is_ca { CLIENT_CA.to_owned() } else { format!("content of {}", path.display()) };
            let (from, to) = (format!("sha256 {old}"), format!("sha256 {new}"));
            Some(Change { field, from, to, effect: Effect::AtOnce })
        };
        pems.digests().iter().filter_map(other).collect()
    }

    fn settings(&self, loaded: &Loaded) -> Settings {
        // Of what needs a restart the value in force counts, for shards that come too.
        let config = self.in_force.followed_by(&loaded.config);
        let (tls, shards) = match &self.base {
            Base::File => (loaded.tls.clone(), Some(loaded.shard_options())),
            Base::Bundled(tls) => (Some(tls.clone()), None),
        };
        let drop_groups = match self.base {
            Base::File => config.authentication.drop_groups,
            Base::Bundled(_) => Vec::new(),
        };
        Settings {
            tls,
            anonymous: config.authentication.anonymous,
            drop_groups,
            shards,
            limits: config.limits,
            access_log: config.access_log,
        }
    }
}

const CLIENT_CA: &str = "listen.tls.clientCAFile";

/// Logs changes that are in force, and asks connections to end whose clients were let in by other rules.
fn tell(gateway: &Gateway, changes: &[Change]) {
    if changes.iter().any(|change| [CLIENT_CA, "authentication.dropGroups"].contains(&&*change.field)) {
        gateway.renew_connections();
    }
    for change in changes {
        match change.effect {
            Effect::AtOnce => tracing::info!("gateway configuration: {change}"),
            Effect::Restart => tracing::warn!("gateway configuration: {change}"),
        }
    }
}
