//! Kinds that are asked and answered: who is it, and may he (api-server.md 5.13).

use apiserver_api::{Status, UserInfo};
use apiserver_machinery::{
    Resource, age,
    object::{items, metadata_mut, set, text},
    options::{WriteOptions, WriteVerb},
    schema::{authentication, authorization},
};
use http::{Response, StatusCode};
use serde_json::{Map, Value, json};

use super::{access, accounts, body::Body, content, negotiation, respond};
use crate::{clock, server::Call};

/// Answers a review.
///
/// # Errors
/// 400 for what cannot be read or asks nothing, and those of the store.
pub(crate) async fn create(call: &Call<'_>, resource: &'static Resource) -> Result<Response<Body>, Status> {
    let form = negotiation::one(call, resource)?;
    let options = WriteOptions::parse(WriteVerb::Create, call.info.query)?;
    let (mut review, warnings) = content::object(call, resource, options.field_validation)?;
    let (message, status) = match resource.kind {
        "TokenReview" => (&authentication::TOKEN_REVIEW_ANSWER, token(call, &review).await?),
        "SelfSubjectAccessReview" => {
            (&authorization::SELF_SUBJECT_ACCESS_REVIEW_ANSWER, access::review(call, resource, &review)?)
        }
        "SelfSubjectRulesReview" => {
            if text(&review, &["spec", "namespace"]).is_empty() {
                return Err(Status::bad_request("no namespace on request"));
            }
            (&authorization::SELF_SUBJECT_RULES_REVIEW_ANSWER, access::rules(&call.user))
        }
        "SubjectAccessReview" | "LocalSubjectAccessReview" => {
            (&authorization::SUBJECT_ACCESS_REVIEW_ANSWER, access::review(call, resource, &review)?)
        }
        _ => (&authentication::SELF_SUBJECT_REVIEW_ANSWER, json!({"userInfo": user(&call.user)})),
    };
    metadata_mut(&mut review).insert("creationTimestamp".into(), json!(age::rfc3339(clock::unix_now())));
    set(&mut review, "status", status);
    let mut response = respond::value(StatusCode::CREATED, form.format, message, &review);
    content::warn(&mut response, &warnings);
    Ok(response)
}

/// Whose token it is, and for which of the audiences it is meant.
async fn token(call: &Call<'_>, review: &Value) -> Result<Value, Status> {
    let token = text(review, &["spec", "token"]);
    if token.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let mut audiences: Vec<String> =
        items(review, &["spec", "audiences"]).iter().filter_map(Value::as_str).map(str::to_owned).collect();
    if audiences.is_empty() {
        audiences.push(call.server.issuer().to_owned());
    }
    Ok(match accounts::review(call.server, token, &audiences).await? {
        None => json!({"user": {}, "error": "invalid bearer token"}),
        Some((account, home, claims)) => {
            let account = accounts::seen_from(account, Some(home), call.destination.cluster.as_ref());
            audiences.retain(|audience| claims.aud.contains(audience));
            json!({"authenticated": true, "user": user(&account), "audiences": audiences})
        }
    })
}

fn user(user: &UserInfo) -> Value {
    let mut info = json!({"username": user.name});
    if !user.uid.is_empty() {
        set(&mut info, "uid", json!(user.uid));
    }
    if !user.groups.is_empty() {
        set(&mut info, "groups", json!(user.groups));
    }
    if !user.extra.is_empty() {
        let extra: Map<String, Value> =
            user.extra.iter().map(|(key, values)| (key.to_string(), json!(values))).collect();
        set(&mut info, "extra", extra);
    }
    info
}

impl Call<'_> {
    /// The review kind that the request is about, if it is about one.
    pub(crate) fn review(&self) -> Option<&'static Resource> {
        let info = self.info;
        let reviews = self.server.service().reviews.iter();
        let mut named = reviews.filter(|r| r.plural == info.resource && r.group == info.api_group);
        named.find(|r| r.version == info.api_version && info.api_prefix == "apis")
    }

    /// Whether a TokenRequest belongs where the request goes. Without a key to sign with there is no such place.
    pub(crate) fn is_for_token(&self) -> bool {
        let info = self.info;
        (&*info.api_group, &*info.resource, &*info.subresource) == ("", "serviceaccounts", "token")
            && self.server.options().token_key.is_some()
    }
}
