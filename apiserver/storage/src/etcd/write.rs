//! Writes: one transaction of etcd each.

use std::time::Duration;

use super::{
    Shared,
    client::{Failed, PATIENCE, explain},
    load::{entry, signed, unsigned},
    proto::{
        Compare, DeleteRangeRequest, Empty, LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, PutRequest,
        RangeRequest, Request, RequestOp, ResponseOp, TxnRequest, TxnResponse,
    },
};
use crate::{Condition, StoreError, Txn, TxnOutcome, VALUE_BYTES_MAX, store::check};

pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";

impl Shared {
    /// One compare-and-set. What was acknowledged is also to be seen here, unless the watch is away for long.
    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnOutcome, StoreError> {
        check(&txn)?;
        self.refuse_closed()?;
        let lease = match txn.ttl.filter(|_| txn.value.is_some()) {
            Some(ttl) => self.lease(ttl).await?,
            None => 0,
        };
        let bytes = txn.value.as_ref().map_or(0, |value| value.len());
        let written = self.client.write::<_, TxnResponse>(TXN, self.request(&txn, lease)).await;
        let answer = match written {
            Ok(answer) => answer,
            // The lease stays, since it is needed if the write was carried out after all; if not it goes by itself.
            Err(Failed::Sent(status)) if status.message().contains("request is too large") => {
                return Err(StoreError::TooLarge { bytes, limit: VALUE_BYTES_MAX });
            }
            Err(failed) => return Err(failed.into()),
        };
        if answer.succeeded {
            let revision = unsigned(answer.header.unwrap_or_default().revision);
            let _ = tokio::time::timeout(PATIENCE, self.present.reached(revision)).await;
            return Ok(TxnOutcome::Done { revision });
        }
        if lease != 0 {
            let revoke = LeaseRevokeRequest { id: lease };
            // It would go by itself, only later.
            let _ = self.client.write::<_, Empty>("/etcdserverpb.Lease/LeaseRevoke", revoke).await;
        }
        Ok(self.conflict(&txn, answer.responses))
    }

    fn request(&self, txn: &Txn, lease: i64) -> TxnRequest {
        let key = self.layout.key(&txn.key);
        let expected = match txn.condition {
            Condition::Absent => 0,
            // 0 would mean that the key does not exist, which this condition never wants.
            Condition::ModRevision(0) => -1,
            Condition::ModRevision(revision) => signed(revision),
        };
        let mut compare = vec![Compare::mod_revision(key.clone(), expected)];
        let mut present = vec![one(key.clone())];
        if let Some((guard, revision)) = &txn.guard {
            let guard = self.layout.key(guard);
            compare.push(Compare::mod_revision(guard.clone(), if *revision == 0 { -1 } else { signed(*revision) }));
            present.push(one(guard));
        }
        let write = match &txn.value {
            Some(value) => Request::Put(PutRequest { key, value: value.clone(), lease }),
            None => Request::DeleteRange(DeleteRangeRequest { key }),
        };
        TxnRequest { compare, success: vec![RequestOp { request: Some(write) }], failure: present }
    }

    /// Why a transaction was not carried out, from the present state of its keys.
    fn conflict(&self, txn: &Txn, answers: Vec<ResponseOp>) -> TxnOutcome {
        let mut entries = answers.into_iter().map(|answer| {
            let kv = answer.range.and_then(|range| range.kvs.into_iter().next());
            kv.and_then(|kv| entry(&self.layout, kv))
        });
        let present = entries.next().flatten();
        let guard = entries.next().flatten();
        match &txn.guard {
            Some((_, revision)) if guard.is_none_or(|kv| kv.mod_revision != *revision) => TxnOutcome::Unguarded,
            _ => TxnOutcome::Conflict(present),
        }
    }

    /// A lease of its own for each key, so that each expiry is a revision of its own: a watch that is resumed at one
    /// must not miss another. Asking twice for one does no harm.
    async fn lease(&self, ttl: Duration) -> Result<i64, StoreError> {
        let seconds = ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0);
        let question = LeaseGrantRequest { ttl: signed(seconds.max(1)) };
        let granted = self.client.read("/etcdserverpb.Lease/LeaseGrant", question).await;
        let granted: LeaseGrantResponse = granted.map_err(|s| explain(&s))?;
        Ok(granted.id)
    }
}

fn one(key: Vec<u8>) -> RequestOp {
    RequestOp { request: Some(Request::Range(RangeRequest { key, ..Default::default() })) }
}
