//! temporary
use apiserver_api::Status;
use apiserver_machinery::{Resource, table::IncludeObject};

use super::form::{Form, TableFormat};
use crate::{clock, server::Call};

fn form(call: &Call<'_>) -> Result<Form, Status> {
    let accept = call.headers.get("accept").and_then(|a| a.to_str().ok()).unwrap_or_default();
    if accept.contains("as=Table") {
        let include = IncludeObject::parse(&call.info.query_value("includeObject").unwrap_or_default())?;
        return Ok(Form::Table(TableFormat { version: "v1", include, now: clock::unix_now() }));
    }
    Ok(if accept.contains("as=PartialObjectMetadata") { Form::Partial } else { Form::Plain })
}
pub(crate) fn one(call: &Call<'_>) -> Result<Form, Status> {
    form(call)
}
pub(crate) fn list(call: &Call<'_>, _: &Resource) -> Result<Form, Status> {
    form(call)
}
pub(crate) fn watch(call: &Call<'_>) -> Result<Form, Status> {
    form(call)
}
