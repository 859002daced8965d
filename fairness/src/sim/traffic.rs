//! Plays a scenario.

use std::collections::BTreeMap;

use super::{
    LevelSpec, Report, Scenario, ScenarioError, Source,
    apf::Apf,
    events::{Calendar, Event},
    measure::{Area, Comparison, REACH_GRID_NS, Reached, Rejected, SAMPLES_PER_WINDOW, Tally, nanoseconds, seconds},
    random::Random,
    server::{Completion, Server, Tree},
};
use crate::{
    Compat, Level, LevelKind, Queuing,
    scheduler::{Arrival, RefusedArrival, RequestId, Shard, Tuning, WorkspaceClass},
};

/// A workspace of the scenario.
struct Tenant {
    name: String,
    class: WorkspaceClass,
    /// Names of the groups it is in, as indices.
    groups: Vec<usize>,
    area: Area,
    /// Per level, the exempt one last.
    levels: Vec<Tally>,
}

/// A source, for one workspace.
struct Stream {
    source: Source,
    first_queue: u32,
    tenant: usize,
    level: usize,
}

/// What is remembered of a request beside the scheduler.
#[derive(Clone, Copy, Default)]
struct Sent {
    stream: usize,
    flow: u32,
    arrived: u64,
    service: u64,
    tail: u64,
    width: u32,
    closed_loop: bool,
}

struct Play<'a, S> {
    scenario: &'a Scenario,
    server: S,
    random: Random,
    calendar: Calendar,
    tenants: Vec<Tenant>,
    streams: Vec<Stream>,
    sent: Vec<Sent>,
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

/// Name of the level of exempt requests.
const EXEMPT: &str = "exempt";
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
    // Each source has queues of its own.
    let flows = scenario.sources.iter().map(|s| s.flows.max(1)).sum::<u32>().max(1);
    let kind = |spec: &LevelSpec| match spec.queue_length {
        _ if spec.reject => LevelKind::Reject,
        limit => {
            let queue_length_limit = limit.unwrap_or(u32::MAX);
            LevelKind::Queue(Queuing { queues: flows, hand_size: 1, queue_length_limit })
        }
    };
    let mut profile: Vec<Level> = specs.iter().map(|spec| level(spec, kind(spec))).collect();
    profile.push(level(&LevelSpec::named(EXEMPT, 0), LevelKind::Exempt));
    let mut play = Play::new(scenario, &specs, |classes| {
        let mut shard = Shard::new(scenario.seats, &profile, tuning, Compat::Upstream);
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
        let (tenants, groups) = tenants(scenario, names.len())?;
        let streams = streams(scenario, &tenants, &names)?;
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
            tenants,
            streams,
            sent: Vec::new(),
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
            self.step(now, event);
            self.pump(now);
            check(now, &self.server);
        }
    }

    fn begin(&mut self) {
        for at in 0..self.streams.len() {
            let Some(stream) = self.streams.get(at) else { continue };
            let (clients, rate, burst, flows) =
                (stream.source.clients, stream.source.rate, stream.source.burst, stream.source.flows.max(1));
            for client in 0..clients {
                let time = (self.random.unit() * 1e6) as u64;
                self.calendar.at(time, Event::Client { stream: at, flow: client % flows });
            }
            if burst > 0 {
                self.calendar.at(0, Event::Burst { stream: at });
            }
            if rate > 0.0 {
                self.next_arrival(0, at);
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

    fn next_arrival(&mut self, now: u64, stream: usize) {
        let Some(rate) = self.streams.get(stream).map(|s| s.source.rate) else { return };
        let time = now + nanoseconds(self.random.exponential(1.0 / rate));
        if let Some(time) = self.on_from(stream, time) {
            self.calendar.at(time, Event::Arrival { stream });
        }
    }

    /// The first moment from `time` on at which the stream sends.
    fn on_from(&self, stream: usize, time: u64) -> Option<u64> {
        let on = &self.streams.get(stream)?.source.on_s;
        if on.is_empty() {
            return Some(time);
        }
        let later = |(from, to): &(f64, f64)| (time < nanoseconds(*to)).then(|| time.max(nanoseconds(*from)));
        on.iter().filter_map(later).min()
    }

    fn step(&mut self, now: u64, event: Event) {
        match event {
            Event::Client { stream, flow } => match self.on_from(stream, now) {
                Some(time) if time == now => self.send(now, stream, flow, true),
                Some(time) => self.calendar.at(time, event),
                None => {}
            },
            Event::Arrival { stream } => {
                let flows = self.streams.get(stream).map_or(1, |s| s.source.flows.max(1));
                let flow = (self.random.unit() * f64::from(flows)) as u32;
                self.send(now, stream, flow, false);
                self.next_arrival(now, stream);
            }
            Event::Burst { stream } => self.burst(now, stream),
            Event::Answer { stream, flow } => self.send_again(now, stream, flow, 0),
            Event::End { id } => self.end(now, id),
            Event::ExemptEnd { seats } => self.server.exempt_end(now, seats),
            Event::Expire { id } => self.unserved(now, id, AFTER_REFUSAL_NS, |r| &mut r.time_out),
            Event::NowOrNever { id } => self.unserved(now, id, AFTER_REFUSAL_NS, |r| &mut r.concurrency_limit),
            Event::GiveUp { id } => self.unserved(now, id, 0, |r| &mut r.cancelled),
            Event::Change { index, times } => self.change(now, index, times),
            Event::Wakeup => self.wakeup = None,
            Event::Sample => self.sample(now),
        }
    }

    fn burst(&mut self, now: u64, stream: usize) {
        let Some((count, every)) = self.streams.get(stream).map(|s| (s.source.burst, s.source.burst_every_s)) else {
            return;
        };
        for flow in 0..count {
            self.send(now, stream, flow, false);
        }
        self.calendar.at(now + nanoseconds(every).max(1), Event::Burst { stream });
    }

    fn send_again(&mut self, now: u64, stream: usize, flow: u32, pause: u64) {
        let Some(think) = self.streams.get(stream).map(|s| s.source.think_s) else { return };
        self.calendar.at(now + pause + nanoseconds(think), Event::Client { stream, flow });
    }

    fn send(&mut self, now: u64, stream: usize, flow: u32, closed_loop: bool) {
        let Some(from) = self.streams.get(stream) else { return };
        let service = nanoseconds(self.random.draw(&from.source.service_s)).max(1);
        let tail = nanoseconds(self.random.draw(&from.source.tail_s));
        let width = (self.random.draw(&from.source.width) as u32).max(1);
        let (tenant, level, exempt) = (from.tenant, from.level, from.source.exempt);
        let (limit, patience) = (nanoseconds(from.source.wait_limit_s), from.source.give_up_s.map(nanoseconds));
        let queue = from.first_queue + flow % from.source.flows.max(1);
        let level = if exempt { self.level_names.len() - 1 } else { level };
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
            *sent = Sent { stream, flow, arrived: now, service, tail, width, closed_loop };
        }
        self.calendar.at(now + limit, Event::Expire { id });
        if let Some(patience) = patience {
            self.calendar.at(now + patience, Event::GiveUp { id });
        }
    }

    fn note(&mut self, tenant: usize, level: usize, what: impl FnOnce(&mut Tally)) {
        if let Some(tally) = self.tenants.get_mut(tenant).and_then(|t| t.levels.get_mut(level)) {
            what(tally);
        }
    }

    /// A request waited in vain, or has been started in the meantime: then nothing.
    fn unserved(&mut self, now: u64, id: RequestId, pause: u64, reason: impl FnOnce(&mut Rejected) -> &mut u64) {
        if !self.server.cancel(now, id) {
            return;
        }
        let Some(sent) = self.sent.get(id.index()).copied() else { return };
        self.settled(now, sent, |tally, wait| {
            tally.waited(wait);
            *reason(&mut tally.rejected) += 1;
        });
        if sent.closed_loop {
            self.send_again(now, sent.stream, sent.flow, pause);
        }
    }

    /// Notes what became of a request that came after the warm-up, and how long it waited.
    fn settled(&mut self, now: u64, sent: Sent, what: impl FnOnce(&mut Tally, u64)) {
        if sent.arrived < self.warmup {
            return;
        }
        let Some((tenant, level)) = self.streams.get(sent.stream).map(|s| (s.tenant, s.level)) else { return };
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
        let Some(stream) = self.streams.get(sent.stream) else { return };
        if let Some(tenant) = self.tenants.get_mut(stream.tenant) {
            tenant.area.add(now, seats);
            if let Some(tally) = tenant.levels.get_mut(stream.level) {
                tally.area.add(now, seats);
            }
        }
    }

    fn pump(&mut self, now: u64) {
        while let Some(id) = self.server.dispatch(now) {
            self.started += 1;
            for byte in [now, id.index() as u64].iter().flat_map(|n| n.to_le_bytes()) {
                self.decisions = (self.decisions ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
            }
            let Some(sent) = self.sent.get(id.index()).copied() else { continue };
            self.settled(now, sent, Tally::started);
            self.count(now, id, 1);
            let tail = if S::TIMES_TAILS { 0 } else { sent.tail };
            self.calendar.at(now + sent.service + tail, Event::End { id });
            if sent.closed_loop {
                self.calendar.at(now + sent.service, Event::Answer { stream: sent.stream, flow: sent.flow });
            }
        }
        if let Some(at) = self.server.next_wakeup()
            && self.wakeup.is_none_or(|wakeup| at < wakeup)
        {
            self.wakeup = Some(at);
            self.calendar.at(at, Event::Wakeup);
        }
    }

    fn change(&mut self, now: u64, index: usize, times: u32) {
        let Some(change) = self.scenario.changes.get(index) else { return };
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
            for tenant in &mut self.tenants {
                tenant.levels.iter_mut().for_each(|tally| tally.at_warmup = tally.area.at(now));
            }
        }
        let step = nanoseconds(self.scenario.window_s) / SAMPLES_PER_WINDOW;
        if step > 0 && now >= self.warmup && (now - self.warmup).is_multiple_of(step) {
            let areas = self.compared.iter().filter_map(|at| self.tenants.get(*at));
            self.comparison.sample(areas.map(|tenant| tenant.area.at(now)));
            self.calendar.at(now + step, Event::Sample);
        }
        if let Some(reach) = &self.scenario.reach
            && now >= nanoseconds(reach.from_s)
            && (now - nanoseconds(reach.from_s)).is_multiple_of(REACH_GRID_NS)
            && self.reached.samples.len() as u64 == (now - nanoseconds(reach.from_s)) / REACH_GRID_NS
        {
            let area = self.tenants.iter().find(|t| t.name == reach.workspace).map_or(0, |t| t.area.at(now));
            self.reached.samples.push(area as f64 / 1e9);
            self.calendar.at(now + REACH_GRID_NS, Event::Sample);
        }
    }

    fn report(self) -> Report {
        let time = seconds(self.end - self.warmup);
        let exempt = self.level_names.len() - 1;
        let figures = |of: &[&Tenant]| {
            let limited = of.iter().flat_map(|tenant| tenant.levels.iter().take(exempt));
            Tally::figures(limited, self.end, time)
        };
        let of_group = |at: usize| -> Vec<&Tenant> { self.tenants.iter().filter(|t| t.groups.contains(&at)).collect() };
        let groups = (0..).zip(&self.groups).map(|(at, name)| (name.clone(), figures(&of_group(at))));
        let mut levels = BTreeMap::new();
        for tenant in &self.tenants {
            for (at, (tally, level)) in (0..).zip(tenant.levels.iter().zip(&self.level_names)) {
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
            workspaces: self.tenants.iter().map(|t| (t.name.clone(), figures(&[t]))).collect(),
            levels,
            decisions: self.decisions,
            looks: self.server.looks() as f64 / (self.started as f64).max(1.0),
        }
    }
}

fn level(spec: &LevelSpec, kind: LevelKind) -> Level {
    Level {
        name: spec.name.as_str().into(),
        kind,
        shares: spec.shares,
        lendable_percent: spec.lendable,
        borrowing_limit_percent: spec.borrow,
    }
}

fn levels(scenario: &Scenario) -> Result<Vec<LevelSpec>, ScenarioError> {
    let single = || vec![LevelSpec::named("all", 1)];
    let mut with = scenario.workspaces.iter().filter(|w| !w.levels.is_empty());
    let Some(first) = with.next() else { return Ok(single()) };
    match with.find(|other| other.levels != first.levels) {
        Some(other) => Err(ScenarioError::Levels(other.name.clone())),
        None => Ok(first.levels.clone()),
    }
}

fn weight(class: WorkspaceClass) -> f64 {
    match class {
        WorkspaceClass::Shares { shares, .. } => shares.into(),
        WorkspaceClass::Seats { seats, .. } => seats.into(),
    }
}

/// The tenants, and the names of the groups they are in.
fn tenants(scenario: &Scenario, levels: usize) -> Result<(Vec<Tenant>, Vec<String>), ScenarioError> {
    let groups: Vec<(String, Vec<String>)> = if scenario.groups.is_empty() {
        scenario.workspaces.iter().map(|w| (w.name.clone(), vec![w.name.clone()])).collect()
    } else {
        scenario.groups.clone().into_iter().collect()
    };
    let mut all = Vec::new();
    for spec in &scenario.workspaces {
        let class = match (spec.weight, spec.seats) {
            (Some(shares), None) => WorkspaceClass::Shares { shares, borrowing_limit_percent: spec.borrow },
            (None, Some(seats)) => WorkspaceClass::Seats {
                seats,
                lendable_percent: spec.lendable.unwrap_or(100),
                borrowing_limit_percent: spec.borrow,
            },
            _ => return Err(ScenarioError::Quota(spec.name.clone())),
        };
        // By prefix, so that groups may overlap.
        let begins = |names: &[String]| names.iter().any(|n| spec.name.starts_with(n.as_str()));
        let of: Vec<usize> = (0..).zip(&groups).filter(|(_, (_, names))| begins(names)).map(|(at, _)| at).collect();
        for copy in 0..spec.count.max(1) {
            let name = if spec.count > 1 { format!("{}{copy}", spec.name) } else { spec.name.clone() };
            let levels = vec![Tally::default(); levels];
            let groups = of.clone();
            all.push(Tenant { name, class, groups, area: Area::default(), levels });
        }
    }
    Ok((all, groups.into_iter().map(|(name, _)| name).collect()))
}

fn streams(scenario: &Scenario, tenants: &[Tenant], levels: &[String]) -> Result<Vec<Stream>, ScenarioError> {
    let (mut all, mut first_queue) = (Vec::new(), 0);
    for source in &scenario.sources {
        let unknown = |place, name: &str| ScenarioError::Unknown { place, name: name.to_owned() };
        let level = match &source.level {
            None => 0,
            Some(name) => levels.iter().position(|l| l == name).ok_or_else(|| unknown("a source's level", name))?,
        };
        let entry = scenario.workspaces.iter().find(|w| w.name == source.workspace && w.count > 1);
        let is_for = |tenant: &Tenant| match entry {
            Some(entry) => tenant.name.strip_prefix(entry.name.as_str()).is_some_and(|n| n.parse::<u32>().is_ok()),
            None => tenant.name == source.workspace,
        };
        let before = all.len();
        for (at, tenant) in (0..).zip(tenants) {
            if is_for(tenant) {
                all.push(Stream { source: source.clone(), first_queue, tenant: at, level });
            }
        }
        first_queue += source.flows.max(1);
        if all.len() == before {
            return Err(unknown("a source's workspace", &source.workspace));
        }
    }
    Ok(all)
}
