//! Structs of `coordination.k8s.io/v1`.

use super::{API_VERSION, KIND, METADATA, Message, int32, message, micro_time, text};

/// `Lease`.
pub static LEASE: Message =
    Message { name: "Lease", fields: &[KIND, API_VERSION, METADATA, message(2, "spec", &LEASE_SPEC)] };

static LEASE_SPEC: Message = Message {
    name: "LeaseSpec",
    fields: &[
        text(1, "holderIdentity").pointer(),
        int32(2, "leaseDurationSeconds").pointer(),
        micro_time(3, "acquireTime"),
        micro_time(4, "renewTime"),
        int32(5, "leaseTransitions").pointer(),
        text(6, "strategy").pointer(),
        text(7, "preferredHolder").pointer(),
    ],
};
