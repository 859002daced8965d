//! Percent-decoding of paths and queries, with Go's rules where a server and its gateway must agree.
//!
//! Decoded bytes that are not UTF-8 become U+FFFD: no name that Kubernetes accepts has any.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;

/// `text` decoded once; borrowed when it holds no escape. A malformed escape stays as it is.
pub(crate) fn decode(text: &str) -> Cow<'_, str> {
    // Nearly all texts are plain, and looking for one byte is far quicker than decoding.
    if !text.as_bytes().contains(&b'%') {
        return Cow::Borrowed(text);
    }
    percent_decode_str(text).decode_utf8_lossy()
}

/// Position of the first `%` that two hexadecimal digits do not follow.
pub(crate) fn malformed(text: &str) -> Option<usize> {
    let hex = |b: Option<&u8>| b.is_some_and(u8::is_ascii_hexdigit);
    let bytes = text.as_bytes();
    let good = |at: usize| hex(bytes.get(at + 1)) && hex(bytes.get(at + 2));
    bytes.iter().enumerate().find(|(at, b)| **b == b'%' && !good(*at)).map(|(at, _)| at)
}

/// The pairs of a raw query, decoded, in order. As Go's `url.ParseQuery`: a pair with a semicolon or a
/// malformed escape is left out.
pub fn query_pairs(query: &str) -> impl Iterator<Item = (Cow<'_, str>, Cow<'_, str>)> {
    raw_pairs(query).filter_map(|(key, value)| Some((query_part(key)?, query_part(value)?)))
}

/// The decoded first value of `key`, of the pairs that [`query_pairs`] has. Decodes no other value.
pub(crate) fn query_value<'q>(query: &'q str, key: &str) -> Option<Cow<'q, str>> {
    let is_key = |raw: &str| if is_plain(raw) { raw == key } else { query_part(raw).is_some_and(|k| k == key) };
    raw_pairs(query).filter(|(raw, _)| is_key(raw)).find_map(|(_, value)| query_part(value))
}

fn raw_pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty() && !pair.as_bytes().contains(&b';'));
    pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

fn is_plain(text: &str) -> bool {
    !text.bytes().any(|b| b == b'%' || b == b'+')
}

fn query_part(text: &str) -> Option<Cow<'_, str>> {
    if is_plain(text) {
        return Some(Cow::Borrowed(text));
    }
    malformed(text).is_none().then(|| match text.contains('+') {
        true => Cow::Owned(decode(&text.replace('+', " ")).into_owned()),
        false => decode(text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_pairs_are_read_as_go_reads_them() {
        let pairs = |q| query_pairs(q).map(|(k, v)| format!("{k}={v}")).collect::<Vec<_>>();
        assert_eq!(pairs("a=1&b&&=x&c=%3D=&a+b=c%2Bd+e"), ["a=1", "b=", "=x", "c===", "a b=c+d e"]);
        assert_eq!(pairs("a=1;b=2&c=%zz&%=1&d=%4&e=5"), ["e=5"]);
        assert!(query_pairs("limit=500").all(|(k, v)| matches!((k, v), (Cow::Borrowed(_), Cow::Borrowed(_)))));
    }

    proptest::proptest! {
        #[test]
        fn the_first_value_is_that_of_the_pairs(query in "([abc%+;=&]|%61|%zz){0,12}") {
            for key in ["a", "b", "", " a"] {
                let first = query_pairs(&query).find(|(k, _)| k == key).map(|(_, value)| value);
                proptest::prop_assert_eq!(query_value(&query, key), first);
            }
        }
    }
}
