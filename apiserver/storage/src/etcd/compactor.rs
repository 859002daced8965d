//! Lets etcd forget: every five minutes, up to where it was five minutes before.
//!
//! Several servers do it together, and with Kubernetes' API servers if they share the etcd: who is first to raise the
//! version of one key compacts, the others learn from its value what was compacted.

use std::{sync::Arc, time::Duration};

use super::{
    Shared,
    client::{Failed, is_compacted},
    layout::COMPACTED,
    load::{signed, unsigned},
    proto::{CompactionRequest, Compare, Empty, PutRequest, RangeRequest, Request, RequestOp, TxnRequest, TxnResponse},
    write::TXN,
};
use crate::StoreError;

/// How often, and how much history is kept at least (upstream's default).
const EVERY: Duration = Duration::from_secs(300);

/// What one server remembers between two turns.
#[derive(Default)]
struct Turn {
    /// Version of the key, as far as known.
    version: i64,
    /// etcd's revision at the turn before; 0 at first.
    revision: u64,
}

/// Compacts for ever.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut turn = Turn::default();
    loop {
        tokio::time::sleep(EVERY).await;
        if let Err(error) = turn.take(&shared).await {
            tracing::warn!(%error, "etcd was not compacted; the next turn is in five minutes");
        }
    }
}

impl Turn {
    async fn take(&mut self, shared: &Shared) -> Result<(), StoreError> {
        let key = COMPACTED.to_vec();
        let value = self.revision.to_string().into_bytes().into();
        let put = Request::Put(PutRequest { key: key.clone(), value, lease: 0 });
        let look = Request::Range(RangeRequest { key: key.clone(), ..Default::default() });
        let request = TxnRequest {
            compare: vec![Compare::version(key, self.version)],
            success: vec![RequestOp { request: Some(put) }],
            failure: vec![RequestOp { request: Some(look) }],
        };
        let answer: TxnResponse = shared.client.write(TXN, request).await?;
        let before = std::mem::replace(&mut self.revision, unsigned(answer.header.unwrap_or_default().revision));
        if answer.succeeded {
            self.version += 1;
            return if before == 0 { Ok(()) } else { compact(shared, before).await };
        }
        let kv = answer.responses.into_iter().find_map(|r| r.range?.kvs.into_iter().next());
        let Some(kv) = kv else {
            self.version = 0; // somebody deleted it
            return Ok(());
        };
        self.version = kv.version;
        let compacted = std::str::from_utf8(&kv.value).ok().and_then(|text| text.parse().ok());
        shared.present.forget(compacted.unwrap_or(0));
        Ok(())
    }
}

/// Lets etcd forget what was superseded at or before a revision.
pub(super) async fn compact(shared: &Shared, revision: u64) -> Result<(), StoreError> {
    if revision > 0 {
        let request = CompactionRequest { revision: signed(revision) };
        match shared.client.write::<_, Empty>("/etcdserverpb.KV/Compact", request).await {
            Ok(_) => {}
            // It is, or further.
            Err(Failed::Sent(status)) if is_compacted(&status) => {}
            Err(failed) => return Err(failed.into()),
        }
    }
    shared.present.forget(revision);
    Ok(())
}
