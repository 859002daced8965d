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
    kind: String,
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

/// Asks the shard whom it takes the gateway for. Only where the gateway shows a certificate; a shard that does not know
/// the question, or refuses it, may be right.
///
/// # Errors
/// It takes the gateway for somebody else, or there is no connection.
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
        let answer = Limited::new(response.into_body(), ANSWER_MAX).collect().await;
        let review = answer.ok().and_then(|body| serde_json::from_slice::<Review>(&body.to_bytes()).ok());
        let Some(review) = review.filter(|review| status == StatusCode::CREATED && review.kind == "SelfSubjectReview")
        else {
            continue;
        };
        let (taken_for, own) = (review.status.user_info.username, &*core.own_identity.user.name);
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
    Ok(())
}
