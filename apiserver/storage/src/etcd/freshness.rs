//! Whether memory is as far as etcd: one read for all who ask at the same moment.
//!
//! etcd's revision may be ahead of the last change here: because that is still on its way, or because others write
//! there. For the latter the watch is asked how far it is; members that cannot tell are made to by a write of our own,
//! whose event then comes along.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::sync::{mpsc, oneshot};

use super::{
    Shared,
    client::PATIENCE,
    load,
    proto::{PutRequest, PutResponse},
};
use crate::StoreError;

/// Callers that may wait; more wait in their own futures.
pub(super) const WAITING_MAX: usize = 4096;
/// How long a change may be on its way before the watch is asked.
const ON_ITS_WAY: Duration = Duration::from_millis(20);
/// How often it is asked.
const ASK_EVERY: Duration = Duration::from_millis(200);

/// Hears when memory is as far as etcd was at some moment after it asked.
pub(super) type Waiting = oneshot::Sender<Result<(), StoreError>>;

impl Shared {
    /// Waits until memory holds everything that was acknowledged before this call.
    pub(super) async fn fresh(&self) -> Result<(), StoreError> {
        self.refuse_closed()?;
        let (reply, answer) = oneshot::channel();
        self.waiting.send(reply).await.map_err(|_| StoreError::Closed)?;
        answer.await.map_err(|_| StoreError::Closed)?
    }

    /// Waits until memory has come to a revision that somebody was told, perhaps by another server.
    pub(super) async fn at_least(&self, revision: u64) -> Result<(), StoreError> {
        self.refuse_closed()?;
        if revision > self.present.revision() { self.fresh().await } else { Ok(()) }
    }

    async fn come_to_now(&self) -> Result<(), StoreError> {
        let now = load::now(&self.client, &self.layout).await?;
        if tokio::time::timeout(ON_ITS_WAY, self.present.reached(now)).await.is_ok() {
            return Ok(());
        }
        let asking = async {
            loop {
                self.ask_for_progress().await;
                if tokio::time::timeout(ASK_EVERY, self.present.reached(now)).await.is_ok() {
                    return;
                }
            }
        };
        let late = |_| StoreError::Unavailable("etcd: the watch is behind what was written".into());
        tokio::time::timeout(PATIENCE, asking).await.map_err(late)
    }

    async fn ask_for_progress(&self) {
        if self.tells_progress.load(Ordering::Relaxed) {
            self.ask.notify_one();
            return;
        }
        let mark = PutRequest { key: self.layout.mark(), value: bytes::Bytes::new(), lease: 0 };
        let written: Result<PutResponse, _> = self.client.write("/etcdserverpb.KV/Put", mark).await;
        if let Err(error) = written.map_err(StoreError::from) {
            tracing::debug!(%error, "the progress of the watch cannot be asked for");
        }
    }
}

/// Serves those who ask, all at once who have asked meanwhile.
pub(super) async fn run(shared: Arc<Shared>, mut asking: mpsc::Receiver<Waiting>) {
    let mut waiting = Vec::new();
    while asking.recv_many(&mut waiting, WAITING_MAX).await > 0 {
        let result = shared.come_to_now().await;
        for reply in waiting.drain(..) {
            // Who has gone does not wait.
            let _ = reply.send(result.clone());
        }
    }
}
