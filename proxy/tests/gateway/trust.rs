//! A shard that takes the gateway's certificate for a user would take every client for that user.

#![allow(clippy::unwrap_used, reason = "this is a test")]

use std::{convert::Infallible, net::SocketAddr, sync::Arc};

use crate::support::{tls::Ca, *};
use http::{Request, Response, StatusCode};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use proxy::{Body, Directory, Gateway, GatewayOptions, Limits, RemoteOptions, Upstream};
use tokio_rustls::TlsAcceptor;

const REVIEWS: &str = "/apis/authentication.k8s.io/v1/selfsubjectreviews";

/// A server without clusters that says this of who asks it; `None` does not know the question.
async fn server(ca: &Ca, user: Option<&'static str>) -> SocketAddr {
    let acceptor = TlsAcceptor::from(Arc::new(ca.server_config()));
    let answer = move |request: &Request<Incoming>| match (request.uri().path(), user) {
        (path, _) if path.starts_with("/clusters/") && !path.starts_with("/clusters/a/") => not_found(),
        (REVIEWS, None) => not_found(),
        (REVIEWS, Some("")) => Response::builder().status(500).body(Body::empty()).unwrap(),
        (REVIEWS, Some(name)) => {
            let review = serde_json::json!({
                "kind": "SelfSubjectReview",
                "apiVersion": "authentication.k8s.io/v1",
                "status": {"userInfo": {"username": name, "groups": ["system:masters"]}},
            });
            Response::builder().status(201).body(full(review.to_string())).unwrap()
        }
        _ => ok("served"),
    };
    raw_upstream(move |socket, _| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(stream) = acceptor.accept(socket).await else { return };
            let service = service_fn(move |request| std::future::ready(Ok::<_, Infallible>(answer(&request))));
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        }
    })
    .await
}

fn not_found() -> Response<Body> {
    Response::builder().status(404).body(Body::empty()).unwrap()
}

#[tokio::test]
async fn a_shard_that_takes_the_gateway_for_somebody_else_is_not_used() {
    let ca = Ca::new();
    for (user, config, want) in [
        (Some("system:fairgate"), ca.client_config_as("gateway"), StatusCode::OK),
        (None, ca.client_config_as("gateway"), StatusCode::OK),
        (Some("gateway"), ca.client_config_as("gateway"), StatusCode::SERVICE_UNAVAILABLE),
        (Some(""), ca.client_config_as("gateway"), StatusCode::SERVICE_UNAVAILABLE),
        // Without a certificate there is nothing to take for a user.
        (Some("system:anonymous"), ca.client_config(), StatusCode::OK),
    ] {
        let url = format!("https://localhost:{}", server(&ca, user).await.port());
        let remote = RemoteOptions { url, protocol: config::Protocol::Auto, tls: Some(Arc::new(config)) };
        let limits = Limits {
            lookup_wait: if want == StatusCode::OK { PATIENCE } else { std::time::Duration::ZERO },
            ..Limits::default()
        };
        let shards = vec![shard(Upstream::Remote(remote))];
        let options = GatewayOptions { directory: Directory::Watch, limits, ..options(shards) };
        let gateway = Gateway::start(options).unwrap();
        if want == StatusCode::OK {
            let (status, _, body) = once(&gateway, get("/clusters/a/api")).await;
            assert_eq!((status, &*body), (want, "served"), "{user:?}");
            continue;
        }
        let says = if user == Some("") { "answers 500" } else { "for the user \"gateway\"" };
        let deadline = std::time::Instant::now() + PATIENCE;
        let said = loop {
            let body = admin(&gateway, "/readyz?verbose").await;
            if body.contains(says) {
                break body;
            }
            assert!(std::time::Instant::now() < deadline, "{body}");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        };
        assert_eq!(said.contains("--requestheader-client-ca-file"), user == Some("gateway"), "{said}");
        for path in ["/clusters/a/api", "/api/v1/pods", "/version", "/services/cache/x"] {
            assert_eq!(once(&gateway, get(path)).await.0, want, "{path}");
        }
    }
}
