//! `/api`, `/apis` and below (api-server.md 1.2, 1.3).

use apiserver_api::Status;
use apiserver_machinery::{
    discovery::Rendered,
    negotiate::{self, DiscoveryForm},
};
use http::{HeaderValue, Response, header};

use super::{body::Body, document, respond};
use crate::server::Call;

/// The paths that `/` lists.
pub(crate) fn paths(call: &Call<'_>) -> Vec<&'static str> {
    let service = call.server.service();
    let own = ["/healthz", "/livez", "/readyz", "/version"].into_iter().chain(service.openapi.map(|_| "/openapi/v3"));
    let mut all: Vec<&str> = service.discovery.paths().iter().map(String::as_str).chain(own).collect();
    all.sort_unstable();
    all
}

/// The answer for a discovery path; `None` for any other.
///
/// # Errors
/// 406.
pub(crate) fn answer(call: &Call<'_>) -> Result<Option<Response<Body>>, Status> {
    let documents = call.server.service().discovery;
    let segments: Vec<&str> = call.info.path.trim_end_matches('/').split('/').skip(1).collect();
    let legacy = match segments[..] {
        ["api"] | ["apis"] => {
            let form = negotiate::discovery_form(call.accept())?;
            if segments == ["api"] && form == DiscoveryForm::Legacy {
                let Rendered { body, hash } = documents.core_at(&address(&call.server.options().external_url));
                return Ok(Some(document::revalidated(call, &hash, respond::JSON, || body.into())));
            }
            let document = if segments == ["api"] { documents.core(form) } else { documents.groups(form) };
            return Ok(Some(aggregated(document::answer(call, document, content_type(form)), form)));
        }
        ["api", version] => documents.resources("", version),
        ["apis", group] => documents.group(group),
        ["apis", group, version] if !group.is_empty() => documents.resources(group, version),
        _ => None,
    };
    Ok(legacy.map(|document| document::answer(call, document, respond::JSON)))
}

/// Host and port of a URL.
fn address(url: &str) -> String {
    let uri: http::Uri = url.parse().unwrap_or_default();
    let host = uri.host().unwrap_or_default();
    format!("{host}:{}", uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 }))
}

/// Exactly as clients compare it.
fn content_type(form: DiscoveryForm) -> HeaderValue {
    match form {
        DiscoveryForm::Aggregated("v2beta1") => {
            HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList")
        }
        DiscoveryForm::Aggregated(_) => {
            HeaderValue::from_static("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
        }
        DiscoveryForm::Legacy => respond::JSON,
    }
}

fn aggregated(mut response: Response<Body>, form: DiscoveryForm) -> Response<Body> {
    if matches!(form, DiscoveryForm::Aggregated(_)) {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_port() {
        for (url, want) in [
            ("https://localhost:6443/", "localhost:6443"),
            ("https://api.example.dev", "api.example.dev:443"),
            ("http://[::1]/shard", "[::1]:80"),
        ] {
            assert_eq!(address(url), want);
        }
    }
}
