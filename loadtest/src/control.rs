//! Makes the tenants' workspaces and objects, and removes them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::Full;
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use crate::{
    client::{Connection, Endpoint},
    traffic::{NAMESPACE, configmap, configmaps, headers, object},
};

const WORKSPACES: &str = "/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces";
/// Longest time for one tenant to be set up, and for all to be removed.
const SETUP_MAX: Duration = Duration::from_secs(60);
/// Pause between two looks.
const POLL: Duration = Duration::from_millis(50);
/// Writers of objects.
const WRITERS: u64 = 8;

/// A connection with headers of its own.
struct Caller {
    connection: Connection,
    headers: HeaderMap,
}

impl Caller {
    /// The administrator, or with `user` a tenant.
    fn new(endpoint: &Arc<Endpoint>, user: Option<&str>) -> anyhow::Result<Self> {
        Ok(Self { connection: Connection::new(Arc::clone(endpoint)), headers: headers(endpoint, user)? })
    }

    async fn call(&mut self, method: Method, path: &str, body: Bytes) -> anyhow::Result<(StatusCode, Value)> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method.clone();
        *request.uri_mut() = path.parse()?;
        *request.headers_mut() = self.headers.clone();
        let (status, body) = self.connection.fetch(request).await.with_context(|| format!("{method} {path}"))?;
        Ok((status, serde_json::from_slice(&body).unwrap_or_default()))
    }

    /// Calls until `done` accepts the answer. Answers that say "not yet" are taken as such; others are errors.
    async fn until(
        &mut self,
        method: Method,
        path: &str,
        body: Bytes,
        done: impl Fn(StatusCode, &Value) -> bool,
    ) -> anyhow::Result<()> {
        let give_up_at = Instant::now() + SETUP_MAX;
        loop {
            let (status, answer) = self.call(method.clone(), path, body.clone()).await?;
            if done(status, &answer) {
                return Ok(());
            }
            // A workspace that has just become ready may be unknown or forbidden until the index has it.
            let not_yet = status.is_success() || matches!(status.as_u16(), 403 | 404 | 429 | 500 | 503);
            if !not_yet || Instant::now() > give_up_at {
                let message = answer.get("message").and_then(Value::as_str).unwrap_or("no message");
                bail!("{method} {path}: status {status}: {message}");
            }
            sleep(POLL).await;
        }
    }
}

/// Created now or earlier.
fn exists(status: StatusCode, _: &Value) -> bool {
    status.is_success() || status == StatusCode::CONFLICT
}

/// Makes a tenant's workspace below root, its namespace and its objects; returns when all of it is served.
pub(crate) async fn make_tenant(endpoint: &Arc<Endpoint>, workspace: &str, objects: u32) -> anyhow::Result<()> {
    let mut admin = Caller::new(endpoint, None)?;
    let body = json!({
        "apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace", "metadata": { "name": workspace }, "spec": {},
    });
    admin.until(Method::POST, WORKSPACES, body.to_string().into(), exists).await?;
    let path = format!("{WORKSPACES}/{workspace}");
    admin
        .until(Method::GET, &path, Bytes::new(), |_, ws| {
            ws.pointer("/status/phase").is_some_and(|phase| phase == "Ready")
        })
        .await?;

    let mut tenant = Caller::new(endpoint, Some(workspace))?;
    let body = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE } }).to_string();
    tenant.until(Method::POST, &format!("/clusters/root:{workspace}/api/v1/namespaces"), body.into(), exists).await?;

    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let mut tenant = Caller::new(endpoint, Some(workspace))?;
        let path = configmaps(workspace);
        writers.spawn(async move {
            for number in (writer..u64::from(objects)).step_by(WRITERS as usize) {
                tenant.until(Method::POST, &path, configmap(&object(number), 0), exists).await?;
            }
            anyhow::Ok(())
        });
    }
    while let Some(written) = writers.join_next().await {
        written.context("a writer panicked")??;
    }
    Ok(())
}

/// Deletes the workspaces and waits until they are gone; returns those that are not.
pub(crate) async fn remove_tenants(
    endpoint: &Arc<Endpoint>,
    workspaces: impl Iterator<Item = &str>,
) -> anyhow::Result<Vec<String>> {
    let mut admin = Caller::new(endpoint, None)?;
    let mut left: Vec<String> = workspaces.map(str::to_owned).collect();
    for workspace in &left {
        admin.call(Method::DELETE, &format!("{WORKSPACES}/{workspace}"), Bytes::new()).await?;
    }
    let give_up_at = Instant::now() + SETUP_MAX;
    while !left.is_empty() && Instant::now() < give_up_at {
        let mut still = Vec::new();
        for workspace in left {
            let (status, _) = admin.call(Method::GET, &format!("{WORKSPACES}/{workspace}"), Bytes::new()).await?;
            if status != StatusCode::NOT_FOUND {
                still.push(workspace);
            }
        }
        left = still;
        sleep(POLL).await;
    }
    Ok(left)
}
