//! Workspaces come and go by the hundred, and everything that belongs to them with them.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

use crate::common::{Dev, until};
use futures_util::StreamExt;
use serde_json::json;

const WORKSPACES: usize = 200;
const OBSERVERS: &str = r#"fairgate_observers_workspaces{shard="root"}"#;

/// The value of a series of the admin address, labels included in the name.
fn series(dev: &Dev, name: &str) -> Option<f64> {
    let text = tokio::task::block_in_place(|| {
        let url = format!("{}/metrics", dev.admin);
        tokio::runtime::Handle::current().block_on(async { reqwest::get(url).await.unwrap().text().await.unwrap() })
    });
    text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observers_and_series_live_and_die_with_their_workspace() {
    let directory = tempfile::tempdir().unwrap();
    let dev = Dev::start(directory.path(), &[]);
    let client = dev.client();
    let workspaces = format!("{}/clusters/root/apis/tenancy.kcp.io/v1alpha1/workspaces", dev.gateway);
    let before = until("the observers' gauge", || series(&dev, OBSERVERS));

    let create = |n: usize| {
        let (client, workspaces) = (client.clone(), workspaces.clone());
        async move {
            let body = json!({"apiVersion": "tenancy.kcp.io/v1alpha1", "kind": "Workspace",
                "metadata": {"name": format!("w{n}")}});
            let answer = client.post(workspaces).json(&body).send().await.unwrap();
            assert_eq!(answer.status(), 201, "{}", answer.text().await.unwrap());
        }
    };
    futures_util::stream::iter((0..WORKSPACES).map(create)).buffer_unordered(16).collect::<Vec<()>>().await;
    until("an observer for each", || (series(&dev, OBSERVERS)? == before + WORKSPACES as f64).then_some(()));

    // Traffic, so that there is a series.
    let used = format!("{}/clusters/root:w7/api/v1/configmaps", dev.gateway);
    let as_user = || client.get(&used).header("impersonate-user", "u").header("impersonate-group", "system:kcp:admin");
    let answer = until("w7 is served", || {
        let answer = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(as_user().send()));
        Some(answer.unwrap()).filter(|answer| answer.status() == 200)
    });
    assert!(answer.headers().contains_key("x-kubernetes-pf-flowschema-uid"));

    for n in 0..WORKSPACES / 2 {
        let answer = client.delete(format!("{workspaces}/w{n}")).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }
    until("half of the observers are gone", || {
        (series(&dev, OBSERVERS)? == before + (WORKSPACES / 2) as f64).then_some(())
    });
    until("w7 is refused", || {
        let answer = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(as_user().send()));
        (answer.unwrap().status() == 403).then_some(())
    });
    assert_eq!(dev.interrupt(), Some(0));
}
