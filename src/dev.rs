//! `fairgate dev`: gateway, API server and cache server in one process.

use std::{fs, path::Path, sync::Arc, time::Duration};

use anyhow::Context;
use apiserver_api::{Status, url};
use apiserver_cache::CacheServer;
use apiserver_server::{ApiServer, Registry, TokenKey, Trust};
use apiserver_storage::Store;
use config::{AccessLog, Compat, FairnessConfig, GatewayConfig, Limits, Source};
use http_body::Body as _;
use observers::Observers;
use proxy::{Body, Directory, Gateway, GatewayOptions, Health, LocalService, ShardOptions, Upstream};
use tokio::{runtime::Runtime, sync::mpsc};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    Failure, cli,
    counts::StoreCounts,
    kubeconfig, pki,
    reload::{Base, Reloader},
    run, store,
    tls::Pems,
};

/// Seats of the bundled API server unless told otherwise: upstream's 400 readers and 200 writers.
const SEATS: u32 = 600;
/// Bytes of a request's body that a worker of the gateway reads itself.
const SMALL_BODY: u64 = 64 * 1024;
/// The one shard.
const SHARD: &str = "root";
/// Workspaces that may wait to be noted by the observers.
const FEED: usize = 1024;

/// Runs until a signal, then drains.
pub(crate) fn dev(args: &cli::Dev) -> Result<(), Failure> {
    store::check_options(&args.store)?;
    let config = Settings::load(args)?;
    let listener = run::bind("--port", cli::loopback(args.port))?;
    let admin = run::bind("--admin-port", cli::loopback(args.admin_port))?;
    let directory = &args.data_dir;
    if directory.is_file() {
        return Err(anyhow::anyhow!("{} is a file; --data-dir names a directory", directory.display()).into());
    }
    fs::create_dir_all(directory).with_context(|| format!("cannot make the data directory {}", directory.display()))?;
    // What a start leaves there that has got as far as its store.
    let path = directory.join("admin.kubeconfig");
    let first = !path.exists() && !pki::token_key_path(directory).exists();
    let pki = pki::load_or_create(directory)?;
    let url = format!("https://{}", listener.local_addr()?);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let _lock = (args.store.store == cli::Engine::Etcd).then(|| store::lock(directory)).transpose()?;
    let store = store::open(&runtime, &args.store, directory, first)?;
    // Not before the directory is ours: one that runs there has its own address in this file, and its own key.
    let tokens = pki::token_key(directory, store.count("") == 0)?;
    let access = kubeconfig::render(&url, &pki);
    // Where nothing changes nothing is written: a full disk is no reason not to start.
    if fs::read_to_string(&path).ok().as_ref() != Some(&access) {
        pki::write_private(&path, &access)?;
    }
    let (chain, key) = (pki::certificates(&pki.server.certificate)?, pki::private_key(&pki.server.key)?);
    let tls = pki::server_config(chain, key, Some(pki::roots(&pki.ca_certificate)?))?;

    let shutdown = CancellationToken::new();
    let server = api_server(&runtime, store.clone(), server_options(&url, &shutdown, Some(tokens)))
        .map_err(|e| anyhow::anyhow!("the store: {e}"))?;
    let cache = CacheServer::new(store.clone(), server_options(&url, &shutdown, None));
    let controllers = controllers(server.registry(), &url, &shutdown);
    let counts = Observers::new(config.observers);
    let (feed, workspaces) = mpsc::channel(FEED);
    let counting = counts.clone().run(StoreCounts(store.clone()), workspaces, shutdown.clone());
    runtime.spawn(counting);

    let large = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("large-bodies")
        .enable_all()
        .build()?;
    let tls = Arc::new(tls);
    let mut reloader = Reloader::new(config.fairness.as_ref());
    let gateway = Gateway::start(GatewayOptions {
        listener,
        tls: Some(tls.clone()),
        admin,
        workers: config.workers,
        anonymous: config.anonymous,
        drop_groups: config.drop_groups,
        shards: vec![ShardOptions {
            name: SHARD.into(),
            seats: config.seats,
            upstream: Upstream::Local(service(server, cache, large.handle().clone())),
            observers: Some((counts, feed)),
        }],
        fairness: config.fairness,
        compat: config.compat,
        healthy: Some(health(store.clone())),
        directory: Directory::Watch,
        limits: config.limits,
        access_log: config.access_log,
    })
    .map_err(|e| anyhow::Error::new(e).context("cannot start the gateway"))?;
    if let Some((source, file)) = config.file {
        gateway.show_config(&source, Vec::new());
        reloader = reloader.with_gateway(&source, file, Pems::default(), Base::Bundled(tls));
    }
    runtime.block_on(gateway.ready());
    // Not before: their first look at everything that is there would keep the clients waiting.
    let controllers = runtime.spawn(controllers);
    greet(&url, &format!("http://{}", gateway.admin_address()), directory);
    run::until_signal(&runtime, gateway, reloader)?;
    shutdown.cancel();
    // A controller that is at work finishes its step; whatever it leaves is taken up at the next start.
    let _ = runtime.block_on(async { tokio::time::timeout(Duration::from_secs(5), controllers).await });
    large.shutdown_timeout(Duration::from_secs(1));
    runtime.shutdown_timeout(Duration::from_secs(1));
    store.close();
    Ok(())
}

/// What the command line and the configuration file say together.
struct Settings {
    workers: usize,
    anonymous: bool,
    drop_groups: Vec<String>,
    seats: u32,
    fairness: Option<FairnessConfig>,
    compat: Compat,
    observers: observers::Options,
    limits: Limits,
    access_log: Option<AccessLog>,
    file: Option<(Source, GatewayConfig)>,
}

impl Settings {
    fn load(args: &cli::Dev) -> Result<Self, Failure> {
        let text = args.config.as_deref().map(GatewayConfig::read).transpose().map_err(Failure::config)?;
        let text = args.config.as_deref().zip(text);
        let source = text.as_ref().map(|(path, text)| Source::new(path, text));
        let file = text.map(|(path, text)| GatewayConfig::parse_bundled(&text, path));
        let file = file.transpose().map_err(Failure::config)?;
        let fairness = if args.no_fairness { None } else { run::fairness(source.as_ref().zip(file.as_ref()))? };
        let mut observers = observers::Options::default();
        if let Some(file) = &file {
            observers.resync_interval = file.observers.resync_interval;
        }
        Ok(Self {
            observers,
            workers: file.as_ref().map_or(0, |f| f.workers),
            anonymous: file.as_ref().is_some_and(|f| f.authentication.anonymous),
            // Its own CA signs only what its owner wants: the administrator stays one behind this door.
            drop_groups: Vec::new(),
            seats: args.seats.unwrap_or(SEATS),
            fairness,
            compat: file.as_ref().map_or(Compat::Fairgate, |f| f.fairness.compat),
            limits: file.as_ref().map_or_else(Limits::default, |f| f.limits),
            access_log: file.as_ref().and_then(|f| f.access_log.clone()),
            file: source.zip(file),
        })
    }
}

fn api_server(
    runtime: &Runtime,
    store: Arc<dyn Store>,
    options: apiserver_server::Options,
) -> Result<ApiServer, Status> {
    let server = ApiServer::new(store, options);
    runtime.block_on(server.bootstrap())?;
    Ok(server)
}

fn controllers(
    registry: &Registry,
    url: &str,
    shutdown: &CancellationToken,
) -> impl Future<Output = ()> + Send + use<> {
    let options = apiserver_controllers::Options { external_url: url.into(), shard: SHARD.into() };
    apiserver_controllers::run(registry.clone(), options, shutdown.clone())
}

/// A store that no longer knows what its disk holds needs a restart, one that is elsewhere and gone does not; whoever probes
/// shall see either.
fn health(store: Arc<dyn Store>) -> Arc<dyn Fn() -> Health + Send + Sync> {
    Arc::new(move || match (store.failure(), store.unavailable()) {
        (Some(_), _) => Health::Dead,
        (None, Some(_)) => Health::Unready,
        (None, None) => Health::Well,
    })
}

fn server_options(url: &str, shutdown: &CancellationToken, tokens: Option<TokenKey>) -> apiserver_server::Options {
    apiserver_server::Options { external_url: url.into(), shutdown: shutdown.clone(), token_key: tokens.map(Arc::new) }
}

/// API server and cache server as the gateway calls them. Nobody else can, so what it says of the user is believed.
/// Their keys in the store begin differently, so they share it. Requests with large bodies are `large`'s: megabytes
/// of JSON take long to read and to check, and whatever else hangs on the gateway's worker would wait for it.
fn service(server: ApiServer, cache: CacheServer, large: tokio::runtime::Handle) -> LocalService {
    LocalService::new(tower::service_fn(move |request: http::Request<Body>| {
        let (server, cache, large) = (server.clone(), cache.clone(), large.clone());
        let is_small = request.body().size_hint().upper().is_some_and(|bytes| bytes <= SMALL_BODY);
        let answer = async move {
            match url::split(request.uri().path()) {
                Ok(url::Target::Cache { .. }) => cache.handle(request, Trust::Gateway).await,
                _ => server.handle(request, Trust::Gateway).await,
            }
        };
        async move {
            if is_small {
                return Ok(answer.await.map(Body::new));
            }
            // A client that leaves takes its request along, as on the worker.
            match AbortOnDropHandle::new(large.spawn(answer)).await {
                Ok(answer) => Ok(answer.map(Body::new)),
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
    }))
}

fn greet(gateway: &str, admin: &str, directory: &Path) {
    let kubeconfig = directory.join("admin.kubeconfig");
    say!(
        "fairgate is up\n\
         gateway: {gateway}\n\
         admin:   {admin}\n\
         \n\
         Next, in another terminal:\n\
         \n  export KUBECONFIG={}\n  kubectl get workspaces\n  kubectl create -f - <<EOF\n\
         apiVersion: tenancy.kcp.io/v1alpha1\nkind: Workspace\nmetadata: {{ name: team-a }}\nEOF\n  \
         kubectl --server={gateway}/clusters/root:team-a get namespaces\n\
         \n\
         Ctrl-C stops it; what you made is there again at the next start.",
        fs::canonicalize(&kubeconfig).unwrap_or(kubeconfig).display(),
    );
}
