//! The traces of Kubernetes v1.34, event by event.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::{Queuing, vectors};

/// Kinds of event in the order in which those of one instant are played.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Release,
    Finish,
    Cancel,
    Arrive,
    Reconfigure,
}

/// One script in play. Requests are numbers of rows.
struct Script<'a> {
    set: QueueSet,
    rows: &'a [Value],
    events: BTreeMap<(u64, Kind, usize), usize>,
    tickets: Vec<Option<Ticket>>,
    results: Vec<Value>,
    dispatched: u64,
    scheduled: usize,
    /// Largest numbers of executing requests, seats in use and waiting requests.
    most: [u64; 3],
}

fn settings(config: &Value) -> Settings {
    let number = |field| vectors::number(config, field);
    let kind = match number("queues") {
        0 => LevelKind::Reject,
        queues if queues < 0 => LevelKind::Exempt,
        queues => LevelKind::Queue(Queuing {
            queues: queues as u32,
            hand_size: number("handSize") as u32,
            queue_length_limit: number("queueLengthLimit") as u32,
        }),
    };
    Settings { kind, limit: number("concurrencyLimit") as u32 }
}

impl Script<'_> {
    fn column(&self, row: usize, column: usize) -> u64 {
        self.rows[row][column].as_u64().unwrap()
    }

    fn schedule(&mut self, at: u64, kind: Kind, row: usize) {
        self.scheduled += 1;
        self.events.insert((at, kind, self.scheduled), row);
    }

    fn arrive(&mut self, now: u64, row: usize, hash: u64) {
        let work = Work {
            initial_seats: self.column(row, 2) as u32,
            final_seats: self.column(row, 3) as u32,
            additional_latency_ns: self.column(row, 4),
        };
        let mut out = Vec::new();
        let queue = match self.set.arrive(now, hash, work, &mut out) {
            Arrival::Queued(ticket, queue) => {
                self.tickets[row] = Some(ticket);
                json!(queue)
            }
            Arrival::Running(ticket) => {
                self.tickets[row] = Some(ticket);
                out.push(ticket);
                json!(-1)
            }
            Arrival::Refused(reason) => {
                let reason = if reason == Reason::QueueFull { "queue-full" } else { "concurrency-limit" };
                self.results[row] = json!([reason, -1, now]);
                return;
            }
        };
        // Until it is dispatched.
        self.results[row] = json!(["never-dispatched", queue, 0]);
        self.note_started(now, &out);
    }

    /// Fills in the rows of a batch of dispatches.
    fn note_started(&mut self, now: u64, batch: &[Ticket]) {
        for ticket in batch {
            let row = self.tickets.iter().position(|t| t.as_ref() == Some(ticket)).unwrap();
            let finish = now + self.column(row, 5);
            self.schedule(finish, Kind::Finish, row);
            let Some(&Request::Running { queue, work, .. }) = self.set.requests.get(ticket) else { panic!() };
            let next = queue.map_or(String::new(), |slot| self.set.queues[slot].next_dispatch_r.to_string());
            let (release, progress) = (finish + work.additional_latency_ns, self.set.progress().to_string());
            let queue = self.results[row][1].clone();
            self.results[row] = json!(["executed", queue, self.dispatched, now, finish, release, progress, next]);
            self.dispatched += 1;
        }
    }

    fn step(&mut self, now: u64, kind: Kind, row: usize, script: &Value, hashes: &[u64]) {
        let (mut out, ticket) = (Vec::new(), self.tickets.get(row).copied().flatten());
        match kind {
            Kind::Arrive => {
                let flow = self.column(row, 1) as usize;
                self.arrive(now, row, hashes[flow]);
            }
            Kind::Release => self.set.release(now, ticket.unwrap(), &mut out),
            Kind::Finish => {
                if let Some(at) = self.set.finish(now, ticket.unwrap(), &mut out) {
                    self.schedule(at, Kind::Release, row);
                }
            }
            Kind::Cancel => {
                if ticket.is_some_and(|ticket| self.set.cancel(now, ticket)) {
                    self.results[row] = json!(["time-out", self.results[row][1], now]);
                }
            }
            Kind::Reconfigure => {
                let config = &script["reconfigure"][row]["config"];
                self.set.reconfigure(now, settings(config), &mut out);
            }
        }
        self.note_started(now, &out);
        let now = [self.set.executing, self.set.seats_in_use, self.set.waiting];
        self.most.iter_mut().zip(now).for_each(|(most, now)| *most = now.max(*most));
    }

    fn check_end(&mut self, now: u64, script: &Value) {
        let (id, want) = (&script["id"], &script["final"]);
        let counts = self.set.counts();
        let mut got = json!({
            "cancelled": counts.cancelled, "enqueues": counts.enqueues, "rejected": counts.rejected,
            "currentR": self.set.progress().to_string(), "queues": self.set.order.len(),
            "maxExecuting": self.most[0], "maxSeatsInUse": self.most[1], "maxWaiting": self.most[2],
            "robinIndex": self.set.cursor, "t_ns": now,
        });
        if want.get("nextDispatchR").is_some() {
            let next = self.set.order.iter().map(|slot| self.set.queues[*slot].next_dispatch_r.to_string());
            got["nextDispatchR"] = next.collect::<Vec<_>>().into();
        }
        assert_eq!(&got, want, "{id}");
        let (got, want) = (self.set.end_period(now), &script["seatDemand"]);
        assert_eq!((got.min, got.max), (want["min"].as_f64().unwrap(), want["max"].as_f64().unwrap()), "{id}");
        for (got, field) in [(got.average, "avg"), (got.deviation, "stddev"), (Some(got.duration_s), "duration_s")] {
            let (got, want) = (got.unwrap(), want[field].as_f64().unwrap());
            assert!((got - want).abs() <= 1e-9 * want.abs(), "{id} {field}: {got} {want}");
        }
    }
}

fn play(script: &Value) -> usize {
    let rows = script["requests"].as_array().unwrap();
    let hash = |flow: &Value| flow[1].as_str().unwrap().parse().unwrap();
    let hashes: Vec<u64> = script["flows"].as_array().unwrap().iter().map(hash).collect();
    let mut set = QueueSet::new(0, settings(&script["config"]));
    set.progress = script["initialR"].as_str().unwrap().parse().unwrap();
    let mut play = Script {
        set,
        rows,
        events: BTreeMap::new(),
        tickets: vec![None; rows.len()],
        results: vec![Value::Null; rows.len()],
        dispatched: 0,
        scheduled: 0,
        most: [0; 3],
    };
    for (at, row) in rows.iter().enumerate() {
        play.schedule(row[0].as_u64().unwrap(), Kind::Arrive, at);
        if let Some(cancel) = row[6].as_u64() {
            play.schedule(cancel, Kind::Cancel, at);
        }
    }
    for (at, change) in script["reconfigure"].as_array().into_iter().flatten().enumerate() {
        play.schedule(vectors::number(change, "t_ns") as u64, Kind::Reconfigure, at);
    }
    let mut now = 0;
    while let Some(((time, kind, _), row)) = play.events.pop_first() {
        now = time;
        play.step(now, kind, row, script, &hashes);
    }
    for (at, want) in script["results"].as_array().unwrap().iter().enumerate() {
        assert_eq!(&play.results[at], want, "{} request {at}", script["id"]);
    }
    play.check_end(now, script);
    rows.len()
}

#[test]
fn traces_are_those_of_kubernetes() {
    vectors::play_traces(play);
}

/// Whoever takes the lock second may have read its clock first.
#[test]
fn clocks_may_be_out_of_order() {
    let kind = LevelKind::Queue(Queuing { queues: 1, hand_size: 1, queue_length_limit: 10 });
    let mut set = QueueSet::new(0, Settings { kind, limit: 1 });
    let (mut out, work) = (Vec::new(), Work { initial_seats: 1, final_seats: 0, additional_latency_ns: 0 });
    let arrivals = [set.arrive(100, 1, work, &mut out), set.arrive(90, 1, work, &mut out)];
    let [first, second] = arrivals.map(|arrival| match arrival {
        Arrival::Queued(ticket, _) => ticket,
        other => panic!("{other:?}"),
    });
    assert_eq!(out, [first]);
    assert_eq!(set.finish(50, first, &mut out), None);
    assert_eq!(out, [first, second]);
    assert_eq!(set.finish(60, second, &mut out), None);
    assert_eq!((set.end_period(40).duration_s, set.load()), (100.0 / 1e9, Load::default()));
}
