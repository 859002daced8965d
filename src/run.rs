//! What the commands share: listeners, signals, the fairness configuration.

use std::{
    net::{SocketAddr, TcpListener},
    time::Duration,
};

use anyhow::Context;
use config::{FairnessConfig, GatewayConfig};
use proxy::Gateway;
use tokio::{runtime::Runtime, signal::unix};

use crate::{Failure, reload::Reloader};

/// How long running requests may take to finish after a signal.
const GRACE: Duration = Duration::from_secs(10);

/// Binds a listener; the error names the option to change.
pub(crate) fn bind(option: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(address);
    Ok(bound.with_context(|| format!("cannot listen on {address}; choose another with {option}"))?)
}

/// The fairness configuration that a gateway file asks for; `None` when it switches fairness off.
pub(crate) fn fairness(file: Option<&GatewayConfig>) -> Result<Option<FairnessConfig>, Failure> {
    let Some(settings) = file.map(|f| &f.fairness) else { return Ok(Some(FairnessConfig::default())) };
    if !settings.enabled {
        return Ok(None);
    }
    let Some(path) = &settings.file else { return Ok(Some(FairnessConfig::default())) };
    let config = FairnessConfig::load(path).map_err(Failure::config)?;
    for warning in &config.warnings {
        tracing::warn!(file = %path.display(), "{warning}");
    }
    Ok(Some(config))
}

/// Keeps the fairness configuration up to date until SIGINT or SIGTERM, then drains the gateway; a second signal ends
/// it at once. SIGHUP reloads now.
///
/// # Errors
/// Signals cannot be listened to.
pub(crate) fn until_signal(runtime: &Runtime, gateway: Gateway, mut reloader: Reloader) -> Result<(), Failure> {
    runtime.block_on(async {
        let mut interrupt = unix::signal(unix::SignalKind::interrupt())?;
        let mut terminate = unix::signal(unix::SignalKind::terminate())?;
        let mut signal = async || {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        };
        let mut hangup = unix::signal(unix::SignalKind::hangup())?;
        loop {
            tokio::select! {
                () = signal() => break,
                _ = hangup.recv() => reloader.look(&gateway),
                () = reloader.run(&gateway) => {}
            }
        }
        tracing::info!("draining; a second signal stops at once");
        tokio::select! {
            () = gateway.shutdown(GRACE) => {}
            () = signal() => {}
        }
        Ok(())
    })
}
