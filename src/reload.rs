//! Reload of `fairness.yaml` while the gateway runs: on a change of the file, and on SIGHUP.
//!
//! The directory is watched, not the file: a rename puts another file in its place, and a mounted ConfigMap only swaps
//! a symbolic link beside it. Events say that something may have changed, the content says whether; it is also looked
//! at every [`POLL`], for links into directories that are not watched and for events that were lost.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use config::{ConfigError, FairnessConfig, Source};
use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use proxy::Gateway;
use tokio::{
    sync::mpsc,
    time::{MissedTickBehavior, interval, sleep},
};

/// One change comes as several events: this long they are gathered.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// A content counts when it is the same after this: a file that is written in place is read half at times.
const STEADY: Duration = Duration::from_millis(20);
const POLL: Duration = Duration::from_secs(2);

/// Follows one file; without one it follows nothing.
pub(crate) struct Reloader {
    file: Option<PathBuf>,
    /// SHA-256 of the content that was last put in force or refused, or why there was none.
    last: Result<String, String>,
    events: mpsc::Receiver<()>,
    watcher: Option<RecommendedWatcher>,
}

impl Reloader {
    /// Follows the file that `config`, which is in force, was read from.
    pub(crate) fn new(config: Option<&FairnessConfig>) -> Self {
        let source = config.and_then(|config| config.source.clone());
        let (sender, events) = mpsc::channel(1);
        // A full channel says already what there is to say.
        let on_event = move |_| {
            let _ = sender.try_send(());
        };
        let watcher = source.as_ref().and_then(|_| {
            let made = notify::recommended_watcher(on_event);
            made.inspect_err(|error| tracing::warn!(%error, "cannot watch files; looking every {POLL:?}")).ok()
        });
        let (file, last) = source.map_or((None, Ok(String::new())), |s| (Some(s.file), Ok(s.sha256)));
        let mut reloader = Self { file, last, events, watcher };
        reloader.arm();
        reloader
    }

    /// Watches the directory that now has the name: it may be another one than before.
    fn arm(&mut self) {
        let (Some(watcher), Some(file)) = (&mut self.watcher, &self.file) else { return };
        let directory = file.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
            tracing::warn!(%error, directory = %directory.display(), "cannot watch; looking every {POLL:?}");
        }
    }

    /// Puts every new content in force, for ever.
    ///
    /// # Cancel safety
    /// Nothing is half done when this is dropped.
    pub(crate) async fn run(&mut self, gateway: &Gateway) {
        let Some(file) = self.file.clone() else { return std::future::pending().await };
        let mut poll = interval(POLL);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                Some(()) = self.events.recv() => sleep(DEBOUNCE).await,
                _ = poll.tick() => {}
            }
            if let Some(content) = steady(&file).await {
                self.take(gateway, &file, content);
            }
        }
    }

    /// Looks at the file now.
    pub(crate) fn look(&mut self, gateway: &Gateway) {
        match self.file.clone() {
            Some(file) => self.take(gateway, &file, FairnessConfig::read(&file)),
            None => tracing::warn!("nothing to reload: no fairness file is configured"),
        }
    }

    /// Puts a content in force or refuses it, unless that was done already.
    fn take(&mut self, gateway: &Gateway, file: &Path, content: Result<String, ConfigError>) {
        let seen = match &content {
            Ok(text) => Ok(Source::new(file, text).sha256),
            Err(error) => Err(error.to_string()),
        };
        if seen == self.last {
            return;
        }
        self.last = seen;
        self.arm();
        match content.and_then(|text| FairnessConfig::parse(&text, file)) {
            Ok(config) => {
                config.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
                gateway.reload_fairness(&config);
                tracing::info!(file = %file.display(), "fairness configuration in force");
            }
            Err(error) => {
                tracing::error!("fairness configuration refused, the one before stays in force: {error}");
                gateway.refuse_fairness(&error);
            }
        }
    }
}

/// The content, if nobody is at work on the file.
async fn steady(file: &Path) -> Option<Result<String, ConfigError>> {
    let before = FairnessConfig::read(file);
    sleep(STEADY).await;
    let after = FairnessConfig::read(file);
    (before == after).then_some(after)
}
