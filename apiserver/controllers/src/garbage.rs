//! Objects whose owners are gone go too; owners wait for their dependents or let them go, as they were told
//! (api-server.md 5.12).
//!
//! One stream of all changes in all clusters feeds one graph of owners. Since the stream is in the order of the changes,
//! whoever is told that an owner goes knows all dependents that were made before. The graph says only where to look:
//! every decision is made on what the store holds, and every write is bound to what was read. The store may be far ahead
//! of the stream: nothing is done for an owner that waits before the stream has told so.
//!
//! A restart, and a watch that broke, begin with an empty graph; nothing is decided before it is whole.

mod facts;
mod graph;
mod look;

use std::{collections::VecDeque, future::Future, sync::Arc};

use apiserver_api::Status;
use apiserver_machinery::{Resource, builtin};
use apiserver_server::{
    Registry,
    registry::{Informing, Object, WatchEvent},
};
use futures_util::StreamExt;
use tokio_util::sync::CancellationToken;

use self::{
    facts::Metadata,
    graph::{Look, Node, Uid},
    look::Collector,
};
use crate::{
    controller::REWATCH_AFTER,
    queue::{CONCURRENCY, Queue},
};

/// Objects that are taken from the graph into the queue at once.
const BATCH: usize = 8 * CONCURRENCY;

/// Whether objects of this resource can own or be owned. Events can neither (they go by themselves), and copies do what
/// their original does.
fn is_collected(resource: &Resource) -> bool {
    !resource.is_copy && resource.plural != "events"
}

/// Runs the garbage collector until `shutdown`.
pub(crate) fn run(registry: Registry, shutdown: CancellationToken) -> impl Future<Output = ()> + Send {
    let mut informing = Some(registry.informing());
    async move {
        let mut queue = Queue::new();
        while !shutdown.is_cancelled() {
            let ended = shutdown.run_until_cancelled(session(&registry, &mut queue, &mut informing)).await;
            // A look relies on the graph of its session.
            queue.drain().await;
            let Some(status) = ended else { break };
            tracing::warn!(error = %status, "the garbage collector's watch ended, beginning anew");
            shutdown.run_until_cancelled(tokio::time::sleep(REWATCH_AFTER)).await;
        }
    }
}

async fn session(registry: &Registry, queue: &mut Queue<Node>, informing: &mut Option<Informing>) -> Status {
    let resources: Vec<&'static Resource> = builtin::all().iter().filter(|r| is_collected(r)).collect();
    let mut changes = match registry.changes(&resources) {
        Ok(changes) => changes,
        Err(status) => return status,
    };
    let collector = Arc::new(Collector::new(registry.clone()));
    let mut sweeps: Option<Sweeps> = None;
    loop {
        if let Some(sweeps) = &mut sweeps {
            sweeps.refill(&collector, queue);
            queue.start(|node| {
                let collector = Arc::clone(&collector);
                async move { collector.look(&node).await }
            });
        }
        tokio::select! {
            event = changes.next() => {
                let look = match event {
                    Some(Ok(WatchEvent::Added(object) | WatchEvent::Modified(object))) => changed(&collector, &object),
                    Some(Ok(WatchEvent::Deleted(object))) => removed(&collector, &object),
                    Some(Ok(WatchEvent::InitialEnd(_))) => {
                        collector.graph().waiting().for_each(|node| queue.enqueue(node.clone()));
                        sweeps = Some(Sweeps::everything());
                        *informing = None;
                        continue;
                    }
                    Some(Ok(WatchEvent::Progress(_))) => continue,
                    Some(Err(status)) => return status,
                    None => return Status::internal_error("the stream of changes ended"),
                };
                // Until the graph is whole there is no need to look: everything will be looked at.
                let Some(sweeps) = &mut sweeps else { continue };
                for look in look {
                    match look {
                        Look::At(node) => queue.enqueue(node),
                        Look::Dependents(owner) => sweeps.add(&collector, owner),
                    }
                }
            }
            () = queue.turn() => {}
        }
    }
}

fn changed(collector: &Collector, object: &Object) -> Vec<Look> {
    let key = object.key();
    match Metadata::of(object) {
        Ok(metadata) => {
            let facts = metadata.facts(object.resource(), &key);
            collector.graph().changed(Node { resource: object.resource(), key }, facts)
        }
        Err(status) => {
            // Bytes of a foreign writer own nothing and nobody.
            tracing::warn!(error = %status, "an object that the garbage collector cannot read");
            Vec::new()
        }
    }
}

fn removed(collector: &Collector, object: &Object) -> Vec<Look> {
    let Ok(metadata) = Metadata::of(object) else { return Vec::new() };
    collector.graph().removed(facts::uid(&metadata.uid))
}

/// Objects of the graph that are still to be put into the queue. However many dependents an owner has, it is one entry.
struct Sweeps(VecDeque<Sweep>);

struct Sweep {
    /// `None`: all that have owners.
    owner: Option<Uid>,
    /// The last one that is in the queue.
    after: Option<Uid>,
}

impl Sweeps {
    /// All objects that have owners: what happened to these before is not known.
    fn everything() -> Self {
        Self(VecDeque::from([Sweep { owner: None, after: None }]))
    }

    /// The dependents of this owner, if it has any.
    fn add(&mut self, collector: &Collector, owner: Uid) {
        if !collector.graph().dependents(owner, None, None, 1).is_empty() {
            self.0.push_back(Sweep { owner: Some(owner), after: None });
        }
    }

    /// Keeps the queue filled.
    fn refill(&mut self, collector: &Collector, queue: &mut Queue<Node>) {
        while queue.waiting() < BATCH {
            let Some(sweep) = self.0.front_mut() else { return };
            let some = match sweep.owner {
                None => collector.graph().all(sweep.after, BATCH),
                Some(owner) => collector.graph().dependents(owner, None, sweep.after, BATCH),
            };
            match some.last() {
                Some((last, _)) => sweep.after = Some(*last),
                None => drop(self.0.pop_front()),
            }
            some.into_iter().for_each(|(_, node)| queue.enqueue(node));
        }
    }
}
