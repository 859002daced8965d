//! Informers and controllers of the field against the real binary: kube-rs, and the Python client. No event is lost or
//! repeated, versions go on, and a history that is gone is survived.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "what fails here is a failed test")]

mod controller;
mod python;
mod restart;
mod resume;

use std::{collections::BTreeMap, path::PathBuf};

use k8s_openapi::{api::core::v1::ConfigMap, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};

use crate::common::Dev;

/// The namespace of all these tests.
const NAMESPACE: &str = "default";

/// A kubeconfig for a workspace.
fn kubeconfig(dev: &Dev, workspace: &str) -> PathBuf {
    let text = std::fs::read_to_string(dev.data_dir.join("admin.kubeconfig")).unwrap();
    let path = dev.data_dir.join(format!("{workspace}.kubeconfig"));
    std::fs::write(&path, text.replace("/clusters/root", &format!("/clusters/root:{workspace}"))).unwrap();
    path
}

/// A kube-rs client of a workspace.
async fn maps(dev: &Dev, workspace: &str) -> Api<ConfigMap> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let file = Kubeconfig::read_from(kubeconfig(dev, workspace)).unwrap();
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    Api::namespaced(Client::try_from(config).unwrap(), NAMESPACE)
}

/// A ConfigMap with one entry.
fn map(name: &str, value: &str) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta { name: Some(name.into()), ..ObjectMeta::default() },
        data: Some(BTreeMap::from([("k".into(), value.into())])),
        ..ConfigMap::default()
    }
}

/// Its version as a number, which they are here.
fn version(map: &ConfigMap) -> u64 {
    map.metadata.resource_version.as_ref().unwrap().parse().unwrap()
}
