//! Watch: the changes of a collection as typed events, in the order of revisions, without gap or duplicate.

use std::pin::Pin;

use apiserver_api::Status;
use apiserver_machinery::{Resource, options::ListOptions, selector::Selector};
use apiserver_storage::{Event, Key, StoreError, WatchStream as StoreStream};
use futures_util::{Stream, StreamExt, stream};
use tokio::sync::watch;

use super::{Collection, Object, Objects, Registry, keys::Span, read::wanted, store_status};
use crate::errors;

/// Objects of the initial state that are read at once: a watch never holds more, however many there are.
const PAGE: usize = 1000;

/// Where a watch begins (api-server.md 3.2, 3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchStart {
    /// Only changes from now on.
    Now,
    /// Only changes after this revision.
    After(u64),
    /// First the present state as `Added`, then [`WatchEvent::InitialEnd`], then changes.
    State,
}

/// What to watch.
#[derive(Clone, Debug)]
pub struct WatchOptions {
    /// Which objects.
    pub selector: Selector,
    /// See [`WatchStart`].
    pub start: WatchStart,
}

/// One event of a watch.
#[derive(Clone, Debug)]
pub enum WatchEvent {
    /// The object is there, or began to match.
    Added(Object),
    /// The object changed.
    Modified(Object),
    /// The object is gone or stopped to match: its last matching state with the revision of the change.
    Deleted(Object),
    /// The present state was delivered whole; it was the state at this revision. Only after [`WatchStart::State`].
    InitialEnd(u64),
    /// Everything up to this revision has been delivered.
    Progress(u64),
}

/// Events, then the end of the stream (the logical cluster is gone) or one error (410, or a slow reader).
pub type WatchStream = Pin<Box<dyn Stream<Item = Result<WatchEvent, Status>> + Send>>;

impl Registry {
    /// The changes of a collection. Selected by name, only one key is watched.
    ///
    /// # Errors
    /// Those of the store's read for [`WatchStart::State`]; 410 for a forgotten revision. Later failures are the
    /// stream's last item.
    pub async fn watch(
        &self,
        resource: &'static Resource,
        of: &Collection,
        options: WatchOptions,
    ) -> Result<WatchStream, Status> {
        Ok(self.watch_of_epoch(resource, of, options).await?.0)
    }

    /// The same, and the epoch of the store that all its objects are of.
    pub(crate) async fn watch_of_epoch(
        &self,
        resource: &'static Resource,
        of: &Collection,
        options: WatchOptions,
    ) -> Result<(WatchStream, u64), Status> {
        let epoch = self.store.epoch();
        let Span { mut prefix, place_at, scattered } = self.span(resource, of)?;
        // A copy does not go with the cluster of this server that happens to have the same name.
        let cluster = of.cluster.as_ref().filter(|_| !resource.is_copy);
        let removal = cluster.map(|cluster| self.removals.subscribe(cluster));
        // Who subscribes after the removal hears nothing of it. In this order one of the two is seen.
        let removed = match cluster {
            Some(cluster) if self.logical_cluster(cluster).await?.is_none() => Some(self.store.revision()),
            _ => None,
        };
        let current = self.store.revision();
        let mut state = State {
            registry: self.clone(),
            resource,
            of: of.clone(),
            epoch,
            place_at,
            prefix: String::new(),
            selector: options.selector,
            mandatory: self.mandatory(resource, of).await?,
            pending: None,
            rest: None,
            mark: None,
            seen: current,
            from: 0,
            source: None,
            removal,
            removed,
            ended: false,
        };
        match options.start {
            WatchStart::Now => {}
            WatchStart::After(revision) => (state.seen, state.from) = (revision.min(current), revision),
            WatchStart::State => {
                let selector = state.selector.clone();
                state.rest = Some(ListOptions { selector, limit: Some(PAGE), ..ListOptions::default() });
                let revision = state.list().await?;
                (state.seen, state.mark) = (revision, Some(revision));
            }
        }
        if let Some(name) = of.single_name(resource, &state.selector, scattered) {
            // Longer names begin with it too; the selector keeps them out.
            prefix.push_str(name);
        }
        state.prefix = prefix;
        if state.pending.as_ref().is_none_or(Objects::is_empty) && state.rest.is_none() {
            state.open().await?;
        }
        let events = stream::unfold(state, |mut state| async move { state.next().await.map(|item| (item, state)) });
        Ok((Box::pin(events), epoch))
    }
}

struct State {
    registry: Registry,
    resource: &'static Resource,
    of: Collection,
    /// Of all that was read, and of what is told.
    epoch: u64,
    place_at: usize,
    prefix: String,
    selector: Selector,
    /// What is there while nothing is stored under its name.
    mandatory: Vec<Object>,
    /// What was read of the initial state and is not yet delivered.
    pending: Option<Objects>,
    /// How to read the rest of it.
    rest: Option<ListOptions>,
    /// The initial state's revision, not yet delivered.
    mark: Option<u64>,
    /// Everything up to here was delivered, or belongs to the initial state.
    seen: u64,
    /// Events up to here are not wanted: a watch may begin in the future (api-server.md 3.2).
    from: u64,
    /// Opened behind the initial state: a slow reader of that must not overflow the store's buffer.
    source: Option<StoreStream>,
    removal: Option<watch::Receiver<Option<u64>>>,
    /// The cluster was gone when the watch began: at this revision at the latest.
    removed: Option<u64>,
    ended: bool,
}

impl State {
    async fn open(&mut self) -> Result<(), Status> {
        let watch = self.registry.store.watch_wanted(&self.prefix, self.seen, wanted(&self.selector, &self.mandatory));
        let stream = watch.await.map_err(|e| self.refusal(e))?;
        self.source = Some(stream);
        self.check_epoch()
    }

    /// # Errors
    /// 410 once the store was read anew: what is told next has nothing to do with what was told.
    fn check_epoch(&self) -> Result<(), Status> {
        let store = &self.registry.store;
        if store.epoch() == self.epoch { Ok(()) } else { Err(errors::expired_watch(self.seen, store.revision())) }
    }

    /// Reads the next page of the initial state; the revision of that.
    async fn list(&mut self) -> Result<u64, Status> {
        let Some(options) = &mut self.rest else { return Ok(self.seen) };
        let mut page = self.registry.listing(self.resource, &self.of, options).await?;
        match page.continue_token.take() {
            Some(token) => options.continue_token = token,
            None => self.rest = None,
        }
        let revision = page.revision;
        self.pending = Some(page.into_objects());
        self.check_epoch()?;
        Ok(revision)
    }

    fn refusal(&self, error: StoreError) -> Status {
        match error {
            StoreError::Compacted { oldest, .. } => errors::expired_watch(self.seen, oldest),
            other => store_status(other),
        }
    }

    async fn next(&mut self) -> Option<Result<WatchEvent, Status>> {
        loop {
            if self.ended {
                return None;
            }
            if let Some(pending) = &mut self.pending {
                match pending.next() {
                    Some(object) => return Some(Ok(WatchEvent::Added(object))),
                    // It holds on to what was in it.
                    None => self.pending = None,
                }
            }
            if self.rest.is_some() {
                let Err(status) = self.list().await else { continue };
                self.ended = true;
                // Whose reader takes so long that the revision is forgotten begins anew.
                return Some(Err(if status.code == 410 { errors::expired_list() } else { status }));
            }
            if let Some(revision) = self.mark.take() {
                return Some(Ok(WatchEvent::InitialEnd(revision)));
            }
            // A removed cluster ends its watches, behind everything that happened in it before.
            let removed_at = self.removed.or_else(|| self.removal.as_ref().and_then(|r| *r.borrow()));
            if removed_at.is_some_and(|at| self.seen >= at) {
                return None;
            }
            let Some(source) = &mut self.source else {
                if let Err(status) = self.open().await {
                    self.ended = true;
                    return Some(Err(status));
                }
                continue;
            };
            let event = tokio::select! {
                event = source.next() => event,
                () = changed(&mut self.removal, removed_at) => {
                    // Progress may be seconds away. A watch that begins says at once when all up to now is out.
                    self.source = None;
                    continue;
                }
            };
            match event {
                None => return None,
                Some(Err(StoreError::Closed)) => return None,
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(Err(self.refusal(error)));
                }
                Some(Ok(event)) => {
                    if let Some(item) = self.take(event) {
                        self.ended = item.is_err();
                        return Some(item);
                    }
                }
            }
        }
    }

    fn take(&mut self, event: Event) -> Option<Result<WatchEvent, Status>> {
        let revision = match &event {
            Event::Put { kv, .. } => kv.mod_revision,
            Event::Delete { revision, .. } => *revision,
            Event::Progress(revision) => *revision,
        };
        self.seen = self.seen.max(revision);
        if revision <= self.from {
            return None;
        }
        Some(self.translate(event).map(|e| e.unwrap_or(WatchEvent::Progress(revision))))
    }

    fn selects(&self, object: &Object) -> Result<bool, Status> {
        if !self.of.holds(object) || self.selector.is_empty() {
            return Ok(self.of.holds(object));
        }
        // Labels of a change are read once for all who watch by some: the store tells it only to those whom it may concern.
        let place = self.selector.labels.is_empty().then(|| object.matches_unparsed(&self.selector));
        match place.flatten() {
            Some(matches) => Ok(matches),
            None => Ok(self.selector.matches(&*self.registry.recent.parsed(self.epoch, object)?)),
        }
    }

    /// None for a change of an object that is not and was not selected.
    fn translate(&self, event: Event) -> Result<Option<WatchEvent>, Status> {
        let object = |kv| Object::new(self.resource, self.place_at, kv);
        let mandatory = |key: &Key| self.mandatory.iter().find(|object| object.storage_key() == key).cloned();
        let (old, new, revision) = match event {
            Event::Progress(revision) => return Ok(Some(WatchEvent::Progress(revision))),
            Event::Delete { prev, revision } => {
                let new = mandatory(&prev.key).map(|new| new.at_revision(revision));
                (Some(object(prev)), new, revision)
            }
            Event::Put { kv, prev } => {
                let old = prev.map(object).or_else(|| mandatory(&kv.key));
                let revision = kv.mod_revision;
                (old, Some(object(kv)), revision)
            }
        };
        let selected = |object: Option<Object>| -> Result<Option<Object>, Status> {
            match object {
                Some(object) => Ok(self.selects(&object)?.then_some(object)),
                None => Ok(None),
            }
        };
        Ok(match (selected(old)?, selected(new)?) {
            (None, Some(new)) => Some(WatchEvent::Added(new)),
            (Some(_), Some(new)) => Some(WatchEvent::Modified(new)),
            (Some(old), None) => Some(WatchEvent::Deleted(old.at_revision(revision))),
            (None, None) => None,
        })
    }
}

/// Resolves when the cluster was removed and that was not known; never for the wildcard.
async fn changed(removal: &mut Option<watch::Receiver<Option<u64>>>, known: Option<u64>) {
    if let (Some(receiver), None) = (removal, known) {
        // Fails when the sender is gone, which cannot be before it sent: then there is nothing to wait for.
        if receiver.wait_for(Option::is_some).await.is_ok() {
            return;
        }
    }
    std::future::pending().await
}
