//! GET of an object and of a collection.

use apiserver_api::Status;
use apiserver_machinery::{Resource, options::ListOptions, selector::FieldSelector};
use http::{Response, StatusCode};

use super::{body::Body, compress, negotiation};
use crate::{errors, registry::Object, server::Call};

/// One object.
pub(crate) async fn get(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::one(call, resource)?;
    // Reads are always of the newest state, which is at least any version there is.
    call.registry.reached(call.info.list_options()?.revision()?).await?;
    let object = match call.wildcard() {
        Some(_) => only(call, resource).await?,
        None => call.registry.get(resource, &call.key()?).await?,
    };
    form.one(StatusCode::OK, &object, compress::is_accepted(call))
}

/// The one object of this name in all places that the wildcards stand for.
async fn only(call: &Call<'_>, resource: &'static Resource) -> Result<Object, Status> {
    let name = &*call.info.name;
    let escaped = name.replace('\\', "\\\\").replace(',', "\\,").replace('=', "\\=");
    let mut options = ListOptions::default();
    options.selector.fields = FieldSelector::parse(resource, &format!("metadata.name={escaped}"))?;
    let mut found = call.registry.list(resource, &call.collection(), &options).await?.items;
    match (found.pop(), found.len() + 1) {
        (None, _) => Err(errors::not_found(resource, name)),
        (Some(object), 1) => Ok(object),
        (Some(_), count) => Err(Status::bad_request(format!(
            "{count} {} in these places are called {name:?}: name the shard and the logical cluster, or list them",
            resource.qualified()
        ))),
    }
}

/// The objects of a collection.
pub(crate) async fn list(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::list(call, resource)?;
    let mut options = ListOptions::parse(resource, &call.info.list_options()?)?;
    if options.resource_version == Some(0) && options.continue_token.is_empty() {
        // Whoever takes any state gets it whole, as upstream answers it from its cache.
        options.limit = None;
    }
    call.registry.reached(options.not_older_than().unwrap_or(0)).await?;
    let listing = call.registry.listing(resource, &call.collection(), &options).await?;
    Ok(form.list(resource, listing, compress::is_accepted(call)))
}
