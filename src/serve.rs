//! `fairgate serve`: the gateway in front of shards that run elsewhere.

use std::{fs, path::Path, sync::Arc};

use anyhow::Context;
use config::{GatewayConfig, ListenTls, Shard, ShardTls};
use proxy::{Directory, Gateway, GatewayOptions, RemoteOptions, ShardOptions, Upstream};

use crate::{Failure, cli, pki, reload::Reloader, run};

/// Runs until a signal, then drains.
pub(crate) fn serve(args: &cli::Serve) -> Result<(), Failure> {
    let config = GatewayConfig::load(&args.config).map_err(Failure::config)?;
    let fairness = run::fairness(Some(&config))?;
    let tls = config.listen.tls.as_ref().map(listen_tls).transpose()?;
    let shards = config.shards.iter().map(shard).collect::<Result<Vec<_>, Failure>>()?;
    let listener = run::bind("listen.address", config.listen.address)?;
    let admin = run::bind("admin.address", config.admin.address)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let scheme = if tls.is_some() { "https" } else { "http" };
    let reloader = Reloader::new(fairness.as_ref());
    let gateway = Gateway::start(GatewayOptions {
        listener,
        tls: tls.map(Arc::new),
        admin,
        workers: config.workers,
        anonymous: config.authentication.anonymous,
        drop_groups: config.authentication.drop_groups,
        shards,
        fairness,
        compat: config.fairness.compat,
        healthy: None,
        directory: Directory::Watch,
        limits: config.limits,
        access_log: config.access_log,
    })
    .map_err(|e| anyhow::Error::new(e).context("cannot start the gateway"))?;
    println!("gateway: {scheme}://{}\nadmin:   http://{}", gateway.address(), gateway.admin_address());
    run::until_signal(&runtime, gateway, reloader)
}

fn listen_tls(files: &ListenTls) -> Result<rustls::ServerConfig, Failure> {
    let (certificate, key) = (read(&files.certificate_file)?, read(&files.key_file)?);
    let client_ca = files.client_ca_file.as_deref().map(read).transpose()?;
    let config = pki::server_config(&certificate, &key, client_ca.as_deref());
    let what = || format!("{} and {}", files.certificate_file.display(), files.key_file.display());
    config.with_context(what).map_err(Failure::Usage)
}

fn shard(shard: &Shard) -> Result<ShardOptions, Failure> {
    let tls = match (&shard.tls, shard.url.scheme_str()) {
        (Some(files), _) => Some(Arc::new(shard_tls(&shard.name, files)?)),
        (None, Some("https")) => {
            let why = format!("shard {}: tls: missing; want tls.caFile for an https url", shard.name);
            return Err(Failure::Usage(anyhow::anyhow!(why)));
        }
        (None, _) => None,
    };
    let upstream = Upstream::Remote(RemoteOptions { url: shard.url.to_string(), tls });
    Ok(ShardOptions { name: shard.name.clone(), seats: shard.seats, upstream, observers: None })
}

fn shard_tls(name: &str, files: &ShardTls) -> Result<rustls::ClientConfig, Failure> {
    let build = || -> anyhow::Result<rustls::ClientConfig> {
        let ca = files.ca_file.as_deref().context("tls.caFile: missing; want the CA of the shard's certificate")?;
        let roots = pki::roots(&text(ca)?).with_context(|| ca.display().to_string())?;
        let builder = rustls::ClientConfig::builder().with_root_certificates(roots);
        match &files.client_certificate {
            None => Ok(builder.with_no_client_auth()),
            Some((certificate, key)) => pki::client_identity(builder, &text(certificate)?, &text(key)?)
                .with_context(|| certificate.display().to_string()),
        }
    };
    build().with_context(|| format!("shard {name}")).map_err(Failure::Usage)
}

fn text(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn read(path: &Path) -> Result<String, Failure> {
    text(path).map_err(Failure::Usage)
}
