//! One line of the access log: the fields and how they are written. docs/access-log.md explains them.

use std::{borrow::Cow, time::Duration};

use apiserver_api::RequestInfo;
use http::Version;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

use super::{
    Draft,
    texts::{Piece, cut},
};
use crate::trail::{Outcome, Trail};

/// Bytes of a path with its query, and of what is read of them; the rest is cut off.
const PATH_MAX: usize = 1024;
const PART_MAX: usize = 512;

/// Keys of a query that are shown with their values. All other pairs may be secret (a command line of exec, a token that
/// stands alone) or are long and mean nothing to people (`continue`).
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
    user_agent: Option<&'a str>,
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
    audit_id: Option<&'a str>,
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
        let text = |piece| draft.texts.get(piece);
        let [method, path, query] = [Piece::Method, Piece::Path, Piece::Query].map(|p| text(p).unwrap_or_default());
        let rest = path.get(draft.rest_at..).filter(|rest| !rest.is_empty()).unwrap_or("/");
        // What was not routed has no path that means anything.
        let info = text(Piece::Shard).and_then(|_| RequestInfo::parse(method, rest, query).ok());
        let parts = info
            .map(|info| [info.api_group, info.api_version, info.resource, info.subresource, info.namespace, info.name]);
        let [api_group, api_version, resource, subresource, namespace, name] =
            parts.unwrap_or([const { Cow::Borrowed("") }; 6]).map(short);
        let prefix = path.get(..draft.rest_at).and_then(|prefix| prefix.strip_prefix("/clusters/"));
        Some(Self {
            time: arrived.format(&Rfc3339).ok()?,
            user: text(Piece::User),
            groups: draft.groups,
            impersonated_by: text(Piece::Impersonator),
            workspace: prefix.map(|prefix| cut(prefix, PART_MAX)),
            cluster: text(Piece::Cluster),
            verb: draft.verb,
            api_group,
            api_version,
            resource,
            subresource,
            namespace,
            name,
            method,
            path: shown(path, text(Piece::Query)),
            protocol: protocol(draft.version),
            client: text(Piece::Client).unwrap_or_default(),
            user_agent: text(Piece::UserAgent),
            flow_schema: text(Piece::FlowSchema),
            priority_level: text(Piece::PriorityLevel),
            seats_estimated: draft.cost.map(|cost| cost.raw_seats),
            seats_charged: draft.cost.map(|cost| cost.initial_seats.max(cost.final_seats)),
            queue_wait_ms: trail.wait_ns(trail.ended_ns).map(ms),
            first_byte_ms: trail.first_byte_ns().map(ms),
            total_ms: ms(trail.ended_ns.saturating_sub(trail.arrived_ns)),
            bytes_in: draft.bytes_in.load(std::sync::atomic::Ordering::Relaxed),
            bytes_out: trail.bytes_out,
            status: trail.code.map(|code| code.as_u16()),
            outcome: outcome(trail.outcome),
            audit_id: text(Piece::AuditId),
            trace_id: draft.trace.map(|trace| format!("{:032x}", trace.trace_id)),
            span_id: draft.trace.map(|trace| format!("{:016x}", trace.span_id)),
            parent_span_id: draft.trace.and_then(|trace| trace.parent_id).map(|id| format!("{id:016x}")),
            shard: text(Piece::Shard),
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
            audit_id = self.audit_id,
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
        Outcome::Panic => "panic".into(),
        Outcome::Refused(why) => format!("refused:{why}").into(),
        Outcome::Rejected(why) => format!("rejected:{why}").into(),
        Outcome::UpstreamError(why) => format!("upstream-error:{why}").into(),
        Outcome::TimedOut(why) => format!("timed-out:{why}").into(),
        Outcome::Cut(why) => format!("cut:{why}").into(),
    }
}

fn short(part: Cow<'_, str>) -> Cow<'_, str> {
    match part {
        Cow::Borrowed(part) => Cow::Borrowed(cut(part, PART_MAX)),
        Cow::Owned(part) => Cow::Owned(cut(&part, PART_MAX).to_owned()),
    }
}

/// Path and query as the client wrote them, without what may be secret: pairs whose key is not in [`SHOWN`] are `*`, and
/// so are what stands behind a segment `proxy` and its query, which are a proxied service's own.
pub(super) fn shown(path: &str, query: Option<&str>) -> String {
    let mut end = 0;
    let is_proxy = |segment: &str| percent_decode_str(segment).eq("proxy".bytes());
    let proxied = path.split('/').find_map(|segment| {
        end += segment.len() + 1;
        is_proxy(segment).then_some(end)
    });
    let mut out = cut(path.get(..proxied.unwrap_or(path.len())).unwrap_or(path), PATH_MAX).to_owned();
    if proxied.is_some_and(|end| end < path.len()) {
        out.push('*');
    }
    if proxied.is_some() {
        out.push_str(if query.is_some() { "?*" } else { "" });
        return out;
    }
    for (n, pair) in query.into_iter().flat_map(|query| query.split('&')).enumerate() {
        let pair = if pair.split('=').next().is_some_and(|key| SHOWN.contains(&key)) { pair } else { "*" };
        if out.len() + pair.len() > PATH_MAX {
            out.push('…');
            break;
        }
        out.push(if n == 0 { '?' } else { '&' });
        out.push_str(pair);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(uri: &str) -> String {
        let uri: http::Uri = uri.parse().unwrap();
        shown(uri.path(), uri.query())
    }

    #[test]
    fn what_may_be_secret_in_a_query_is_not_shown() {
        for (uri, want) in [
            ("/a?watch=1&limit=5&labelSelector=a%3Db", "/a?watch=1&limit=5&labelSelector=a%3Db"),
            ("/a?command=mysql&command=-psecret&tty=true", "/a?*&*&tty=true"),
            ("/a?continue=abc&x=&watch&&%6cimit=5", "/a?*&*&watch&*&*"),
            ("/a?access_token=t=u", "/a?*"),
            ("/a?eyJhbGciOiJSUzI1NiJ9.e30.c2ln", "/a?*"),
            ("/a", "/a"),
            ("/a?", "/a?*"),
        ] {
            assert_eq!(of(uri), want);
        }
        let long = of(&format!("/{}?{}", "p".repeat(2000), "q=1&".repeat(2000)));
        assert!(long.len() <= PATH_MAX + '…'.len_utf8() && long.ends_with('…'), "{}", long.len());
    }

    #[test]
    fn what_a_proxied_service_is_asked_is_not_shown() {
        let pod = "/clusters/a/api/v1/namespaces/n/pods/p";
        for (asked, want) in [
            ("/proxy", "/proxy"),
            ("/proxy/", "/proxy/"),
            ("/proxy/reset/t0ken?limit=5", "/proxy/*?*"),
            ("/proxy?limit=5", "/proxy?*"),
            ("/prox%79/t0ken", "/prox%79/*"),
            ("/log?follow=true", "/log?follow=true"),
            ("/proxying/x", "/proxying/x"),
        ] {
            assert_eq!(of(&format!("{pod}{asked}")), format!("{pod}{want}"));
        }
    }
}
