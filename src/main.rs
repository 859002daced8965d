//! The `fairgate` command.

mod cli;
mod kubeconfig;
mod pki;

use std::process::ExitCode;

use clap::Parser;

/// Exit code for a wrong command line or configuration (`EX_USAGE` of sysexits).
const EX_USAGE: u8 = 64;

fn main() -> ExitCode {
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { EX_USAGE } else { 0 });
        }
    };
    let _ = cli.command;
    ExitCode::SUCCESS
}
