//! What a gateway needs to know when it starts.

use std::{convert::Infallible, net::TcpListener, sync::Arc};

pub use config::Limits;
use config::{Compat, FairnessConfig, Protocol};
use observers::{Observers, WorkspaceEvent};
use tokio::sync::mpsc;
use tower::util::BoxCloneSyncService;

use crate::Body;

/// A bundled API server in the same process. Its futures run on the worker's own task: no socket between.
pub type LocalService = BoxCloneSyncService<http::Request<Body>, http::Response<Body>, Infallible>;

/// Where the requests of one shard go.
#[derive(Clone)]
pub enum Upstream {
    /// A service in this process.
    Local(LocalService),
    /// A server behind a socket.
    Remote(RemoteOptions),
}

/// A shard behind a socket.
#[derive(Clone, Debug)]
pub struct RemoteOptions {
    /// `http://host:port` or `https://host:port`.
    pub url: String,
    /// What is spoken to it.
    pub protocol: Protocol,
    /// Roots and client certificate for `https`; required there.
    pub tls: Option<Arc<rustls::ClientConfig>>,
}

/// One shard.
#[derive(Clone)]
pub struct ShardOptions {
    /// Its name, for logs and metrics.
    pub name: String,
    /// Requests it should work on at once.
    pub seats: u32,
    /// Where it is.
    pub upstream: Upstream,
    /// The object counts of its workspaces, and where to tell them which workspaces there are: the two ends that
    /// [`Observers::run`] is not given. Without them lists are priced as for unknown counts.
    pub observers: Option<(Observers, mpsc::Sender<WorkspaceEvent>)>,
}

/// How the shard of a workspace is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// Every well-formed workspace path belongs to the first shard and is forwarded as the client wrote it.
    Static,
    /// An index fed by watches of LogicalClusters and Workspaces. A single shard that does not serve
    /// LogicalClusters is treated as [`Static`](Self::Static), and the log says so.
    Watch,
}

/// How what else runs in the process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// As it should be.
    Well,
    /// It cannot answer for the moment: the process is not ready, but a restart would not mend it.
    Unready,
    /// Only a restart mends it.
    Dead,
}

/// Everything [`Gateway::start`](crate::Gateway::start) needs.
pub struct GatewayOptions {
    /// Bound listener for clients.
    pub listener: TcpListener,
    /// TLS for clients; plain text without it. Client certificates should be optional and verified against the
    /// client CA by this configuration; ALPN protocols are set by the gateway.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Bound listener for operators: plain HTTP, keep it on loopback.
    pub admin: TcpListener,
    /// Threads that serve requests; 0 = one per core.
    pub workers: usize,
    /// Whether requests without a credential are served, as `system:anonymous`.
    pub anonymous: bool,
    /// Groups that are never passed on to a shard; `name*` is a prefix.
    pub drop_groups: Vec<String>,
    /// At least one. The one named `root`, or else the first, gets the requests that name no workspace.
    pub shards: Vec<ShardOptions>,
    /// Levels, FlowSchemas and workspace classes; `None` lets everything pass at once.
    pub fairness: Option<FairnessConfig>,
    /// Whether Kubernetes' own rules price, queue and start the requests of each workspace.
    pub compat: Compat,
    /// Asked by the probes: how what else runs in this process, such as a bundled shard, is.
    pub healthy: Option<Arc<dyn Fn() -> Health + Send + Sync>>,
    /// See [`Directory`].
    pub directory: Directory,
    /// See [`Limits`].
    pub limits: Limits,
    /// A line for each request; `None` writes none.
    pub access_log: Option<config::AccessLog>,
}

/// What can be changed while the gateway runs; see [`Gateway::apply`](crate::Gateway::apply). As in [`GatewayOptions`].
#[derive(Clone)]
pub struct Settings {
    /// TLS for new connections of clients; `None`: plain text.
    pub tls: Option<Arc<rustls::ServerConfig>>,
    /// Whether requests without a credential are served.
    pub anonymous: bool,
    /// Groups that are never passed on to a shard.
    pub drop_groups: Vec<String>,
    /// All shards there are to be; at least one. A shard is known by its name, URL and protocol: its seats and its TLS
    /// may be others, what differs otherwise is another shard. `None` leaves them as they are.
    pub shards: Option<Vec<ShardOptions>>,
    /// Those of connections to shards count for shards that come.
    pub limits: Limits,
    /// A line for each request; `None` writes none.
    pub access_log: Option<config::AccessLog>,
}

/// Why settings were not put in force.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// There would be nothing to forward to, or nowhere.
    #[error(transparent)]
    Shard(#[from] StartError),
    /// Every request goes to the one shard there is.
    #[error(
        "shards: the only one serves no logical clusters, so that every request is for it, and none would be for others; \
         want it alone, or a restart"
    )]
    Static,
    /// Numbers of shards are not given twice.
    #[error("shards: too many have come and gone since the start; want a restart")]
    TooManyShards,
    /// See [`Settings::limits`].
    #[error("limits: too many different ones have been in force since the start; want earlier ones, or a restart")]
    TooManyLimits,
    /// The file cannot be opened.
    #[error("accessLog.file: {0}")]
    AccessLog(std::io::Error),
}

/// Why a gateway did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A listener or runtime could not be set up.
    #[error("{0}")]
    Io(&'static str, #[source] std::io::Error),
    /// There is nothing to forward to.
    #[error("no shard is configured")]
    NoShard,
    /// A shard's URL cannot be used.
    #[error("shard {shard}: url {url:?}: {why}")]
    Url {
        /// Name of the shard.
        shard: String,
        /// As configured.
        url: String,
        /// What is wrong with it.
        why: &'static str,
    },
}
