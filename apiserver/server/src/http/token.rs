//! POST of a TokenRequest to a service account (api-server.md 5.4).

use apiserver_api::{
    Status,
    field::{Error, Path},
};
use apiserver_machinery::{
    age, builtin,
    object::{get, items, metadata_mut, name, set, text},
    options::{WriteOptions, WriteVerb},
    schema::authentication,
};
use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::{
    accounts::{secrets, service_accounts},
    body::Body,
    content, negotiation, respond,
};
use crate::{
    clock, errors,
    registry::ObjectKey,
    server::Call,
    tokens::{Account, Claims, Reference},
};

/// Seconds that a token lives unless it is told.
const LIFE: i64 = 3600;
const LIFE_MIN: i64 = 600;
const LIFE_MAX: i64 = 1 << 32;

/// Makes a token.
///
/// # Errors
/// 404 without the account, the bound secret, or a key to sign with; 400, 409 and 422 for what is asked.
pub(crate) async fn create(call: &Call<'_>) -> Result<Response<Body>, Status> {
    let resource = &builtin::TOKEN_REQUESTS;
    let form = negotiation::one(call, resource)?;
    let options = WriteOptions::parse(WriteVerb::Create, call.info.query)?;
    let (mut request, warnings) = content::object(call, resource, options.field_validation)?;
    let Some(key) = &call.server.options().token_key else { return Err(Status::no_such_resource()) };
    let of = call.key()?;
    let found = call.registry.get(service_accounts(), &of).await?;
    let account = Reference { name: of.name.to_string(), uid: text(&found.stored()?, &["metadata", "uid"]).to_owned() };
    if !["", &of.name].contains(&name(&request)) {
        return Err(Status::bad_request("metadata.name must match the service account name"));
    }
    let life = life(&request)?;
    let secret = bound(call, &of, &request).await?;
    let issuer = call.server.issuer();
    let mut audiences: Vec<String> =
        items(&request, &["spec", "audiences"]).iter().filter_map(Value::as_str).map(str::to_owned).collect();
    if audiences.is_empty() {
        audiences.push(issuer.to_owned());
    }
    let now = clock::unix_now();
    let expires = now.saturating_add(life);
    let claims = Claims {
        aud: audiences.clone(),
        exp: expires,
        iat: now,
        nbf: now,
        iss: issuer.to_owned(),
        jti: uuid::Uuid::new_v4().to_string(),
        sub: format!("system:serviceaccount:{}:{}", of.namespace, of.name),
        account: Account { cluster: of.cluster.to_string(), namespace: of.namespace.to_string(), account, secret },
    };
    let token = if options.dry_run { Some(String::new()) } else { key.sign(&claims) };
    let token = token.ok_or_else(|| errors::internal("the token could not be signed"))?;
    let metadata = metadata_mut(&mut request);
    metadata.insert("name".into(), json!(&*of.name));
    metadata.insert("namespace".into(), json!(&*of.namespace));
    metadata.insert("creationTimestamp".into(), json!(age::rfc3339(now)));
    let bound = get(&request, &["spec", "boundObjectRef"]).cloned().unwrap_or_default();
    set(&mut request, "spec", json!({"audiences": audiences, "expirationSeconds": life, "boundObjectRef": bound}));
    set(&mut request, "status", json!({"expirationTimestamp": age::rfc3339(expires), "token": token}));
    let message = &authentication::TOKEN_REQUEST_ANSWER;
    let mut response = respond::value(StatusCode::CREATED, form.format, message, &request);
    content::warn(&mut response, &warnings);
    Ok(response)
}

fn life(request: &Value) -> Result<i64, Status> {
    let life = get(request, &["spec", "expirationSeconds"]).and_then(Value::as_i64).unwrap_or(LIFE);
    let why = match life {
        ..LIFE_MIN => "may not specify a duration less than 10 minutes",
        LIFE_MIN..=LIFE_MAX => return Ok(life),
        _ => "may not specify a duration larger than 2^32 seconds",
    };
    let errors = [Error::invalid(&Path::new("spec.expirationSeconds"), json!(life), why)];
    Err(Status::invalid(builtin::TOKEN_REQUESTS.group, builtin::TOKEN_REQUESTS.kind, "", &errors))
}

/// The object that the token shall die with.
async fn bound(call: &Call<'_>, account: &ObjectKey, request: &Value) -> Result<Option<Reference>, Status> {
    let Some(reference) = get(request, &["spec", "boundObjectRef"]) else { return Ok(None) };
    let part = |field| text(reference, &[field]);
    if (part("apiVersion"), part("kind")) != ("v1", "Secret") {
        let why = format!(
            "cannot bind token for serviceaccount to object of type {}, Kind={}",
            part("apiVersion"),
            part("kind")
        );
        return Err(Status::bad_request(why));
    }
    let key = ObjectKey { name: part("name").into(), ..account.clone() };
    let found = call.registry.get(secrets(), &key).await?.stored()?;
    let uid = text(&found, &["metadata", "uid"]);
    if !["", uid].contains(&part("uid")) {
        let why = format!(
            "the UID in the bound object reference ({}) does not match the UID in record. The object might have been \
             deleted and then recreated",
            part("uid")
        );
        return Err(Status::conflict("", "secrets", part("name"), &why));
    }
    Ok(Some(Reference { name: part("name").to_owned(), uid: uid.to_owned() }))
}
