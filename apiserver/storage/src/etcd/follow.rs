//! The one watch on etcd that keeps memory up to date, whatever happens to members.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use futures_util::stream;
use tokio::sync::mpsc;
use tonic::{Status, Streaming};

use super::{
    Shared,
    client::{Connection, explain},
    load::{Since, entry, load, now, signed, unsigned},
    proto::{EVENT_DELETE, Empty, Event as Raw, WatchAction, WatchCreateRequest, WatchRequest, WatchResponse},
};
use crate::{
    Event, StoreError,
    present::{State, lock},
    tree::Packed,
};

/// Pauses between attempts, the shortest and the longest.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// Changes of one answer in several parts that are kept until its last part: etcd sends at most 1,000 revisions at once.
const PARTS_MAX: usize = 100_000;

/// Why a watch ended.
enum End {
    /// The member is gone, or does not want to go on.
    Lost(StoreError),
    /// etcd no longer has what comes next, or what was read is not what it has: everything must be read anew.
    Behind(&'static str, Since),
}

/// Watches for ever.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut pause = PAUSE.0;
    loop {
        let before = shared.present.revision();
        match follow(&shared).await {
            End::Behind(why, since) => {
                tracing::warn!(why, "what etcd holds is read anew; watches end");
                match load(&shared.client, &shared.layout, since).await {
                    Ok(state) => shared.present.replace(state),
                    Err(error) => tracing::warn!(%error, "etcd cannot be read; trying again"),
                }
            }
            // Told once, until changes came again.
            End::Lost(error) if pause == PAUSE.0 => tracing::warn!(%error, "the watch on etcd ended; resuming"),
            End::Lost(error) => tracing::info!(%error, "the watch on etcd ended; resuming"),
        }
        // Whoever made progress may try again soon.
        pause = if shared.present.revision() > before { PAUSE.0 } else { (pause * 2).min(PAUSE.1) };
        tokio::time::sleep(pause).await;
    }
}

async fn follow(shared: &Shared) -> End {
    let connection = match shared.client.connection().await {
        Ok(connection) => connection,
        Err(error) => return End::Lost(error),
    };
    let after = shared.present.revision();
    match now(&shared.client, &shared.layout).await {
        // A watch from the future would be silent and look healthy.
        Ok(now) if now < after => return End::Behind("its revision went back, as after a restore", Since::History),
        Ok(_) => {}
        Err(error) => return End::Lost(error),
    }
    let (requests, sent) = mpsc::channel(4);
    let (key, range_end) = shared.layout.everything();
    let start_revision = signed(after + 1);
    let create = WatchCreateRequest { key, range_end, start_revision, progress_notify: true, fragment: true };
    // The channel is new and empty.
    let _ = requests.try_send(WatchRequest { action: Some(WatchAction::Create(create)) });
    let sent = stream::unfold(sent, |mut sent| async move { Some((sent.recv().await?, sent)) });
    let end = match connection.watch(sent).await {
        Ok(answers) => listen(shared, &connection, answers, &requests).await,
        Err(status) => End::Lost(explain(&status)),
    };
    lock(&shared.lost).get_or_insert_with(Instant::now);
    if matches!(end, End::Lost(_)) {
        shared.client.lost(&connection).await;
    }
    end
}

/// Takes what one watch says until it ends.
async fn listen(
    shared: &Shared,
    connection: &Connection,
    mut answers: Streaming<WatchResponse>,
    requests: &mpsc::Sender<WatchRequest>,
) -> End {
    shared.tells_progress.store(connection.tells_progress, Ordering::Relaxed);
    let mut parts = Vec::new();
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer,
            () = shared.ask.notified() => {
                // If the channel is full, progress was asked for already.
                let _ = requests.try_send(WatchRequest { action: Some(WatchAction::Progress(Empty {})) });
                continue;
            }
        };
        let answer = match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => return End::Lost(explain(&Status::unavailable("the watch was closed"))),
            Err(status) => return End::Lost(explain(&status)),
        };
        if answer.compact_revision > 0 {
            return End::Behind("it compacted what was not read yet", Since::History);
        }
        if answer.canceled {
            return End::Lost(explain(&Status::unavailable(answer.cancel_reason)));
        }
        if answer.created {
            *lock(&shared.lost) = None;
            continue;
        }
        let progress = answer.events.is_empty() && !answer.fragment;
        parts.extend(answer.events);
        if answer.fragment {
            if parts.len() > PARTS_MAX {
                // With its history it would come again.
                return End::Behind("one revision has more changes than are kept at once", Since::Now);
            }
            continue;
        }
        // Only an answer without changes tells progress: that of others may be ahead of what was sent.
        let upto = if progress { answer.header.map_or(0, |h| unsigned(h.revision)) } else { 0 };
        take(shared, std::mem::take(&mut parts), upto);
    }
}

/// Brings memory further by the changes of whole revisions.
fn take(shared: &Shared, raw: Vec<Raw>, upto: u64) {
    let state = shared.present.state();
    let mut next = State::clone(&state);
    next.revision = next.revision.max(upto);
    let mut events = Vec::new();
    for raw in raw {
        let revision = raw.kv.as_ref().map_or(0, |kv| unsigned(kv.mod_revision));
        // Told before, by another member.
        if revision <= state.revision {
            continue;
        }
        next.revision = next.revision.max(revision);
        events.extend(apply(shared, &mut next, raw));
    }
    if next.revision > state.revision {
        shared.present.publish(next, events);
    }
}

fn apply(shared: &Shared, next: &mut State, raw: Raw) -> Option<Event> {
    let kv = raw.kv?;
    if raw.kind == EVENT_DELETE {
        let prev = next.tree.remove(shared.layout.strip(&kv.key)?)?;
        return Some(Event::Delete { prev: prev.unpack(), revision: unsigned(kv.mod_revision) });
    }
    let mut kv = entry(&shared.layout, kv)?;
    let prev = next.tree.insert(Packed::of(&kv)).map(|prev| prev.unpack());
    if let Some(prev) = &prev {
        kv.key = prev.key.clone(); // one text for both
    }
    Some(Event::Put { kv, prev })
}
