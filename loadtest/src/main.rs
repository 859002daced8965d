//! Load scenarios against a fairgate, running or started for the purpose.
//!
//! Exit codes: 0 done and every asserted limit kept; 1 a limit not kept, or the schedule of the load not kept;
//! 2 wrong usage or a failed set-up; 130 interrupted.

mod cli;
mod client;
mod clusters;
mod control;
mod flood;
mod handshakes;
mod instance;
mod kubeconfig;
mod noisy_neighbour;
mod open_loop;
mod phase;
mod progress;
mod reload;
mod report;
mod schedule;
mod stats;
#[cfg(test)]
mod stub;
mod traffic;
mod watches;

use std::process::ExitCode;

use clap::Parser;
use tokio_util::sync::CancellationToken;

const EXIT_LIMIT: u8 = 1;
const EXIT_SETUP: u8 = 2;
const EXIT_INTERRUPTED: u8 = 130;

fn main() -> ExitCode {
    let command = cli::Cli::parse().command;
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("error: no runtime: {error}");
            return ExitCode::from(EXIT_SETUP);
        }
    };
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let listener = tokio::spawn(cancel_on_signal(stop.clone()));
        let outcome = match &command {
            cli::Command::NoisyNeighbour(args) => noisy_neighbour::run(args, &stop).await,
            cli::Command::Watches(args) => watches::run(args, &stop).await,
            cli::Command::Clusters(args) => clusters::run(args, &stop).await,
            cli::Command::Handshakes(args) => handshakes::run(args, &stop).await,
        };
        listener.abort();
        match outcome {
            _ if stop.is_cancelled() => {
                eprintln!("interrupted; what was started is stopped");
                ExitCode::from(EXIT_INTERRUPTED)
            }
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(EXIT_LIMIT),
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(EXIT_SETUP)
            }
        }
    })
}

/// Cancels everything on SIGINT or SIGTERM.
async fn cancel_on_signal(stop: CancellationToken) {
    let terminated = async {
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(mut signal) => signal.recv().await,
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminated => {}
    }
    stop.cancel();
}
