//! temporary
use apiserver_api::Status;
use apiserver_machinery::{
    Resource,
    options::{FieldValidation, WriteOptions},
};
use http::Response;
use serde_json::Value;

use super::body::Body;
use crate::server::Call;

pub(crate) struct Decoded {
    pub(crate) object: Value,
    pub(crate) warnings: Vec<String>,
}

pub(crate) fn object(call: &Call<'_>, _: &Resource, _: &WriteOptions) -> Result<Decoded, Status> {
    let object = serde_json::from_slice(&call.body).map_err(|e| Status::bad_request(e.to_string()))?;
    Ok(Decoded { object, warnings: vec![] })
}

pub(crate) fn with_warnings(response: Response<Body>, _: &[String]) -> Result<Response<Body>, Status> {
    Ok(response)
}

pub(crate) struct Patch(Value);

pub(crate) fn patch(call: &Call<'_>, _: &Resource) -> Result<Patch, Status> {
    serde_json::from_slice(&call.body).map(Patch).map_err(|e| Status::bad_request(e.to_string()))
}

impl Patch {
    pub(crate) fn apply(&self, _: &Resource, old: &Value, _: FieldValidation) -> Result<(Value, Vec<String>), Status> {
        let mut new = old.clone();
        merge(&mut new, &self.0);
        Ok((new, vec![]))
    }
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = serde_json::json!({});
    }
    if let Some(target) = target.as_object_mut() {
        for (k, v) in patch {
            if v.is_null() {
                target.remove(k);
            } else {
                merge(target.entry(k.clone()).or_insert(Value::Null), v);
            }
        }
    }
}

pub(crate) fn delete_options(call: &Call<'_>) -> Result<Option<Value>, Status> {
    if call.body.is_empty() {
        return Ok(None);
    }
    serde_json::from_slice(&call.body).map(Some).map_err(|e| Status::bad_request(e.to_string()))
}
