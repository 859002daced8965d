use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::{Queuing, vectors};

const SECOND: u64 = 1_000_000_000;

/// Kinds of event in the order in which those of one instant are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Release,
    Finish,
    Cancel,
    Arrive,
    Reconfigure,
}

fn level(config: &Value) -> Level {
    let number = |field| vectors::number(config, field) as u32;
    let kind = match vectors::number(config, "queues") {
        0 => LevelKind::Reject,
        queues if queues < 0 => LevelKind::Exempt,
        queues => LevelKind::Queue(Queuing {
            queues: queues as u32,
            hand_size: number("handSize"),
            queue_length_limit: number("queueLengthLimit"),
        }),
    };
    let borrowing_limit_percent = (kind != LevelKind::Exempt).then_some(0);
    Level { name: "l".into(), kind, shares: 1, lendable_percent: 0, borrowing_limit_percent }
}

/// One script on a shard with one workspace and one level. Queues and meters are not looked at here.
fn play(script: &Value) -> usize {
    let rows = script["requests"].as_array().unwrap();
    let hashes: Vec<u64> =
        script["flows"].as_array().unwrap().iter().map(|f| f[1].as_str().unwrap().parse().unwrap()).collect();
    let seats = |config| vectors::number(config, "concurrencyLimit") as u32;
    let mut shard = Shard::new(0, seats(&script["config"]), &[level(&script["config"])]);
    let workspace = shard.add_workspace(0, WorkspaceClass::default());
    let (mut events, mut number) = (BTreeMap::new(), 0..);
    let mut schedule = |at: u64, kind, row: usize| ((at, kind, number.next().unwrap_or(0)), row);
    for (at, row) in rows.iter().enumerate() {
        events.extend([schedule(row[0].as_u64().unwrap(), Kind::Arrive, at)]);
        events.extend(row[6].as_u64().map(|cancel| schedule(cancel, Kind::Cancel, at)));
    }
    for (at, change) in script["reconfigure"].as_array().into_iter().flatten().enumerate() {
        events.extend([schedule(vectors::number(change, "t_ns") as u64, Kind::Reconfigure, at)]);
    }
    let (mut ids, mut dispatched) = (vec![None; rows.len()], 0);
    let mut results = vec![json!(["never-dispatched", 0]); rows.len()];
    while let Some(((now, kind, _), row)) = events.pop_first() {
        let mut running = Vec::new();
        match kind {
            Kind::Arrive => {
                let column = |n: usize| rows[row][n].as_u64().unwrap();
                let work = Work {
                    initial_seats: column(2) as u32,
                    final_seats: column(3) as u32,
                    additional_latency_ns: column(4),
                };
                match shard.arrive(now, workspace, 0, hashes[column(1) as usize], work) {
                    Ok(Arrived::Running(id)) => {
                        ids[row] = Some(id);
                        running.push(id);
                    }
                    Ok(Arrived::Queued(id)) => ids[row] = Some(id),
                    Err(RefusedArrival::QueueFull) => results[row] = json!(["queue-full", now]),
                    Err(RefusedArrival::ConcurrencyLimit) => results[row] = json!(["concurrency-limit", now]),
                }
            }
            Kind::Release => assert!(shard.complete(now, ids[row].unwrap())),
            Kind::Finish => match shard.finish(now, ids[row].unwrap()) {
                Some(at) => events.extend([schedule(at, Kind::Release, row)]),
                None => assert!(shard.complete(now, ids[row].unwrap())),
            },
            Kind::Cancel => {
                if ids[row].is_some_and(|id| shard.cancel(now, id)) {
                    results[row] = json!(["time-out", now]);
                }
            }
            Kind::Reconfigure => {
                let config = &script["reconfigure"][row]["config"];
                shard.set_levels(now, &[level(config)]);
                shard.set_seats(now, seats(config));
            }
        }
        running.extend(std::iter::from_fn(|| shard.dispatch(now)));
        for id in running {
            let row = ids.iter().position(|i| *i == Some(id)).unwrap();
            let finish = now + rows[row][5].as_u64().unwrap();
            events.extend([schedule(finish, Kind::Finish, row)]);
            results[row] = json!(["executed", dispatched, now, finish]);
            dispatched += 1;
        }
    }
    for (at, want) in script["results"].as_array().unwrap().iter().enumerate() {
        let want = match want[0] == "executed" {
            true => json!([want[0], want[2], want[3], want[4]]),
            false => json!([want[0], if want[0] == "never-dispatched" { json!(0) } else { want[2].clone() }]),
        };
        assert_eq!(results[at], want, "{} request {at}", script["id"]);
    }
    let (limited, exempt) = shard.total_load();
    let waits = results.iter().filter(|r| r[0] == "never-dispatched").count() as u64;
    assert_eq!((limited.waiting, limited.executing + exempt.executing), (waits, 0), "{}", script["id"]);
    rows.len()
}

#[test]
fn a_workspace_that_owns_the_shard_is_served_as_by_kubernetes() {
    vectors::play_traces(play);
}

fn queue(name: &str, lendable_percent: u32) -> Level {
    let kind = LevelKind::Queue(Queuing { queues: 8, hand_size: 2, queue_length_limit: 100 });
    Level { name: name.into(), kind, shares: 10, lendable_percent, borrowing_limit_percent: None }
}

fn shares(shares: u32) -> WorkspaceClass {
    WorkspaceClass::Shares { shares, borrowing_limit_percent: None }
}

const ONE: Work = Work { initial_seats: 1, final_seats: 0, additional_latency_ns: 0 };

/// How many of `n` requests run.
fn send(shard: &mut Shard, now: u64, id: WorkspaceId, level: u16, n: usize) -> Vec<RequestId> {
    for _ in 0..n {
        shard.arrive(now, id, level, 7, ONE).unwrap();
    }
    std::iter::from_fn(|| shard.dispatch(now)).collect()
}

#[test]
fn seats_follow_shares_of_the_active_workspaces_and_absolute_seats_come_first() {
    let mut shard = Shard::new(0, 100, &[queue("l", 0)]);
    let (a, b) = (shard.add_workspace(0, shares(30)), shard.add_workspace(0, shares(10)));
    assert_eq!(send(&mut shard, 0, a, 0, 150).len(), 100, "alone it has all");
    assert_eq!(send(&mut shard, 1, b, 0, 50).len(), 25, "a quarter, although the other has not given any back");
    let class = WorkspaceClass::Seats { seats: 20, lendable_percent: 100, borrowing_limit_percent: None };
    let c = shard.add_workspace(2, class);
    assert_eq!(send(&mut shard, 2, c, 0, 50).len(), 20, "and nothing is borrowed between workspaces");
    shard.adjust_if_due(10 * SECOND);
    let nominal = |id| shard.workspace_load(id).unwrap().1;
    assert_eq!((nominal(a), nominal(b), nominal(c)), (60, 20, 20));
}

#[test]
fn a_workspace_without_seats_is_refused_at_once() {
    let mut shard = Shard::new(0, 10, &[queue("all", 0)]);
    let class = |seats| WorkspaceClass::Seats { seats, lendable_percent: 0, borrowing_limit_percent: None };
    let id = shard.add_workspace(0, class(0));
    assert!(matches!(shard.arrive(0, id, 0, 0, ONE), Err(RefusedArrival::ConcurrencyLimit)));
    shard.set_class(id, class(1));
    assert!(shard.arrive(0, id, 0, 0, ONE).is_ok());
}

#[test]
fn a_workspace_that_went_quiet_gives_its_part_back_at_an_adjustment() {
    let mut shard = Shard::new(0, 10, &[queue("l", 0)]);
    let (a, b) = (shard.add_workspace(0, shares(1)), shard.add_workspace(0, shares(1)));
    for id in send(&mut shard, 0, a, 0, 1) {
        assert_eq!(shard.finish(1, id), None);
        assert!(shard.complete(1, id));
    }
    assert_eq!(send(&mut shard, 2, b, 0, 10).len(), 5);
    assert_eq!(shard.dispatch(9 * SECOND), None);
    shard.adjust_if_due(10 * SECOND);
    shard.adjust_if_due(20 * SECOND);
    assert_eq!(std::iter::from_fn(|| shard.dispatch(20 * SECOND)).count(), 5);
}

#[test]
fn levels_lend_to_each_other_every_ten_seconds() {
    let mut shard = Shard::new(0, 20, &[queue("a", 50), queue("b", 50)]);
    let id = shard.add_workspace(0, WorkspaceClass::default());
    assert_eq!(send(&mut shard, 0, id, 0, 30).len(), 10);
    assert_eq!(shard.dispatch(10 * SECOND - 1), None);
    let more = std::iter::from_fn(|| shard.dispatch(10 * SECOND)).count();
    assert_eq!(more, 5, "half of the other level's");
}

#[test]
fn a_level_that_is_gone_serves_who_is_there_and_then_goes() {
    let mut shard = Shard::new(0, 4, &[queue("old", 0)]);
    let id = shard.add_workspace(0, WorkspaceClass::default());
    let mut running = send(&mut shard, 0, id, 0, 6);
    shard.set_levels(1, &[queue("new", 0)]);
    let mut served = 0;
    while let Some(request) = running.pop() {
        assert_eq!(shard.finish(2, request), None);
        assert!(shard.complete(2, request));
        served += 1;
        running.extend(std::iter::from_fn(|| shard.dispatch(2)));
    }
    assert_eq!(served, 6);
    assert!(shard.level(id.index(), 0).is_none());
    assert_eq!(shard.level(id.index(), 1).unwrap().demand.limits.nominal, 4);
}

#[test]
fn a_forgotten_workspace_goes_with_its_last_request_and_an_idle_one_after_ten_minutes() {
    let mut shard = Shard::new(0, 4, &[queue("l", 0)]);
    let (a, b) = (shard.add_workspace(0, shares(1)), shard.add_workspace(0, shares(1)));
    let [request] = send(&mut shard, 0, a, 0, 1)[..] else { panic!() };
    shard.forget_workspace(a);
    assert_eq!(shard.workspace_at(a.index()), None);
    assert_ne!(shard.add_workspace(1, shares(1)).index(), a.index(), "its place is still taken");
    shard.finish(2, request);
    assert!(shard.complete(2, request));
    assert_eq!(shard.add_workspace(3, shares(1)).index(), a.index());
    shard.keep_workspace(b);
    shard.adjust_if_due(IDLE_NS + 10 * SECOND);
    let mut gone: Vec<_> = std::iter::from_fn(|| shard.reaped()).map(WorkspaceId::index).collect();
    gone.sort_unstable();
    assert_eq!(gone, [a.index(), 2]);
    assert_eq!(shard.workspace_at(b.index()), Some(b));
}
