//! What is kept per node of the tree, and the arithmetic of one node.

/// No node, no request, no position.
pub(super) const NONE: u32 = u32::MAX;
/// Tags count seat-nanoseconds times this, over weight, so that heavy nodes keep some resolution.
pub(super) const SCALE: u64 = 16;

/// A node of the tree. Valid until the scheduler reports its owner as reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub(super) u32);

/// What the caller wants to know a node by when it is reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The workspace, or `u32::MAX` for a node that nobody asks for any more.
    pub workspace: u32,
    /// The level within the workspace, if the node is one or is below one.
    pub level: Option<u16>,
    /// The queue within the level, if the node is one.
    pub queue: Option<u32>,
}

impl Owner {
    /// A node whose end interests nobody.
    pub const NOBODY: Self = Self { workspace: NONE, level: None, queue: None };
}

/// How a node is to be treated among its siblings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeSpec {
    /// Its part of what is shared, relative to its siblings; 0 is taken as 1.
    pub weight: u32,
    /// Seats that are kept for it and never lent.
    pub reserve: u32,
    /// Seats it may use at most; `u32::MAX` is no limit of its own, 0 admits nothing.
    pub maximum: u32,
}

/// One node. `u`, `r`, `m`, `f`, `c` are the names of the specification.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) parent: u32,
    /// Index of the part that only inner nodes have, [`NONE`] for queues.
    pub(super) inner: u32,
    pub(super) weight: u32,
    pub(super) r: u32,
    pub(super) m: u32,
    /// Seats in use in the subtree, tails included.
    pub(super) u: u32,
    /// Free seats that are being collected for a wide request of the subtree.
    pub(super) hold: u32,
    /// Requests waiting in the subtree.
    pub(super) waiting: u32,
    /// Seats they ask for.
    pub(super) waiting_seats: u64,
    /// Service tag, wrapping.
    pub(super) f: i64,
    /// What is served beyond `f`, in units of which `weight` make one of a tag's: without it short requests of a heavy
    /// node would be free.
    pub(super) rest: u32,
    /// The parent's clock at the last accrual.
    pub(super) mark: u64,
    /// Sum of width times horizon over the running requests.
    pub(super) c: u64,
    /// `c` as a tag.
    pub(super) charge: i64,
    /// Number of the last dispatch.
    pub(super) last: u64,
    pub(super) idle_since: u64,
    pub(super) epoch: u32,
    /// Queues: first and last request. Free nodes: `head` is the next free one.
    pub(super) head: u32,
    pub(super) tail: u32,
    pub(super) owner: Owner,
    pub(super) live: bool,
    pub(super) in_r: bool,
    /// Waits, but its own subtree cannot take a seat now.
    pub(super) blocked: bool,
    /// Counts in the parent's sums over backlogged children.
    pub(super) member: bool,
    pub(super) in_reap: bool,
    /// Never dropped for being idle.
    pub(super) keep: bool,
}

impl Node {
    pub(super) fn new(parent: u32, inner: u32, spec: NodeSpec, owner: Owner) -> Self {
        Self {
            parent,
            inner,
            weight: spec.weight.max(1),
            r: spec.reserve.min(spec.maximum),
            m: spec.maximum,
            u: 0,
            hold: 0,
            waiting: 0,
            waiting_seats: 0,
            f: 0,
            rest: 0,
            mark: 0,
            c: 0,
            charge: 0,
            last: 0,
            idle_since: 0,
            epoch: 0,
            head: NONE,
            tail: NONE,
            owner,
            live: true,
            in_r: false,
            blocked: false,
            member: false,
            in_reap: false,
            keep: false,
        }
    }

    pub(super) fn key(&self) -> i64 {
        self.f.wrapping_add(self.charge)
    }

    /// What `used` seats for `since` nanoseconds add to the tag.
    pub(super) fn serve(&mut self, used: u64, since: u64) -> i64 {
        let weight = u64::from(self.weight);
        let units = used.checked_mul(since).and_then(|service| service.checked_mul(SCALE));
        match units.and_then(|units| units.checked_add(u64::from(self.rest))) {
            // Queues weigh 1: a division less on each step of most paths.
            Some(units) if weight == 1 => units as i64,
            Some(units) => {
                self.rest = (units % weight) as u32;
                (units / weight) as i64
            }
            None => {
                let units = u128::from(used) * u128::from(since) * u128::from(SCALE) + u128::from(self.rest);
                self.rest = (units % u128::from(weight)) as u32;
                (units / u128::from(weight)) as i64
            }
        }
    }

    /// To be called when `c` or the weight has changed.
    pub(super) fn charge(&mut self) {
        self.charge = scaled(self.c, self.weight);
    }

    pub(super) fn active(&self) -> bool {
        self.u > 0 || self.waiting > 0
    }

    /// How much more of the parent's seats are taken if `width` more are used.
    pub(super) fn extra(&self, width: u32) -> u64 {
        u64::from((self.u.saturating_add(width)).max(self.r) - self.u.max(self.r))
    }
}

/// The part that only inner nodes have.
#[derive(Clone, Debug, Default)]
pub(super) struct Inner {
    /// Backlogged children that use less than their reserve, and the others.
    pub(super) r: Option<Box<super::heap::Heap>>,
    pub(super) g: super::heap::Heap,
    /// Over backlogged children: number, weights, weight × (tag − v0), use, use × mark.
    pub(super) members: u32,
    pub(super) w: u64,
    pub(super) wf: i128,
    pub(super) used: u64,
    pub(super) used_mark: i128,
    pub(super) v0: i64,
    /// Time with contention, and when it was last advanced.
    pub(super) tau: u64,
    pub(super) tau_at: u64,
    pub(super) contended_at: u64,
    pub(super) epoch: u32,
    /// Σ max(use, reserve) of the children, absent ones included.
    pub(super) committed: u64,
    /// Σ reserve of the children, absent ones included.
    pub(super) reserved: u64,
    /// Part of both that belongs to children without a node.
    pub(super) absent_reserve: u64,
    /// Children that run or wait.
    pub(super) active: u32,
    pub(super) active_weight: u64,
    pub(super) children: u32,
    /// Children that are passed over in this dispatch.
    pub(super) passed: u32,
    /// Of a workspace's requests, once one has ended.
    pub(super) durations: Option<Box<super::measure::Durations>>,
}

/// Appends to a table of many: room for an eighth more at a time, not for twice as many.
pub(super) fn push<T>(table: &mut Vec<T>, item: T) {
    if table.len() == table.capacity() {
        table.reserve_exact((table.len() / 8).max(8));
    }
    table.push(item);
}

impl Inner {
    /// The heap of those that use less than their reserve, or of the others.
    pub(super) fn heap(&mut self, in_r: bool) -> &mut super::heap::Heap {
        if in_r { self.r.get_or_insert_default() } else { &mut self.g }
    }

    /// Backlogged children that use less than their reserve.
    pub(super) fn reserves_wait(&self) -> bool {
        self.r.as_ref().is_some_and(|heap| !heap.is_empty())
    }
}

/// `x × 16 / weight` as a tag; exact also when the product needs more than 64 bits.
pub(super) fn scaled(x: u64, weight: u32) -> i64 {
    match x.checked_mul(SCALE) {
        // Queues weigh 1: a division less on each step of most paths.
        Some(product) if weight == 1 => product as i64,
        Some(product) => (product / u64::from(weight)) as i64,
        None => (u128::from(x) * u128::from(SCALE) / u128::from(weight)) as i64,
    }
}

/// Division that is cheap when the dividend is small, which it nearly always is.
pub(super) fn divide(x: i128, by: u64) -> i128 {
    match i64::try_from(x) {
        Ok(x) if by <= i64::MAX as u64 => i128::from(x / by as i64),
        _ => x / i128::from(by),
    }
}
