//! Connections that have switched protocols: exec, attach, port-forward, watches by websocket.
//!
//! They hold no seats and last for hours, so they have limits of their own: how many there are, and how long none of
//! their bytes may pass.

use std::sync::{Arc, atomic::Ordering::Relaxed};

use fairness::WatchGuard;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::{
    core::Core,
    metered::Metered,
    reply::Flight,
    worker::{Link, Worker},
};

/// One of the places for such connections, taken when the client asks and given back at the end.
pub(crate) struct Place(Arc<Worker>);

impl Place {
    /// `None` if there are as many as there may be.
    pub(crate) fn take(worker: &Arc<Worker>) -> Option<Self> {
        let core: &Core = &worker.core;
        let place = Self(worker.clone());
        (core.tunnels.fetch_add(1, Relaxed) < core.limits.tunnels).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.core.tunnels.fetch_sub(1, Relaxed);
    }
}

/// Both ends, and what is held as long as they are open.
pub(crate) struct Tunnel {
    pub(crate) client: OnUpgrade,
    pub(crate) shard: OnUpgrade,
    pub(crate) _place: Option<Place>,
    /// The watch it is, if it is one: it stays in the books.
    pub(crate) _watch: Option<WatchGuard>,
}

/// Passes bytes both ways until both ends are closed, or the sweep ends the connection.
///
/// # Errors
/// One of the ends broke.
pub(crate) async fn run(link: &Link, tunnel: Tunnel, flight: Flight) -> Result<(), crate::BoxError> {
    let Tunnel { client, shard, _place, _watch } = tunnel;
    // The request goes on, so the idle limit of connections does not apply.
    link.is_tunnel.store(true, Relaxed);
    let (client, shard) = futures_util::future::try_join(client, shard).await?;
    let mut client = Metered::new(TokioIo::new(client), flight);
    let outcome = copy_bidirectional(&mut client, &mut TokioIo::new(shard)).await;
    client.end(outcome.is_ok());
    outcome?;
    Ok(())
}
