//! Kubernetes' priority and fairness under a scenario, for comparison: one server, and each level of each
//! tenant is one upstream level.
//!
//! Weights are shares; a tenant with seats counts as one whose shares give it these. Levels lend what the
//! scenario says, and half if it says nothing. Seats are divided anew every ten seconds, as upstream does.
//! A level that does not say how many queues it has gets upstream's default of 64, of which a flow uses 6.
//! Two things are not upstream's: without `queue_length` any number may wait, as in the other mode, and a
//! request may be as wide as the scenario wants.

use std::{collections::VecDeque, iter::repeat_n};

use hashbrown::HashMap;

use super::{
    LevelSpec, Scenario,
    server::{Completion, Server},
};
use crate::{
    Compat, Level, LevelKind, Limits, limits,
    scheduler::{self, RefusedArrival, RequestId, WorkspaceClass},
    shuffle::flow_hash,
    upstream::{ADJUSTMENT_PERIOD_NS, Adjustment, Arrival, Integrator, QueueSet, Reason, Settings, Ticket, Work},
};

/// Queues of a level that does not say how many.
const QUEUES: u32 = 64;
/// How many of them a flow uses.
const HAND_SIZE: u32 = 6;
/// Per cent of its seats that a level lends when nothing is said.
const LENDABLE_PERCENT: u32 = 50;

/// A present request, by the index of its id.
struct Slot {
    generation: u32,
    set: usize,
    ticket: Option<Ticket>,
    width: u32,
    lingers: bool,
}

/// One server.
pub(super) struct Apf {
    seats: u32,
    tenants: Vec<(WorkspaceClass, Option<u32>)>,
    /// Of each tenant.
    levels: Vec<LevelSpec>,
    single: bool,
    /// By tenant, then by level.
    sets: Vec<QueueSet>,
    /// Those, and the exempt level.
    adjustment: Adjustment,
    exempt: Integrator,
    slots: Vec<Slot>,
    free: Vec<u32>,
    ids: HashMap<(usize, Ticket), RequestId>,
    started: VecDeque<RequestId>,
    next_adjustment: u64,
}

impl Apf {
    pub(super) fn new(
        scenario: &Scenario,
        levels: Vec<LevelSpec>,
        classes: impl Iterator<Item = WorkspaceClass>,
    ) -> Self {
        let lendable = scenario.workspaces.iter().flat_map(|w| repeat_n(w.lendable, w.count.max(1) as usize));
        let tenants: Vec<_> = classes.zip(lendable).collect();
        let set = |level: &LevelSpec| QueueSet::new(0, Settings { kind: level.kind(QUEUES, HAND_SIZE), limit: 0 });
        let mut apf = Self {
            seats: scenario.seats,
            single: scenario.workspaces.iter().all(|w| w.levels.is_empty()),
            sets: tenants.iter().flat_map(|_| levels.iter().map(set)).collect(),
            tenants,
            levels,
            adjustment: Adjustment::default(),
            exempt: Integrator::new(0),
            slots: Vec::new(),
            free: Vec::new(),
            ids: HashMap::new(),
            started: VecDeque::new(),
            next_adjustment: ADJUSTMENT_PERIOD_NS,
        };
        apf.adjustment = Adjustment::new(apf.limits());
        apf.adjust(0);
        apf
    }

    /// Exempt or not, and the limits of each level, the exempt one last.
    fn limits(&self) -> Vec<(bool, Limits)> {
        let (mut weights, mut fixed) = (0_u64, 0_u64);
        for (class, _) in &self.tenants {
            match *class {
                WorkspaceClass::Shares { shares, .. } => weights += u64::from(shares),
                WorkspaceClass::Seats { seats, .. } => fixed += u64::from(seats),
            }
        }
        let rest = u64::from(self.seats).saturating_sub(fixed);
        let mut all = Vec::new();
        for (class, lendable) in &self.tenants {
            let (share, borrow) = match *class {
                WorkspaceClass::Shares { shares, borrowing_limit_percent } if fixed == 0 => {
                    (u64::from(shares), borrowing_limit_percent)
                }
                WorkspaceClass::Shares { shares, borrowing_limit_percent } => {
                    (u64::from(shares) * rest, borrowing_limit_percent)
                }
                WorkspaceClass::Seats { seats, borrowing_limit_percent, .. } => {
                    (u64::from(seats) * weights.max(1), borrowing_limit_percent)
                }
            };
            for spec in &self.levels {
                let (lendable_percent, borrowing_limit_percent) = if self.single {
                    (lendable.unwrap_or(LENDABLE_PERCENT), borrow)
                } else {
                    (spec.lendable, spec.borrow)
                };
                all.push(Level {
                    name: spec.name.as_str().into(),
                    kind: spec.kind(QUEUES, HAND_SIZE),
                    shares: u32::try_from(share * u64::from(spec.shares)).unwrap_or(u32::MAX),
                    lendable_percent,
                    borrowing_limit_percent,
                });
            }
        }
        all.push(Level {
            name: "exempt".into(),
            kind: LevelKind::Exempt,
            shares: 0,
            lendable_percent: 0,
            borrowing_limit_percent: None,
        });
        let limits = limits(self.seats, &all, Compat::Upstream);
        all.iter().map(|level| level.kind == LevelKind::Exempt).zip(limits).collect()
    }

    fn adjust(&mut self, now: u64) {
        let mut periods: Vec<_> = self.sets.iter_mut().map(|set| set.end_period(now)).collect();
        periods.push(self.exempt.reset(now));
        self.adjustment.adjust(periods);
        let mut out = Vec::new();
        let specs = self.levels.iter().cycle();
        for (at, ((set, spec), level)) in self.sets.iter_mut().zip(specs).zip(&self.adjustment.levels).enumerate() {
            let settings = Settings { kind: spec.kind(QUEUES, HAND_SIZE), limit: level.current };
            set.reconfigure(now, settings, &mut out);
            let ids = &self.ids;
            self.started.extend(out.drain(..).filter_map(|ticket| ids.get(&(at, ticket))));
        }
    }

    /// New limits, and one adjustment at once; the ten seconds run on.
    fn digest(&mut self, now: u64) {
        let new = self.limits();
        for (level, (_, limits)) in self.adjustment.levels.iter_mut().zip(new) {
            level.limits = limits;
        }
        self.adjust(now);
    }

    fn note_started(&mut self, set: usize, out: Vec<Ticket>) {
        self.started.extend(out.into_iter().filter_map(|ticket| self.ids.get(&(set, ticket))));
    }

    fn add(&mut self, set: usize, ticket: Ticket, width: u32) -> RequestId {
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        let generation = self.slots.get(index as usize).map_or(0, |slot| slot.generation.wrapping_add(1));
        let slot = Slot { generation, set, ticket: Some(ticket), width, lingers: false };
        match self.slots.get_mut(index as usize) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        let id = RequestId::new(index, generation);
        self.ids.insert((set, ticket), id);
        id
    }

    /// The set and the ticket of a present request.
    fn find(&self, id: RequestId) -> Option<(usize, Ticket)> {
        let slot = self.slots.get(id.index())?;
        let ticket = slot.ticket.filter(|_| id == RequestId::new(id.index() as u32, slot.generation))?;
        Some((slot.set, ticket))
    }

    fn remove(&mut self, id: RequestId, place: (usize, Ticket)) {
        self.ids.remove(&place);
        if let Some(slot) = self.slots.get_mut(id.index()) {
            slot.ticket = None;
            self.free.push(id.index() as u32);
        }
    }
}

impl Server for Apf {
    const TIMES_TAILS: bool = true;

    fn arrive(
        &mut self,
        now: u64,
        (tenant, level): (usize, usize),
        flow: u64,
        width: u32,
        tail: u64,
    ) -> Result<scheduler::Arrival, RefusedArrival> {
        if level >= self.levels.len() {
            self.exempt.set(now, self.exempt.value() + f64::from(width));
            return Ok(scheduler::Arrival::Exempt(width));
        }
        let at = tenant * self.levels.len() + level;
        let final_seats = if tail > 0 { width } else { 0 };
        let work = Work { initial_seats: width, final_seats, additional_latency_ns: tail };
        let mut out = Vec::new();
        // Without queues of its own a level is told flows by number.
        let numbered = self.levels.get(level).is_some_and(|level| level.queues.is_none());
        let hash = if numbered { flow_hash("flow", &[&flow.to_string()]) } else { flow };
        let set = self.sets.get_mut(at).ok_or(RefusedArrival::ConcurrencyLimit)?;
        let ticket = match set.arrive(now, hash, work, &mut out) {
            Arrival::Queued(ticket, _) => ticket,
            Arrival::Running(ticket) => {
                out.push(ticket);
                ticket
            }
            Arrival::Refused(Reason::QueueFull) => return Err(RefusedArrival::QueueFull),
            Arrival::Refused(Reason::ConcurrencyLimit) => return Err(RefusedArrival::ConcurrencyLimit),
        };
        let id = self.add(at, ticket, width);
        self.note_started(at, out);
        Ok(scheduler::Arrival::Queued(id))
    }

    fn dispatch(&mut self, now: u64) -> Option<RequestId> {
        if now >= self.next_adjustment {
            self.next_adjustment += ADJUSTMENT_PERIOD_NS;
            self.adjust(now);
        }
        self.started.pop_front()
    }

    fn complete(&mut self, now: u64, id: RequestId) -> Completion {
        let Some(place @ (at, ticket)) = self.find(id) else { return Completion::Unknown };
        let (Some(set), Some(slot)) = (self.sets.get_mut(at), self.slots.get_mut(id.index())) else {
            return Completion::Unknown;
        };
        let mut out = Vec::new();
        let until = if slot.lingers {
            set.release(now, ticket, &mut out);
            None
        } else {
            set.finish(now, ticket, &mut out)
        };
        slot.lingers = until.is_some();
        self.note_started(at, out);
        match until {
            Some(until) => Completion::Lingers(until),
            None => {
                self.remove(id, place);
                Completion::Ended
            }
        }
    }

    fn cancel(&mut self, now: u64, id: RequestId) -> bool {
        let Some(place @ (at, ticket)) = self.find(id) else { return false };
        let cancelled = self.sets.get_mut(at).is_some_and(|set| set.cancel(now, ticket));
        if cancelled {
            self.remove(id, place);
        }
        cancelled
    }

    fn exempt_end(&mut self, now: u64, seats: u32) {
        self.exempt.set(now, self.exempt.value() - f64::from(seats));
    }

    fn set_seats(&mut self, now: u64, seats: u32) {
        self.seats = seats;
        self.digest(now);
    }

    fn set_class(&mut self, now: u64, tenant: usize, new: WorkspaceClass) {
        if let Some((class, _)) = self.tenants.get_mut(tenant) {
            *class = new;
        }
        self.digest(now);
    }

    fn width(&self, id: RequestId) -> u32 {
        self.slots.get(id.index()).map_or(0, |slot| slot.width)
    }

    fn next_wakeup(&self) -> Option<u64> {
        Some(self.next_adjustment)
    }

    fn looks(&self) -> u64 {
        0
    }
}
