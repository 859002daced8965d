//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Load scenarios against a fairgate, running or started for the purpose.
#[derive(Parser)]
#[command(name = "loadtest", version, about, arg_required_else_help = true, disable_help_subcommand = true)]
pub(crate) struct Cli {
    /// The scenario.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The scenarios.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// One tenant floods, others send at a fixed rate: do they feel it?
    ///
    /// Without --kubeconfig a fairgate is started twice, with fairness on and off, and both are shown side by side.
    /// The victims' load is an open loop (requests have scheduled times, latency counts from these); the flood is a
    /// closed loop per connection.
    NoisyNeighbour(NoisyNeighbour),
    /// Many open watches over many connections: memory of each, processor time at rest and with an event a second
    ///
    /// A fairgate is started for it. Memory and time are those of its whole process: gateway and API server.
    Watches(Watches),
    /// Many new TLS connections at once: how fast are they served, what do they cost, does one fail?
    ///
    /// A fairgate is started for it. Sessions are not resumed.
    Handshakes(Handshakes),
    /// Very many workspaces with a few objects in each: memory of each, reads, and how long a start takes
    ///
    /// A fairgate is started for it. Memory and time are those of its whole process: gateway and API server.
    Clusters(Clusters),
}

/// `loadtest clusters`.
#[derive(Args, Clone)]
pub(crate) struct Clusters {
    /// The fairgate to start [default: the one built beside this program, else the one on PATH]
    #[arg(long, value_name = "BINARY")]
    pub(crate) fairgate: Option<PathBuf>,
    /// Workspaces
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    pub(crate) clusters: u32,
    /// Configmaps in each
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) objects: u32,
}

/// `loadtest watches`.
#[derive(Args, Clone)]
pub(crate) struct Watches {
    /// The fairgate to start [default: the one built beside this program, else the one on PATH]
    #[arg(long, value_name = "BINARY")]
    pub(crate) fairgate: Option<PathBuf>,
    /// Open watches, spread evenly over the connections
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) watches: u32,
    /// HTTP/2 connections with TLS
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(crate) connections: u32,
    /// Measured time at rest, and again with events
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
}

/// `loadtest handshakes`.
#[derive(Args, Clone)]
pub(crate) struct Handshakes {
    /// The fairgate to start [default: the one built beside this program, else the one on PATH]
    #[arg(long, value_name = "BINARY")]
    pub(crate) fairgate: Option<PathBuf>,
    /// New connections, all at once; each sends one request and stays open until all have their answers
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=50_000))]
    pub(crate) connections: u32,
}

/// `loadtest noisy-neighbour`.
#[derive(Args, Clone)]
pub(crate) struct NoisyNeighbour {
    /// Test the fairgate of this kubeconfig; what is made there is removed afterwards. Its identity must be allowed
    /// to make workspaces under root and to impersonate
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Start a fairgate of our own (this is the default)
    #[arg(long, conflicts_with = "kubeconfig")]
    pub(crate) start: bool,
    /// The fairgate to start [default: the one built beside this program, else the one on PATH]
    #[arg(long, value_name = "BINARY", conflicts_with = "kubeconfig")]
    pub(crate) fairgate: Option<PathBuf>,
    /// Seats of the fairgate that is started
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "kubeconfig")]
    pub(crate) seats: u32,
    /// Connections of the tenant that floods
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) flood_connections: u32,
    /// What the flood does when it gets 429
    #[arg(long, value_name = "MANNERS", default_value = "polite")]
    pub(crate) flood_manners: Manners,
    /// Tenants that send at a fixed rate
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) victims: u32,
    /// Requests per second of each victim
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) victim_rate: u32,
    /// Connections of each victim; when all are busy requests are sent late, which counts
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) victim_connections: u32,
    /// What a victim does when it gets 429
    #[arg(long, value_name = "MANNERS", default_value = "polite")]
    pub(crate) victim_manners: Manners,
    /// What the flood asks for
    #[arg(long, value_name = "KIND", default_value = "update")]
    pub(crate) request: RequestKind,
    /// What the victims ask for
    #[arg(long, value_name = "KIND", default_value = "update")]
    pub(crate) victim_request: RequestKind,
    /// Objects that each tenant has
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) objects: u32,
    /// Measured time of each phase (there are two per fairgate)
    #[arg(long, default_value = "15s", value_parser = duration)]
    pub(crate) duration: Duration,
    /// Time before that, not measured
    #[arg(long, default_value = "2s", value_parser = duration)]
    pub(crate) warmup: Duration,
    /// Priority levels that each tenant keeps busy: its requests come in turn from users whom Kubernetes' FlowSchemas
    /// put into global-default, workload-low and workload-high
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=3))]
    pub(crate) levels: u32,
    /// Rewrite the fairness.yaml of the fairgate that is started so often while the load runs: levels come and go, shares and
    /// classes change, every fifth content is faulty
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=50), conflicts_with = "kubeconfig")]
    pub(crate) reload_per_second: Option<u32>,
    /// Exit with 1 when some request had no answer, or another one than 2xx or 429 (fairness on)
    #[arg(long)]
    pub(crate) assert_answers: bool,
    /// Exit with 1 when some victim's p99 with the flood is over R times its p99 without (fairness on)
    #[arg(long, value_name = "R", value_parser = ratio)]
    pub(crate) assert_victim_p99_ratio: Option<f64>,
    /// Also write the result to this file
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Allow targets that are not on this machine
    #[arg(long)]
    pub(crate) allow_remote: bool,
}

/// What a client does when it is told to come back later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Manners {
    /// Waits as long as Retry-After says, and a little more, then tries again: what client-go does
    Polite,
    /// Takes no notice: the flood goes on at once, a victim's request is lost
    Rude,
}

/// The kinds of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RequestKind {
    /// Read one configmap
    Get,
    /// List the tenant's configmaps
    List,
    /// List the tenant's configmaps by a label that none of them has
    Select,
    /// Create a configmap
    Create,
    /// Overwrite a configmap
    Update,
}

/// A time such as `500ms`, `15s` or `2m`, at most an hour.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len());
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        _ => return Err("want a number with a unit: 500ms, 15s or 2m".into()),
    };
    let value: f64 = number.parse().map_err(|_| format!("{number:?} is not a number"))?;
    let value = value * seconds;
    if !(0.0..=3600.0).contains(&value) {
        return Err("want 0s to 60m".into());
    }
    Ok(Duration::from_secs_f64(value))
}

fn ratio(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ratio) if ratio.is_finite() && ratio > 0.0 => Ok(ratio),
        _ => Err("want a number above 0, such as 3".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn durations_have_units_and_bounds() {
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("20ms"), Ok(Duration::from_millis(20)));
        assert_eq!(duration("60m"), Ok(Duration::from_secs(3600)));
        for bad in ["", "5", "s", "-1s", "61m", "1h", "NaNs", "infs"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ratios_are_positive() {
        assert_eq!(ratio("2.5"), Ok(2.5));
        for bad in ["0", "-1", "inf", "NaN", "x"] {
            assert!(ratio(bad).is_err(), "{bad}");
        }
    }
}
