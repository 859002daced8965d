//! One line of the access log: the fields and how they are written. docs/access-log.md explains them.

use std::{borrow::Cow, time::Duration};

use apiserver_api::RequestInfo;
use http::{HeaderValue, Uri, Version};
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::Draft;
use crate::{
    route,
    trail::{Outcome, Trail},
};

/// Bytes of a path with its query, and of a header's value; the rest is cut off.
const PATH_MAX: usize = 1024;
const HEADER_MAX: usize = 256;

/// Keys of a query whose values are shown. All others may be secret (a command line of exec, what a proxied service is
/// asked) or are long and mean nothing to people (`continue`).
const SHOWN: [&str; 24] = [
    "allowWatchBookmarks",
    "container",
    "dryRun",
    "fieldManager",
    "fieldSelector",
    "fieldValidation",
    "follow",
    "force",
    "gracePeriodSeconds",
    "labelSelector",
    "limit",
    "limitBytes",
    "previous",
    "propagationPolicy",
    "resourceVersion",
    "resourceVersionMatch",
    "sendInitialEvents",
    "sinceSeconds",
    "tailLines",
    "timeout",
    "timeoutSeconds",
    "timestamps",
    "tty",
    "watch",
];

/// A line. What a request has not, because it did not come that far or is not of that kind, is left out.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Line<'a> {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    impersonated_by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workspace: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    verb: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_group: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    api_version: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    resource: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    subresource: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    namespace: Cow<'a, str>,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: Cow<'a, str>,
    method: &'a str,
    path: String,
    protocol: &'static str,
    client: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_agent: Option<Cow<'a, str>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flow_schema: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority_level: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seats_estimated: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seats_charged: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue_wait_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_byte_ms: Option<f64>,
    total_ms: f64,
    bytes_in: u64,
    bytes_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<u16>,
    outcome: Cow<'static, str>,
    #[serde(rename = "auditID", skip_serializing_if = "Option::is_none")]
    audit_id: Option<Cow<'a, str>>,
    #[serde(rename = "traceID", skip_serializing_if = "Option::is_none")]
    trace_id: Option<String>,
    #[serde(rename = "spanID", skip_serializing_if = "Option::is_none")]
    span_id: Option<String>,
    #[serde(rename = "parentSpanID", skip_serializing_if = "Option::is_none")]
    parent_span_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard: Option<&'a str>,
}

impl<'a> Line<'a> {
    /// The line of a request. `wall` is the calendar's time and the gateway's clock at the same moment, at or after the
    /// end. `None` only if the calendar cannot express the time.
    pub(crate) fn of(draft: &'a Draft, trail: &Trail, wall: (OffsetDateTime, u64)) -> Option<Self> {
        let (now, now_ns) = wall;
        let arrived = now - Duration::from_nanos(now_ns.saturating_sub(trail.arrived_ns));
        let query = draft.uri.query().unwrap_or_default();
        // What was not routed has no path that means anything.
        let info = draft.shard.as_ref().and_then(|_| {
            RequestInfo::parse(draft.method.as_str(), route::rest(&draft.uri, draft.rest_at), query).ok()
        });
        let (mut verb, mut parts) = ("", [const { Cow::Borrowed("") }; 6]);
        if let Some(info) = info {
            verb = info.verb.as_str();
            parts = [info.api_group, info.api_version, info.resource, info.subresource, info.namespace, info.name];
        }
        let [api_group, api_version, resource, subresource, namespace, name] = parts;
        let level = draft.level.as_ref().map(|(rules, class, cost)| (&rules.profile, class, cost));
        let prefix = draft.uri.path().get(..draft.rest_at).and_then(|prefix| prefix.strip_prefix("/clusters/"));
        let user = draft.identity.as_ref().map(|identity| &identity.user);
        Some(Self {
            time: arrived.format(&Rfc3339).ok()?,
            user: user.map(|user| &*user.name),
            groups: user.map(|user| user.groups.len() as u64),
            impersonated_by: draft.impersonator.as_ref().map(|identity| &*identity.user.name),
            workspace: prefix,
            cluster: draft.workspace.as_ref().map(|name| name.as_str()),
            verb,
            api_group,
            api_version,
            resource,
            subresource,
            namespace,
            name,
            method: draft.method.as_str(),
            path: path(&draft.uri),
            protocol: protocol(draft.version),
            client: draft.client.as_ref().and_then(|ip| ip.to_str().ok()).unwrap_or_default(),
            user_agent: draft.user_agent.as_ref().map(text),
            flow_schema: level.and_then(|(p, class, _)| {
                p.flow_schemas().get(usize::from(class.flow_schema)).map(|schema| &*schema.name)
            }),
            priority_level: level
                .and_then(|(p, class, _)| p.levels().get(usize::from(class.level)).map(|level| &*level.name)),
            seats_estimated: level.map(|(_, _, cost)| cost.raw_seats),
            seats_charged: level.map(|(_, _, cost)| cost.initial_seats.max(cost.final_seats)),
            queue_wait_ms: trail.wait_ns(trail.ended_ns).map(ms),
            first_byte_ms: trail.first_byte_ns().map(ms),
            total_ms: ms(trail.ended_ns.saturating_sub(trail.arrived_ns)),
            bytes_in: draft.bytes_in.as_ref().map_or(0, |bytes| bytes.load(std::sync::atomic::Ordering::Relaxed)),
            bytes_out: trail.bytes_out,
            status: trail.code.map(|code| code.as_u16()),
            outcome: outcome(trail.outcome),
            audit_id: draft.audit_id.as_ref().map(text),
            trace_id: draft.trace.map(|trace| format!("{:032x}", trace.trace_id)),
            span_id: draft.trace.map(|trace| format!("{:016x}", trace.span_id)),
            parent_span_id: draft.trace.and_then(|trace| trace.parent_id).map(|id| format!("{id:016x}")),
            shard: draft.shard.as_deref(),
        })
    }

    /// Tells the same as the last event of the request's span.
    pub(crate) fn trace(&self, span: &tracing::Span) {
        tracing::debug!(
            target: "fairgate::request",
            parent: span,
            user = self.user,
            groups = self.groups,
            impersonated_by = self.impersonated_by,
            workspace = self.workspace,
            cluster = self.cluster,
            verb = self.verb,
            api_group = &*self.api_group,
            resource = &*self.resource,
            subresource = &*self.subresource,
            namespace = &*self.namespace,
            name = &*self.name,
            protocol = self.protocol,
            client = self.client,
            flow_schema = self.flow_schema,
            priority_level = self.priority_level,
            seats_estimated = self.seats_estimated,
            seats_charged = self.seats_charged,
            queue_wait_ms = self.queue_wait_ms,
            first_byte_ms = self.first_byte_ms,
            total_ms = self.total_ms,
            bytes_in = self.bytes_in,
            bytes_out = self.bytes_out,
            status = self.status,
            outcome = &*self.outcome,
            audit_id = self.audit_id.as_deref(),
            trace_id = self.trace_id.as_deref(),
            span_id = self.span_id.as_deref(),
            parent_span_id = self.parent_span_id.as_deref(),
            shard = self.shard,
            "request ended"
        );
    }
}

/// Milliseconds to the microsecond: what is finer is noise.
fn ms(ns: u64) -> f64 {
    (ns / 1000) as f64 / 1000.0
}

fn protocol(version: Version) -> &'static str {
    match version {
        Version::HTTP_10 => "HTTP/1.0",
        Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}

fn outcome(outcome: Outcome) -> Cow<'static, str> {
    match outcome {
        Outcome::Served => "served".into(),
        Outcome::Cancelled => "cancelled".into(),
        Outcome::Refused(why) => format!("refused:{why}").into(),
        Outcome::Rejected(why) => format!("rejected:{why}").into(),
        Outcome::UpstreamError(why) => format!("upstream-error:{why}").into(),
        Outcome::TimedOut(why) => format!("timed-out:{why}").into(),
        Outcome::Cut(why) => format!("cut:{why}").into(),
    }
}

fn text(value: &HeaderValue) -> Cow<'_, str> {
    match String::from_utf8_lossy(value.as_bytes()) {
        Cow::Borrowed(text) => Cow::Borrowed(cut(text, HEADER_MAX)),
        Cow::Owned(text) => Cow::Owned(cut(&text, HEADER_MAX).to_owned()),
    }
}

/// As much of `text` as fits.
fn cut(text: &str, max: usize) -> &str {
    let mut end = max.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.get(..end).unwrap_or_default()
}

/// Path and query as the client wrote them; of the query, values that may be secret are replaced by `*`.
pub(super) fn path(uri: &Uri) -> String {
    let mut out = cut(uri.path(), PATH_MAX).to_owned();
    for (n, pair) in uri.query().into_iter().flat_map(|query| query.split('&')).enumerate() {
        let (key, value) = pair.split_once('=').map_or((pair, None), |(key, value)| (key, Some(value)));
        if out.len() + pair.len() > PATH_MAX {
            out.push('…');
            break;
        }
        out.push(if n == 0 { '?' } else { '&' });
        out.push_str(key);
        if let Some(value) = value {
            out.push('=');
            out.push_str(if value.is_empty() || SHOWN.contains(&key) { value } else { "*" });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(uri: &str) -> String {
        path(&uri.parse().unwrap())
    }

    #[test]
    fn values_of_a_query_that_may_be_secret_are_not_shown() {
        for (uri, want) in [
            ("/a?watch=1&limit=5&labelSelector=a%3Db", "/a?watch=1&limit=5&labelSelector=a%3Db"),
            ("/a?command=mysql&command=-psecret&tty=true", "/a?command=*&command=*&tty=true"),
            ("/a?continue=abc&x=&y&&%6cimit=5", "/a?continue=*&x=&y&&%6cimit=*"),
            ("/a?access_token=t=u", "/a?access_token=*"),
            ("/a", "/a"),
            ("/a?", "/a?"),
        ] {
            assert_eq!(shown(uri), want);
        }
        let long = shown(&format!("/{}?{}", "p".repeat(2000), "q=1&".repeat(2000)));
        assert!(long.len() <= PATH_MAX + '…'.len_utf8() && long.ends_with('…'), "{}", long.len());
    }

    #[test]
    fn a_text_is_cut_between_characters() {
        assert_eq!((cut("äöü", 3), cut("äöü", 4), cut("abc", 9)), ("ä", "äö", "abc"));
    }
}
