//! Structs of `events.k8s.io/v1`.

use super::{
    API_VERSION, KIND, METADATA, Message,
    core::{EVENT_SERIES, EVENT_SOURCE, OBJECT_REFERENCE},
    int32, message, micro_time, text, time,
};

/// `Event`.
pub static EVENT: Message = Message {
    name: "Event",
    fields: &[
        KIND,
        API_VERSION,
        METADATA,
        micro_time(2, "eventTime"),
        message(3, "series", &EVENT_SERIES).pointer(),
        text(4, "reportingController"),
        text(5, "reportingInstance"),
        text(6, "action"),
        text(7, "reason"),
        message(8, "regarding", &OBJECT_REFERENCE).atomic(),
        message(9, "related", &OBJECT_REFERENCE).pointer().atomic(),
        text(10, "note"),
        text(11, "type"),
        message(12, "deprecatedSource", &EVENT_SOURCE),
        time(13, "deprecatedFirstTimestamp"),
        time(14, "deprecatedLastTimestamp"),
        int32(15, "deprecatedCount"),
    ],
};
