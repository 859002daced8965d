//! URLs of workspaces and logical clusters follow the address of their server, which may be another at each start.
//!
//! Looked at once, at the start: servers on one store that have different addresses would change them in turns for ever.

use apiserver_api::{Status, marks};
use apiserver_machinery::{
    Resource,
    object::{self, text},
    options::ListOptions,
};
use apiserver_server::{
    Registry,
    registry::{Collection, Object, UpdateOptions},
};
use serde_json::{Value, json};

use crate::{Options, resource, unless_gone};

/// Objects that are listed at once.
const PAGE: usize = 500;

/// Where an object says under which URL its cluster is reached.
struct Place {
    resource: &'static Resource,
    part: &'static str,
    subresource: &'static str,
}

/// Looks at all that lie on this shard. What cannot be changed is told in the log.
pub(crate) async fn follow(registry: Registry, options: Options) {
    let workspaces = resource("tenancy.kcp.io", "v1alpha1", "workspaces");
    let clusters = resource("core.kcp.io", "v1alpha1", "logicalclusters");
    for place in [
        Place { resource: workspaces, part: "spec", subresource: "" },
        Place { resource: clusters, part: "status", subresource: "status" },
    ] {
        if let Err(error) = all(&registry, &options, &place).await {
            tracing::warn!(%error, resource = place.resource.plural, "some URLs are those of an earlier address");
        }
    }
}

async fn all(registry: &Registry, options: &Options, place: &Place) -> Result<(), Status> {
    let mut list = ListOptions { limit: Some(PAGE), ..ListOptions::default() };
    loop {
        let page = registry.list(place.resource, &Collection::everywhere(), &list).await?;
        for object in &page.items {
            one(registry, options, place, object).await?;
        }
        match page.continue_token {
            Some(token) => list.continue_token = token,
            None => return Ok(()),
        }
    }
}

async fn one(registry: &Registry, options: &Options, place: &Place, object: &Object) -> Result<(), Status> {
    if moved(&object.value()?, options, place.part).is_none() {
        return Ok(());
    }
    let change = |old: Option<&Value>| {
        let mut new = old.cloned().unwrap_or_default();
        if let Some(url) = moved(&new, options, place.part)
            && let Some(part) = object::map_mut(&mut new, place.part)
        {
            part.insert("URL".into(), json!(url));
        }
        Ok(new)
    };
    let update = UpdateOptions { subresource: place.subresource, ..UpdateOptions::default() };
    unless_gone(registry.modify(place.resource, &object.key(), &update, change).await)
}

/// The URL under the present address, when the object has another one.
fn moved(object: &Value, options: &Options, part: &str) -> Option<String> {
    let shard = text(object, &["metadata", "annotations", marks::PLACED_ON]);
    // The clusters that no workspace stands for say no shard.
    if shard != options.shard && !(shard.is_empty() && part == "status") {
        return None;
    }
    let (_, path) = text(object, &[part, "URL"]).rsplit_once("/clusters/")?;
    let url = format!("{}/clusters/{path}", options.external_url);
    (url != text(object, &[part, "URL"])).then_some(url)
}
