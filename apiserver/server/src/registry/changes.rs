//! All objects of several resources in every logical cluster, then all their changes, in one order.
//!
//! Watches of single resources are each in order, but not among each other: who relates objects of different kinds
//! would see an effect before its cause. Here every change comes behind all earlier ones, whatever its resource.
//!
//! One watch of the store, whatever the number of resources and clusters; the present state is read a page at a time.

use std::{collections::VecDeque, sync::Arc};

use apiserver_api::Status;
use apiserver_machinery::Resource;
use apiserver_storage::{Event, KeyValue, Range, Store, StoreError, WatchStream as StoreStream, keys::REGISTRY};
use futures_util::{StreamExt, stream};

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
        let store = Arc::clone(&self.store);
        let revision = store.revision();
        let state =
            State { store, tables, at: 0, after: None, revision, pending: VecDeque::new(), source: None, ended: false };
        Ok(Box::pin(stream::unfold(state, |mut state| async move {
            let item = state.next().await?;
            state.ended = item.is_err();
            Some((item, state))
        })))
    }
}

struct Table {
    resource: &'static Resource,
    prefix: String,
    place_at: usize,
}

struct State {
    store: Arc<dyn Store>,
    tables: Vec<Table>,
    /// The table that is being read; their number when the present state was read whole.
    at: usize,
    /// The last key that was read of it.
    after: Option<String>,
    /// What the present state is the state of.
    revision: u64,
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
                    Some(Ok(event)) => Ok(self.translate(event)),
                    Some(Err(error)) => Err(error),
                    None => Err(StoreError::Closed),
                },
                None => self.read().await,
            };
            match step {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(error) => return Some(Err(store_status(error))),
            }
        }
    }

    /// The next page of the present state, or the watch behind it.
    async fn read(&mut self) -> Result<Option<WatchEvent>, StoreError> {
        let Some(table) = self.tables.get(self.at) else {
            self.source = Some(self.store.watch(REGISTRY, self.revision).await?);
            return Ok(Some(WatchEvent::InitialEnd(self.revision)));
        };
        let (prefix, after) = (table.prefix.clone(), self.after.take());
        let range = Range { prefix, after, limit: PAGE, revision: Some(self.revision), ..Range::default() };
        let page = self.store.range(range).await?;
        if page.remaining > 0 {
            self.after = page.items.last().map(|kv| kv.key.to_string());
        } else {
            self.at += 1;
        }
        let object = |kv: KeyValue| Object::new(table.resource, table.place_at, kv);
        self.pending = page.items.into_iter().map(object).collect();
        Ok(None)
    }

    /// None for a change of an object of another resource.
    fn translate(&self, event: Event) -> Option<WatchEvent> {
        let object = |kv: KeyValue| {
            let table = self.tables.iter().find(|t| kv.key.starts_with(&t.prefix))?;
            Some(Object::new(table.resource, table.place_at, kv))
        };
        Some(match event {
            Event::Progress(revision) => WatchEvent::Progress(revision),
            Event::Delete { prev, revision } => WatchEvent::Deleted(object(prev)?.at_revision(revision)),
            Event::Put { kv, prev: None } => WatchEvent::Added(object(kv)?),
            Event::Put { kv, prev: Some(_) } => WatchEvent::Modified(object(kv)?),
        })
    }
}
