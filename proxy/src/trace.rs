//! W3C Trace Context (https://www.w3.org/TR/trace-context/): which trace a request belongs to, and what the shard is
//! told of it.
//!
//! A valid `traceparent` is passed on with the gateway's span in place of the client's, its `tracestate` as it came. An
//! invalid one is dropped with its `tracestate` and the trace begins anew, as section 3.4 wants it. Who brings none
//! gets none, unless somebody will read it: the request's line of the access log or its span.
//!
//! Nothing of it is believed: the `sampled` flag decides nothing here, and is passed on from anybody as it came. Traces
//! that begin here do not have it: the gateway exports no spans, so shards should not begin to. (kube-apiserver takes the context of others than administrators for a hint too, and begins a trace of its own.)

use http::{HeaderMap, HeaderName};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// `version "-" trace-id "-" parent-id "-" trace-flags` of version 00.
const LENGTH: usize = 55;
const SAMPLED: u8 = 0x01;
/// That the trace's number is random in its last 7 bytes (level 2 of the recommendation).
const RANDOM: u8 = 0x02;

/// What a valid `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parent {
    trace_id: u128,
    span_id: u64,
    flags: u8,
}

impl Parent {
    /// Reads the value of a `traceparent` header; `None` if it is not valid (section 3.2).
    fn parse(value: &[u8]) -> Option<Self> {
        let (head, rest) = value.split_at_checked(LENGTH)?;
        let (version, head) = (field(head, 0, 2)?, head);
        // Of a later version only what this one knows is read, and only up to a dash.
        let is_whole = if version == 0 { rest.is_empty() } else { rest.first().is_none_or(|b| *b == b'-') };
        let dashes = [2, 35, 52].iter().all(|at| head.get(*at) == Some(&b'-'));
        let (trace_id, span_id) = (field(head, 3, 35)?, field(head, 36, 52)?);
        let flags = field(head, 53, 55)?;
        if version == 0xff || !is_whole || !dashes || trace_id == 0 || span_id == 0 {
            return None;
        }
        Some(Self { trace_id, span_id: u64::try_from(span_id).ok()?, flags: u8::try_from(flags).ok()? })
    }
}

/// The number that stands between two places in lower-case hexadecimal.
fn field(value: &[u8], from: usize, to: usize) -> Option<u128> {
    value.get(from..to)?.iter().try_fold(0, |number: u128, byte| {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(digit))
    })
}

/// The trace of one request, and the gateway's span in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    pub(crate) trace_id: u128,
    pub(crate) span_id: u64,
    /// The client's span; `None` where the trace begins here.
    pub(crate) parent_id: Option<u64>,
    flags: u8,
}

impl Trace {
    /// Takes the trace out of a request's headers. `ids` makes numbers that nobody has used. `wanted` says whether a
    /// request that brings none gets one.
    pub(crate) fn take(headers: &mut HeaderMap, wanted: bool, mut ids: impl FnMut() -> u64) -> Option<Self> {
        let mut values = headers.get_all(&TRACEPARENT).iter();
        let (first, more) = (values.next(), values.next());
        if first.is_none() && !wanted {
            return None;
        }
        let parent = first.filter(|_| more.is_none()).and_then(|value| Parent::parse(value.as_bytes()));
        if parent.is_none() {
            headers.remove(TRACESTATE);
        }
        headers.remove(&TRACEPARENT);
        // All zeros are no number.
        let mut id = || ids().max(1);
        Some(match parent {
            Some(Parent { trace_id, span_id: parent, flags }) => {
                Self { trace_id, span_id: id(), parent_id: Some(parent), flags: flags & (SAMPLED | RANDOM) }
            }
            None => Self {
                trace_id: u128::from(id()) << 64 | u128::from(id()),
                span_id: id(),
                parent_id: None,
                flags: RANDOM,
            },
        })
    }

    /// The value of the header for the shard.
    pub(crate) fn header(&self) -> [u8; LENGTH] {
        let mut out = *b"00-00000000000000000000000000000000-0000000000000000-00";
        let mut put = |from: usize, to: usize, mut number: u128| {
            for byte in out.get_mut(from..to).into_iter().flatten().rev() {
                *byte = b"0123456789abcdef".get((number & 0xf) as usize).copied().unwrap_or(b'0');
                number >>= 4;
            }
        };
        put(3, 35, self.trace_id);
        put(36, 52, self.span_id.into());
        put(53, 55, self.flags.into());
        out
    }
}

#[cfg(test)]
mod tests;
