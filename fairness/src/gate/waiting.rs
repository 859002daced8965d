//! What a caller of the gate holds: a permit, or a place in a queue.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::Sleep;

use super::{
    Gate, Rejection,
    parking::Place,
    state::{Grant, Ticket},
};
use crate::scheduler::RequestId;

/// The seats of one running request; they go back to the scheduler when this is dropped, after the tail
/// that its cost names.
#[must_use = "a dropped permit gives the seats back at once"]
pub struct Permit {
    gate: Arc<Gate>,
    grant: Grant,
    /// Where the seats can be parked, if they can.
    pub(super) place: Option<Place>,
}

impl Permit {
    pub(super) fn new(gate: Arc<Gate>, grant: Grant, place: Option<Place>) -> Self {
        Self { gate, grant, place }
    }

    /// Seats charged: the request's width, cut to what its level may have.
    pub fn seats(&self) -> u32 {
        self.grant.seats
    }

    /// What the scheduler knows the request by, for [`Gate::place`]; `None` if it only counts its seats.
    pub fn id(&self) -> Option<RequestId> {
        self.grant.id
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("seats", &self.grant.seats).finish_non_exhaustive()
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let now = self.gate.shared.clock.now_ns();
        let Some(place) = self.place else {
            return self.gate.with(|state, wakes| state.settle(now, self.grant, wakes));
        };
        let parking = &self.gate.shared.parking;
        let ran = parking.cell(place.cell).leave(now);
        // The scheduler's rules for those who hold seats for long need to see them end.
        if ran > SHORT || !parking.park(place) {
            self.gate.with(|state, wakes| state.settle_place(now, place, wakes));
        }
    }
}

/// Longer requests do not leave their seats to the next one.
const SHORT: u64 = 100_000_000;

/// A waiting request: a future that ends with a permit or a refusal. It has its own deadline.
///
/// # Cancel safety
/// Dropping it takes the request out of its queue.
#[must_use = "a dropped place in the queue is lost"]
pub struct Waiting {
    gate: Arc<Gate>,
    /// `None` once it has an outcome.
    ticket: Option<Ticket>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl Waiting {
    pub(super) fn new(gate: Arc<Gate>, ticket: Ticket) -> Self {
        Self { gate, ticket: Some(ticket), sleep: None }
    }

    /// See [`Permit::id`]; `None` when it waits no longer.
    pub fn id(&self) -> Option<RequestId> {
        self.ticket.map(|ticket| ticket.id)
    }
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiting").field("ticket", &self.ticket).finish_non_exhaustive()
    }
}

impl Future for Waiting {
    type Output = Result<Permit, Rejection>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let Some(ticket) = this.ticket else { return Poll::Pending };
        let now = this.gate.shared.clock.now_ns();
        let sleep = this.sleep.get_or_insert_with(|| {
            Box::pin(tokio::time::sleep(Duration::from_nanos(ticket.deadline.saturating_sub(now))))
        });
        let expired = sleep.as_mut().poll(cx).is_ready();
        let outcome = this.gate.with(|state, wakes| state.poll(now, ticket, expired, cx.waker(), wakes));
        let Some(outcome) = outcome else { return Poll::Pending };
        this.ticket = None;
        Poll::Ready(outcome.map(|grant| Permit::new(this.gate.clone(), grant, None)))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            let now = self.gate.shared.clock.now_ns();
            self.gate.with(|state, wakes| state.abandon(now, ticket, wakes));
        }
    }
}
