//! Headers that belong to one connection only (RFC 9110 section 7.6.1).

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        CONNECTION, CONTENT_LENGTH, HOST, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRANSFER_ENCODING, UPGRADE,
    },
};

const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// Removes them, and every header that `Connection` names. `TE: trailers` stays: trailers are passed on.
pub(crate) fn remove(headers: &mut HeaderMap) {
    if !headers.keys().any(is_hop) {
        return;
    }
    let mut named = Vec::new();
    for value in headers.get_all(CONNECTION) {
        // The lone `keep-alive` of nearly every answer of an HTTP/1.0 mind names nothing that is not removed anyway.
        if value.as_bytes().eq_ignore_ascii_case(b"keep-alive") {
            continue;
        }
        let tokens = value.as_bytes().split(|b| *b == b',');
        named.extend(tokens.filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok()));
    }
    for name in
        [CONNECTION, KEEP_ALIVE, PROXY_CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TRANSFER_ENCODING, UPGRADE]
    {
        headers.remove(name);
    }
    let trailers = headers.get_all(TE).iter().any(|value| has_token(value, b"trailers"));
    headers.remove(TE);
    for name in named {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
}

/// Whether `Connection` names `token` (in lower case).
pub(crate) fn is_named(headers: &HeaderMap, token: &[u8]) -> bool {
    headers.get_all(CONNECTION).iter().any(|value| has_token(value, token))
}

/// Whether a field says where a message ends or where it goes: such have no place in trailers.
pub(crate) fn is_framing(name: &HeaderName) -> bool {
    *name == CONTENT_LENGTH || *name == HOST || is_hop(name)
}

fn has_token(value: &HeaderValue, token: &[u8]) -> bool {
    value.as_bytes().split(|b| *b == b',').any(|t| t.trim_ascii().eq_ignore_ascii_case(token))
}

fn is_hop(name: &HeaderName) -> bool {
    *name == CONNECTION
        || *name == TE
        || *name == TRANSFER_ENCODING
        || *name == UPGRADE
        || *name == KEEP_ALIVE
        || *name == PROXY_CONNECTION
        || *name == PROXY_AUTHENTICATE
        || *name == PROXY_AUTHORIZATION
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_and_listed_headers_go_and_the_rest_stays() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("keep-alive", "timeout=5"),
            ("te", "gzip, trailers"),
            ("upgrade", "h2c"),
            ("accept", "a"),
            ("accept", "b"),
            ("trailer", "x"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        remove(&mut headers);
        let mut left: Vec<_> = headers.iter().map(|(n, v)| (n.as_str(), v.to_str().unwrap())).collect();
        left.sort_unstable();
        assert_eq!(left, [("accept", "a"), ("accept", "b"), ("te", "trailers"), ("trailer", "x")]);
    }
}
