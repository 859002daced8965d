//! The loop that most controllers share: watch, queue, reconcile, try again.

use std::{future::Future, sync::Arc, time::Duration};

use apiserver_api::Status;
use apiserver_machinery::{Resource, selector::Selector};
use apiserver_server::{
    Registry,
    registry::{Collection, Informing, Object, ObjectKey, WatchEvent, WatchOptions, WatchStart},
};
use futures_util::{StreamExt, stream::SelectAll};
use tokio_util::sync::CancellationToken;

use crate::queue::{Outcome, Queue};

/// Between a watch that broke and the next.
pub(crate) const REWATCH_AFTER: Duration = Duration::from_millis(200);

/// One controller.
pub(crate) trait Reconcile: Send + Sync + 'static {
    /// The resources it watches; for each, the key to look at when one of its objects changed.
    fn sources(&self) -> Vec<Source>;

    /// Looks at one object as it is now and does what is missing.
    fn reconcile(&self, key: ObjectKey) -> impl Future<Output = Result<Outcome, Status>> + Send;
}

/// A resource and the key that a change of one of its objects is about.
pub(crate) struct Source {
    /// The resource.
    pub(crate) resource: &'static Resource,
    /// `None`: the change does not matter.
    pub(crate) key: fn(&Object) -> Option<ObjectKey>,
    /// Which changes.
    pub(crate) of: Changes,
}

/// Which changes of a resource matter to a controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Changes {
    /// All, and what is there at the beginning.
    All,
    /// Only that objects go, from now on. Costs nothing at the start, and nothing per write.
    Deletions,
}

impl Source {
    /// All changes of a resource.
    pub(crate) fn all(resource: &'static Resource, key: fn(&Object) -> Option<ObjectKey>) -> Self {
        Self { resource, key, of: Changes::All }
    }

    /// The deletions of a resource.
    pub(crate) fn deletions(resource: &'static Resource, key: fn(&Object) -> Option<ObjectKey>) -> Self {
        Self { resource, key, of: Changes::Deletions }
    }
}

/// Runs a controller until `shutdown`. Each key is looked at by one task at a time; a change during the look
/// leads to another one.
pub(crate) fn run<R: Reconcile>(
    registry: &Registry,
    reconciler: R,
    shutdown: &CancellationToken,
) -> impl Future<Output = ()> + Send + use<R> {
    let (registry, reconciler, shutdown) = (registry.clone(), Arc::new(reconciler), shutdown.clone());
    let mut informing = Some(registry.informing());
    async move {
        let mut queue = Queue::new();
        while !shutdown.is_cancelled() {
            let session = session(&registry, &reconciler, &mut queue, &mut informing);
            let Some(status) = shutdown.run_until_cancelled(session).await else { break };
            tracing::warn!(error = %status, "a controller's watch ended, beginning anew");
            shutdown.run_until_cancelled(tokio::time::sleep(REWATCH_AFTER)).await;
        }
        // What runs is let run: it is short, and each write is whole by itself.
        queue.drain().await;
    }
}

/// Watches until a watch ends. Begins with everything that is there.
async fn session<R: Reconcile>(
    registry: &Registry,
    reconciler: &Arc<R>,
    queue: &mut Queue<ObjectKey>,
    informing: &mut Option<Informing>,
) -> Status {
    let mut watches = SelectAll::new();
    let mut sources = reconciler.sources();
    // Those that begin now come first: what they do not tell any more the present state of the others shows.
    sources.sort_by_key(|source| source.of == Changes::All);
    let mut reading = sources.iter().filter(|source| source.of == Changes::All).count();
    for source in sources {
        let start = if source.of == Changes::All { WatchStart::State } else { WatchStart::Now };
        let options = WatchOptions { selector: Selector::default(), start };
        match registry.watch(source.resource, &Collection::everywhere(), options).await {
            Ok(watch) => watches.push(watch.map(move |event| (source.key, source.of, event)).boxed()),
            Err(status) => return status,
        }
    }
    loop {
        queue.start(|key| {
            let reconciler = Arc::clone(reconciler);
            async move { reconciler.reconcile(key).await }
        });
        tokio::select! {
            event = watches.next() => {
                let (key, object) = match event {
                    Some((key, _, Ok(WatchEvent::Deleted(object)))) => (key, object),
                    Some((key, Changes::All, Ok(WatchEvent::Added(object) | WatchEvent::Modified(object)))) => (key, object),
                    Some((_, _, Ok(WatchEvent::InitialEnd(_)))) => {
                        reading -= 1;
                        if reading == 0 {
                            *informing = None;
                        }
                        continue;
                    }
                    Some((_, _, Ok(_))) => continue,
                    Some((_, _, Err(status))) => return status,
                    None => return Status::internal_error("the watch ended"),
                };
                if let Some(key) = key(&object) {
                    queue.enqueue(key);
                }
            }
            () = queue.turn() => {}
        }
    }
}
