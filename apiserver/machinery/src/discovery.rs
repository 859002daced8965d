//! Discovery in both forms, legacy and aggregated (api-server.md 1.2, 1.3), rendered once from the table.
//!
//! Nothing depends on the workspace, so all workspaces with the same resources share one [`Discovery`].

mod version;

use std::{collections::BTreeMap, sync::LazyLock};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use sha2::{Digest, Sha256, Sha512};

pub use self::version::compare_versions;
use crate::{builtin, negotiate::DiscoveryForm, resource::Resource};

/// A document as it is sent, and the hash for its ETag (without quotes).
#[derive(Debug)]
pub struct Rendered {
    /// JSON.
    pub body: Vec<u8>,
    /// SHA-512 of the body in upper-case hexadecimal digits, as upstream has it.
    pub hash: String,
}

impl Rendered {
    /// Renders and hashes.
    pub(crate) fn new(value: &Value) -> Self {
        let body = value.to_string().into_bytes();
        let hash = Sha512::digest(&body).iter().map(|b| format!("{b:02X}")).collect();
        Self { body, hash }
    }
}

/// One document in its three forms.
#[derive(Debug)]
struct Forms {
    legacy: Rendered,
    v2: Rendered,
    v2beta1: Rendered,
}

impl Forms {
    fn get(&self, form: DiscoveryForm) -> &Rendered {
        match form {
            DiscoveryForm::Legacy => &self.legacy,
            DiscoveryForm::Aggregated("v2beta1") => &self.v2beta1,
            DiscoveryForm::Aggregated(_) => &self.v2,
        }
    }
}

/// All discovery documents of a set of resources.
#[derive(Debug)]
pub struct Discovery {
    core: Forms,
    groups: Forms,
    group: BTreeMap<String, Rendered>,
    resources: BTreeMap<(String, String), Rendered>,
    paths: Vec<String>,
}

/// A group, its versions in the order of preference, and their resources.
type Groups<'a> = Vec<(&'a str, Vec<(&'a str, Vec<&'a Resource>)>)>;

impl Discovery {
    /// Renders the documents of these resources. Groups keep the order of their first resource.
    pub fn new<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> Self {
        let all = grouped(resources);
        let (core, named): (Groups<'_>, Groups<'_>) = all.iter().cloned().partition(|(group, _)| group.is_empty());
        let versions: Vec<&str> = core.iter().flat_map(|(_, v)| v.iter().map(|(name, _)| *name)).collect();
        let api = api_versions(&versions, &[]);
        let list: Vec<Value> = named.iter().map(|(name, versions)| group(name, versions)).collect();
        let apis = json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": list});
        let mut paths = vec!["/api".to_owned(), "/apis".to_owned()];
        let (mut by_group, mut by_version) = (BTreeMap::new(), BTreeMap::new());
        for (name, versions) in &all {
            if !name.is_empty() {
                let mut document = group(name, versions);
                if let Some(members) = document.as_object_mut() {
                    members.insert("kind".into(), json!("APIGroup"));
                    members.insert("apiVersion".into(), json!("v1"));
                }
                by_group.insert((*name).to_owned(), Rendered::new(&document));
                paths.push(format!("/apis/{name}"));
            }
            for (version, resources) in versions {
                let document = Rendered::new(&resource_list(&group_version(name, version), resources));
                by_version.insert(((*name).to_owned(), (*version).to_owned()), document);
                let prefix = if name.is_empty() { "/api" } else { "/apis" };
                paths.push(format!("{prefix}/{}", group_version(name, version)));
            }
        }
        paths.sort_unstable();
        Self { core: forms(&api, &core), groups: forms(&apis, &named), group: by_group, resources: by_version, paths }
    }

    /// `/api` in the legacy form, with the address (host and port) under which all clients reach the server.
    pub fn core_at(&self, address: &str) -> Rendered {
        let versions: Vec<&str> =
            self.resources.keys().filter(|(group, _)| group.is_empty()).map(|(_, version)| &**version).collect();
        Rendered::new(&api_versions(&versions, &[json!({"clientCIDR": "0.0.0.0/0", "serverAddress": address})]))
    }

    /// `/api`; the legacy form without an address.
    pub fn core(&self, form: DiscoveryForm) -> &Rendered {
        self.core.get(form)
    }

    /// `/apis`.
    pub fn groups(&self, form: DiscoveryForm) -> &Rendered {
        self.groups.get(form)
    }

    /// `/apis/<group>`.
    pub fn group(&self, name: &str) -> Option<&Rendered> {
        self.group.get(name)
    }

    /// `/api/<version>` (with an empty group) and `/apis/<group>/<version>`.
    pub fn resources(&self, group: &str, version: &str) -> Option<&Rendered> {
        self.resources.get(&(group.to_owned(), version.to_owned()))
    }

    /// The paths of all these documents, sorted.
    pub fn paths(&self) -> &[String] {
        &self.paths
    }
}

/// The documents of the built-in resources.
pub fn builtin() -> &'static Discovery {
    static BUILTIN: LazyLock<Discovery> =
        LazyLock::new(|| Discovery::new(builtin::served().iter().chain(builtin::reviews())));
    &BUILTIN
}

fn grouped<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> Groups<'a> {
    let mut groups: Groups<'a> = Vec::new();
    for resource in resources {
        let at = groups.iter().position(|(name, _)| *name == resource.group).unwrap_or_else(|| {
            groups.push((resource.group, vec![]));
            groups.len() - 1
        });
        let Some((_, versions)) = groups.get_mut(at) else { continue };
        match versions.iter_mut().find(|(version, _)| *version == resource.version) {
            Some((_, list)) => list.push(resource),
            None => versions.push((resource.version, vec![resource])),
        }
    }
    for (_, versions) in &mut groups {
        versions.sort_by(|(a, _), (b, _)| compare_versions(a, b));
    }
    groups
}

fn api_versions(versions: &[&str], addresses: &[Value]) -> Value {
    json!({"kind": "APIVersions", "versions": versions, "serverAddressByClientCIDRs": addresses})
}

fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn group(name: &str, versions: &[(&str, Vec<&Resource>)]) -> Value {
    let list: Vec<Value> =
        versions.iter().map(|(v, _)| json!({"groupVersion": group_version(name, v), "version": v})).collect();
    json!({"name": name, "versions": list, "preferredVersion": list.first()})
}

/// A subresource that is only created, with a kind of its own, if the resource has one.
pub(crate) fn action(resource: &Resource) -> Option<(&'static str, &'static Resource)> {
    let has_tokens = resource.group.is_empty() && resource.plural == "serviceaccounts";
    has_tokens.then_some(("token", &builtin::TOKEN_REQUESTS))
}

/// What a subresource is served with.
fn subresource_verbs(name: &str) -> &'static [&'static str] {
    if name == "finalize" { &["update"] } else { &["get", "patch", "update"] }
}

fn resource_list(group_version: &str, resources: &[&Resource]) -> Value {
    let mut list = Vec::new();
    for r in resources {
        let mut entry = json!({
            "name": r.plural, "singularName": r.singular, "namespaced": r.is_namespaced(), "kind": r.kind,
            "verbs": r.verbs, "storageVersionHash": storage_version_hash(r),
        });
        add_names(&mut entry, r);
        list.push(entry);
        for sub in r.subresources {
            list.push(json!({
                "name": format!("{}/{sub}", r.plural), "singularName": "", "namespaced": r.is_namespaced(),
                "kind": r.kind, "verbs": subresource_verbs(sub),
            }));
        }
        if let Some((sub, of)) = action(r) {
            list.push(json!({
                "name": format!("{}/{sub}", r.plural), "singularName": "", "namespaced": r.is_namespaced(),
                "group": of.group, "version": of.version, "kind": of.kind, "verbs": of.verbs,
            }));
        }
    }
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": list})
}

/// Short names and categories, where there are any.
fn add_names(entry: &mut Value, resource: &Resource) {
    let Some(members) = entry.as_object_mut() else { return };
    if !resource.short_names.is_empty() {
        members.insert("shortNames".into(), json!(resource.short_names));
    }
    if !resource.categories.is_empty() {
        members.insert("categories".into(), json!(resource.categories));
    }
}

/// As upstream computes it.
fn storage_version_hash(r: &Resource) -> String {
    let hash = Sha256::digest(format!("{}/{}/{}", r.group, r.version, r.kind));
    STANDARD.encode(hash.get(..8).unwrap_or_default())
}

fn forms(legacy: &Value, groups: &Groups<'_>) -> Forms {
    let aggregated = |version: &str| {
        let items: Vec<Value> = groups.iter().map(|(name, versions)| aggregated_group(name, versions)).collect();
        Rendered::new(&json!({
            "kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"),
            "metadata": {}, "items": items,
        }))
    };
    Forms { legacy: Rendered::new(legacy), v2: aggregated("v2"), v2beta1: aggregated("v2beta1") }
}

fn aggregated_group(name: &str, versions: &[(&str, Vec<&Resource>)]) -> Value {
    let metadata = if name.is_empty() { json!({}) } else { json!({ "name": name }) };
    let versions: Vec<Value> = versions
        .iter()
        .map(|(version, resources)| {
            let resources: Vec<Value> = resources.iter().map(|r| aggregated_resource(r)).collect();
            json!({"version": version, "freshness": "Current", "resources": resources})
        })
        .collect();
    json!({"metadata": metadata, "versions": versions})
}

fn aggregated_resource(r: &Resource) -> Value {
    let kind = json!({"group": r.group, "version": r.version, "kind": r.kind});
    let mut entry = json!({
        "resource": r.plural, "responseKind": kind, "scope": if r.is_namespaced() { "Namespaced" } else { "Cluster" },
        "singularResource": r.singular, "verbs": r.verbs,
    });
    add_names(&mut entry, r);
    let sub = |name: &&str| json!({"subresource": name, "responseKind": kind, "verbs": subresource_verbs(name)});
    let mut list: Vec<Value> = r.subresources.iter().map(sub).collect();
    list.extend(action(r).map(|(name, of)| {
        let kind = json!({"group": of.group, "version": of.version, "kind": of.kind});
        json!({"subresource": name, "responseKind": kind, "verbs": of.verbs})
    }));
    if !list.is_empty() {
        crate::object::set(&mut entry, "subresources", list);
    }
    entry
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(document: &Rendered) -> Value {
        serde_json::from_slice(&document.body).unwrap()
    }

    #[test]
    fn legacy_documents() {
        let d = builtin();
        assert_eq!(read(d.core(DiscoveryForm::Legacy))["versions"], json!(["v1"]));
        let at = read(&d.core_at("a.dev:6443"));
        let entry = json!([{"clientCIDR": "0.0.0.0/0", "serverAddress": "a.dev:6443"}]);
        assert_eq!((&at["versions"], &at["serverAddressByClientCIDRs"]), (&json!(["v1"]), &entry));
        let groups = read(d.groups(DiscoveryForm::Legacy));
        let names: Vec<&str> =
            groups["groups"].as_array().unwrap().iter().map(|g| g["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            [
                "coordination.k8s.io",
                "flowcontrol.apiserver.k8s.io",
                "core.kcp.io",
                "tenancy.kcp.io",
                "events.k8s.io",
                "authentication.k8s.io",
                "authorization.k8s.io"
            ]
        );
        let group = read(d.group("tenancy.kcp.io").unwrap());
        assert_eq!(group["preferredVersion"]["groupVersion"], "tenancy.kcp.io/v1alpha1");
        assert_eq!((&group["kind"], d.group("").is_none()), (&json!("APIGroup"), true));
        assert!(d.resources("", "v9").is_none());
    }

    /// Entries of the core group as recorded from upstream.
    #[test]
    fn core_resources_are_upstreams() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/vectors/kubectl/http-probes.json");
        let probes: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
        let recorded = |id: &str| {
            let probe = probes["entries"].as_array().unwrap().iter().find(|p| p["id"] == id).unwrap();
            probe["response"]["body"].clone()
        };
        let ours = read(builtin().resources("", "v1").unwrap());
        let mut seen = 0;
        for want in recorded("api-v1")["resources"].as_array().unwrap() {
            let Some(got) = ours["resources"].as_array().unwrap().iter().find(|r| r["name"] == want["name"]) else {
                continue;
            };
            // Recorded from a composition that allows more for namespaces than a kube-apiserver does.
            if want["name"].as_str().unwrap().starts_with("namespaces") {
                assert_eq!((&got["kind"], &got["shortNames"]), (&want["kind"], &want["shortNames"]));
            } else {
                assert_eq!(got, want);
            }
            seen += 1;
        }
        assert!(seen >= 5, "{seen}");
        let aggregated = read(builtin().core(DiscoveryForm::Aggregated("v2")));
        for want in recorded("api-agg")["items"][0]["versions"][0]["resources"].as_array().unwrap() {
            let all = aggregated["items"][0]["versions"][0]["resources"].as_array().unwrap();
            let Some(got) = all.iter().find(|r| r["resource"] == want["resource"]) else { continue };
            if want["resource"] == "namespaces" {
                continue;
            }
            // Upstream leaves group and version to be filled in by the client.
            let mut got = got.clone();
            got["responseKind"]["version"] = json!("");
            if want["resource"] == "serviceaccounts" {
                // Recorded from a composition that makes no tokens.
                let subresources = got.as_object_mut().unwrap().remove("subresources").unwrap();
                assert_eq!(subresources[0]["responseKind"]["kind"], "TokenRequest");
            }
            for sub in got["subresources"].as_array_mut().into_iter().flatten() {
                sub["responseKind"]["version"] = json!("");
            }
            if got["subresources"].is_null() {
                got.as_object_mut().unwrap().remove("subresources");
            }
            assert_eq!(&got, want);
        }
    }

    #[test]
    fn aggregated_documents() {
        let d = builtin();
        let (new, old) = (d.groups(DiscoveryForm::Aggregated("v2")), d.groups(DiscoveryForm::Aggregated("v2beta1")));
        assert_ne!(new.hash, old.hash);
        assert_eq!(new.hash.len(), 128);
        assert_eq!(read(old)["apiVersion"], "apidiscovery.k8s.io/v2beta1");
        let workspaces = &read(new)["items"][3]["versions"][0]["resources"][0];
        assert_eq!(workspaces["subresources"][0]["subresource"], "status");
        assert_eq!(workspaces["responseKind"]["kind"], "Workspace");
        assert_eq!((&workspaces["scope"], &workspaces["categories"]), (&json!("Cluster"), &json!(["kcp"])));
        assert_eq!(read(d.core(DiscoveryForm::Aggregated("v2")))["items"][0]["metadata"], json!({}));
    }
}
