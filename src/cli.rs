//! The command line.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};

/// A front door that makes a shared, Kubernetes-style control plane fair.
#[derive(Parser)]
#[command(version, about, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run gateway, API server and cache server in one process, with everything it needs made on the spot
    Dev(Dev),
    /// Run the gateway in front of the shards of a configuration file
    Serve(Serve),
    /// Play a workload file in virtual time on the gateway's scheduler, and print what each tenant got
    Simulate(Simulate),
}

/// `fairgate dev`.
#[derive(Args)]
pub(crate) struct Dev {
    /// Where objects, certificates and the kubeconfig are kept
    #[arg(long, value_name = "DIR", default_value = "./.fairgate")]
    pub(crate) data_dir: PathBuf,
    /// Port of the gateway on 127.0.0.1; 0 = any free one
    #[arg(long, default_value_t = 6443)]
    pub(crate) port: u16,
    /// Port of the admin address on 127.0.0.1 (metrics, health); 0 = any free one
    #[arg(long, default_value_t = 9443)]
    pub(crate) admin_port: u16,
    /// Seats of the API server: how many units of work it does at once [default: 600]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) seats: Option<u32>,
    /// A GatewayConfiguration file without listen, admin, shards and authentication.dropGroups
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Forward everything at once: no queues, no limits. For comparison only
    #[arg(long)]
    pub(crate) no_fairness: bool,
}

/// `fairgate serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// A GatewayConfiguration file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
}

/// `fairgate simulate`.
#[derive(Args)]
pub(crate) struct Simulate {
    /// The workload: who sends what, see docs/simulate.md
    #[arg(value_name = "WORKLOAD.yaml")]
    pub(crate) workload: PathBuf,
    /// A fairness file; its levels and classes hold for workspaces that have none of their own
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Which scheduler
    #[arg(long, value_enum, default_value = "fairgate")]
    pub(crate) mode: Mode,
    /// Write all figures as JSON to this file; `-`: to standard output, instead of the table
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Start of the random numbers, instead of the workload's
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
}

/// The schedulers to choose from.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Mode {
    /// That of this gateway
    Fairgate,
    /// Kubernetes' own, API Priority and Fairness, with each level of each workspace as one of its levels
    Apf,
}

/// The loopback address with this port.
pub(crate) fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
