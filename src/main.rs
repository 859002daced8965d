//! The `fairgate` command.

/// Prints a line to standard output. Whoever has closed the other end does not want it, and a full disk is no reason to end.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// The same to standard error.
macro_rules! complain {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

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

use std::{env::VarError, io::IsTerminal, process::ExitCode};

use clap::Parser;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

use crate::cli::Command;

#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

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

/// What is logged: warnings, unless the variable says more or less. A bare word that is no level would be a target, and
/// whoever writes `verbose` means none.
///
/// # Errors
/// The value is none, and what would be right.
fn log_filter(value: Result<String, VarError>) -> Result<EnvFilter, String> {
    let text = match value {
        Ok(text) => text,
        Err(VarError::NotPresent) => String::new(),
        Err(VarError::NotUnicode(_)) => return Err(format!("FAIRGATE_LOG is no UTF-8; {LOG_WANT}")),
    };
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok() && !word.bytes().all(|b| b.is_ascii_digit());
    let words = || text.split(',').map(str::trim).filter(|word| !word.is_empty());
    if let Some(word) = words().find(|word| !word.contains(['=', '[']) && !is_level(word)) {
        return Err(format!("FAIRGATE_LOG is {text:?}, of which {word:?} is no level; {LOG_WANT}"));
    }
    // The first holds for what the others do not name.
    let first = (!words().any(is_level)).then_some("warn");
    EnvFilter::try_new(first.into_iter().chain(words()).collect::<Vec<_>>().join(","))
        .map_err(|error| format!("FAIRGATE_LOG is {text:?}: {error}; {LOG_WANT}"))
}

const LOG_WANT: &str = "want off, error, warn, info, debug or trace, and behind a comma levels of parts, such as \
                        info,proxy=debug";

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            // Nothing better can be done when even this cannot be printed.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { EX_USAGE } else { 0 });
        }
    };
    let filter = match log_filter(std::env::var("FAIRGATE_LOG")) {
        Ok(filter) => filter,
        Err(error) => {
            complain!("fairgate: {error}");
            return ExitCode::from(EX_USAGE);
        }
    };
    let colours = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        // It would print them to standard error, which is what has failed: a full disk must not end the gateway.
        .log_internal_errors(false)
        .init();
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
    complain!("fairgate: {error:#}");
    ExitCode::from(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_logged_is_a_level_and_parts_or_refused() {
        let filter = |text: &str| log_filter(Ok(text.into()));
        for (text, most) in
            [("", "warn"), ("info", "info"), ("proxy=debug", "debug"), ("off", "off"), ("Error,", "error")]
        {
            assert_eq!(filter(text).unwrap().max_level_hint(), Some(most.parse().unwrap()), "{text}");
        }
        // What is not named goes on warning.
        assert!(filter("proxy=debug").unwrap().to_string().contains("warn"));
        for text in ["verbose", "info,verbose", "foo=bar=baz", "proxy=loud", "3"] {
            let error = filter(text).unwrap_err();
            assert!(error.starts_with(&format!("FAIRGATE_LOG is {text:?}")) && error.ends_with(LOG_WANT), "{error}");
        }
        assert!(log_filter(Err(VarError::NotPresent)).is_ok());
    }
}
