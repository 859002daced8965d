//! JSON with a line for each member, for people who read it (api-server.md 3.9): for `?pretty=true`, and as upstream for
//! curl, wget and browsers if they do not say otherwise. Of answers that are there as a whole and not packed; watches and
//! long lists are streams, and stay as they are.

use apiserver_api::request_info::query_flag;
use bytes::Bytes;
use http::{Response, header, request::Parts};

use super::{body::Body, respond};

/// Largest answer that is indented, in bytes: for people.
const LARGEST: usize = 4 << 20;

/// Whether somebody reads the answer.
pub(crate) fn is_wanted(request: &Parts) -> bool {
    let query = request.uri.query().unwrap_or_default();
    if let Some(flag) = query_flag(query, "pretty") {
        return flag;
    }
    let agent = request.headers.get(header::USER_AGENT).map_or(&b""[..], |agent| agent.as_bytes());
    ["curl", "Wget", "Mozilla/5.0"].iter().any(|of_people| agent.starts_with(of_people.as_bytes()))
}

/// The answer, indented if it can be.
pub(crate) fn indented(response: Response<Body>) -> Response<Body> {
    let headers = response.headers();
    let is_json = headers.get(header::CONTENT_TYPE) == Some(&respond::JSON);
    if !is_json || headers.contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    response.map(|body| body.map_whole(|bytes| if bytes.len() > LARGEST { bytes } else { indent(&bytes) }))
}

/// The same values with two spaces for each level, as Go writes it; what serde does not read stays as it is.
fn indent(json: &Bytes) -> Bytes {
    let mut out = Vec::with_capacity(json.len() * 2);
    let mut from = serde_json::Deserializer::from_slice(json);
    match serde_transcode::transcode(&mut from, &mut serde_json::Serializer::pretty(&mut out)) {
        Ok(()) => {
            out.push(b'\n');
            out.into()
        }
        Err(_) => json.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn people_get_lines() {
        let wanted = |query: &str, agent: &str| {
            let request = http::Request::get(format!("/api{query}")).header(header::USER_AGENT, agent);
            is_wanted(&request.body(()).unwrap().into_parts().0)
        };
        let cases = [
            ("", "curl/8.5.0"),
            ("", "Wget/1.21"),
            ("", "Mozilla/5.0 (X11)"),
            ("?pretty=true", "kubectl"),
            ("?pretty", "x"),
        ];
        cases.into_iter().for_each(|(query, agent)| assert!(wanted(query, agent), "{query} {agent}"));
        let cases = [("", "kubectl/v1.34"), ("?pretty=false", "curl/8.5.0"), ("?pretty=0", "kubectl"), ("", "")];
        cases.into_iter().for_each(|(query, agent)| assert!(!wanted(query, agent), "{query} {agent}"));
    }

    #[test]
    fn as_go_writes_it() {
        let compact = Bytes::from_static(br#"{"a":[],"b":{},"c":[1,{"d":"x: {\"y\"},"}],"e":null}"#);
        let want = "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    {\n      \"d\": \"x: {\\\"y\\\"},\"\n    }\n  ],\n  \
                    \"e\": null\n}\n";
        assert_eq!(indent(&compact), want);
        assert_eq!(indent(&want.into()), want, "what is indented stays as it is");
    }

    proptest! {
        #[test]
        fn it_says_the_same(text in any::<String>(), key in any::<String>(), number in any::<i64>()) {
            let value = json!({key: [text.clone(), number, {"x": text}, [[]], true]});
            let indented = indent(&value.to_string().into());
            prop_assert_eq!(serde_json::from_slice::<Value>(&indented).unwrap(), value);
        }
    }
}
