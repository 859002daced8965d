//! What becomes of watches when everything is read anew.

use futures_util::{FutureExt, StreamExt};

use super::*;
use crate::{KeyValue, tree::Packed};

fn present(revision: u64) -> Arc<Present> {
    Arc::new(Present::new(State { tree: Tree::default(), revision, compacted: 0 }, None))
}

fn watch(present: &Arc<Present>, after: u64) -> WatchStream {
    present.watch("/a/", after, Wanted::default()).unwrap()
}

fn put(present: &Present, key: &str) -> u64 {
    let mut next = State::clone(&present.state());
    next.revision += 1;
    let revision = next.revision;
    let kv = KeyValue { key: key.into(), value: "x".into(), create_revision: revision, mod_revision: revision };
    next.tree.insert(Packed::of(&kv));
    present.publish(next, vec![Event::Put { kv, prev: None }]);
    revision
}

/// What a watch has to say now: the revisions of the changes, and its error.
fn heard(watch: &mut WatchStream) -> (Vec<u64>, Option<StoreError>) {
    let mut changes = Vec::new();
    while let Some(item) = watch.next().now_or_never() {
        match item {
            Some(Ok(Event::Progress(_))) => {}
            Some(Ok(event)) => changes.push(event.revision()),
            Some(Err(error)) => return (changes, Some(error)),
            None => return (changes, None),
        }
    }
    (changes, None)
}

fn replace(present: &Present, revision: u64) {
    present.replace(State { tree: Tree::default(), revision, compacted: 0 });
}

#[test]
fn a_watch_that_ended_takes_nobody_along() {
    let present = present(100);
    let mut old: Vec<_> = (0..3).map(|_| watch(&present, 100)).collect();
    assert!(old.iter_mut().all(|watch| heard(watch) == (Vec::new(), None)));
    replace(&present, 50);
    let mut new: Vec<_> = (0..3).map(|_| watch(&present, 50)).collect();
    assert!(new.iter_mut().all(|watch| heard(watch) == (Vec::new(), None)));
    let ended = Some(StoreError::Compacted { requested: 100, oldest: 50 });
    assert!(old.iter_mut().all(|watch| heard(watch) == (Vec::new(), ended.clone())));
    drop(old);
    let change = put(&present, "/a/x");
    for (n, watch) in new.iter_mut().enumerate() {
        assert_eq!(heard(watch), (vec![change], None), "watch {n}");
    }
    assert_eq!(present.hub().registered(), (3, 1));
    drop(new);
    assert_eq!(present.hub().registered(), (0, 0));
}

/// It is as far as a revision that is yet to come in the new history, and would wait for it in silence.
#[test]
fn a_watch_that_was_catching_up_ends_too() {
    let present = present(100);
    let changes: Vec<u64> = (0..3).map(|_| put(&present, "/a/x")).collect();
    let mut watch = watch(&present, 100);
    let first = watch.next().now_or_never().unwrap().unwrap().unwrap();
    assert_eq!(first.revision(), 101);
    replace(&present, 50);
    put(&present, "/a/y");
    let ended = Some(StoreError::Compacted { requested: 103, oldest: 50 });
    assert_eq!(heard(&mut watch), (changes[1..].to_vec(), ended));
    assert_eq!(present.hub().registered(), (0, 0));
}

#[test]
fn a_closed_store_stays_closed() {
    let present = present(100);
    present.close();
    replace(&present, 50);
    let mut watch = watch(&present, 50);
    assert_eq!(heard(&mut watch), (Vec::new(), Some(StoreError::Closed)));
}
