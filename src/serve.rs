//! `fairgate serve`: the gateway in front of shards that run elsewhere.

use proxy::{Directory, Gateway, GatewayOptions};

use crate::{
    Failure, cli,
    reload::{Base, Loaded, Reloader},
    run,
};

/// Runs until a signal, then drains.
pub(crate) fn serve(args: &cli::Serve) -> Result<(), Failure> {
    let loaded = Loaded::read(&args.config)?;
    let shards = loaded.shard_options();
    let Loaded { source, config, pems, tls, .. } = loaded;
    let fairness = run::fairness(Some(&config))?;
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
    let reloader = reloader.with_gateway(&source, config, pems, Base::File);
    println!("gateway: {scheme}://{}\nadmin:   http://{}", gateway.address(), gateway.admin_address());
    run::until_signal(&runtime, gateway, reloader)
}
