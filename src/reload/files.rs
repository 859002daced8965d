//! Tells that files may have changed.
//!
//! The directories are watched, not the files: a rename puts another file in its place, and a mounted ConfigMap or Secret
//! only swaps a symbolic link beside it. Events say that something may have changed, only the content says whether; so
//! it is also looked at every [`POLL`], for links into directories that are not watched and for events that were lost.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Duration,
};

use notify::{RecommendedWatcher, RecursiveMode, Watcher};
use tokio::{
    sync::mpsc,
    time::{Interval, MissedTickBehavior, interval, sleep},
};

/// One change comes as several events: this long they are gathered.
const DEBOUNCE: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_secs(2);

/// Watches some directories.
pub(crate) struct Files {
    watcher: Option<RecommendedWatcher>,
    events: mpsc::Receiver<()>,
    poll: Option<Interval>,
}

impl Files {
    pub(crate) fn new() -> Self {
        let (sender, events) = mpsc::channel(1);
        // A full channel says already what there is to say.
        let made = notify::recommended_watcher(move |_| {
            let _ = sender.try_send(());
        });
        let watcher = made.inspect_err(|error| tracing::warn!(%error, "cannot watch files; looking every {POLL:?}"));
        Self { watcher: watcher.ok(), events, poll: None }
    }

    /// Watches the directories that now have the names of `files`: they may be other ones than before.
    pub(crate) fn arm<'a>(&mut self, files: impl Iterator<Item = &'a Path>) {
        let Some(watcher) = &mut self.watcher else { return };
        let place = |file: &Path| file.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new(".")).into();
        let directories: BTreeSet<PathBuf> = files.map(place).collect();
        for directory in directories {
            if let Err(error) = watcher.watch(&directory, RecursiveMode::NonRecursive) {
                tracing::warn!(%error, directory = %directory.display(), "cannot watch; looking every {POLL:?}");
            }
        }
    }

    /// Returns when it is time to look.
    ///
    /// # Cancel safety
    /// A change that was announced and not waited for is found at the next poll.
    pub(crate) async fn changed(&mut self) {
        let poll = self.poll.get_or_insert_with(|| {
            let mut poll = interval(POLL);
            poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
            poll
        });
        tokio::select! {
            Some(()) = self.events.recv() => sleep(DEBOUNCE).await,
            _ = poll.tick() => {}
        }
    }
}
