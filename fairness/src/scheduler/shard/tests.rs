//! Promises, levels and workspaces of one shard, event by event. The laws on random trees are in `scheduler::tests`.

use super::*;
use crate::levels::Queuing;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;

fn level(name: &str, shares: u32, lendable_percent: u32) -> Level {
    let kind = LevelKind::Queue(Queuing { queues: 1, hand_size: 1, queue_length_limit: 1000 });
    Level { name: name.into(), kind, shares, lendable_percent, borrowing_limit_percent: None }
}

fn seats(seats: u32) -> WorkspaceClass {
    WorkspaceClass::Seats { seats, lendable_percent: 0, borrowing_limit_percent: None }
}

/// A shard without headroom and ripeness, with one level that lends all it has.
fn shard(seats: u32) -> Shard {
    let tuning = Tuning { headroom_percent: 0, ripeness: 0, ..Tuning::default() };
    Shard::new(seats, &[level("all", 10, 100)], tuning, Compat::Fairgate)
}

fn ask(shard: &mut Shard, now: u64, id: WorkspaceId, width: u32) -> RequestId {
    match shard.arrive(now, id, 0, 0, width) {
        Ok(Arrival::Queued(id)) => id,
        other => panic!("{other:?}"),
    }
}

/// Starts what can start.
fn settle(shard: &mut Shard, now: u64) -> Vec<RequestId> {
    let started = std::iter::from_fn(|| shard.dispatch(now)).collect();
    shard.core().verify().unwrap();
    started
}

fn reserve(shard: &Shard, id: WorkspaceId) -> u32 {
    let node = shard.workspaces[id.index()].as_ref().unwrap().node;
    shard.core().spec(node).reserve
}

#[test]
fn where_reserves_exceed_the_shard_requests_are_charged_all_the_same() {
    let mut shard = shard(10);
    let (a, b) = (shard.add_workspace(0, seats(6)), shard.add_workspace(0, seats(4)));
    shard.set_seats(0, 4);
    for _ in 0..10 {
        ask(&mut shard, 0, a, 3);
        let _ = shard.arrive(0, b, 0, 0, 3);
    }
    for id in settle(&mut shard, 0) {
        assert!(shard.core().width(id) > 0);
    }
    let root = shard.core().root();
    assert!((1..=4).contains(&shard.core().in_use(root)), "{} of 4", shard.core().in_use(root));
}

#[test]
fn who_can_never_have_a_seat_is_refused_and_who_can_later_is_served_then() {
    let mut shard = shard(10);
    let all = shard.add_workspace(0, seats(10));
    let other = shard.add_workspace(0, WorkspaceClass::default());
    assert_eq!(shard.arrive(0, other, 0, 0, 1), Err(RefusedArrival::ConcurrencyLimit));
    shard.set_class(MS, all, seats(9));
    let id = ask(&mut shard, MS, other, 5);
    assert_eq!((settle(&mut shard, MS), shard.core().width(id)), (vec![id], 1));
}

#[test]
fn no_seats_means_none_until_the_class_says_otherwise() {
    let mut shard = shard(10);
    let id = shard.add_workspace(0, seats(0));
    assert_eq!(shard.arrive(0, id, 0, 0, 1), Err(RefusedArrival::ConcurrencyLimit));
    assert!(shard.set_class(0, id, seats(5)));
    ask(&mut shard, 0, id, 1);
    assert_eq!(settle(&mut shard, 0).len(), 1);
    assert_eq!(shard.absolute, 5);
    // However long it idles afterwards, its seats are counted once.
    let root = shard.core().root();
    let running = shard.core().in_use(root);
    assert_eq!(running, 1);
    shard.reap(100 * SECOND, 100);
    assert_eq!(shard.reaped(100 * SECOND), None);
    assert_eq!(shard.absolute, 5);
}

#[test]
fn promises_are_kept_again_after_every_change() {
    let mut shard = shard(10);
    let (a, b) = (shard.add_workspace(0, seats(6)), shard.add_workspace(0, seats(4)));
    let reserves = |shard: &Shard| [a, b].map(|id| reserve(shard, id));
    assert_eq!((reserves(&shard), shard.reserves_missing()), ([6, 4], 0));
    shard.set_seats(0, 5);
    assert_eq!((reserves(&shard), shard.reserves_missing()), ([5, 0], 5));
    shard.set_seats(0, 100);
    assert_eq!((reserves(&shard), shard.reserves_missing()), ([6, 4], 0));
    shard.set_seats(0, 10);
    // In either order, though the first of them finds no room.
    shard.set_class(0, b, seats(6));
    assert_eq!((reserves(&shard), shard.reserves_missing()), ([6, 4], 2));
    shard.set_class(0, a, seats(4));
    assert_eq!((reserves(&shard), shard.reserves_missing()), ([4, 6], 0));
    let c = shard.add_workspace(0, seats(3));
    assert_eq!((reserve(&shard, c), shard.reserves_missing()), (0, 3));
    shard.forget_workspace(0, a);
    assert_eq!((reserve(&shard, b), reserve(&shard, c), shard.reserves_missing()), (6, 3, 0));
}

#[test]
fn the_reserve_of_a_level_stays_when_an_idle_one_goes() {
    let tuning = Tuning { headroom_percent: 0, ripeness: 0, ..Tuning::default() };
    let (kept, gone) = (level("kept", 10, 0), level("gone", 10, 0));
    let mut shard = Shard::new(10, &[kept.clone(), gone], tuning, Compat::Fairgate);
    let id = shard.add_workspace(0, seats(10));
    for at in [0, 1] {
        shard.arrive(0, id, at, 0, 1).unwrap();
    }
    let started = settle(&mut shard, 0);
    assert_eq!(started.len(), 2);
    started.iter().for_each(|id| assert!(shard.complete(MS, *id)));
    shard.set_levels(MS, &[kept]);
    let slot = shard.workspaces[id.index()].as_ref().unwrap().levels[0].node;
    assert_eq!(shard.core().spec(slot).reserve, 10, "the other one is not gone yet, but idle");
}

#[test]
fn places_of_levels_that_are_gone_are_used_again() {
    let mut shard = shard(10);
    let id = shard.add_workspace(0, seats(10));
    let mut now = 0;
    for round in 0..100_u64 {
        let names = [level("all", 10, 100), level(&format!("a{round}"), 5, 0), level(&format!("b{round}"), 5, 0)];
        shard.set_levels(now, &names);
        for at in [1, 2] {
            shard.arrive(now, id, at, 0, 1).unwrap();
            for id in settle(&mut shard, now) {
                assert!(shard.complete(now, id));
            }
        }
        // Long enough for what is idle to be dropped: queues first, then levels.
        for _ in 0..4 {
            now += 11 * SECOND;
            shard.reap(now, 100);
            while shard.reaped(now).is_some() {}
        }
        let place = shard.places[1];
        assert_eq!(&*shard.levels[usize::from(place)].level.name, format!("a{round}"));
    }
    assert!(shard.levels.len() <= 5, "{}", shard.levels.len());
}

#[test]
fn a_backlog_without_arrivals_takes_what_its_neighbours_leave() {
    let mut shard = shard(100);
    let class = WorkspaceClass::Shares { shares: 10, borrowing_limit_percent: Some(0) };
    let ids: Vec<_> = (0..10).map(|_| shard.add_workspace(0, class)).collect();
    for _ in 0..3 {
        for id in &ids {
            ask(&mut shard, 0, *id, 1);
        }
    }
    let mut running: Vec<_> = settle(&mut shard, 0);
    let backlogged = ids[0];
    for _ in 0..500 {
        ask(&mut shard, 20 * MS, backlogged, 1);
    }
    running.extend(settle(&mut shard, 20 * MS));
    let node = shard.workspaces[backlogged.index()].as_ref().unwrap().node;
    assert_eq!(shard.core().in_use(node), 10, "a tenth, while there are ten");
    // All that ran ends, and only the backlog is left.
    for id in running {
        shard.complete(40 * MS, id);
        settle(&mut shard, 40 * MS);
    }
    let first = shard.core().in_use(node);
    assert_eq!(first, 100, "all of it when the others have gone");
}

#[test]
fn workspaces_follow_new_levels_with_their_next_request() {
    let mut shard = shard(10);
    let id = shard.add_workspace(0, seats(10));
    ask(&mut shard, 0, id, 1);
    shard.replace_levels(&[level("all", 10, 0)]);
    let node = shard.workspaces[id.index()].as_ref().unwrap().levels[0].node;
    assert_eq!(shard.core().spec(node).reserve, 0, "not yet");
    ask(&mut shard, 0, id, 1);
    assert_eq!(shard.core().spec(node).reserve, 10);
}

/// However heavy a workspace is, short requests are charged as what they are.
#[test]
fn short_requests_of_heavy_workspaces_are_not_free() {
    let mut shard = shard(1);
    let class = WorkspaceClass::Shares { shares: 1_000_000, borrowing_limit_percent: None };
    let (short, long) = (shard.add_workspace(0, class), shard.add_workspace(0, class));
    let (mut now, mut used) = (0, [0_u64; 2]);
    for _ in 0..4 {
        ask(&mut shard, now, short, 1);
        ask(&mut shard, now, long, 1);
    }
    while now < 20 * SECOND {
        let id = shard.dispatch(now).expect("both wait, and the seat is free");
        assert_eq!(shard.dispatch(now), None);
        let in_use =
            |shard: &Shard, id: WorkspaceId| shard.core().in_use(shard.workspaces[id.index()].as_ref().unwrap().node);
        let whose = usize::from(in_use(&shard, short) == 0);
        let duration = [30_000, 100 * MS][whose];
        now += duration;
        used[whose] += duration;
        assert!(shard.complete(now, id));
        ask(&mut shard, now, [short, long][whose], 1);
    }
    let share = used[0] as f64 / (used[0] + used[1]) as f64;
    assert!((0.47..0.53).contains(&share), "half is due, {share} got");
}

/// However many levels keep all they have, and however small its part.
#[test]
fn a_level_with_shares_has_a_seat_on_an_idle_shard() {
    let tuning = Tuning::default();
    for seats in 1..20 {
        for others in 1..10 {
            for shares in [30, 1000] {
                let mut levels: Vec<_> = (0..others).map(|n| level(&format!("l{n}"), shares, 0)).collect();
                levels.push(level("small", 1, 0));
                for class in [WorkspaceClass::default(), self::seats(seats)] {
                    let mut shard = Shard::new(seats, &levels, tuning, Compat::Fairgate);
                    let id = shard.add_workspace(0, class);
                    for at in (0..levels.len() as u16).rev() {
                        let what = format!("level {at} of {others} others with {shares} shares, {seats} seats");
                        assert!(shard.arrive(0, id, at, 0, 1).is_ok(), "{what}: refused");
                        let started = settle(&mut shard, 0);
                        assert_eq!(started.len(), 1, "{what}");
                        assert!(shard.complete(MS, started[0]));
                        settle(&mut shard, MS);
                    }
                }
            }
        }
    }
}
