//! Reads of etcd: everything at the start, and states that are no longer in memory.

use std::time::Duration;

use futures_util::stream;
use tonic::Code;

use super::{
    Shared,
    client::{Client, explain, is_compacted},
    layout::{Interval, Layout},
    proto::{self, RangeRequest, RangeResponse, WatchAction, WatchCreateRequest, WatchRequest},
};
use crate::{
    KeyValue, Range, RangeResult, StoreError,
    present::{RING_EVENTS_MAX, State},
    tree::{Packed, Tree},
};

pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";
/// Keys asked for at once, at the most and at the least: of 16 of the largest values an answer has 24 MiB.
const PAGE: (i64, i64) = (2000, 16);
/// How long etcd may take to say that what a watch wants is compacted; it looks ten times a second.
const COMPACTED_WAIT: Duration = Duration::from_secs(3);

/// etcd's present revision, after everything that was acknowledged before.
pub(super) async fn now(client: &Client, layout: &Layout) -> Result<u64, StoreError> {
    let question = RangeRequest { key: layout.mark(), keys_only: true, ..Default::default() };
    let answer: RangeResponse = client.read(RANGE, question).await.map_err(|s| explain(&s))?;
    Ok(unsigned(answer.header.unwrap_or_default().revision))
}

/// Where a state begins that is read from etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// As far back as history is kept, as far as etcd still has it: the watch that goes on from there brings it along.
    History,
    /// Behind everything.
    Now,
}

/// What etcd holds, at one revision.
pub(super) async fn load(client: &Client, layout: &Layout, since: Since) -> Result<State, StoreError> {
    let mut attempts = 5; // compactions are minutes apart
    let back = if since == Since::History { RING_EVENTS_MAX as u64 } else { 0 };
    let mut wanted = now(client, layout).await?.saturating_sub(back).max(1);
    let mut known = 0;
    loop {
        match scan(client, layout, layout.interval("", None), wanted, 0, |kv| Packed::of(&kv)).await {
            Ok((entries, _)) => {
                let tree = Tree::from_sorted(entries.into_iter());
                return Ok(State { tree, revision: wanted, compacted: known });
            }
            Err(StoreError::Compacted { .. }) if attempts > 0 => attempts -= 1,
            Err(error) => return Err(error),
        }
        wanted = match compacted(client, layout, wanted).await {
            Some(oldest) => {
                known = oldest;
                oldest
            }
            None => now(client, layout).await?,
        };
    }
}

/// The revision that etcd compacted last, which is later than `wanted`; only a watch says it.
async fn compacted(client: &Client, layout: &Layout, wanted: u64) -> Option<u64> {
    let connection = client.connection().await.ok()?;
    let (key, range_end) = layout.everything();
    let create =
        WatchCreateRequest { key, range_end, start_revision: signed(wanted), progress_notify: false, fragment: false };
    let request = WatchRequest { action: Some(WatchAction::Create(create)) };
    // Left open: etcd ends the watch when the requests end.
    let requests = stream::unfold(Some(request), |request| async move {
        match request {
            Some(request) => Some((request, None)),
            None => std::future::pending().await,
        }
    });
    let ask = async {
        let mut answers = connection.watch(requests).await.ok()?;
        loop {
            let answer = answers.message().await.ok()??;
            if answer.compact_revision > 0 {
                return Some(unsigned(answer.compact_revision));
            }
        }
    };
    tokio::time::timeout(COMPACTED_WAIT, ask).await.ok()?
}

/// One range at an old revision.
pub(super) async fn range(shared: &Shared, range: &Range, revision: u64) -> Result<RangeResult, StoreError> {
    let interval = shared.layout.interval(&range.prefix, range.after.as_deref());
    let scanned = scan(&shared.client, &shared.layout, interval, revision, range.limit, |kv| Packed::of(&kv)).await;
    let (items, remaining) = scanned.map_err(|error| match error {
        // Somebody else compacted it. What memory reaches back to can be read for certain.
        StoreError::Compacted { requested, .. } => StoreError::Compacted { requested, oldest: shared.present.oldest() },
        other => other,
    })?;
    Ok(RangeResult { items, remaining, revision })
}

/// The first `limit` (0 = all) entries of an interval at a revision, each as `make` makes it of a page while the next is
/// not read, and how many are behind them.
async fn scan<T>(
    client: &Client,
    layout: &Layout,
    (mut start, end): Interval,
    revision: u64,
    limit: usize,
    make: impl Fn(KeyValue) -> T,
) -> Result<(Vec<T>, u64), StoreError> {
    let (mut items, mut page) = (Vec::new(), PAGE.0);
    loop {
        let rest = if limit == 0 { i64::MAX } else { i64::try_from(limit - items.len()).unwrap_or(i64::MAX) };
        let question = RangeRequest {
            key: start.clone(),
            range_end: end.clone(),
            limit: rest.min(page),
            revision: signed(revision),
            keys_only: false,
        };
        let answer: RangeResponse = match client.read(RANGE, question).await {
            Ok(answer) => answer,
            Err(status) if is_compacted(&status) => {
                return Err(StoreError::Compacted { requested: revision, oldest: revision + 1 });
            }
            // Larger than is taken at once.
            Err(status) if status.code() == Code::OutOfRange && page > PAGE.1 => {
                page = (page / 8).max(PAGE.1);
                continue;
            }
            Err(status) => return Err(explain(&status)),
        };
        let read = answer.kvs.len();
        if let Some(last) = answer.kvs.last() {
            start = last.key.to_vec();
            start.push(0);
        }
        items.extend(answer.kvs.into_iter().filter_map(|kv| entry(layout, kv)).map(&make));
        let remaining = unsigned(answer.count).saturating_sub(read as u64);
        if !answer.more || read == 0 || (limit != 0 && items.len() >= limit) {
            return Ok((items, remaining));
        }
    }
}

/// An entry of the store; `None` for what is none.
pub(super) fn entry(layout: &Layout, kv: proto::KeyValue) -> Option<KeyValue> {
    Some(KeyValue {
        key: layout.strip(&kv.key)?.into(),
        // A part of a large answer: it must not keep the rest alive.
        value: bytes::Bytes::copy_from_slice(&kv.value),
        create_revision: unsigned(kv.create_revision),
        mod_revision: unsigned(kv.mod_revision),
    })
}

/// etcd's revisions are signed and never negative.
pub(super) fn unsigned(revision: i64) -> u64 {
    u64::try_from(revision).unwrap_or(0)
}

pub(super) fn signed(revision: u64) -> i64 {
    i64::try_from(revision).unwrap_or(i64::MAX)
}
