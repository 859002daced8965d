//! `fairgate dev`: gateway, API server and cache server in one process.

use std::{
    fs,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
    time::Duration,
};

use anyhow::Context;
use apiserver_server::{ApiServer, Trust};
use apiserver_storage::{Embedded, Store};
use config::GatewayConfig;
use proxy::{Body, Directory, Gateway, GatewayOptions, LocalService, ShardOptions, Upstream};
use tokio_util::sync::CancellationToken;

use crate::{
    Failure, cli,
    counts::StoreCounts,
    kubeconfig, pki, run,
};

/// Seats of the bundled API server unless told otherwise: upstream's 400 readers and 200 writers.
const SEATS: u32 = 600;
/// The one shard.
const SHARD: &str = "root";
/// Everything the database holds is in this file of the data directory.
const STORE: &str = "store.db";

/// Runs until a signal, then drains.
pub(crate) fn dev(args: &cli::Dev) -> Result<(), Failure> {
    let config = match &args.config {
        None => None,
        Some(path) => Some(GatewayConfig::load(path).map_err(Failure::config)?),
    };
    let listener = bind("--port", config_address(args.port))?;
    let admin = bind("--admin-port", config_address(args.admin_port))?;
    fs::create_dir_all(&args.data_dir)
        .with_context(|| format!("cannot make the data directory {}", args.data_dir.display()))?;
    let pki = pki::load_or_create(&args.data_dir)?;
    let gateway_url = format!("https://{}", listener.local_addr()?);
    pki::write_private(&args.data_dir.join("admin.kubeconfig"), &kubeconfig::render(&gateway_url, &pki))?;
    let store = open(&args.data_dir.join(STORE))?;
    Ok(())
}
