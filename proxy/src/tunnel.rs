//! Connections that have switched protocols: exec, attach, port-forward, watches by websocket.
//!
//! They hold no seats and last for hours, so they have limits of their own: how many there are, and how long none of
//! their bytes may pass.

use std::{
    future::{Future, poll_fn},
    pin::{Pin, pin},
    sync::atomic::Ordering::Relaxed,
    task::Poll,
};

use fairness::WatchGuard;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;

use crate::{io::Leave, metered::Metered, places::Place, reply::Flight, worker::Link};

/// Both ends, and what is held as long as they are open.
pub(crate) struct Tunnel {
    pub(crate) client: OnUpgrade,
    pub(crate) shard: OnUpgrade,
    pub(crate) _place: Option<Place>,
    /// The watch it is, if it is one: it stays in the books.
    pub(crate) _watch: Option<WatchGuard>,
}

/// Passes bytes both ways until both ends are closed, the client's connection is reset, or the sweep ends it. A client
/// that has closed its end behind bytes that the shard does not take is not waited for beyond the stall limit.
///
/// # Errors
/// One of the ends broke.
pub(crate) async fn run(
    link: &Link,
    tunnel: Tunnel,
    flight: Flight,
    mut gone: Pin<&mut impl Future<Output = Leave>>,
) -> Result<(), crate::BoxError> {
    let Tunnel { client, shard, _place, _watch } = tunnel;
    // The request goes on, so the idle limit of connections does not apply.
    link.is_tunnel.store(true, Relaxed);
    let (client, shard) = futures_util::future::try_join(client, shard).await?;
    let mut client = Metered::new(TokioIo::new(client), flight);
    let mut shard = TokioIo::new(shard);
    let outcome = {
        let mut copy = pin!(copy_bidirectional(&mut client, &mut shard));
        poll_fn(|cx| {
            if let Poll::Ready(outcome) = copy.as_mut().poll(cx) {
                return Poll::Ready(Some(outcome));
            }
            if link.is_read.load(Relaxed) {
                // Its end has been passed on: what the shard still does is worth waiting for.
                link.has_left.store(false, Relaxed);
                return Poll::Pending;
            }
            if !link.has_left.load(Relaxed)
                && let Poll::Ready(how) = gone.as_mut().poll(cx)
            {
                if how == Leave::Reset {
                    return Poll::Ready(None);
                }
                link.has_left.store(true, Relaxed);
            }
            Poll::Pending
        })
        .await
    };
    let Some(outcome) = outcome else { return Err("the client has reset its connection".into()) };
    client.end(outcome.is_ok());
    outcome?;
    Ok(())
}
