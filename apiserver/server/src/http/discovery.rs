//! `/api`, `/apis` and below (api-server.md 1.2, 1.3).

use apiserver_api::Status;
use apiserver_machinery::{
    discovery::Rendered,
    encode,
    negotiate::{self, BodyFormat, DiscoveryForm},
    schema,
};
use bytes::Bytes;
use http::{HeaderValue, Response, header};
use serde_json::Value;

use super::{authorization::Place, body::Body, document, issuer};
use crate::server::Call;

/// The paths that `/` lists.
pub(crate) fn paths(call: &Call<'_>) -> Vec<&'static str> {
    let service = call.server.service();
    let own = ["/healthz", "/livez", "/readyz", "/version"].into_iter();
    let of_process = (call.destination.place == Place::Bare).then_some("/metrics");
    let openapi = service.openapi.into_iter().flat_map(|_| ["/openapi/v2", "/openapi/v3"]);
    let issuer = call.server.options().token_key.iter().flat_map(|_| issuer::PATHS);
    let all = service.discovery.paths().iter().map(String::as_str).chain(own).chain(of_process);
    let mut all: Vec<&str> = all.chain(openapi).chain(issuer).collect();
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
            let (form, format) = negotiate::discovery_form(call.accept())?;
            if segments == ["api"] && form == DiscoveryForm::Legacy {
                let Rendered { body, hash } = documents.core_at(&address(&call.server.options().external_url));
                return Ok(Some(written(call, &hash, format, form, body)));
            }
            let document = if segments == ["api"] { documents.core(form) } else { documents.groups(form) };
            let body = Bytes::from_static(&document.body);
            return Ok(Some(aggregated(written(call, &document.hash, format, form, body), form)));
        }
        ["api", version] => documents.resources("", version),
        ["apis", group] => documents.group(group),
        ["apis", group, version] if !group.is_empty() => documents.resources(group, version),
        _ => None,
    };
    let format = negotiate::status_format(call.accept());
    Ok(legacy.map(|document| {
        written(call, &document.hash, format, DiscoveryForm::Legacy, Bytes::from_static(&document.body))
    }))
}

/// The document in YAML if that is wanted, else as it is.
fn written(
    call: &Call<'_>,
    hash: &str,
    format: BodyFormat,
    form: DiscoveryForm,
    body: impl Into<Bytes>,
) -> Response<Body> {
    let body = body.into();
    if format != BodyFormat::Yaml {
        return document::revalidated(call, hash, content_type("application/json", form), || body);
    }
    document::revalidated(call, hash, content_type("application/yaml", form), || {
        let value: Value = serde_json::from_slice(&body).expect("it was written as JSON");
        encode::value(format, &schema::OPEN, &value).into()
    })
}

/// Host and port of a URL.
fn address(url: &str) -> String {
    let uri: http::Uri = url.parse().unwrap_or_default();
    let host = uri.host().unwrap_or_default();
    format!("{host}:{}", uri.port_u16().unwrap_or(if uri.scheme_str() == Some("http") { 80 } else { 443 }))
}

/// Exactly as clients compare it.
fn content_type(media_type: &'static str, form: DiscoveryForm) -> HeaderValue {
    match form {
        DiscoveryForm::Legacy => HeaderValue::from_static(media_type),
        DiscoveryForm::Aggregated(version) => {
            let text = format!("{media_type};g=apidiscovery.k8s.io;v={version};as=APIGroupDiscoveryList");
            HeaderValue::from_str(&text).expect("media types and versions are plain text")
        }
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
