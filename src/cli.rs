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
    /// Look after the file of the embedded store
    #[command(subcommand, arg_required_else_help = true)]
    Store(StoreCommand),
    /// Play a workload file in virtual time on the gateway's scheduler, and print what each tenant got
    Simulate(Simulate),
}

/// `fairgate dev`.
#[derive(Args)]
#[command(after_help = LOG_HELP)]
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
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) seats: Option<u32>,
    /// A GatewayConfiguration file (docs/gateway-file.md) without listen, admin, shards and authentication.dropGroups
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Forward everything at once: no queues, no limits. For comparison only
    #[arg(long)]
    pub(crate) no_fairness: bool,
    #[command(flatten)]
    pub(crate) store: StoreOptions,
}

/// Where objects are kept.
#[derive(Args)]
pub(crate) struct StoreOptions {
    /// Where objects are kept
    #[arg(long, value_enum, default_value = "embedded")]
    pub(crate) store: Engine,
    /// Members of etcd, such as https://10.0.0.7:2379,https://10.0.0.8:2379
    #[arg(long, value_name = "URLS", value_delimiter = ',', required_if_eq("store", "etcd"))]
    pub(crate) etcd_servers: Vec<String>,
    /// Key of etcd below which everything is kept. Servers with the same one share everything [default: /fairgate]
    #[arg(long, value_name = "KEY")]
    pub(crate) etcd_prefix: Option<String>,
    /// Certificates of the CA that signs those of etcd
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_cacert: Option<PathBuf>,
    /// Certificate that etcd knows this server by
    #[arg(long, value_name = "FILE", requires = "etcd_key")]
    pub(crate) etcd_cert: Option<PathBuf>,
    /// Key of that certificate
    #[arg(long, value_name = "FILE", requires = "etcd_cert")]
    pub(crate) etcd_key: Option<PathBuf>,
    /// File with USER:PASSWORD for etcd [default: the variable FAIRGATE_ETCD_CREDENTIALS, if it is set]
    #[arg(long, value_name = "FILE")]
    pub(crate) etcd_credentials: Option<PathBuf>,
}

/// The stores to choose from.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Engine {
    /// A file in the data directory
    Embedded,
    /// An etcd, which several servers may share
    Etcd,
}

/// `fairgate store`.
#[derive(Subcommand)]
pub(crate) enum StoreCommand {
    /// Read everything and tell what is wrong and where; also while a server runs
    Check(DataDir),
    /// Delete old versions and give their space back; not while a server runs (it compacts by itself)
    Compact(DataDir),
    /// Copy the store as it is at one moment into a new file; also while a server runs
    Backup {
        #[command(flatten)]
        place: DataDir,
        /// The new file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Put a backup in place of a store that is not there. Revisions jump ahead, so that none is used twice
    Restore {
        #[command(flatten)]
        place: DataDir,
        /// The backup
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

/// Where the store is.
#[derive(Args)]
pub(crate) struct DataDir {
    /// The data directory of the server
    #[arg(long, value_name = "DIR", default_value = "./.fairgate")]
    pub(crate) data_dir: PathBuf,
}

/// `fairgate serve`.
#[derive(Args)]
#[command(after_help = LOG_HELP)]
pub(crate) struct Serve {
    /// A GatewayConfiguration file: docs/gateway-file.md
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Only read and check that file, the certificates and the fairness file it names. Exit code 0, or 64 for faults
    #[arg(long)]
    pub(crate) check: bool,
}

/// What `--help` ends with.
const LOG_HELP: &str = "Warnings go to standard error. The variable FAIRGATE_LOG says more or less: off, error, warn, info, debug, \
                        trace, or info,proxy=debug";

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
