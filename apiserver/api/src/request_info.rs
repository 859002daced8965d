//! What a request asks for, as Kubernetes' RequestInfo resolver reads it (apf.md 1.2).

use std::borrow::Cow;

use crate::{
    list_options::{self, ListOptions},
    percent,
};

/// The verb of a request: for resources the API verb, otherwise the lower-case HTTP method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    Proxy,
    /// Non-resource only.
    Post,
    /// Non-resource only.
    Put,
    /// Non-resource only.
    Head,
    /// Non-resource only.
    Options,
    /// A resource request with an odd method (`""` upstream) or a non-resource one with any other method.
    Other,
}

impl Verb {
    /// The verb as rules and metrics have it. [`Verb::Other`] is empty: only `*` matches it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Proxy => "proxy",
            Self::Post => "post",
            Self::Put => "put",
            Self::Head => "head",
            Self::Options => "options",
            Self::Other => "",
        }
    }

    fn of_resource(method: &str) -> Self {
        match method {
            "POST" => Self::Create,
            "GET" | "HEAD" => Self::Get,
            "PUT" => Self::Update,
            "PATCH" => Self::Patch,
            "DELETE" => Self::Delete,
            _ => Self::Other,
        }
    }

    fn of_path(method: &str) -> Self {
        [Self::Get, Self::Post, Self::Put, Self::Patch, Self::Delete, Self::Head, Self::Options]
            .into_iter()
            .find(|verb| verb.as_str().eq_ignore_ascii_case(method))
            .unwrap_or(Self::Other)
    }
}

/// A parsed request. Borrows from the request's path and query; owns only what had to be decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestInfo<'a> {
    /// Whether it is for an API resource.
    pub is_resource: bool,
    /// The decoded path behind the cluster prefix, not normalised.
    pub path: Cow<'a, str>,
    /// See [`Verb`].
    pub verb: Verb,
    /// `api`, `apis` or empty.
    pub api_prefix: Cow<'a, str>,
    /// Empty for the core group.
    pub api_group: Cow<'a, str>,
    /// For example `v1`.
    pub api_version: Cow<'a, str>,
    /// Empty when cluster-scoped or over all namespaces.
    pub namespace: Cow<'a, str>,
    /// Plural resource name.
    pub resource: Cow<'a, str>,
    /// Empty when there is none.
    pub subresource: Cow<'a, str>,
    /// Object name: from the path, or from an exact `metadata.name` field selector of a list or watch.
    pub name: Cow<'a, str>,
    /// The raw query string, without `?`; empty when there is none.
    pub query: &'a str,
}

/// The path names a special verb (`watch`, `proxy`) and nothing behind it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unable to determine kind and namespace from url, {path}")]
pub struct RequestInfoError {
    /// The decoded path.
    pub path: String,
}

impl<'a> RequestInfo<'a> {
    /// Parses `method` (upper case, as on the wire), the raw `path` behind the cluster prefix and the
    /// raw `query` (without `?`, empty when absent). Allocates only for percent-encoded paths and field
    /// selectors.
    ///
    /// # Errors
    /// See [`RequestInfoError`]; upstream answers 500, since no handler is found.
    pub fn parse(method: &str, path: &'a str, query: &'a str) -> Result<Self, RequestInfoError> {
        let mut info = match percent::decode(path) {
            Cow::Borrowed(path) => Parts::of(method, path)?.into_info(path, Cow::Borrowed),
            Cow::Owned(path) => {
                let mut info = Parts::of(method, &path)?.into_info("", |part| Cow::Owned(part.to_owned()));
                info.path = path.into();
                info
            }
        };
        info.query = query;
        if info.is_resource && info.name.is_empty() {
            info.settle_collection_verb();
        }
        Ok(info)
    }

    /// A request without a name is about the collection; a list or watch that selects exactly one
    /// `metadata.name` has that name after all.
    fn settle_collection_verb(&mut self) {
        match self.verb {
            Verb::Get => {
                self.verb = if self.query_flag("watch") { Verb::Watch } else { Verb::List };
                if let Some(name) = list_options::single_name(self.query) {
                    self.name = name;
                }
            }
            Verb::Delete => self.verb = Verb::DeleteCollection,
            _ => {}
        }
    }

    /// Whether the request is long-running (apf.md 1.3): watches, and the subresources attach, exec,
    /// proxy, log, portforward.
    pub fn is_long_running(&self) -> bool {
        matches!(self.verb, Verb::Watch | Verb::Proxy)
            || (self.is_resource && matches!(&*self.subresource, "attach" | "exec" | "proxy" | "log" | "portforward"))
    }

    /// The decoded first value of a query parameter.
    pub fn query_value(&self, key: &str) -> Option<Cow<'a, str>> {
        percent::query_value(self.query, key)
    }

    /// A boolean query parameter as Kubernetes reads it: absent, `0` and `false` are false, every other
    /// value is true, the empty one included.
    pub fn query_flag(&self, key: &str) -> bool {
        query_flag(self.query, key).unwrap_or(false)
    }

    /// The query as list options.
    ///
    /// # Errors
    /// See [`ListOptions::parse`].
    pub fn list_options(&self) -> Result<ListOptions<'a>, crate::Status> {
        ListOptions::parse(self.query)
    }
}

/// A boolean parameter of a raw query, as [`RequestInfo::query_flag`] reads it; `None` if it is absent.
pub fn query_flag(query: &str, key: &str) -> Option<bool> {
    percent::query_value(query, key).map(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
}

/// What the decoded path alone says.
struct Parts<'p> {
    is_resource: bool,
    verb: Verb,
    api_prefix: &'p str,
    api_group: &'p str,
    api_version: &'p str,
    namespace: &'p str,
    resource: &'p str,
    subresource: &'p str,
    name: &'p str,
}

/// `apis`, group, version, special verb, `namespaces`, namespace, resource, name, subresource.
const MAX_SEGMENTS: usize = 9;

/// The first segments of a path without its outer slashes; inner empty ones count, missing ones are empty.
struct Segments<'p> {
    list: [&'p str; MAX_SEGMENTS],
    length: usize,
    next: usize,
}

impl<'p> Segments<'p> {
    fn of(path: &'p str) -> Self {
        let mut segments = Self { list: [""; MAX_SEGMENTS], length: 0, next: 0 };
        let path = path.trim_matches('/');
        let mut start = 0;
        for (end, byte) in path.bytes().chain(std::iter::once(b'/')).enumerate() {
            if byte == b'/' {
                let Some(slot) = segments.list.get_mut(segments.length) else { break };
                *slot = path.get(start..end).unwrap_or_default();
                segments.length += 1;
                start = end + 1;
            }
        }
        segments
    }

    fn remaining(&self) -> usize {
        self.length.saturating_sub(self.next)
    }

    fn peek(&self, ahead: usize) -> &'p str {
        self.list.get(self.next + ahead).copied().unwrap_or_default()
    }

    fn pop(&mut self) -> &'p str {
        let segment = self.peek(0);
        self.next += 1;
        segment
    }
}

impl<'p> Parts<'p> {
    /// Kubernetes' `RequestInfoFactory.NewRequestInfo`, step by step.
    fn of(method: &str, path: &'p str) -> Result<Self, RequestInfoError> {
        let mut parts = Self {
            is_resource: false,
            verb: Verb::of_path(method),
            api_prefix: "",
            api_group: "",
            api_version: "",
            namespace: "",
            resource: "",
            subresource: "",
            name: "",
        };
        let mut segments = Segments::of(path);
        if segments.remaining() < 3 || !matches!(segments.peek(0), "api" | "apis") {
            return Ok(parts);
        }
        parts.api_prefix = segments.pop();
        if parts.api_prefix == "apis" {
            if segments.remaining() < 3 {
                return Ok(parts);
            }
            parts.api_group = segments.pop();
        }
        parts.is_resource = true;
        parts.api_version = segments.pop();

        let special = match segments.peek(0) {
            "watch" => Some(Verb::Watch),
            "proxy" => Some(Verb::Proxy),
            _ => None,
        };
        if special.is_some() {
            if segments.remaining() < 2 {
                return Err(RequestInfoError { path: path.to_owned() });
            }
            segments.pop();
        }
        parts.verb = special.unwrap_or_else(|| Verb::of_resource(method));

        if segments.peek(0) == "namespaces" && segments.remaining() >= 2 {
            parts.namespace = segments.peek(1);
            // Behind a namespace stands one of its own subresources or a resource within it.
            if segments.remaining() >= 3 && !matches!(segments.peek(2), "status" | "finalize") {
                segments.pop();
                segments.pop();
            }
        }
        parts.resource = segments.pop();
        parts.name = segments.pop();
        if special != Some(Verb::Proxy) {
            parts.subresource = segments.pop();
        }
        Ok(parts)
    }

    fn into_info<'a>(self, path: &'a str, cow: impl Fn(&'p str) -> Cow<'a, str>) -> RequestInfo<'a> {
        RequestInfo {
            is_resource: self.is_resource,
            path: path.into(),
            verb: self.verb,
            api_prefix: cow(self.api_prefix),
            api_group: cow(self.api_group),
            api_version: cow(self.api_version),
            namespace: cow(self.namespace),
            resource: cow(self.resource),
            subresource: cow(self.subresource),
            name: cow(self.name),
            query: "",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{cases, text};

    /// The path and query of a request target, as Go's HTTP parser has them.
    fn target(uri: &str) -> (&str, &str) {
        let uri = uri.strip_prefix("http://other.example").unwrap_or(uri);
        uri.split_once('?').unwrap_or((uri, ""))
    }

    #[test]
    fn requests_are_read_as_kubernetes_reads_them() {
        let mut refused_before = Vec::new();
        for case in cases("apf/request_info.json") {
            let (method, uri) = (text(&case["method"]), text(&case["uri"]));
            let (path, query) = target(uri);
            if case["httpParseError"] == true {
                refused_before.push(uri.to_owned());
                continue;
            }
            let parsed = RequestInfo::parse(method, path, query);
            if case["error"] == true {
                assert_eq!(parsed.unwrap_err().to_string(), text(&case["errorText"]), "{method} {uri}");
                continue;
            }
            let (got, want) = (parsed.unwrap(), &case["requestInfo"]);
            let at = format!("{method} {uri}");
            assert_eq!(got.is_resource, want["isResourceRequest"], "{at}");
            let lower = method.to_lowercase();
            let verb = if got.verb == Verb::Other && !got.is_resource { &lower } else { got.verb.as_str() };
            for (field, value) in [
                ("verb", verb),
                ("path", &got.path),
                ("apiPrefix", &got.api_prefix),
                ("apiGroup", &got.api_group),
                ("apiVersion", &got.api_version),
                ("namespace", &got.namespace),
                ("resource", &got.resource),
                ("subresource", &got.subresource),
                ("name", &got.name),
            ] {
                assert_eq!(value, text(&want[field]), "{at}: {field}");
            }
            // The selectors are copied only for these verbs, and not when the path itself says `watch`.
            let collection =
                matches!(got.verb, Verb::List | Verb::Watch | Verb::DeleteCollection) && !path.contains("/watch/");
            for field in ["fieldSelector", "labelSelector"] {
                let value = got.query_value(field).filter(|_| collection && got.is_resource).unwrap_or_default();
                assert_eq!(value, text(&want[field]), "{at}: {field}");
            }
            assert_eq!(got.is_long_running(), case["longRunning"], "{at}: longRunning");
            let parts: Vec<_> = want["parts"].as_array().unwrap().iter().map(text).collect();
            assert_eq!(got.resource, *parts.first().unwrap_or(&""), "{at}: parts");
        }
        // Refused by the HTTP parser, here by `url::split`.
        assert_eq!(refused_before, ["/api/v1/pods/%zz"]);
        assert!(crate::url::split("/api/v1/pods/%zz").is_err());
    }

    #[test]
    fn nothing_is_copied_unless_it_is_encoded() {
        let info = RequestInfo::parse("GET", "/apis/apps/v1/namespaces/n/deployments", "fieldSelector=metadata.name=x")
            .unwrap();
        for part in [&info.path, &info.api_group, &info.namespace, &info.resource, &info.name] {
            assert!(matches!(part, Cow::Borrowed(_)), "{part}");
        }
        assert_eq!(info.name, "x");
    }

    proptest::proptest! {
        /// The encoding of a path changes nothing but what is allocated.
        #[test]
        fn encoded_paths_mean_the_same(
            path in "/{0,2}(api|apis|x)(/(v1|watch|proxy|namespaces|pods|n|status||é)){0,7}/{0,2}",
            query in "[a-z=&%+;]{0,12}",
        ) {
            let encoded: String = path.bytes().map(|b| if b == b'/' { "/".into() } else { format!("%{b:02x}") }).collect();
            let plain = RequestInfo::parse("GET", &path, &query);
            proptest::prop_assert_eq!(&plain, &RequestInfo::parse("GET", &encoded, &query));
            if let Ok(info) = plain {
                proptest::prop_assert_eq!(&*info.path, &*path);
                proptest::prop_assert!(info.is_resource || info.resource.is_empty());
            }
        }
    }
}
