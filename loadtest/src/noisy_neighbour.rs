//! The scenario: one tenant floods, others send at a fixed rate.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, bail};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::NoisyNeighbour,
    client::Endpoint,
    control::{make_tenant, remove_tenants},
    instance::{Instance, Setup, find},
    kubeconfig,
    phase::{self, Tenants},
    progress::Progress,
    reload::{self, Reloader},
    report::{Report, Run, ratios},
};

/// Runs the scenario and prints the result; false when a limit was not kept.
///
/// # Errors
/// Whatever kept the scenario from being carried out.
pub(crate) async fn run(args: &NoisyNeighbour, stop: &CancellationToken) -> anyhow::Result<bool> {
    let mut report = Report {
        scenario: "noisy-neighbour",
        setting: setting(args),
        runs: Vec::new(),
        ratio_limit: args.assert_victim_p99_ratio,
        assert_answers: args.assert_answers,
        failures: Vec::new(),
        residue: Vec::new(),
    };
    let phases = if args.kubeconfig.is_some() { 2 } else { 4 };
    let progress = Progress::new(phases * (args.warmup + args.duration));
    match &args.kubeconfig {
        Some(file) => {
            let endpoint = Arc::new(kubeconfig::load(file)?);
            let (run, residue) = against_running(args, &endpoint, &progress, stop).await?;
            report.runs.push(run);
            report.residue = residue;
        }
        None => {
            let binary = find(args.fairgate.as_deref())?;
            for fairness in [true, false] {
                report.runs.push(against_own(args, &binary, fairness, &progress, stop).await?);
            }
        }
    }
    drop(progress);
    report.judge();
    print!("{}", report.table());
    if let Some(file) = &args.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(file, json).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(report.failures.is_empty())
}

fn setting(args: &NoisyNeighbour) -> String {
    let server = match &args.kubeconfig {
        Some(file) => format!("the server of {}", file.display()),
        None => format!("own fairgate, {} seats", args.seats),
    };
    format!(
        "{server}; {} workspaces below root (flat), {} objects each; flood: {} connections, {:?}, {:?}; victims: {} at {}/s each, \
         {:?}, {:?}; {:?} per phase after {:?} of warm-up; {} level(s)",
        args.victims + 1,
        args.objects,
        args.flood_connections,
        args.request,
        args.flood_manners,
        args.victims,
        args.victim_rate,
        args.victim_request,
        args.victim_manners,
        args.duration,
        args.warmup,
        args.levels,
    )
}

/// Both phases against a fairgate started for it.
async fn against_own(
    args: &NoisyNeighbour,
    binary: &std::path::Path,
    fairness: bool,
    progress: &Progress,
    stop: &CancellationToken,
) -> anyhow::Result<Run> {
    let title = if fairness { "fairness on" } else { "fairness off" };
    progress.step(&format!("{title}: starting {}", binary.display()));
    let rate = args.reload_per_second.filter(|_| fairness);
    let content = rate.map(|_| reload::content(0));
    let setup = Setup { seats: args.seats, fairness, fairness_file: content.as_deref(), limits: None };
    let starting = Instance::start(binary, setup);
    let instance = stop.run_until_cancelled(starting).await.context("interrupted")??;
    let run = async {
        let endpoint = Arc::new(kubeconfig::load(&instance.kubeconfig())?);
        let tenants = tenants(args);
        make_all(args, &endpoint, &tenants, title, progress, stop).await?;
        let memory_before = instance.memory();
        let reloader = rate.map(|rate| Reloader::start(&instance, rate)).transpose()?;
        let run = phases(args, &endpoint, &tenants, title, progress, stop).await?;
        let reloads = match reloader {
            Some(reloader) => Some(reloader.stop(&instance).await?),
            None => None,
        };
        anyhow::Ok(Run { memory_before, memory_after: instance.memory(), reloads, ..run })
    };
    let run = run.await;
    instance.stop().await?;
    run
}

/// Both phases against a server that was there before and is left as it was found.
async fn against_running(
    args: &NoisyNeighbour,
    endpoint: &Arc<Endpoint>,
    progress: &Progress,
    stop: &CancellationToken,
) -> anyhow::Result<(Run, Vec<String>)> {
    if !endpoint.address.ip().is_loopback() && !args.allow_remote {
        bail!("{} is not on this machine: a load test there needs --allow-remote", endpoint.address);
    }
    let tenants = tenants(args);
    let run = async {
        make_all(args, endpoint, &tenants, "running fairgate", progress, stop).await?;
        phases(args, endpoint, &tenants, "running fairgate", progress, stop).await
    };
    let run = run.await;
    progress.step("removing the workspaces");
    let residue = remove_tenants(endpoint, tenants.all()).await.context("removing the workspaces");
    Ok((run?, residue?))
}

/// Names that no other run uses.
fn tenants(args: &NoisyNeighbour) -> Tenants {
    let run = format!("lt-{:06x}", RandomState::new().hash_one(std::process::id()) & 0xff_ffff);
    Tenants {
        victims: (1..=args.victims).map(|n| format!("{run}-victim-{n}")).collect(),
        flood: format!("{run}-flood"),
    }
}

async fn make_all(
    args: &NoisyNeighbour,
    endpoint: &Arc<Endpoint>,
    tenants: &Tenants,
    title: &str,
    progress: &Progress,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    progress.step(&format!("{title}: making {} workspaces", args.victims + 1));
    for workspace in tenants.all() {
        let making = make_tenant(endpoint, workspace, args.objects);
        let made = stop.run_until_cancelled(making).await.context("interrupted")?;
        made.with_context(|| format!("making workspace {workspace}"))?;
    }
    Ok(())
}

async fn phases(
    args: &NoisyNeighbour,
    endpoint: &Arc<Endpoint>,
    tenants: &Tenants,
    title: &str,
    progress: &Progress,
    stop: &CancellationToken,
) -> anyhow::Result<Run> {
    let planned: Duration = args.warmup + args.duration;
    progress.step(&format!("{title}: victims alone"));
    let alone = progress.during(planned, phase::run(args, endpoint, tenants, false, stop)).await?;
    progress.step(&format!("{title}: victims and flood"));
    let both = progress.during(planned, phase::run(args, endpoint, tenants, true, stop)).await?;
    let flooded: Vec<_> = both.victims.into_iter().chain(both.flood).collect();
    Ok(Run {
        title: title.to_owned(),
        ratios: ratios(&alone.victims, &flooded),
        baseline: alone.victims,
        flooded,
        levels: both.levels,
        reloads: None,
        memory_before: None,
        memory_after: None,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::{
        cli::{Cli, Command},
        stub::Stub,
    };

    fn args(more: &[&str]) -> NoisyNeighbour {
        let fixed = ["loadtest", "noisy-neighbour", "--warmup", "100ms", "--objects", "10"];
        let command = Cli::try_parse_from(fixed.iter().chain(more)).unwrap().command;
        let Command::NoisyNeighbour(args) = command else { panic!("another scenario") };
        args
    }

    #[tokio::test]
    async fn a_running_server_is_left_as_it_was_found() {
        let stub = Stub::start().await;
        let place = tempfile::tempdir().unwrap();
        let (config, json) = (stub.kubeconfig(place.path()), place.path().join("result.json"));
        let more = ["--kubeconfig", config.to_str().unwrap(), "--json", json.to_str().unwrap()];
        let more =
            more.into_iter().chain(["--duration", "300ms", "--flood-connections", "5", "--victim-connections", "4"]);
        let passed = run(&args(&more.collect::<Vec<_>>()), &CancellationToken::new()).await.unwrap();
        let result: serde_json::Value = serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
        assert!(passed, "{result}");
        let run = &result["runs"][0];
        assert_eq!((run["baseline"].as_array().unwrap().len(), run["flooded"].as_array().unwrap().len()), (3, 4));
        assert_eq!(run["flooded"][0]["ok"], 15);
        assert!(run["flooded"][3]["ok"].as_u64().unwrap() > 0);
        assert_eq!((stub.made(), stub.workspaces()), (4, Vec::<String>::new()));
        assert!(stub.strangers().is_empty(), "only tenants' traffic: {:?}", stub.strangers());
    }

    #[tokio::test]
    async fn an_interrupted_run_cleans_up_too() {
        let stub = Stub::start().await;
        let place = tempfile::tempdir().unwrap();
        let config = stub.kubeconfig(place.path());
        let args = args(&["--kubeconfig", config.to_str().unwrap(), "--duration", "60m"]);
        let stop = CancellationToken::new();
        let interrupt = async {
            while stub.made() < 4 || stub.traffic() == 0 {
                tokio::task::yield_now().await;
            }
            stop.cancel();
        };
        let (outcome, ()) = tokio::join!(run(&args, &stop), interrupt);
        assert!(outcome.is_err());
        assert_eq!(stub.workspaces(), Vec::<String>::new());
    }

    #[tokio::test]
    async fn targets_elsewhere_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("config");
        std::fs::write(&config, crate::stub::kubeconfig("http://192.0.2.1:1")).unwrap();
        let error = run(&args(&["--kubeconfig", config.to_str().unwrap()]), &CancellationToken::new()).await;
        assert!(format!("{:#}", error.unwrap_err()).contains("--allow-remote"));
    }
}
