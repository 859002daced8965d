//! The async front of the scheduler: one gate per shard.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use apiserver_api::ClusterName;

use crate::{Classified, Clock, Cost, Profile};

/// What a gate needs to know when it is made.
pub struct GateOptions {
    /// Seats of the shard.
    pub seats: u32,
    /// The profile of every workspace.
    pub profile: Arc<Profile>,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
}

/// One request that asks for admission. Known workspaces get nodes of their own; all unknown ones share one.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The workspace's logical cluster; `None` for `/clusters/*`, system clusters and requests without a
    /// cluster (the platform level), see also [`Gate::admit_unknown`].
    pub workspace: Option<&'a ClusterName>,
    /// What [`Profile::classify`] said.
    pub class: Classified,
    /// What [`price`](crate::pricing::price) said.
    pub cost: Cost,
    /// When the request was received, by the gate's clock.
    pub received_ns: u64,
    /// How long it may take altogether, if it says so (`timeout=`); the wait limit is a quarter of it,
    /// at most one minute; 15 s without it.
    pub timeout: Option<Duration>,
}

/// The gate's answer.
#[derive(Debug)]
pub enum Admission {
    /// It runs now.
    Run(Permit),
    /// It waits.
    Wait(Waiting),
    /// It is refused.
    Reject(Rejection),
}

/// Why a request was refused, and when a retry makes sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    /// `queue-full`, `concurrency-limit`, `time-out`, `deadline`, ...: the `reason` label of upstream's metric.
    pub reason: &'static str,
    /// Seconds, at least 1.
    pub retry_after: u32,
}

/// The seats of one running request; they go back to the scheduler when this is dropped.
#[must_use = "a dropped permit gives the seats back at once"]
#[derive(Debug)]
pub struct Permit {}

/// A waiting request: a future that ends with a permit or a refusal.
///
/// # Cancel safety
/// Dropping it takes the request out of its queue.
#[derive(Debug)]
pub struct Waiting {}

impl Future for Waiting {
    type Output = Result<Permit, Rejection>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Pending
    }
}

/// Admission to one shard.
pub struct Gate {}

impl Gate {
    /// A gate with all seats free.
    pub fn new(options: GateOptions) -> Arc<Self> {
        let _ = options;
        Arc::new(Self {})
    }

    /// Decides about one request, at once.
    pub fn admit(self: &Arc<Self>, request: &Request<'_>) -> Admission {
        let _ = request;
        Admission::Run(Permit {})
    }

    /// The workspace is gone: its queues are dropped as soon as they are empty, its series at once.
    pub fn forget_workspace(&self, workspace: &ClusterName) {
        let _ = workspace;
    }
}
