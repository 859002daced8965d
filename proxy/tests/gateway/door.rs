//! What the door refuses, and what it never lets a shard see.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "this is a test")]

use std::sync::Arc;

use crate::support::*;
use http::{HeaderValue, Request, StatusCode};
use proxy::{Body, Gateway};

/// Sends bytes that must be refused: the answer begins as given, the connection is closed, the shard sees nothing.
async fn refused(gateway: &Gateway, seen: &Seen, bytes: &str, want: &str) {
    let answer = raw(gateway.address(), bytes.as_bytes(), |_| false).await;
    assert!(answer.starts_with(want), "{bytes:?}: {answer}");
    assert_eq!(answer.matches("HTTP/1.1").count(), 1, "{bytes:?}: {answer}");
    assert_eq!(seen.len(), 0, "{bytes:?}");
}

#[tokio::test]
async fn requests_that_two_servers_could_read_differently() {
    let seen = Seen::default();
    let gateway = Gateway::start(options(vec![noting_upstream(&seen).await])).unwrap();
    let post = "POST /clusters/a/api HTTP/1.1\r\nHost: d\r\n";
    let hidden = "GET /clusters/b/api HTTP/1.1\r\nHost: d\r\n\r\n";
    for (headers, want) in [
        ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 400"),
        ("Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", "HTTP/1.1 400"),
        ("Content-Length: 0\r\nContent-Length: 44\r\n\r\n", "HTTP/1.1 400"),
        ("Content-Length: +5\r\n\r\nabcde", "HTTP/1.1 400"),
        ("Content-Length: 5,5\r\n\r\nabcde", "HTTP/1.1 400"),
        ("Content-Length: 0x5\r\n\r\nabcde", "HTTP/1.1 400"),
        ("Content-Length: \r\n\r\n", "HTTP/1.1 400"),
        ("Content-Length : 5\r\n\r\nabcde", "HTTP/1.1 400"),
        ("Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1 501"),
        ("Transfer-Encoding: identity\r\n\r\n", "HTTP/1.1 400"),
        ("Host: e\r\n\r\n", "HTTP/1.1 400"),
        ("Expect: magic\r\n\r\n", "HTTP/1.1 417"),
        ("X: a\r\n folded\r\n\r\n", "HTTP/1.1 400"),
    ] {
        refused(&gateway, &seen, &format!("{post}{headers}{hidden}"), want).await;
    }
    refused(&gateway, &seen, &format!("GET /clusters/a/api HTTP/1.1\r\n\r\n{hidden}"), "HTTP/1.1 400").await;
    refused(&gateway, &seen, &format!("CONNECT a:1 HTTP/1.1\r\nHost: a:1\r\n\r\n{hidden}"), "HTTP/1.1 405").await;
    refused(&gateway, &seen, &format!("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n{hidden}"), "HTTP/1.1 400").await;
}

#[tokio::test]
async fn an_absolute_target_counts_by_its_path() {
    let seen = Seen::default();
    let gateway = Gateway::start(options(vec![noting_upstream(&seen).await])).unwrap();
    let bytes = "GET http://d/clusters/a/api?x HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n";
    assert!(raw(gateway.address(), bytes.as_bytes(), |_| false).await.starts_with("HTTP/1.1 200"));
    let parts = seen.take().remove(0);
    assert_eq!(
        (parts.uri.to_string().as_str(), parts.headers["x-forwarded-host"].as_bytes()),
        ("/clusters/a/api?x", &b"d"[..])
    );
}

#[tokio::test]
async fn paths_that_are_refused() {
    let seen = Seen::default();
    let gateway = Gateway::start(options(vec![noting(&seen)])).unwrap();
    for (path, want) in [
        ("/clusters/org:acme/../org:beta/api", 400),
        ("/clusters/org:acme/%2e%2e/org:beta/api", 400),
        ("//clusters/org:acme/api", 400),
        ("/clusters/a%2Fapi", 400),
        ("/clusters/org:acme/clusters/org:beta/api/v1/configmaps", 404),
        ("/clusters/Bad_Name/api", 403),
        ("/clusters/:acme/api", 403),
        ("/clusters/acme:/api", 403),
        ("/clusters/a::b/api", 403),
        ("/clusters/a/api/v1/pods?timeout=soon", 400),
    ] {
        let (status, headers, body) = once(&gateway, get(path)).await;
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status.as_u16(), &json["code"]), (want, &want.into()), "{path}: {body}");
        assert_eq!((&json["kind"], &headers["content-type"]), (&"Status".into(), &"application/json".parse().unwrap()));
        if want == 403 {
            let message = format!(
                "forbidden: User \"system:anonymous\" cannot get path {path:?}: workspace access not permitted"
            );
            assert_eq!(json["message"], message);
        }
    }
    assert_eq!(seen.len(), 0);
}

#[tokio::test]
async fn headers_that_are_too_large_get_a_status_and_the_connection_lives_on() {
    let seen = Seen::default();
    let gateway = Gateway::start(options(vec![noting(&seen)])).unwrap();
    let with = |mut request: Request<Body>, bytes: usize| {
        request.headers_mut().insert("authorization", HeaderValue::try_from("x".repeat(bytes)).unwrap());
        request
    };
    assert_eq!(once(&gateway, with(get("/clusters/a/api"), 12 << 10)).await.0, StatusCode::OK);
    let (status, _, body) = once(&gateway, with(get("/clusters/a/api"), 200 << 10)).await;
    assert_eq!(status, StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&body).unwrap()["code"], 431);
    let mut client = h2(&gateway).await;
    for (bytes, want) in [(12 << 10, 200), (200 << 10, 431), (1, 200)] {
        let response = client.send_request(with(get_h2("/clusters/a/api"), bytes)).await.unwrap();
        assert_eq!(response.status().as_u16(), want);
        let body = text(response.into_body()).await;
        assert!(want == 200 || body.contains("\"kind\":\"Status\""), "{body}");
    }
}

#[tokio::test]
async fn probes_are_answered_here_and_nothing_else_without_a_credential() {
    let seen = Seen::default();
    let options = proxy::GatewayOptions { anonymous: false, ..options(vec![noting(&seen)]) };
    let gateway = Gateway::start(options).unwrap();
    for path in ["/livez", "/readyz", "/healthz", "/livez/ping"] {
        let (status, _, body) = once(&gateway, get(path)).await;
        assert_eq!((status, body.as_str()), (StatusCode::OK, "ok"), "{path}");
    }
    for path in ["/livezzz", "/metrics", "/clusters/a/api", "/clusters/a/livez", "/version"] {
        let (status, _, body) = once(&gateway, get(path)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
        assert!(body.contains("\"reason\":\"Unauthorized\""), "{body}");
    }
    assert_eq!(seen.len(), 0);
}

/// Every case of the vectors, by way of a client certificate or of none.
#[tokio::test]
async fn identity_headers_are_ours_alone() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/kcp/identity-headers.json");
    let vectors: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let ca = tls::Ca::new();
    let seen = Seen::default();
    let drop_groups = apiserver_api::user::DROPPED_GROUPS.map(String::from).to_vec();
    let options = proxy::GatewayOptions {
        tls: Some(Arc::new(ca.server_config())),
        drop_groups,
        ..options(vec![noting_upstream(&seen).await])
    };
    let gateway = Gateway::start(options).unwrap();
    let list = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().into_iter().flatten().map(|g| g.as_str().unwrap().to_owned()).collect()
    };
    let pairs = |value: &serde_json::Value| -> Vec<(String, String)> {
        value.as_array().unwrap().iter().map(list).map(|p| (p[0].to_lowercase(), p[1].clone())).collect()
    };
    for case in vectors["cases"].as_array().unwrap() {
        let is_group_case = case.get("groupsIn").is_some();
        let groups = if is_group_case { list(&case["groupsIn"]) } else { list(&case["user"]["groups"]) };
        // The gateway adds the group of all who showed a credential itself.
        let organizations: Vec<_> = groups.iter().filter(|g| *g != "system:authenticated").cloned().collect();
        let mut request = get("/clusters/a/api");
        let mut inbound = if is_group_case { Vec::new() } else { pairs(&case["inbound"]) };
        if case["user"].is_null() && !is_group_case {
            // Nobody the gateway knows, with a token for the shard.
            inbound.push(("authorization".into(), "Bearer t".into()));
        }
        for (name, value) in &inbound {
            let name = http::HeaderName::try_from(name).unwrap();
            request.headers_mut().append(name, HeaderValue::try_from(value).unwrap());
        }
        let user = (is_group_case || case["user"].is_object()).then_some("alice");
        let socket = ca.connect(gateway.address(), user.map(|u| (u, organizations.as_slice())), false).await;
        let (mut client, connection) =
            hyper::client::conn::http1::handshake(hyper_util::rt::TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        assert_eq!(client.send_request(request).await.unwrap().status(), StatusCode::OK);
        let mut got: Vec<(String, String)> = seen.take()[0]
            .headers
            .iter()
            .map(|(n, v)| (n.to_string(), v.to_str().unwrap().to_owned()))
            .filter(|(n, _)| !["host", "audit-id", "authorization"].contains(&&**n) && !n.starts_with("x-forwarded-"))
            .collect();
        let mut want = match is_group_case {
            true => {
                let mut groups = list(&case["groupsOut"]);
                if !groups.iter().any(|g| g == "system:authenticated") {
                    groups.push("system:authenticated".into());
                }
                let groups = groups.into_iter().map(|g| ("x-remote-group".to_owned(), g));
                [("x-remote-user".to_owned(), "alice".to_owned())].into_iter().chain(groups).collect()
            }
            false => pairs(&case["outbound"]),
        };
        // A difference on purpose: we name the certificate, as Kubernetes 1.34 does; a forged name would be another one.
        got.retain(|(name, value)| {
            name != "x-remote-extra-authentication.kubernetes.io%2fcredential-id" || !value.starts_with("X509SHA256=")
        });
        // Headers of one name keep their order, names among each other have none.
        got.sort_by(|a, b| a.0.cmp(&b.0));
        want.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(got, want, "{}", case["name"]);
    }
}

#[tokio::test]
async fn identity_headers_in_other_spellings_are_removed_too() {
    let seen = Seen::default();
    let gateway = Gateway::start(options(vec![noting_upstream(&seen).await])).unwrap();
    let bytes = "GET /clusters/a/api HTTP/1.1\r\nHost: d\r\nX_Remote_User: admin\r\nx-remote_group: system:masters\r\n\
                 X-Remote-Extra-A: 1\r\nX-REMOTE-UID: 7\r\nConnection: close, x-remote-user\r\n\r\n";
    raw(gateway.address(), bytes.as_bytes(), |_| false).await;
    let headers = seen.take().remove(0).headers;
    let remote: Vec<_> =
        headers.keys().map(|n| n.as_str().replace('_', "-")).filter(|n| n.starts_with("x-remote")).collect();
    assert_eq!(remote, ["x-remote-user", "x-remote-group"]);
    assert_eq!(
        (headers["x-remote-user"].as_bytes(), headers["x-remote-group"].as_bytes()),
        (&b"system:anonymous"[..], &b"system:unauthenticated"[..])
    );
}

#[tokio::test]
async fn only_masters_act_as_somebody_else() {
    let ca = tls::Ca::new();
    let seen = Seen::default();
    let options = proxy::GatewayOptions {
        tls: Some(Arc::new(ca.server_config())),
        drop_groups: vec!["system:masters".into()],
        ..options(vec![noting(&seen)])
    };
    let gateway = Gateway::start(options).unwrap();
    let ask = async |groups: &[&str], headers: &[(&'static str, &'static str)]| {
        let groups: Vec<_> = groups.iter().map(|g| g.to_string()).collect();
        let socket = ca.connect(gateway.address(), Some(("admin", &groups)), true).await;
        let mut request = get_h2("/clusters/a/api");
        for (name, value) in headers {
            request.headers_mut().append(*name, HeaderValue::from_static(value));
        }
        h2_on(socket).await.send_request(request).await.unwrap().status().as_u16()
    };
    let bob = [("impersonate-user", "bob"), ("impersonate-group", "dev"), ("impersonate-extra-a%2Fb", "1")];
    assert_eq!(ask(&["dev"], &bob).await, 403);
    assert_eq!(ask(&["dev"], &[("impersonate-group", "system:masters")]).await, 403);
    assert_eq!(ask(&["dev"], &[("impersonate_group", "system:masters")]).await, 403);
    assert_eq!(ask(&["system:masters"], &bob[1..]).await, 400, "without a user");
    assert_eq!(ask(&["system:masters"], &[("impersonate-who", "x")]).await, 400);
    let twice = [("impersonate-user", "bob"), ("impersonate-user", "alice")];
    assert_eq!(ask(&["system:masters"], &twice).await, 400, "two users");
    assert_eq!(seen.len(), 0);
    assert_eq!(ask(&["system:masters"], &bob).await, 200);
    let headers = seen.take().remove(0).headers;
    assert!(!headers.keys().any(|n| n.as_str().starts_with("impersonate")));
    assert_eq!(headers["x-remote-user"], "bob");
    assert_eq!(headers.get_all("x-remote-group").iter().collect::<Vec<_>>(), ["dev", "system:authenticated"]);
    assert_eq!(headers["x-remote-extra-a%2fb"], "1");
    assert_eq!(ask(&["system:masters"], &[]).await, 200);
    let headers = seen.take().remove(0).headers;
    assert_eq!(headers.get_all("x-remote-group").iter().collect::<Vec<_>>(), ["system:authenticated"], "dropped");
    assert_eq!(headers["x-forwarded-proto"], "https");
}

/// To switch is the server's choice (RFC 9110 section 7.8), and only who names it in `Connection` asks for it.
#[tokio::test]
async fn an_upgrade_that_is_not_offered_is_ignored() {
    let seen = Seen::default();
    let exec = "/clusters/a/api/v1/namespaces/n/pods/p/exec?command=sh";
    let plain = "/clusters/a/api/v1/pods";
    for (shard, path, connection) in [
        (noting(&seen), exec, "upgrade"),
        (noting(&seen), plain, "upgrade"),
        (noting_upstream(&seen).await, plain, "upgrade"),
        (noting_upstream(&seen).await, exec, "keep-alive"),
    ] {
        let gateway = Gateway::start(options(vec![shard])).unwrap();
        let mut request = get(path);
        request.headers_mut().insert("connection", HeaderValue::from_static(connection));
        request.headers_mut().insert("upgrade", HeaderValue::from_static("websocket"));
        assert_eq!(once(&gateway, request).await.0, StatusCode::OK);
        let headers = seen.take().remove(0).headers;
        assert!(!headers.contains_key("upgrade") && !headers.contains_key("connection"), "{path} {connection}");
    }
}

#[tokio::test]
async fn only_identity_headers_must_be_plain_text() {
    let ca = tls::Ca::new();
    let seen = Seen::default();
    let options = proxy::GatewayOptions {
        tls: Some(Arc::new(ca.server_config())),
        ..options(vec![noting_upstream(&seen).await])
    };
    let gateway = Gateway::start(options).unwrap();
    for (name, want) in [("user-agent", 200), ("impersonate-group", 400)] {
        let masters = ["system:masters".to_owned()];
        let mut client = h2_on(ca.connect(gateway.address(), Some(("admin", &masters)), true).await).await;
        let mut request = get_h2("/clusters/a/api");
        request.headers_mut().insert("impersonate-user", HeaderValue::from_static("bob"));
        request.headers_mut().insert(name, HeaderValue::from_bytes("m\u{fc}ller".as_bytes()).unwrap());
        assert_eq!(client.send_request(request).await.unwrap().status().as_u16(), want, "{name}");
    }
}

#[tokio::test]
async fn a_refused_upload_gets_its_answer_and_keeps_its_connection() {
    let refusing = local(|_| async {
        let mut answer = ok("no");
        *answer.status_mut() = StatusCode::FORBIDDEN;
        answer
    });
    let gateway = Gateway::start(options(vec![refusing])).unwrap();
    let mut client = h1(&gateway).await;
    // By the shard, and by the gateway itself.
    for path in ["/clusters/a/api/v1/configmaps", "/clusters/a/clusters/b"] {
        for size in [100, 200 << 10, 6 << 20] {
            let request = Request::post(path).header("host", "d").body(full(vec![b'x'; size])).unwrap();
            client.ready().await.unwrap();
            let answer = client.send_request(request).await.unwrap();
            assert!(answer.status().is_client_error(), "{path}");
            let text = http_body_util::BodyExt::collect(answer.into_body()).await.unwrap().to_bytes();
            assert!(!text.is_empty(), "{path} {size}");
        }
    }
}
