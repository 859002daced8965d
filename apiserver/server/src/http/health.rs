//! `/healthz`, `/livez`, `/readyz` (api-server.md 1.7). Health is of the process, not of a workspace.

use http::{Response, StatusCode, header};

use super::{body::Body, respond};

/// One check and how it went.
pub(crate) struct Check {
    /// Its name, as in `/livez/<name>`.
    pub(crate) name: &'static str,
    /// Whether it passed.
    pub(crate) passed: bool,
    /// Whether only `/readyz` asks for it.
    pub(crate) ready_only: bool,
}

/// The answer for a path below one of the three, `None` when there is no such check.
pub(crate) fn answer(path: &str, query: &str, checks: &[Check]) -> Option<Response<Body>> {
    let mut segments = path.trim_start_matches('/').splitn(2, '/');
    let kind = segments.next().filter(|k| matches!(*k, "healthz" | "livez" | "readyz"))?;
    let only = segments.next().filter(|s| !s.is_empty());
    let mut asked: Vec<&Check> = checks.iter().filter(|c| kind == "readyz" || !c.ready_only).collect();
    if let Some(name) = only {
        asked.retain(|c| c.name == name);
        let check = asked.first()?;
        return Some(if check.passed {
            text(StatusCode::OK, "ok".into())
        } else {
            text(StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {name} failed\n"))
        });
    }
    let parameters = || query.split('&').map(|p| p.split_once('=').unwrap_or((p, "")));
    let excluded: Vec<&str> = parameters().filter(|(k, _)| *k == "exclude").map(|(_, v)| v).collect();
    let unknown: Vec<&str> = excluded.iter().copied().filter(|e| !asked.iter().any(|c| c.name == *e)).collect();
    let mut lines = String::new();
    let mut failed = false;
    for check in &asked {
        if excluded.contains(&check.name) {
            lines.push_str(&format!("[+]{} excluded: ok\n", check.name));
        } else if check.passed {
            lines.push_str(&format!("[+]{} ok\n", check.name));
        } else {
            failed = true;
            lines.push_str(&format!("[-]{} failed: reason withheld\n", check.name));
        }
    }
    if !unknown.is_empty() {
        let names = unknown.iter().map(|n| format!("\"{n}\"")).collect::<Vec<_>>().join(", ");
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {names}\n"));
    }
    let verbose = parameters().any(|(k, _)| k == "verbose");
    Some(match (failed, verbose) {
        (true, _) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}{kind} check failed\n")),
        (false, true) => text(StatusCode::OK, format!("{lines}{kind} check passed\n")),
        (false, false) => text(StatusCode::OK, "ok".into()),
    })
}

fn text(code: StatusCode, text: String) -> Response<Body> {
    let mut response = respond::text(code, text);
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, http::HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;

    use super::*;

    async fn get(path: &str, query: &str, passed: bool) -> Option<(u16, String)> {
        let checks = [
            Check { name: "ping", passed: true, ready_only: false },
            Check { name: "storage", passed, ready_only: false },
            Check { name: "shutdown", passed: true, ready_only: true },
        ];
        let response = answer(path, query, &checks)?;
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Some((code, String::from_utf8(body.to_vec()).unwrap()))
    }

    #[tokio::test]
    async fn texts_are_upstreams() {
        assert_eq!(get("/healthz", "", true).await, Some((200, "ok".into())));
        let verbose = "[+]ping ok\n[+]storage ok\nlivez check passed\n";
        assert_eq!(get("/livez", "verbose", true).await, Some((200, verbose.into())));
        let failed = "[+]ping ok\n[-]storage failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n";
        assert_eq!(get("/readyz", "", false).await, Some((500, failed.into())));
        assert_eq!(get("/readyz", "exclude=storage", false).await, Some((200, "ok".into())));
        let warned = get("/livez", "verbose&exclude=foo", true).await.unwrap().1;
        assert!(warned.contains("warn: some health checks cannot be excluded: no matches for \"foo\"\n"), "{warned}");
        assert_eq!(get("/livez/ping", "", true).await, Some((200, "ok".into())));
        assert_eq!(get("/livez/none", "", true).await, None);
        assert_eq!(get("/livez/shutdown", "", true).await, None);
    }
}
