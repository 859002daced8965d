//! What a shard is told about a request by the gateway itself: who asks, from where, and under which name.
//!
//! Kept beside the client's headers instead of among them: on a connection it is written straight into the head, and
//! no map grows for it.

use apiserver_api::user::is_identity_header;
use http::{
    HeaderMap, HeaderName, HeaderValue, Uri, Version,
    header::{AUTHORIZATION, FORWARDED, HOST, TE},
    request::Parts,
};

use crate::{
    connection::Peer,
    hop,
    identity::{Caller, Identity},
    route::Route,
    trace::{TRACEPARENT, Trace},
    trail::Trail,
    worker::{Worker, mix},
};

/// Kubernetes' audit log takes these for the client's address as well.
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_PREFIX: HeaderName = HeaderName::from_static("x-forwarded-prefix");
pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const TRAILERS: HeaderValue = HeaderValue::from_static("trailers");

/// Fields of the gateway's own. The default has none.
#[derive(Default)]
pub(crate) struct Stamp<'a> {
    identity: &'a [(HeaderName, HeaderValue)],
    peer: Option<&'a Peer>,
    /// The client's. Its first `prefix` bytes are the cluster prefix.
    uri: Uri,
    prefix: usize,
    /// Which host the client asked for, if its URI does not say so.
    host: Option<HeaderValue>,
    audit_id: Option<HeaderValue>,
    trace: Option<Trace>,
    trailers: bool,
}

impl<'a> Stamp<'a> {
    /// Says who asks, and nothing else.
    pub(crate) fn of(identity: &'a Identity) -> Self {
        Self { identity: identity.headers(), ..Self::default() }
    }

    /// Removes whatever a client says about itself, its way or its connection from `parts`, and says it in its place.
    pub(crate) fn take(
        worker: &Worker,
        parts: &mut Parts,
        route: &'a Route,
        caller: &'a Caller,
        peer: &'a Peer,
        trail: &mut Trail,
    ) -> Self {
        let headers = &mut parts.headers;
        hop::remove(headers);
        remove(headers, is_claim);
        let host = headers.remove(HOST);
        let new_id = || {
            let id = worker.next_uuid();
            HeaderValue::from_str(id.as_hyphenated().encode_lower(&mut [0; 36])).ok()
        };
        let audit_id = if headers.contains_key(AUDIT_ID) { None } else { new_id() };
        let wanted = trail.draft.as_ref().is_some_and(|draft| draft.wants_trace());
        let trace = Trace::take(headers, wanted, || mix(worker.next_number()));
        if let Some(draft) = &mut trail.draft {
            draft.trace = trace;
            if let Some(id) = &audit_id {
                draft.audit_id(id.as_bytes());
            }
        }
        Self {
            identity: if caller.vouched { caller.identity.headers() } else { &[] },
            peer: Some(peer),
            uri: std::mem::replace(&mut parts.uri, route.uri.clone()),
            prefix: if route.has_prefix { route.rest_at } else { 0 },
            host,
            audit_id,
            trace,
            // Every HTTP/2 client takes trailers; one of HTTP/1.1 has to say so.
            trailers: parts.version == Version::HTTP_2 && !headers.contains_key(TE),
        }
    }

    /// Hands each field to `put`.
    pub(crate) fn fields(&self, mut put: impl FnMut(&HeaderName, &[u8])) {
        self.identity.iter().for_each(|(name, value)| put(name, value.as_bytes()));
        if let Some(peer) = self.peer {
            put(&FORWARDED_FOR, peer.address.as_bytes());
            put(&FORWARDED_PROTO, peer.proto.as_bytes());
        }
        if let Some(prefix) = self.uri.path().get(..self.prefix).filter(|prefix| !prefix.is_empty()) {
            put(&FORWARDED_PREFIX, prefix.as_bytes());
        }
        let authority = self.uri.authority().map(|a| a.as_str().as_bytes());
        if let Some(host) = authority.or(self.host.as_ref().map(HeaderValue::as_bytes)) {
            put(&FORWARDED_HOST, host);
        }
        if let Some(id) = &self.audit_id {
            put(&AUDIT_ID, id.as_bytes());
        }
        if let Some(trace) = &self.trace {
            put(&TRACEPARENT, &trace.header());
        }
        if self.trailers {
            put(&TE, TRAILERS.as_bytes());
        }
    }

    /// Puts them among the others.
    pub(crate) fn insert_into(&self, headers: &mut HeaderMap) {
        self.fields(|name, value| {
            if let Ok(value) = HeaderValue::from_bytes(value) {
                headers.append(name, value);
            }
        });
    }
}

/// Removes from a request's trailers what only the gateway may say, and credentials: a server that merges trailers with the
/// headers would believe them (RFC 9110 section 6.5.1).
pub(crate) fn clean_trailers(trailers: &mut HeaderMap) {
    remove(trailers, |name| is_claim(name) || *name == AUTHORIZATION);
}

fn remove(headers: &mut HeaderMap, unwanted: impl Fn(&HeaderName) -> bool) {
    if headers.keys().any(&unwanted) {
        let names: Vec<HeaderName> = headers.keys().filter(|name| unwanted(name)).cloned().collect();
        names.into_iter().for_each(|name| drop(headers.remove(name)));
    }
}

/// Whether only the gateway may say this.
fn is_claim(name: &HeaderName) -> bool {
    is_identity_header(name.as_str())
        || *name == FORWARDED
        || *name == REAL_IP
        || *name == FORWARDED_FOR
        || *name == FORWARDED_PROTO
        || *name == FORWARDED_PREFIX
        || *name == FORWARDED_HOST
}
