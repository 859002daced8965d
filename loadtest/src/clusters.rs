//! The scenario: very many workspaces, with few objects in each: memory, reads, start-up time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::Value;
use tokio::{task::JoinSet, time::sleep};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::Clusters,
    client::{Connection, Endpoint},
    instance::{Instance, Setup, find},
    kubeconfig,
    progress::Progress,
    traffic::headers,
    watches::Figures,
};

const WORKSPACES: &str = "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces";
/// What every new workspace gets last, twice.
const SERVICE_ACCOUNTS: &str = "/clusters/*/api/v1/serviceaccounts";
const PAGE: &str = "/clusters/*/api/v1/configmaps?limit=500";
/// Connections that write.
const WRITERS: u64 = 64;
/// Connections that read while that is measured.
const READERS: u64 = 4;
const READ_FOR: Duration = Duration::from_secs(5);
/// Longest time without a new workspace that is ready.
const STALL_MAX: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_secs(1);

/// Runs the scenario and prints the result.
///
/// # Errors
/// Whatever kept the scenario from being carried out.
pub(crate) async fn run(args: &Clusters, stop: &CancellationToken) -> anyhow::Result<bool> {
    let setup = Setup { seats: 600, fairness: true, fairness_file: None, limits: None };
    let binary = find(args.fairgate.as_deref())?;
    let starting = Instance::start(&binary, setup);
    let mut instance = stop.run_until_cancelled(starting).await.context("interrupted")??;
    let outcome = stop.run_until_cancelled(measure(args, &mut instance)).await.context("interrupted");
    instance.stop().await?;
    print!("{}", outcome??);
    Ok(true)
}

async fn measure(args: &Clusters, instance: &mut Instance) -> anyhow::Result<String> {
    let (clusters, objects) = (u64::from(args.clusters), u64::from(args.clusters) * u64::from(args.objects));
    let progress = Progress::new(Duration::ZERO);
    let endpoint = Arc::new(kubeconfig::load(&instance.kubeconfig())?);
    let before = service_accounts(&endpoint).await?.0;
    let (empty, began) = (Figures::of(instance), Instant::now());

    progress.step(&format!("{clusters} workspaces"));
    write(&endpoint, clusters, |n| (WORKSPACES.to_owned(), workspace(n))).await?;
    settle(&endpoint, before + 2 * clusters).await?;
    let (settled, made) = (Figures::of(instance), began.elapsed());

    progress.step(&format!("{objects} objects"));
    let began = Instant::now();
    let path = move |n: u64| format!("/clusters/root:w{}/api/v1/namespaces/default/configmaps", n % clusters);
    write(&endpoint, objects, move |n| (path(n), configmap(n))).await?;
    let (filled, written) = (Figures::of(instance), began.elapsed());

    progress.step("reads");
    let one = move |n: u64| format!("{}/object-{}", path(n), n);
    let get = read(&endpoint, instance, move |n| one(n * 7919 % objects)).await?;
    let list = read(&endpoint, instance, |_| PAGE.to_owned()).await?;

    progress.step("a start with all of it");
    let began = Instant::now();
    instance.restart().await?;
    let (start, started) = (began.elapsed(), Figures::of(instance));
    let each = |from: &Figures, to: &Figures, count: u64| (to.memory as f64 - from.memory as f64) / count as f64;
    Ok(format!(
        "{clusters} workspaces with {} objects each (gateway and API server in one process)\n\
         workspaces   {:.0} s; {} before, {} with them: {:.1} KiB for each\n\
         objects      {:.0} s, {:.0} creates/s; {} with them: {:.0} bytes for each\n\
         GET          {:.0} us of processor each, {:.0}/s\n\
         LIST of 500  {:.0} us of processor each, {:.0}/s\n\
         start        {:.2} s from the start to serving; {} then\n",
        args.objects,
        made.as_secs_f64(),
        empty.mib(),
        settled.mib(),
        each(&empty, &settled, clusters) / 1024.0,
        written.as_secs_f64(),
        objects as f64 / written.as_secs_f64(),
        filled.mib(),
        each(&settled, &filled, objects),
        get.0,
        get.1,
        list.0,
        list.1,
        start.as_secs_f64(),
        started.mib(),
    ))
}

fn workspace(n: u64) -> Bytes {
    format!(r#"{{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{{"name":"w{n}"}}}}"#).into()
}

fn configmap(n: u64) -> Bytes {
    let value = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"object-{n}"}},"data":{{"key":"{value:016x}"}}}}"#
    )
    .into()
}

fn request(endpoint: &Endpoint, method: Method, path: &str, body: Bytes) -> anyhow::Result<Request<Full<Bytes>>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = method;
    *request.uri_mut() = path.parse()?;
    *request.headers_mut() = headers(endpoint, None)?;
    Ok(request)
}

/// Posts `count` bodies, each to its path, over [`WRITERS`] connections.
async fn write(
    endpoint: &Arc<Endpoint>,
    count: u64,
    what: impl Fn(u64) -> (String, Bytes) + Copy + Send + 'static,
) -> anyhow::Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (endpoint, next) = (Arc::clone(endpoint), Arc::clone(&next));
        writers.spawn(async move {
            let mut connection = Connection::new(Arc::clone(&endpoint));
            loop {
                let n = next.fetch_add(1, Relaxed);
                if n >= count {
                    return anyhow::Ok(());
                }
                let (path, body) = what(n);
                let answer = connection.exchange(request(&endpoint, Method::POST, &path, body)?).await?;
                ensure!(answer.status == StatusCode::CREATED, "POST {path}: status {}", answer.status);
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.context("a writer panicked")??;
    }
    Ok(())
}

/// How many there are, and the revision.
async fn service_accounts(endpoint: &Arc<Endpoint>) -> anyhow::Result<(u64, String)> {
    let path = format!("{SERVICE_ACCOUNTS}?limit=1");
    let asked = request(endpoint, Method::GET, &path, Bytes::new())?;
    let (status, body) = Connection::new(Arc::clone(endpoint)).fetch(asked).await?;
    ensure!(status == StatusCode::OK, "GET {path}: status {status}");
    let list: Value = serde_json::from_slice(&body)?;
    let shown = list.pointer("/items").and_then(Value::as_array).map_or(0, Vec::len) as u64;
    let behind = list.pointer("/metadata/remainingItemCount").and_then(Value::as_u64).unwrap_or(0);
    let revision = list.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
    Ok((shown + behind, revision.to_owned()))
}

/// Waits until the controllers have made everything and rest.
async fn settle(endpoint: &Arc<Endpoint>, wanted: u64) -> anyhow::Result<()> {
    let (mut last, mut changed) = ((0, String::new()), Instant::now());
    loop {
        let now = service_accounts(endpoint).await?;
        if now == last && now.0 >= wanted {
            return Ok(());
        }
        if now != last {
            changed = Instant::now();
        }
        ensure!(changed.elapsed() < STALL_MAX, "{} of {wanted} service accounts are there, and no more come", now.0);
        last = now;
        sleep(POLL).await;
    }
}

/// Reads for a while: microseconds of the server's processor time for each request, and requests a second.
async fn read(
    endpoint: &Arc<Endpoint>,
    instance: &Instance,
    path: impl Fn(u64) -> String + Copy + Send + 'static,
) -> anyhow::Result<(f64, f64)> {
    let (before, began) = (Figures::of(instance), Instant::now());
    let mut readers = JoinSet::new();
    for reader in 0..READERS {
        let endpoint = Arc::clone(endpoint);
        readers.spawn(async move {
            let mut connection = Connection::new(Arc::clone(&endpoint));
            let mut count = 0;
            while began.elapsed() < READ_FOR {
                let path = path(count * READERS + reader);
                let answer = connection.exchange(request(&endpoint, Method::GET, &path, Bytes::new())?).await?;
                ensure!(answer.status == StatusCode::OK, "GET {path}: status {}", answer.status);
                count += 1;
            }
            Ok(count)
        });
    }
    let mut count = 0;
    while let Some(done) = readers.join_next().await {
        count += done.context("a reader panicked")??;
    }
    let cpu = Figures::of(instance).cpu - before.cpu;
    Ok((cpu.as_micros() as f64 / count.max(1) as f64, count as f64 / began.elapsed().as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_are_objects_with_names_of_their_own() {
        for make in [workspace, configmap] {
            let names = [3, 4].map(|n| serde_json::from_slice::<Value>(&make(n)).unwrap()["metadata"]["name"].clone());
            assert!(names[0].is_string() && names[0] != names[1], "{names:?}");
        }
    }
}
