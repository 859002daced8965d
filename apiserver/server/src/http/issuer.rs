//! What others need to check tokens of service accounts by themselves: OpenID Connect discovery.

use http::{HeaderValue, Response, StatusCode, header};
use serde_json::json;

use super::{body::Body, respond};
use crate::server::{ApiServer, Call};

/// Where the issuer describes itself, and where its keys are.
pub(crate) const PATHS: [&str; 2] = ["/.well-known/openid-configuration", "/openid/v1/jwks"];

/// The document at this path, if there is a key and the path is one of [`PATHS`]. Both are the same in all clusters, and
/// without one.
pub(crate) fn answer(call: &Call<'_>) -> Option<Response<Body>> {
    let key = call.server.options().token_key.as_ref()?;
    let mut response = match &*call.info.path {
        "/.well-known/openid-configuration" => {
            let issuer = call.server.issuer();
            let document = json!({
                "issuer": issuer,
                "jwks_uri": format!("{issuer}/openid/v1/jwks"),
                "response_types_supported": ["id_token"],
                "subject_types_supported": ["public"],
                "id_token_signing_alg_values_supported": ["ES256"],
            });
            respond::json(StatusCode::OK, &document)
        }
        "/openid/v1/jwks" => {
            let mut response = respond::json(StatusCode::OK, &key.key_set());
            let keys = HeaderValue::from_static("application/jwk-set+json");
            response.headers_mut().insert(header::CONTENT_TYPE, keys);
            response
        }
        _ => return None,
    };
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=3600"));
    Some(response)
}

impl ApiServer {
    /// Who issues tokens: the address under which its documents are found.
    pub(crate) fn issuer(&self) -> &str {
        self.options().external_url.trim_end_matches('/')
    }
}
