//! What the commands share: listeners, signals, the fairness configuration.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
};

use anyhow::Context;
use config::{ConfigError, FairnessConfig, GatewayConfig, Shutdown, Source};
use proxy::Gateway;
use tokio::{runtime::Runtime, signal::unix};

use crate::{Failure, reload::Reloader};

/// Binds a listener; the error names the option to change.
pub(crate) fn bind(option: &str, address: SocketAddr) -> Result<TcpListener, Failure> {
    let bound = TcpListener::bind(address);
    Ok(bound.with_context(|| format!("cannot listen on {address}; choose another with {option}"))?)
}

/// The fairness configuration that a gateway file, which was read from `source`, asks for; `None` when it switches fairness
/// off.
pub(crate) fn fairness(file: Option<(&Source, &GatewayConfig)>) -> Result<Option<FairnessConfig>, Failure> {
    match file {
        None => Ok(Some(FairnessConfig::default())),
        Some((_, file)) if !file.fairness.enabled => Ok(None),
        Some((source, file)) => {
            let Some(path) = &file.fairness.file else { return Ok(Some(FairnessConfig::default())) };
            let text = FairnessConfig::read(path).map_err(|error| Failure::Usage(unreadable(&source.file, &error)))?;
            let config = FairnessConfig::parse(&text, path).map_err(Failure::config)?;
            for warning in &config.warnings {
                tracing::warn!(file = %path.display(), "{warning}");
            }
            Ok(Some(config))
        }
    }
}

/// The fairness file that `gateway`, a file, names cannot be read.
pub(crate) fn unreadable(gateway: &Path, error: &ConfigError) -> anyhow::Error {
    anyhow::anyhow!("{}: fairness.file: {error}", gateway.display())
}

/// Keeps the configuration up to date until SIGINT or SIGTERM, then drains the gateway; a second signal ends
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
                _ = hangup.recv() => reloader.look(&gateway).await,
                () = reloader.run(&gateway) => {}
            }
        }
        let Shutdown { delay, grace } = reloader.shutdown();
        // At the level that everybody sees: who has pressed Ctrl-C waits for this.
        tracing::warn!(?delay, ?grace, "draining, for at most {:?}; a second signal stops at once", delay + grace);
        tokio::select! {
            cut = gateway.shutdown(delay, grace) => match cut {
                0 => tracing::info!("drained"),
                cut => tracing::warn!(cut, "drained but for requests that took longer than the grace"),
            },
            () = signal() => tracing::warn!("a second signal: what was running was cut off"),
        }
        Ok(())
    })
}
