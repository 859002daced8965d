//! All objects of several resources in every logical cluster, then all their changes, in one order.
//!
//! Watches of single resources are each in order, but not among each other: who relates objects of different kinds
//! would see an effect before its cause. Here every change comes behind all earlier ones, whatever its resource.
//!
//! A mandatory object that is made anew in one write (`mandatory`) is another object: here its end is told first.
//!
//! One watch of the store, whatever the number of resources and clusters; the present state is read a page at a time.

use std::collections::VecDeque;

use apiserver_api::Status;
use apiserver_machinery::Resource;
use apiserver_storage::{Event, KeyValue, Packed, Range, StoreError, WatchStream as StoreStream, keys::REGISTRY};
use futures_util::{StreamExt, stream};
use serde_json::Value;

use super::{Collection, Object, Registry, WatchEvent, WatchStream, keys::Span, store_status};

/// Objects of the present state that are read at once.
const PAGE: usize = 1000;

impl Registry {
    /// The objects of these built-in resources in every cluster as they are now, each as `Added`, resource by resource;
    /// then [`WatchEvent::InitialEnd`]; then their changes in the order of revisions. Ends with an error.
    ///
    /// # Errors
    /// 500 for a resource whose objects are copies. Those of the store are the stream's last item.
    pub fn changes(&self, resources: &[&'static Resource]) -> Result<WatchStream, Status> {
        let everywhere = Collection::everywhere();
        let table = |resource: &&'static Resource| {
            let Span { prefix, place_at, .. } = self.span(resource, &everywhere)?;
            Ok(Table { resource, prefix, place_at })
        };
        let tables = resources.iter().map(table).collect::<Result<Vec<_>, Status>>()?;
        // In this order: a revision of a later epoch is found out, one of an earlier epoch would not be.
        let (registry, epoch, revision) = (self.clone(), self.store.epoch(), self.store.revision());
        let pending = VecDeque::new();
        let state =
            State { registry, epoch, tables, at: 0, after: None, revision, pending, source: None, ended: false };
        Ok(Box::pin(stream::unfold(state, |mut state| async move {
            let item = state.next().await?;
            state.ended = item.is_err();
            Some((item, state))
        })))
    }

    /// The mandatory object in whose place another one is now; `old` is what was stored, if anything.
    async fn replaced(&self, new: &Object, old: Option<Object>) -> Result<Option<Object>, Status> {
        if (new.resource().mandatory)().is_empty() {
            return Ok(None);
        }
        let old = match old {
            Some(old) => Some(old),
            None => self.find_mandatory(new.resource(), &new.key()).await?,
        };
        let uid = |object: &Object| Ok::<_, Status>(object.parse::<Value>()?.pointer("/metadata/uid").cloned());
        Ok(match old {
            Some(old) if uid(&old)? != uid(new)? => Some(old),
            _ => None,
        })
    }
}

struct Table {
    resource: &'static Resource,
    prefix: String,
    place_at: usize,
}

struct State {
    registry: Registry,
    /// What was read of another epoch of the store does not belong to this.
    epoch: u64,
    tables: Vec<Table>,
    /// The table that is being read; their number when the present state was read whole.
    at: usize,
    /// The last key that was read of it.
    after: Option<String>,
    /// What the present state is the state of.
    revision: u64,
    /// To be told as `Added` before anything else.
    pending: VecDeque<Object>,
    source: Option<StoreStream>,
    ended: bool,
}

impl State {
    async fn next(&mut self) -> Option<Result<WatchEvent, Status>> {
        if self.ended {
            return None;
        }
        loop {
            if let Some(object) = self.pending.pop_front() {
                return Some(Ok(WatchEvent::Added(object)));
            }
            let step = match &mut self.source {
                Some(source) => match source.next().await {
                    Some(Ok(event)) => self.translate(event).await,
                    Some(Err(error)) => Err(store_status(error)),
                    None => Err(store_status(StoreError::Closed)),
                },
                None => self.read().await.map_err(store_status),
            };
            match step {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(status) => return Some(Err(status)),
            }
        }
    }

    /// The next page of the present state, or the watch behind it.
    async fn read(&mut self) -> Result<Option<WatchEvent>, StoreError> {
        let Some(table) = self.tables.get(self.at) else {
            self.source = Some(self.registry.store.watch(REGISTRY, self.revision).await?);
            self.check_epoch()?;
            return Ok(Some(WatchEvent::InitialEnd(self.revision)));
        };
        let (prefix, after) = (table.prefix.clone(), self.after.take());
        let range = Range { prefix, after, limit: PAGE, revision: Some(self.revision), ..Range::default() };
        let page = self.registry.store.range(range).await?;
        self.check_epoch()?;
        if page.remaining > 0 {
            self.after = page.items.last().map(|packed| packed.key().to_owned());
        } else {
            self.at += 1;
        }
        let object = |packed: Packed| Object::new(table.resource, table.place_at, packed.unpack());
        self.pending = page.items.into_iter().map(object).collect();
        Ok(None)
    }

    /// # Errors
    /// [`StoreError::Compacted`] once the store was read anew.
    fn check_epoch(&self) -> Result<(), StoreError> {
        let (requested, store) = (self.revision, &self.registry.store);
        if store.epoch() == self.epoch {
            return Ok(());
        }
        Err(StoreError::Compacted { requested, oldest: store.revision() })
    }

    /// None for a change of an object of another resource.
    async fn translate(&mut self, event: Event) -> Result<Option<WatchEvent>, Status> {
        let object = |kv: KeyValue| {
            let table = self.tables.iter().find(|t| kv.key.starts_with(&t.prefix))?;
            Some(Object::new(table.resource, table.place_at, kv))
        };
        Ok(match event {
            Event::Progress(revision) => Some(WatchEvent::Progress(revision)),
            Event::Delete { prev, revision } => object(prev).map(|o| WatchEvent::Deleted(o.at_revision(revision))),
            Event::Put { kv, prev } => {
                let Some(new) = object(kv) else { return Ok(None) };
                let (is_new, old) = (prev.is_none(), prev.and_then(object));
                match self.registry.replaced(&new, old).await? {
                    Some(old) => {
                        let revision = new.revision();
                        self.pending.push_back(new);
                        Some(WatchEvent::Deleted(old.at_revision(revision)))
                    }
                    None if is_new => Some(WatchEvent::Added(new)),
                    None => Some(WatchEvent::Modified(new)),
                }
            }
        })
    }
}
