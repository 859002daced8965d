//! POST, PUT, PATCH and DELETE.

use apiserver_api::{ClusterName, Status, status::Details};
use apiserver_machinery::{
    Resource,
    meta::check_name,
    negotiate::{BodyFormat, PatchType},
    options::{DeleteOptions, ListOptions, WriteVerb},
    patch::Patch,
    schema::meta,
};
use http::{Response, StatusCode};
use serde_json::Value;

use super::{admission, apply, body::Body, content, form::Form, negotiation, respond};
use crate::{
    errors,
    registry::{Deleted, Listing, Object, UpdateOptions},
    server::Call,
};

/// POST of an object to its collection.
pub(crate) async fn create(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::one(call, resource)?;
    let options = content::write_options(call, WriteVerb::Create)?;
    let (mut object, warnings) = content::object(call, resource, options.field_validation)?;
    admission::create(&call.user, resource, &mut object)?;
    let object = call.registry.create(resource, call.cluster()?, &call.info.namespace, object, &options).await?;
    answer(form, StatusCode::CREATED, &object, &warnings)
}

/// PUT of an object or of a subresource.
pub(crate) async fn update(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::one(call, resource)?;
    let write = content::write_options(call, WriteVerb::Update)?;
    let (new, warnings) = content::object(call, resource, write.field_validation)?;
    // Before it is looked for, as upstream does it.
    check_name(&new, &call.info.name)?;
    let options = UpdateOptions {
        write,
        subresource: subresource(call, resource),
        may_create: resource.create_on_update,
        uid_is_precondition: true,
        applied: false,
    };
    let change = |old: Option<&Value>| {
        admission::update(&call.user, resource, old, &new)?;
        Ok(new.clone())
    };
    let written = call.registry.modify(resource, &call.key()?, &options, change).await?;
    let code = if written.created { StatusCode::CREATED } else { StatusCode::OK };
    answer(form, code, &written.object, &warnings)
}

/// PATCH of an object or of a subresource.
pub(crate) async fn patch(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::one(call, resource)?;
    let kind = content::patch_type(call, resource)?;
    if kind == PatchType::Apply {
        return apply::apply(call, resource, form).await;
    }
    let patch = Patch::parse(kind, &call.body)?;
    let write = content::write_options(call, WriteVerb::Patch)?;
    let validation = write.field_validation;
    let options = UpdateOptions {
        write,
        subresource: subresource(call, resource),
        may_create: false,
        uid_is_precondition: false,
        applied: false,
    };
    let mut warnings = Vec::new();
    let change = |old: Option<&Value>| {
        let old = old.ok_or_else(|| errors::not_found(resource, &call.info.name))?;
        let (new, warned) = patch.apply(resource, old, validation)?;
        admission::update(&call.user, resource, Some(old), &new)?;
        // Of the last attempt: the one that was written.
        warnings = warned;
        Ok(new)
    };
    let written = call.registry.modify(resource, &call.key()?, &options, change).await?;
    answer(form, StatusCode::OK, &written.object, &warnings)
}

/// DELETE of an object: a Status when it is gone, the object when finalizers hold it.
pub(crate) async fn delete(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::one(call, resource)?;
    let options = delete_options(call, resource)?;
    let key = call.key()?;
    admission::delete_named(resource, &key)?;
    if admission::asks_before_delete(resource) {
        let old = call.registry.get(resource, &key).await?;
        admission::delete(&call.user, resource, &old)?;
    }
    match call.registry.delete(resource, &key, &options).await? {
        Deleted::Terminating(object) => form.one(StatusCode::OK, &object, false),
        Deleted::Gone(object) => success(form, &object),
    }
}

/// DELETE of a collection: the list of what was there. When one of its objects may not be deleted, none is.
pub(crate) async fn delete_collection(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::list(call, resource)?;
    let options = delete_options(call, resource)?;
    let list = ListOptions::parse(resource, &call.info.list_options()?)?;
    let may_go = |object: &Object| {
        admission::delete_named(resource, &object.key())?;
        admission::delete(&call.user, resource, object)
    };
    let (page, _) = call.registry.delete_collection(resource, &call.collection(), &list, &options, may_go).await?;
    Ok(form.list(resource, Listing::of(resource, page), false))
}

fn delete_options(call: &Call<'_>, resource: &Resource) -> Result<DeleteOptions, Status> {
    DeleteOptions::parse(content::delete_options(call, resource)?.as_ref(), call.info.query)
}

pub(super) fn answer(
    form: Form,
    code: StatusCode,
    object: &Object,
    warnings: &[String],
) -> Result<Response<Body>, Status> {
    let mut response = form.one(code, object, false)?;
    content::warn(&mut response, warnings);
    Ok(response)
}

pub(super) fn subresource(call: &Call<'_>, resource: &Resource) -> &'static str {
    resource.subresources.iter().find(|s| **s == call.info.subresource).copied().unwrap_or_default()
}

/// The Status that answers a delete, in JSON with upstream's order of fields.
fn success(form: Form, object: &Object) -> Result<Response<Body>, Status> {
    let uid = object.value()?.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default().to_owned();
    let resource = object.resource();
    let details = Details {
        name: object.name().to_owned(),
        group: resource.group.to_owned(),
        kind: resource.plural.to_owned(),
        uid,
        ..Details::default()
    };
    let details = serde_json::to_string(&details).expect("texts are always JSON");
    let text = format!(
        "{{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{{}},\"status\":\"Success\",\"details\":{details}}}\n"
    );
    if form.format == BodyFormat::Json {
        return Ok(respond::bytes(StatusCode::OK, respond::JSON, text));
    }
    let status: Value = serde_json::from_str(&text).expect("it was written as JSON");
    Ok(respond::value(StatusCode::OK, form.format, &meta::STATUS, &status))
}

impl Call<'_> {
    /// The logical cluster.
    ///
    /// # Errors
    /// 405 for the wildcard, which [`super::dispatch`] has refused before.
    pub(crate) fn cluster(&self) -> Result<&ClusterName, Status> {
        self.destination.cluster.as_ref().ok_or_else(Status::method_not_allowed)
    }
}
