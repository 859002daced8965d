//! `fairness.yaml`, while it is followed.

use std::path::PathBuf;

use config::{ConfigError, FairnessConfig, Source};
use proxy::Gateway;

pub(super) struct FairnessFile {
    pub(super) path: PathBuf,
    /// SHA-256 of the content that was last put in force or refused, or why there was none.
    seen: Result<String, String>,
}

impl FairnessFile {
    /// `None` for the defaults, which are in no file.
    pub(super) fn of(config: &FairnessConfig) -> Option<Self> {
        let Source { file, sha256 } = config.source.clone()?;
        Some(Self { path: file, seen: Ok(sha256) })
    }

    /// Puts a content in force or refuses it, unless that was done already. Whether it was not.
    pub(super) fn judge(&mut self, gateway: &Gateway, content: Result<String, ConfigError>) -> bool {
        let seen = match &content {
            Ok(text) => Ok(Source::new(&self.path, text).sha256),
            Err(error) => Err(error.to_string()),
        };
        if seen == self.seen {
            return false;
        }
        self.seen = seen;
        match content.and_then(|text| FairnessConfig::parse(&text, &self.path)) {
            Ok(config) => {
                config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                gateway.reload_fairness(&config);
                tracing::info!(file = %self.path.display(), "fairness configuration in force");
            }
            Err(error) => {
                tracing::error!("fairness configuration refused, the one before stays in force: {error}");
                gateway.refuse_fairness(&error);
            }
        }
        true
    }
}
