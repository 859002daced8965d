//! GET of an object and of a collection.

use apiserver_api::Status;
use apiserver_machinery::{Resource, options::ListOptions};
use http::{Response, StatusCode};

use super::{body::Body, negotiation};
use crate::{errors, server::Call};

/// One object.
pub(crate) async fn get(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::one(call)?;
    // Reads are always of the newest state, which is at least any version there is.
    let current = call.server.registry().store().revision();
    let wanted = call.info.list_options()?.revision()?;
    if wanted > current {
        return Err(errors::future_revision(wanted, current));
    }
    let object = call.server.registry().get(resource, &call.key()?).await?;
    form.one(StatusCode::OK, &object)
}

/// The objects of a collection.
pub(crate) async fn list(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::list(call, resource)?;
    let options = ListOptions::parse(resource, &call.info.list_options()?)?;
    let page = call.server.registry().list(resource, &call.collection(), &options).await?;
    Ok(form.list(resource, page))
}
