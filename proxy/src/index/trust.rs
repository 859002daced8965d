//! Whether a shard believes what the gateway says of its clients.
//!
//! A shard may take the gateway's client certificate for that of a *user* (kube-apiserver's `--client-ca-file` instead
//! of `--requestheader-client-ca-file`). Then it ignores the identity headers, and every client of the gateway is that
//! user, most likely an administrator. So the gateway asks the shard who it is, and uses none that answers with
//! another name than it was told.

use http::{HeaderValue, Request, StatusCode, header::CONTENT_TYPE};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;

use crate::{Body, BoxError, core::Core, stamp::Stamp, upstream::Shard};

const PATH: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";
const QUESTION: &[u8] = br#"{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}"#;
const ANSWER_MAX: usize = 64 << 10;

#[derive(Deserialize)]
struct Review {
    status: ReviewStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReviewStatus {
    user_info: User,
}

#[derive(Deserialize)]
struct User {
    username: String,
}

/// Asks the shard whom it takes the gateway for, where the gateway shows a certificate. Its clients' requests go there from
/// then on, or no more.
///
/// # Errors
/// It takes the gateway for somebody else. No verdict, and nothing changes: there is no connection, or no answer to the
/// question.
pub(super) async fn check(core: &Core, shard: &Shard, pool: usize) -> Result<(), BoxError> {
    if !shard.shows_certificate() {
        return Ok(());
    }
    // The one cluster that every shard of kcp has; a server without clusters has no such path.
    for path in [format!("/clusters/system:admin{PATH}"), PATH.to_owned()] {
        let request = Request::post(path)
            .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
            .body(Body::from(bytes::Bytes::from_static(QUESTION)))?;
        let response = shard.send(pool, &core.clock, &Stamp::of(&core.own_identity), request).await?;
        let status = response.status();
        match status {
            StatusCode::CREATED => {}
            // It does not know the question, or not who may ask it.
            StatusCode::FORBIDDEN | StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => continue,
            _ => return Err(format!("asked whom it takes the gateway for, the shard answers {status}").into()),
        }
        let answer = Limited::new(response.into_body(), ANSWER_MAX).collect().await?.to_bytes();
        let review: Review = serde_json::from_slice(&answer)
            .map_err(|error| format!("asked whom it takes the gateway for, the shard gives no review: {error}"))?;
        let (taken_for, own) = (review.status.user_info.username, &*core.own_identity.user.name);
        shard.trust(taken_for == own);
        if taken_for != own {
            return Err(format!(
                "the shard takes the gateway's certificate for the user {taken_for:?} and does not read X-Remote-User: \
                 every client would be that user; sign it by the authority of --requestheader-client-ca-file, which \
                 must not be that of --client-ca-file"
            )
            .into());
        }
        return Ok(());
    }
    // A server without this API, or that refuses it to whoever the gateway is there, can do nothing wrong by this.
    shard.trust(true);
    Ok(())
}
