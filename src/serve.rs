//! `fairgate serve`: the gateway in front of shards that run elsewhere.

use std::{fs, io, path::Path};

use config::{AccessLog, Shard, Sink};
use proxy::{Directory, Gateway, GatewayOptions};

use crate::{
    Failure, cli,
    reload::{Base, Loaded, Reloader},
    run,
};

/// Whether the access log could be opened, without making it: whoever checks may be another user than whoever runs.
fn check_access_log(log: Option<&AccessLog>) -> Result<(), Failure> {
    let Some(AccessLog { sink: Sink::File(path), .. }) = log else { return Ok(()) };
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let usable = match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        // Opening a pipe would wait for its reader.
        Ok(found) if found.is_file() => fs::OpenOptions::new().append(true).open(path).map(drop),
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => fs::read_dir(directory).map(drop),
        Err(error) => Err(error),
    };
    usable.map_err(|error| Failure::Usage(anyhow::anyhow!("accessLog.file: {}: {error}", path.display())))
}

/// Runs until a signal, then drains.
pub(crate) fn serve(args: &cli::Serve) -> Result<(), Failure> {
    let loaded = Loaded::read(&args.config)?;
    loaded.warn();
    let shards = loaded.shard_options();
    let Loaded { source, config, pems, tls, .. } = loaded;
    let fairness = run::fairness(Some((&source, &config)))?;
    if args.check {
        check_access_log(config.access_log.as_ref())?;
        say!("{}: valid", source.file.display());
        return Ok(());
    }
    let listener = run::bind("listen.address", config.listen.address)?;
    let admin = run::bind("admin.address", config.admin.address)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let reloader = Reloader::new(fairness.as_ref());
    let gateway = Gateway::start(GatewayOptions {
        listener,
        tls,
        admin,
        workers: config.workers,
        anonymous: config.authentication.anonymous,
        drop_groups: config.authentication.drop_groups.clone(),
        shards,
        fairness,
        compat: config.fairness.compat,
        healthy: None,
        directory: Directory::Watch,
        limits: config.limits,
        access_log: config.access_log.clone(),
    })
    .map_err(|e| anyhow::Error::new(e).context("cannot start the gateway"))?;
    gateway.show_config(&source, Vec::new());
    let listed = listed(&config.shards);
    let reloader = reloader.with_gateway(&source, config, pems, Base::File);
    let (address, admin) = (gateway.address(), gateway.admin_address());
    say!("gateway: {scheme}://{address}\nadmin:   http://{admin}{listed}");
    run::until_signal(&runtime, gateway, reloader)
}

/// Shards that are named at the start; there may be thousands.
const SHARDS_SHOWN: usize = 20;

/// A line for each of the first shards.
fn listed(shards: &[Shard]) -> String {
    let line = |shard: &Shard| format!("\nshard:   {} at {}, {} seats", shard.name, shard.url, shard.seats);
    let mut text: String = shards.iter().take(SHARDS_SHOWN).map(line).collect();
    if let Some(more) = shards.len().checked_sub(SHARDS_SHOWN).filter(|more| *more > 0) {
        text += &format!("\nand {more} more shards");
    }
    text
}
