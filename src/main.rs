//! The `fairgate` command.

mod cli;
mod counts;
mod dev;
mod kubeconfig;
mod pki;
mod reload;
mod run;
mod serve;
mod simulate;
mod store;
mod tls;

use std::{io::IsTerminal, process::ExitCode};

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing_subscriber::EnvFilter;

use crate::cli::Command;

/// Exit code for a wrong command line or configuration (`EX_USAGE` of sysexits).
const EX_USAGE: u8 = 64;

/// Why the command ended with something else than success.
enum Failure {
    /// The command line or a configuration file is wrong.
    Usage(anyhow::Error),
    /// It could not be started or go on.
    Run(anyhow::Error),
}

impl Failure {
    fn config(error: config::ConfigError) -> Self {
        Self::Usage(error.into())
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Run(error.into())
    }
}

/// Every connection is an open file, and the usual soft limit of 1,024 is there for programs that use `select`: the hard
/// limit is what the operator allows.
fn raise_open_file_limit() {
    let hard = getrlimit(Resource::Nofile).maximum;
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: hard, maximum: hard }) {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
}

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Nothing better can be done when even this cannot be printed.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { EX_USAGE } else { 0 });
        }
    };
    let filter = EnvFilter::try_from_env("FAIRGATE_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).init();
    raise_open_file_limit();
    // The first and only provider of this process, so there is none to be in its way.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let outcome = match &cli.command {
        Command::Dev(args) => dev::dev(args),
        Command::Serve(args) => serve::serve(args),
        Command::Store(command) => store::store(command),
        Command::Simulate(args) => simulate::simulate(args),
    };
    let (code, error) = match outcome {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(error)) => (EX_USAGE, error),
        Err(Failure::Run(error)) => (1, error),
    };
    eprintln!("fairgate: {error:#}");
    ExitCode::from(code)
}
