//! Controllers of the bundled API server, over all logical clusters at once: workspaces get and lose their
//! logical cluster, terminating namespaces and clusters lose their content, objects go with their owners, quotas say
//! what is used, each namespace has its service account.
//!
//! A controller is a few watches over every cluster, one queue of keys, and a function that looks at one object as it
//! is now and does the next step towards what it should be. Nothing is remembered between two looks (but for the graph
//! of owners, and for how long a quota has been too high, which are made anew at each start), so a crash at any moment is repaired by the first look after the
//! restart. There is no task, timer or memory per workspace.

mod address;
mod condition;
mod content;
mod controller;
mod garbage;
mod logical_cluster;
mod namespace;
mod queue;
mod quota;
mod service_account;
mod workspace;

use std::future::Future;

use apiserver_api::Status;
use apiserver_machinery::{Resource, builtin};
use apiserver_server::Registry;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// What the controllers need to know.
#[derive(Clone, Debug)]
pub struct Options {
    /// What clients see in front of `/clusters/<path>`, for example `https://127.0.0.1:6443`; no slash at the end.
    pub external_url: String,
    /// Name of this shard.
    pub shard: String,
}

/// Runs all controllers until `shutdown`. From this call on, before the first poll, the server is not ready until each of
/// them knows all that there is.
///
/// # Cancel safety
/// Every write is whole by itself; what was not done is done after the next start.
pub fn run(registry: Registry, options: Options, shutdown: CancellationToken) -> impl Future<Output = ()> + Send {
    let addresses = address::follow(registry.clone(), options.clone());
    let addresses = shutdown.clone().run_until_cancelled_owned(addresses);
    let workspaces = controller::run(&registry, workspace::Workspaces::new(registry.clone(), options), &shutdown);
    let clusters = controller::run(&registry, logical_cluster::LogicalClusters::new(registry.clone()), &shutdown);
    let namespaces = controller::run(&registry, namespace::Namespaces::new(registry.clone()), &shutdown);
    let accounts = controller::run(&registry, service_account::ServiceAccounts::new(registry.clone()), &shutdown);
    let quotas = controller::run(&registry, quota::Quotas::new(registry.clone()), &shutdown);
    let garbage = garbage::run(registry.clone(), shutdown.clone());
    async move {
        let tasks = TaskTracker::new();
        tasks.spawn(addresses);
        tasks.spawn(workspaces);
        tasks.spawn(clusters);
        tasks.spawn(namespaces);
        tasks.spawn(accounts);
        tasks.spawn(quotas);
        tasks.spawn(garbage);
        tasks.spawn(follow_removals(registry, shutdown));
        tasks.close();
        tasks.wait().await;
    }
}

/// Ends the watches of clusters that other servers on the same store remove.
async fn follow_removals(registry: Registry, shutdown: CancellationToken) {
    while let Some(status) = shutdown.run_until_cancelled(registry.follow_removals()).await {
        tracing::warn!(error = %status, "the watch of removed clusters ended, beginning anew");
        shutdown.run_until_cancelled(tokio::time::sleep(controller::REWATCH_AFTER)).await;
    }
}

/// An entry of the table of built-in resources.
fn resource(group: &str, version: &str, plural: &str) -> &'static Resource {
    builtin::find(group, version, plural).expect("the controllers name only resources of the table")
}

/// The outcome of a write to an object that may be gone meanwhile, which is fine.
fn unless_gone<T>(outcome: Result<T, Status>) -> Result<(), Status> {
    match outcome {
        Ok(_) => Ok(()),
        Err(status) if status.code == 404 => Ok(()),
        Err(status) => Err(status),
    }
}
