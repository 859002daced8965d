//! Plays a scenario.

use std::collections::BTreeMap;

use super::{
    LevelSpec, Report, Scenario, ScenarioError, Source,
    apf::Apf,
    events::{Calendar, Event},
    measure::{Area, Comparison, REACH_GRID_NS, Reached, Rejected, SAMPLES_PER_WINDOW, Tally, nanoseconds, seconds},
    random::Random,
    server::{Completion, Server, Tree},
    setup::{Stream, Tenant, level, levels, streams, tenants, weight},
};
use crate::{
    Compat, Level, LevelKind,
    profile::EXEMPT,
    scheduler::{Arrival, RefusedArrival, RequestId, Shard, Tuning, WorkspaceClass},
};

/// What is remembered of a request beside the scheduler.
#[derive(Clone, Copy, Default)]
struct Sent {
    stream: u32,
    flow: u32,
    arrived: u64,
    service: u64,
    tail: u64,
    width: u32,
    closed_loop: bool,
    started: bool,
}

struct Play<'a, S> {
    scenario: &'a Scenario,
    server: S,
    random: Random,
    calendar: Calendar,
    tenants: Vec<Tenant>,
    /// Per tenant and level, the exempt level last.
    tallies: Vec<Tally>,
    streams: Vec<Stream>,
    sent: Vec<Sent>,
    /// Requests of this moment: those that are not started at once get their limits of waiting.
    fresh: Vec<RequestId>,
    groups: Vec<String>,
    level_names: Vec<String>,
    total: Area,
    total_at_warmup: u128,
    compared: Vec<usize>,
    comparison: Comparison,
    reached: Reached,
    warmup: u64,
    end: u64,
    wakeup: Option<u64>,
    started: u64,
    decisions: u64,
}

/// A client whose request was refused or expired sends again after this.
const AFTER_REFUSAL_NS: u64 = 1_000_000_000;

/// Plays a scenario under these dials. `check` is asked after every event whether all is right.
///
/// # Errors
/// The scenario cannot be played, see [`ScenarioError`].
///
/// # Panics
/// When `check` does.
pub fn run(scenario: &Scenario, tuning: Tuning, mut check: impl FnMut(u64, &Shard)) -> Result<Report, ScenarioError> {
    let specs = levels(scenario)?;
    // Each source has queues of its own, unless the level says how many it has.
    let flows = scenario.sources.iter().map(|s| s.flows.max(1)).sum::<u32>().max(1);
    let mut profile: Vec<Level> = specs.iter().map(|spec| level(spec, spec.kind(flows, 1))).collect();
    profile.push(level(&LevelSpec::named(EXEMPT, 0), LevelKind::Exempt));
    let mut play = Play::new(scenario, &specs, |classes| {
        let mut shard = Shard::new(scenario.seats, &profile, tuning, Compat::Fairgate);
        shard.core_mut().set_known(classes.len() as u32);
        Tree::new(shard, classes.into_iter())
    })?;
    play.play(|now, server| check(now, &server.shard));
    Ok(play.report())
}

/// Plays a scenario on one server with the priority and fairness of Kubernetes v1.34, each level of each
/// workspace as one priority level. `looks` is 0 in the report, and seats may exceed those of the server:
/// upstream rounds each level's up.
///
/// # Errors
/// The scenario cannot be played, see [`ScenarioError`].
pub fn run_apf(scenario: &Scenario) -> Result<Report, ScenarioError> {
    let specs = levels(scenario)?;
    let mut play = Play::new(scenario, &specs, |classes| Apf::new(scenario, specs.clone(), classes.into_iter()))?;
    play.play(|_, _| {});
    Ok(play.report())
}

impl<'a, S: Server> Play<'a, S> {
    fn new(
        scenario: &'a Scenario,
        specs: &[LevelSpec],
        server: impl FnOnce(Vec<WorkspaceClass>) -> S,
    ) -> Result<Self, ScenarioError> {
        let names: Vec<String> = specs.iter().map(|spec| spec.name.clone()).chain([EXEMPT.to_owned()]).collect();
        let (tenants, groups) = tenants(scenario)?;
        let streams = streams(scenario, &tenants, specs)?;
        let compared: Vec<usize> = (0..)
            .zip(&tenants)
            .filter(|(_, t)| scenario.backlogged.iter().any(|prefix| t.name.starts_with(prefix.as_str())))
            .map(|(at, _)| at)
            .collect();
        let weights = compared.iter().filter_map(|at| tenants.get(*at)).map(|t| weight(t.class)).collect();
        Ok(Self {
            scenario,
            server: server(tenants.iter().map(|t| t.class).collect()),
            random: Random::new(scenario.seed),
            calendar: Calendar::default(),
            tallies: vec![Tally::default(); tenants.len() * names.len()],
            tenants,
            streams,
            sent: Vec::new(),
            fresh: Vec::new(),
            groups,
            level_names: names,
            total: Area::default(),
            total_at_warmup: 0,
            compared,
            comparison: Comparison::new(weights),
            reached: Reached::default(),
            warmup: nanoseconds(scenario.warmup_s),
            end: nanoseconds(scenario.end_s),
            wakeup: None,
            started: 0,
            decisions: 0xcbf2_9ce4_8422_2325,
        })
    }

    fn play(&mut self, mut check: impl FnMut(u64, &S)) {
        self.begin();
        while let Some((now, event)) = self.calendar.next() {
            if now > self.end {
                break;
            }
            if self.step(now, event) {
                self.pump(now);
            }
            check(now, &self.server);
        }
    }

    fn source(&self, stream: u32) -> Option<(&'a Source, &Stream)> {
        let stream = self.streams.get(stream as usize)?;
        Some((self.scenario.sources.get(stream.source as usize)?, stream))
    }

    fn begin(&mut self) {
        for stream in 0..self.streams.len() as u32 {
            let Some((source, _)) = self.source(stream) else { continue };
            let flows = source.flows.max(1);
            for client in 0..source.clients {
                let time = (self.random.unit() * 1e6) as u64;
                self.calendar.at(time, Event::Client { stream, flow: client % flows });
            }
            if source.burst > 0 {
                self.calendar.at(0, Event::Burst { stream });
            }
            if source.rate > 0.0 {
                self.next_arrival(0, stream);
            }
        }
        for (index, change) in (0..).zip(&self.scenario.changes) {
            self.calendar.at(nanoseconds(change.at_s), Event::Change { index, times: 0 });
        }
        self.calendar.at(self.warmup, Event::Sample);
        if let Some(reach) = &self.scenario.reach {
            self.calendar.at(nanoseconds(reach.from_s), Event::Sample);
        }
    }

    fn next_arrival(&mut self, now: u64, stream: u32) {
        let Some((source, _)) = self.source(stream) else { return };
        let time = now + nanoseconds(self.random.exponential(1.0 / source.rate));
        if let Some(time) = on_from(source, time) {
            self.calendar.at(time, Event::Arrival { stream });
        }
    }

    /// What happens now; says whether it may let somebody start.
    fn step(&mut self, now: u64, event: Event) -> bool {
        match event {
            Event::Client { stream, flow } => match self.source(stream).and_then(|(source, _)| on_from(source, now)) {
                Some(time) if time == now => self.send(now, stream, flow, true),
                Some(time) => self.calendar.at(time, event),
                None => {}
            },
            Event::Arrival { stream } => {
                let flows = self.source(stream).map_or(1, |(source, _)| source.flows.max(1));
                let flow = (self.random.unit() * f64::from(flows)) as u32;
                self.send(now, stream, flow, false);
                self.next_arrival(now, stream);
            }
            Event::Burst { stream } => self.burst(now, stream),
            Event::Answer { stream, flow } => {
                self.send_again(now, stream, flow, 0);
                return false;
            }
            Event::End { id } => self.end(now, id),
            Event::ExemptEnd { seats } => self.server.exempt_end(now, seats),
            Event::Expire { id } => return self.unserved(now, id, AFTER_REFUSAL_NS, |r| &mut r.time_out),
            Event::NowOrNever { id } => {
                return self.unserved(now, id, AFTER_REFUSAL_NS, |r| &mut r.concurrency_limit);
            }
            Event::GiveUp { id } => return self.unserved(now, id, 0, |r| &mut r.cancelled),
            Event::Change { index, times } => self.change(now, index, times),
            Event::Wakeup => self.wakeup = None,
            Event::Sample => {
                self.sample(now);
                return false;
            }
        }
        true
    }

    fn burst(&mut self, now: u64, stream: u32) {
        let Some((source, _)) = self.source(stream) else { return };
        for flow in 0..source.burst {
            self.send(now, stream, flow, false);
        }
        self.calendar.at(now + nanoseconds(source.burst_every_s).max(1), Event::Burst { stream });
    }

    fn send_again(&mut self, now: u64, stream: u32, flow: u32, pause: u64) {
        let Some((source, _)) = self.source(stream) else { return };
        self.calendar.at(now + pause + nanoseconds(source.think_s), Event::Client { stream, flow });
    }

    fn send(&mut self, now: u64, stream: u32, flow: u32, closed_loop: bool) {
        let Some((source, to)) = self.source(stream) else { return };
        let (tenant, level) = (to.tenant as usize, to.level as usize);
        let queue = to.flow(flow % source.flows.max(1));
        let service = nanoseconds(self.random.draw(&source.service_s)).max(1);
        let tail = nanoseconds(self.random.draw(&source.tail_s));
        let width = (self.random.draw(&source.width) as u32).max(1);
        if now >= self.warmup {
            self.note(tenant, level, |tally| tally.arrived += 1);
        }
        let id = match self.server.arrive(now, (tenant, level), queue, width, tail) {
            Err(refused) => {
                if now >= self.warmup {
                    self.note(tenant, level, |tally| match refused {
                        RefusedArrival::QueueFull => tally.rejected.queue_full += 1,
                        RefusedArrival::ConcurrencyLimit => tally.rejected.concurrency_limit += 1,
                    });
                }
                if closed_loop {
                    self.send_again(now, stream, flow, AFTER_REFUSAL_NS);
                }
                return;
            }
            Ok(Arrival::Exempt(seats)) => {
                if now >= self.warmup {
                    self.note(tenant, level, |tally| tally.started(0));
                }
                self.calendar.at(now + service + tail, Event::ExemptEnd { seats });
                if closed_loop {
                    self.calendar.at(now + service, Event::Answer { stream, flow });
                }
                return;
            }
            Ok(Arrival::Queued(id)) => id,
            Ok(Arrival::NowOrNever(id)) => {
                // Behind the dispatch of this moment.
                self.calendar.at(now, Event::NowOrNever { id });
                id
            }
        };
        if self.sent.len() <= id.index() {
            self.sent.resize(id.index() + 1, Sent::default());
        }
        if let Some(sent) = self.sent.get_mut(id.index()) {
            let width = self.server.width(id);
            *sent = Sent { stream, flow, arrived: now, service, tail, width, closed_loop, started: false };
        }
        self.fresh.push(id);
    }

    fn note(&mut self, tenant: usize, level: usize, what: impl FnOnce(&mut Tally)) {
        if let Some(tally) = self.tallies.get_mut(tenant * self.level_names.len() + level) {
            what(tally);
        }
    }

    /// A request waited in vain, or has been started in the meantime: then nothing, and `false`.
    fn unserved(
        &mut self,
        now: u64,
        id: RequestId,
        pause: u64,
        reason: impl FnOnce(&mut Rejected) -> &mut u64,
    ) -> bool {
        if !self.server.cancel(now, id) {
            return false;
        }
        let Some(sent) = self.sent.get(id.index()).copied() else { return true };
        self.settled(now, sent, |tally, wait| {
            tally.waited(wait);
            *reason(&mut tally.rejected) += 1;
        });
        if sent.closed_loop {
            self.send_again(now, sent.stream, sent.flow, pause);
        }
        true
    }

    /// Notes what became of a request that came after the warm-up, and how long it waited.
    fn settled(&mut self, now: u64, sent: Sent, what: impl FnOnce(&mut Tally, u64)) {
        if sent.arrived < self.warmup {
            return;
        }
        let Some((_, to)) = self.source(sent.stream) else { return };
        let (tenant, level) = (to.tenant as usize, to.level as usize);
        self.note(tenant, level, |tally| what(tally, now - sent.arrived));
    }

    fn end(&mut self, now: u64, id: RequestId) {
        match self.server.complete(now, id) {
            Completion::Ended => self.count(now, id, -1),
            Completion::Lingers(until) => self.calendar.at(until, Event::End { id }),
            Completion::Unknown => {}
        }
    }

    /// Counts the seats of a request that begins (1) or ends (-1).
    fn count(&mut self, now: u64, id: RequestId, sign: i64) {
        let Some(sent) = self.sent.get(id.index()).copied() else { return };
        let seats = i64::from(sent.width) * sign;
        self.total.add(now, seats);
        let Some((_, to)) = self.source(sent.stream) else { return };
        let (tenant, level) = (to.tenant as usize, to.level as usize);
        self.note(tenant, level, |tally| tally.area.add(now, seats));
    }

    fn pump(&mut self, now: u64) {
        while let Some(id) = self.server.dispatch(now) {
            self.started += 1;
            for byte in [now, id.index() as u64].iter().flat_map(|n| n.to_le_bytes()) {
                self.decisions = (self.decisions ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            let Some(sent) = self.sent.get_mut(id.index()) else { continue };
            sent.started = true;
            let sent = *sent;
            self.settled(now, sent, Tally::started);
            self.count(now, id, 1);
            let tail = if S::TIMES_TAILS { 0 } else { sent.tail };
            self.calendar.at(now + sent.service + tail, Event::End { id });
            if sent.closed_loop {
                self.calendar.at(now + sent.service, Event::Answer { stream: sent.stream, flow: sent.flow });
            }
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        for id in fresh.drain(..) {
            self.limit_wait(now, id);
        }
        self.fresh = fresh;
        if let Some(at) = self.server.next_wakeup()
            && self.wakeup.is_none_or(|wakeup| at < wakeup)
        {
            self.wakeup = Some(at);
            self.calendar.at(at, Event::Wakeup);
        }
    }

    /// A request that was not started at its arrival waits no longer than it may.
    fn limit_wait(&mut self, now: u64, id: RequestId) {
        let Some(sent) = self.sent.get(id.index()).filter(|sent| !sent.started) else { return };
        let Some((source, _)) = self.source(sent.stream) else { return };
        self.calendar.at(now + nanoseconds(source.wait_limit_s), Event::Expire { id });
        if let Some(patience) = source.give_up_s {
            self.calendar.at(now + nanoseconds(patience), Event::GiveUp { id });
        }
    }

    fn change(&mut self, now: u64, index: u32, times: u32) {
        let Some(change) = self.scenario.changes.get(index as usize) else { return };
        if let Some(every) = change.every_s {
            self.calendar.at(now + nanoseconds(every).max(1), Event::Change { index, times: times + 1 });
        }
        if let Some(seats) = change.shard_seats {
            self.server.set_seats(now, seats);
        }
        let Some(at) = self.tenants.iter().position(|t| Some(&t.name) == change.workspace.as_ref()) else { return };
        let Some(tenant) = self.tenants.get_mut(at) else { return };
        let turn = |first: u32, pair: [u32; 2]| match times {
            0 => first,
            times => {
                if times % 2 == 1 {
                    pair[1]
                } else {
                    pair[0]
                }
            }
        };
        match (&mut tenant.class, change.weight, change.seats) {
            (WorkspaceClass::Shares { shares, .. }, Some(weight), _) => *shares = turn(weight, [1, 3]),
            (WorkspaceClass::Seats { seats, .. }, _, Some(new)) => *seats = turn(new, [2, 12]),
            _ => return,
        }
        self.server.set_class(now, at, tenant.class);
    }

    fn sample(&mut self, now: u64) {
        if now == self.warmup {
            self.total_at_warmup = self.total.at(now);
            self.tallies.iter_mut().for_each(|tally| tally.at_warmup = tally.area.at(now));
        }
        let step = nanoseconds(self.scenario.window_s) / SAMPLES_PER_WINDOW;
        if step > 0 && now >= self.warmup && (now - self.warmup).is_multiple_of(step) {
            let areas: Vec<u128> = self.compared.iter().map(|at| self.area(*at, now)).collect();
            self.comparison.sample(areas.into_iter());
            self.calendar.at(now + step, Event::Sample);
        }
        if let Some(reach) = &self.scenario.reach
            && now >= nanoseconds(reach.from_s)
            && (now - nanoseconds(reach.from_s)).is_multiple_of(REACH_GRID_NS)
            && self.reached.samples.len() as u64 == (now - nanoseconds(reach.from_s)) / REACH_GRID_NS
        {
            let at = self.tenants.iter().position(|t| t.name == reach.workspace);
            let area = at.map_or(0, |at| self.area(at, now));
            self.reached.samples.push(area as f64 / 1e9);
            self.calendar.at(now + REACH_GRID_NS, Event::Sample);
        }
    }

    /// What is counted of a tenant, per level.
    fn of_tenant(&self, at: usize) -> &[Tally] {
        let levels = self.level_names.len();
        self.tallies.get(at * levels..(at + 1) * levels).unwrap_or_default()
    }

    /// Seat-nanoseconds of a tenant. Exempt requests have none.
    fn area(&self, at: usize, now: u64) -> u128 {
        self.of_tenant(at).iter().map(|tally| tally.area.at(now)).sum()
    }

    fn report(self) -> Report {
        let time = seconds(self.end - self.warmup);
        let exempt = self.level_names.len() - 1;
        let limited = |at: usize| self.of_tenant(at).iter().take(exempt);
        let groups = (0..).zip(&self.groups).map(|(group, name)| {
            let members = (0..).zip(&self.tenants).filter(|(_, tenant)| tenant.groups.contains(&group));
            (name.clone(), Tally::figures(members.flat_map(|(at, _)| limited(at)), self.end, time))
        });
        let (mut workspaces, mut levels) = (BTreeMap::new(), BTreeMap::new());
        for (index, tenant) in (0..).zip(&self.tenants) {
            workspaces.insert(tenant.name.clone(), Tally::figures(limited(index), self.end, time));
            for (at, (tally, level)) in (0..).zip(self.of_tenant(index).iter().zip(&self.level_names)) {
                if at != exempt || tally.arrived > 0 {
                    let name = format!("{}/{level}", tenant.name);
                    levels.insert(name, Tally::figures([tally], self.end, time));
                }
            }
        }
        let used = (self.total.at(self.end) - self.total_at_warmup) as f64 / 1e9;
        Report {
            use_of_shard: used / time / f64::from(self.scenario.seats),
            jain_min_window: self.comparison.jain_min(),
            jain: self.comparison.jain(),
            lag_range_seat_s: self.comparison.lag_range(),
            reach_s: self.reached.delay(self.scenario),
            groups: groups.collect(),
            workspaces,
            levels,
            decisions: self.decisions,
            looks: self.server.looks() as f64 / (self.started as f64).max(1.0),
        }
    }
}

/// The first moment from `time` on at which the source sends.
fn on_from(source: &Source, time: u64) -> Option<u64> {
    if source.on_s.is_empty() {
        return Some(time);
    }
    let later = |(from, to): &(f64, f64)| (time < nanoseconds(*to)).then(|| time.max(nanoseconds(*from)));
    source.on_s.iter().filter_map(later).min()
}
