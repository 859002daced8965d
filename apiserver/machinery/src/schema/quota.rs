//! ResourceQuota and LimitRange of `core/v1`.

use super::{API_VERSION, Field, KIND, METADATA, Message, Type, message, text, texts};

/// `ResourceQuota`.
pub static RESOURCE_QUOTA: Message = Message {
    name: "ResourceQuota",
    fields: &[
        KIND,
        API_VERSION,
        METADATA,
        message(2, "spec", &RESOURCE_QUOTA_SPEC),
        message(3, "status", &RESOURCE_QUOTA_STATUS),
    ],
};

const fn quantities(number: u32, name: &'static str) -> Field {
    Field::new(number, name, Type::Quantity).map()
}

static RESOURCE_QUOTA_SPEC: Message = Message {
    name: "ResourceQuotaSpec",
    fields: &[quantities(1, "hard"), texts(2, "scopes"), message(3, "scopeSelector", &SCOPE_SELECTOR)],
};

static RESOURCE_QUOTA_STATUS: Message =
    Message { name: "ResourceQuotaStatus", fields: &[quantities(1, "hard"), quantities(2, "used")] };

static SCOPE_SELECTOR: Message =
    Message { name: "ScopeSelector", fields: &[message(1, "matchExpressions", &SCOPE_REQUIREMENT).list()] };

static SCOPE_REQUIREMENT: Message = Message {
    name: "ScopedResourceSelectorRequirement",
    fields: &[text(1, "scopeName"), text(2, "operator"), texts(3, "values")],
};

/// `LimitRange`.
pub static LIMIT_RANGE: Message =
    Message { name: "LimitRange", fields: &[KIND, API_VERSION, METADATA, message(2, "spec", &LIMIT_RANGE_SPEC)] };

static LIMIT_RANGE_SPEC: Message =
    Message { name: "LimitRangeSpec", fields: &[message(1, "limits", &LIMIT_RANGE_ITEM).list()] };

static LIMIT_RANGE_ITEM: Message = Message {
    name: "LimitRangeItem",
    fields: &[
        text(1, "type"),
        quantities(2, "max"),
        quantities(3, "min"),
        quantities(4, "default"),
        quantities(5, "defaultRequest"),
        quantities(6, "maxLimitRequestRatio"),
    ],
};
