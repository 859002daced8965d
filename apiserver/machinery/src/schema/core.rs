//! Structs of `core/v1`.

use super::{
    API_VERSION, KIND, METADATA, Merge, Message, boolean, bytes, conditions, int32, message, micro_time, text, texts,
    time,
};

/// `ConfigMap`.
pub static CONFIG_MAP: Message = Message {
    name: "ConfigMap",
    fields: &[
        KIND,
        API_VERSION,
        METADATA,
        text(2, "data").map(),
        bytes(3, "binaryData").map(),
        boolean(4, "immutable").pointer(),
    ],
};

/// `Secret`.
pub static SECRET: Message = Message {
    name: "Secret",
    fields: &[
        KIND,
        API_VERSION,
        METADATA,
        bytes(2, "data").map(),
        text(3, "type"),
        text(4, "stringData").map(),
        boolean(5, "immutable").pointer(),
    ],
};

/// `ServiceAccount`.
pub static SERVICE_ACCOUNT: Message = Message {
    name: "ServiceAccount",
    fields: &[
        KIND,
        API_VERSION,
        METADATA,
        message(2, "secrets", &OBJECT_REFERENCE).list().merge(Merge::ByKey("name")).atomic(),
        message(3, "imagePullSecrets", &LOCAL_OBJECT_REFERENCE).list(),
        boolean(4, "automountServiceAccountToken").pointer(),
    ],
};

/// `ObjectReference`.
pub static OBJECT_REFERENCE: Message = Message {
    name: "ObjectReference",
    fields: &[
        text(1, "kind"),
        text(2, "namespace"),
        text(3, "name"),
        text(4, "uid"),
        text(5, "apiVersion"),
        text(6, "resourceVersion"),
        text(7, "fieldPath"),
    ],
};

static LOCAL_OBJECT_REFERENCE: Message = Message { name: "LocalObjectReference", fields: &[text(1, "name")] };

/// `Namespace`.
pub static NAMESPACE: Message = Message {
    name: "Namespace",
    fields: &[
        KIND,
        API_VERSION,
        METADATA,
        message(2, "spec", &NAMESPACE_SPEC),
        message(3, "status", &NAMESPACE_STATUS),
    ],
};

static NAMESPACE_SPEC: Message = Message { name: "NamespaceSpec", fields: &[texts(1, "finalizers")] };

static NAMESPACE_STATUS: Message =
    Message { name: "NamespaceStatus", fields: &[text(1, "phase"), conditions(2, &NAMESPACE_CONDITION)] };

static NAMESPACE_CONDITION: Message = Message {
    name: "NamespaceCondition",
    fields: &[text(1, "type"), text(2, "status"), time(4, "lastTransitionTime"), text(5, "reason"), text(6, "message")],
};

/// `Event`.
pub static EVENT: Message = Message {
    name: "Event",
    fields: &[
        KIND,
        API_VERSION,
        METADATA,
        message(2, "involvedObject", &OBJECT_REFERENCE).atomic(),
        text(3, "reason"),
        text(4, "message"),
        message(5, "source", &EVENT_SOURCE),
        time(6, "firstTimestamp"),
        time(7, "lastTimestamp"),
        int32(8, "count"),
        text(9, "type"),
        micro_time(10, "eventTime"),
        message(11, "series", &EVENT_SERIES).pointer(),
        text(12, "action"),
        message(13, "related", &OBJECT_REFERENCE).pointer().atomic(),
        text(14, "reportingComponent"),
        text(15, "reportingInstance"),
    ],
};

/// `EventSource`.
pub static EVENT_SOURCE: Message = Message { name: "EventSource", fields: &[text(1, "component"), text(2, "host")] };

/// `EventSeries`.
pub static EVENT_SERIES: Message =
    Message { name: "EventSeries", fields: &[int32(1, "count"), micro_time(2, "lastObservedTime")] };
