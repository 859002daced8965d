//! `?pretty=true`: JSON with a line for each member, for people who read it (api-server.md 3.9). Of answers that are
//! there as a whole and not packed; watches and long lists are streams, and stay as they are.

use bytes::Bytes;
use http::{Response, header};

use super::{body::Body, respond};

/// Largest answer that is indented, in bytes: for people.
const LARGEST: usize = 4 << 20;

/// The answer, indented if it can be.
pub(crate) fn indented(response: Response<Body>) -> Response<Body> {
    let headers = response.headers();
    let is_json = headers.get(header::CONTENT_TYPE) == Some(&respond::JSON);
    if !is_json || headers.contains_key(header::CONTENT_ENCODING) {
        return response;
    }
    response.map(|body| body.map_whole(|bytes| if bytes.len() > LARGEST { bytes } else { indent(&bytes) }))
}

/// Two spaces for each level, and nothing between the brackets of what is empty, as Go writes it.
fn indent(json: &[u8]) -> Bytes {
    let (mut out, mut depth, mut in_text, mut escaped) = (Vec::with_capacity(json.len() * 2), 0_usize, false, false);
    let mut before = 0;
    for &byte in json {
        if in_text {
            (in_text, escaped) = (escaped || byte != b'"', !escaped && byte == b'\\');
            out.push(byte);
            continue;
        }
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' => continue,
            b'}' | b']' => {
                depth = depth.saturating_sub(1);
                if !matches!(before, b'{' | b'[') {
                    line(&mut out, depth);
                }
            }
            _ if matches!(before, b'{' | b'[' | b',') => line(&mut out, depth),
            _ => {}
        }
        out.push(byte);
        match byte {
            b'"' => in_text = true,
            b'{' | b'[' => depth += 1,
            b':' => out.push(b' '),
            _ => {}
        }
        before = byte;
    }
    out.push(b'\n');
    out.into()
}

fn line(out: &mut Vec<u8>, depth: usize) {
    out.push(b'\n');
    out.extend(std::iter::repeat_n(b' ', 2 * depth));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn as_go_writes_it() {
        let compact = br#"{"a":[],"b":{},"c":[1,{"d":"x: {\"y\"},"}],"e":null}"#;
        let want = "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    {\n      \"d\": \"x: {\\\"y\\\"},\"\n    }\n  ],\n  \
                    \"e\": null\n}\n";
        assert_eq!(indent(compact), want);
        assert_eq!(indent(want.as_bytes()), want, "what is indented stays as it is");
    }

    proptest! {
        #[test]
        fn it_says_the_same(text in any::<String>(), key in any::<String>(), number in any::<i64>()) {
            let value = json!({key: [text.clone(), number, {"x": text}, [[]], true]});
            let indented = indent(value.to_string().as_bytes());
            prop_assert_eq!(serde_json::from_slice::<Value>(&indented).unwrap(), value);
        }
    }
}
