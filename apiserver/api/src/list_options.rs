//! The query of a list, watch or deletecollection (`metav1.ListOptions`), and `timeout=` of any request.

use std::{borrow::Cow, num::IntErrorKind, str::FromStr, time::Duration};

use crate::{
    Reason, Status, names,
    percent::{self, query_value},
};

/// List options as the client wrote them: selectors and versions are not looked into here. The first value
/// of a repeated parameter counts. Borrows from the query unless something is encoded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListOptions<'a> {
    /// Longest answer in objects; `None` when absent, zero or negative.
    pub limit: Option<u64>,
    /// Token of a chunked list; empty when absent.
    pub continue_token: Cow<'a, str>,
    /// Raw; empty when absent. See [`ListOptions::revision`].
    pub resource_version: Cow<'a, str>,
    /// `Exact`, `NotOlderThan`, empty, or something wrong.
    pub resource_version_match: Cow<'a, str>,
    /// Raw; empty when absent.
    pub label_selector: Cow<'a, str>,
    /// Raw; empty when absent.
    pub field_selector: Cow<'a, str>,
    /// `watch=`, as [`RequestInfo::query_flag`](crate::RequestInfo::query_flag) reads flags.
    pub watch: bool,
    /// `allowWatchBookmarks=`.
    pub allow_watch_bookmarks: bool,
    /// `sendInitialEvents=`; `None` when absent.
    pub send_initial_events: Option<bool>,
    /// `timeoutSeconds=` as given.
    pub timeout_seconds: Option<i64>,
}

impl<'a> ListOptions<'a> {
    /// Reads the raw `query` (without `?`). Unknown parameters are ignored, as upstream does.
    ///
    /// # Errors
    /// 400 when `limit` or `timeoutSeconds` is no 64-bit integer.
    pub fn parse(query: &'a str) -> Result<Self, Status> {
        let mut options = Self::default();
        let mut seen = 0u16;
        for (key, value) in percent::query_pairs(query) {
            let Some(index) = KEYS.iter().position(|k| *k == key) else { continue };
            if seen & (1 << index) != 0 {
                continue;
            }
            seen |= 1 << index;
            let flag = || value != "0" && !value.eq_ignore_ascii_case("false");
            match &*key {
                "limit" => options.limit = u64::try_from(integer::<i64>(&value, "ParseInt")?).ok().filter(|n| *n > 0),
                "timeoutSeconds" => options.timeout_seconds = Some(integer(&value, "ParseInt")?),
                "watch" => options.watch = flag(),
                "allowWatchBookmarks" => options.allow_watch_bookmarks = flag(),
                "sendInitialEvents" => options.send_initial_events = Some(flag()),
                "continue" => options.continue_token = value,
                "resourceVersion" => options.resource_version = value,
                "resourceVersionMatch" => options.resource_version_match = value,
                "labelSelector" => options.label_selector = value,
                _ => options.field_selector = value,
            }
        }
        Ok(options)
    }

    /// The resource version as a number: 0 when it is absent or `0`.
    ///
    /// # Errors
    /// 400 when it is no unsigned 64-bit integer.
    pub fn revision(&self) -> Result<u64, Status> {
        if self.resource_version.is_empty() {
            return Ok(0);
        }
        integer(&self.resource_version, "ParseUint").map_err(|e| {
            Status::new(
                Reason::BadRequest,
                format!("invalid resource version: resourceVersion: Invalid value: {:?}: {e}", self.resource_version),
            )
        })
    }
}

const KEYS: [&str; 10] = [
    "limit",
    "timeoutSeconds",
    "watch",
    "allowWatchBookmarks",
    "sendInitialEvents",
    "continue",
    "resourceVersion",
    "resourceVersionMatch",
    "labelSelector",
    "fieldSelector",
];

/// Go's `strconv` with its error text, which clients see. Base ten; unsigned numbers take no sign.
fn integer<T: FromStr<Err = std::num::ParseIntError>>(text: &str, function: &str) -> Result<T, Status> {
    let parsed = text.parse::<T>().map_err(|e| match e.kind() {
        IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
        _ => "invalid syntax",
    });
    let signed = function == "ParseUint" && text.starts_with('+');
    let parsed = if signed { Err("invalid syntax") } else { parsed };
    parsed.map_err(|why| Status::new(Reason::BadRequest, format!("strconv.{function}: parsing {text:?}: {why}")))
}

/// The name that the field selector of `query` demands: the value of its first exact term on
/// `metadata.name` in byte order (upstream sorts the terms), if it can stand in a path.
///
/// As upstream, no name when the query is no valid list options. One difference: a malformed *label*
/// selector does not hide the name; the server refuses such a request anyway.
pub(crate) fn single_name(query: &str) -> Option<Cow<'_, str>> {
    let selector = query_value(query, "fieldSelector").filter(|s| !s.is_empty())?;
    let is_integer = |key| query_value(query, key).is_none_or(|value| value.parse::<i64>().is_ok());
    if !is_integer("limit") || !is_integer("timeoutSeconds") {
        return None;
    }
    let name = match &selector {
        Cow::Borrowed(text) => exact_name(text)??,
        Cow::Owned(text) => Cow::Owned(exact_name(text)??.into_owned()),
    };
    (!name.is_empty() && names::path_segment(&name).is_ok()).then_some(name)
}

/// Outer `None`: malformed selector. Inner: no exact term on `metadata.name`.
fn exact_name(selector: &str) -> Option<Option<Cow<'_, str>>> {
    let mut best: Option<(&str, Cow<'_, str>)> = None;
    for term in Terms(Some(selector)).filter(|t| !t.is_empty()) {
        let at = term.find(['!', '=']).map(|at| skip_lone_bangs(term, at))??;
        let (key, rest) = term.split_at(at);
        let (negated, value) = if let Some(value) = rest.strip_prefix("!=") {
            (true, value)
        } else {
            (false, rest.strip_prefix("==").or(rest.strip_prefix('=')).unwrap_or(rest))
        };
        let value = unescape(value)?;
        if !negated && key == "metadata.name" && best.as_ref().is_none_or(|(least, _)| term < *least) {
            best = Some((term, value));
        }
    }
    Some(best.map(|(_, value)| value))
}

/// The first operator at or behind `at`: a `!` that no `=` follows belongs to the key.
fn skip_lone_bangs(term: &str, mut at: usize) -> Option<usize> {
    loop {
        let rest = term.get(at..)?;
        if rest.starts_with('=') || rest.starts_with("!=") {
            return Some(at);
        }
        at += 1 + rest.get(1..)?.find(['!', '='])?;
    }
}

/// The terms of a field selector: cut at commas that no backslash precedes.
struct Terms<'a>(Option<&'a str>);

impl<'a> Iterator for Terms<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let rest = self.0?;
        let mut escaped = false;
        let comma = rest.bytes().position(|b| {
            let cut = b == b',' && !escaped;
            escaped = b == b'\\' && !escaped;
            cut
        });
        let (term, rest) = match comma {
            Some(at) => (rest.get(..at)?, rest.get(at + 1..)),
            None => (rest, None),
        };
        self.0 = rest;
        Some(term)
    }
}

/// A field selector's value without its escapes (`\\`, `\,`, `\=`); `None` when they are wrong.
fn unescape(value: &str) -> Option<Cow<'_, str>> {
    if !value.contains(['\\', ',', '=']) {
        return Some(Cow::Borrowed(value));
    }
    let mut out = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => out.push(chars.next().filter(|c| matches!(c, '\\' | ',' | '='))?),
            ',' | '=' => return None,
            _ => out.push(c),
        }
    }
    Some(Cow::Owned(out))
}

/// The `timeout=` of a raw query (apf.md 1.4): `None` when it is absent, zero or negative, which stands
/// for the server's maximum.
///
/// # Errors
/// 400 when it is no duration in Go's notation (`1m30s`, `1.5h`, `300ms`).
pub fn request_timeout(query: &str) -> Result<Option<Duration>, Status> {
    let Some(text) = query_value(query, "timeout").filter(|t| !t.is_empty()) else { return Ok(None) };
    match parse_duration(&text) {
        Some(nanos) => Ok(u64::try_from(nanos).ok().filter(|n| *n > 0).map(Duration::from_nanos)),
        None => Err(Status::new(
            Reason::BadRequest,
            format!("invalid timeout specified in the request URL - time: invalid duration {text:?}"),
        )),
    }
}

/// A duration in Go's notation in nanoseconds: signed numbers with an optional fraction, each with a unit
/// (`ns`, `us`, `µs`, `ms`, `s`, `m`, `h`); a bare `0` needs none. `None` for anything else and on overflow.
pub fn parse_duration(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total = 0i128;
    while !rest.is_empty() {
        let (whole, behind) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
        let (fraction, behind) = match behind.strip_prefix('.') {
            Some(f) => f.split_at(f.find(|c: char| !c.is_ascii_digit()).unwrap_or(f.len())),
            None => ("", behind),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let (name, behind) =
            behind.split_at(behind.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(behind.len()));
        let unit: i128 = match name {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()?.into() };
        // More than 18 digits of a fraction are below a nanosecond in every unit.
        let digits = fraction.get(..fraction.len().min(18))?;
        let scale = 10i128.pow(u32::try_from(digits.len()).ok()?);
        let part = digits.parse::<i128>().unwrap_or(0) * unit / scale;
        total = total.checked_add(whole * unit + part).filter(|t| *t <= i128::from(i64::MAX) + 1)?;
        rest = behind;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_refused_with_upstreams_texts() {
        let text = |q| ListOptions::parse(q).unwrap_err().message;
        assert_eq!(text("limit=abc"), "strconv.ParseInt: parsing \"abc\": invalid syntax");
        assert_eq!(text("limit="), "strconv.ParseInt: parsing \"\": invalid syntax");
        assert_eq!(
            text("timeoutSeconds=9223372036854775808"),
            "strconv.ParseInt: parsing \"9223372036854775808\": value out of range"
        );
        let version = |q| ListOptions::parse(q).unwrap().revision().map_err(|e| e.message);
        assert_eq!(version("resourceVersion=815"), Ok(815));
        assert_eq!(version(""), Ok(0));
        let refused = "invalid resource version: resourceVersion: Invalid value: \"abc\": strconv.ParseUint: parsing \"abc\": invalid syntax";
        assert_eq!(version("resourceVersion=abc"), Err(refused.into()));
        assert!(version("resourceVersion=-1").is_err() && version("resourceVersion=%2B1").is_err());
    }

    #[test]
    fn all_options_are_read() {
        let query = "limit=2&limit=x&continue=t&resourceVersion=5&resourceVersionMatch=Exact&labelSelector=a%3Db\
                     &fieldSelector=c=d&watch&allowWatchBookmarks=true&sendInitialEvents=false&timeoutSeconds=-3&pretty=1";
        let want = ListOptions {
            limit: Some(2),
            continue_token: "t".into(),
            resource_version: "5".into(),
            resource_version_match: "Exact".into(),
            label_selector: "a=b".into(),
            field_selector: "c=d".into(),
            watch: true,
            allow_watch_bookmarks: true,
            send_initial_events: Some(false),
            timeout_seconds: Some(-3),
        };
        assert_eq!(ListOptions::parse(query).unwrap(), want);
        assert_eq!(ListOptions::parse("limit=-1").unwrap().limit, None);
    }

    #[test]
    fn the_selected_name_is_upstreams() {
        let name = |q: &'static str| single_name(q).unwrap_or_default();
        for (query, want) in [
            ("fieldSelector=metadata.name=b,metadata.name=a", "a"),
            ("fieldSelector=metadata.name=a,,x!=y", "a"),
            ("fieldSelector=metadata.name=a,broken", ""),
            ("fieldSelector=metadata.name=a,b=c\\d", ""),
            ("fieldSelector=metadata.name=a=b", ""),
            ("fieldSelector=metadata.name=a%5C%5C", "a\\"),
            ("fieldSelector=metadata.name!a=b", ""),
            ("fieldSelector=a!b!c=d,metadata.name=e", "e"),
            ("fieldSelector=metadata.name=a&limit=", ""),
            ("fieldSelector=metadata.name=a/b", ""),
            ("fieldSelector=,", ""),
        ] {
            assert_eq!(name(query), want, "{query}");
        }
    }

    #[test]
    fn durations_are_gos() {
        for (text, want) in [
            ("0", Some(0)),
            ("-0", Some(0)),
            ("1m30s", Some(90_000_000_000)),
            ("1.5h", Some(5_400_000_000_000)),
            (".5s", Some(500_000_000)),
            ("1.s", Some(1_000_000_000)),
            ("-2us", Some(-2_000)),
            ("3µs", Some(3_000)),
            ("0.3333333333333333333h", Some(1_200_000_000_000 - 1)),
            ("9223372036854775807ns", Some(i64::MAX)),
            ("9223372036854775808ns", None),
            ("-9223372036854775808ns", Some(i64::MIN)),
            ("3000000h", None),
            ("5", None),
            ("", None),
            ("-", None),
            ("s", None),
            (".s", None),
            ("1d", None),
            ("1 s", None),
            ("1s ", None),
        ] {
            assert_eq!(parse_duration(text), want, "{text:?}");
        }
        assert_eq!(request_timeout("timeout=1s").unwrap(), Some(Duration::from_secs(1)));
        assert_eq!(request_timeout("timeout=-1s&x").unwrap(), None);
        assert_eq!(request_timeout("").unwrap(), None);
        assert!(request_timeout("timeout=1").unwrap_err().message.ends_with("time: invalid duration \"1\""));
    }
}
