//! Structs of `flowcontrol.apiserver.k8s.io/v1`.

use super::{API_VERSION, KIND, METADATA, Message, boolean, conditions, int32, message, text, texts, time};

/// `FlowSchema`.
pub static FLOW_SCHEMA: Message = Message {
    name: "FlowSchema",
    fields: &[KIND, API_VERSION, METADATA, message(2, "spec", &FLOW_SCHEMA_SPEC), message(3, "status", &STATUS)],
};

static FLOW_SCHEMA_SPEC: Message = Message {
    name: "FlowSchemaSpec",
    fields: &[
        message(1, "priorityLevelConfiguration", &LEVEL_REFERENCE),
        int32(2, "matchingPrecedence"),
        message(3, "distinguisherMethod", &DISTINGUISHER_METHOD).pointer(),
        message(4, "rules", &RULES).list(),
    ],
};

static LEVEL_REFERENCE: Message = Message { name: "PriorityLevelConfigurationReference", fields: &[text(1, "name")] };

static DISTINGUISHER_METHOD: Message = Message { name: "FlowDistinguisherMethod", fields: &[text(1, "type")] };

static RULES: Message = Message {
    name: "PolicyRulesWithSubjects",
    fields: &[
        message(1, "subjects", &SUBJECT).list(),
        message(2, "resourceRules", &RESOURCE_RULE).list(),
        message(3, "nonResourceRules", &NON_RESOURCE_RULE).list(),
    ],
};

static SUBJECT: Message = Message {
    name: "Subject",
    fields: &[
        text(1, "kind"),
        message(2, "user", &USER_SUBJECT),
        message(3, "group", &GROUP_SUBJECT),
        message(4, "serviceAccount", &SERVICE_ACCOUNT_SUBJECT),
    ],
};

static USER_SUBJECT: Message = Message { name: "UserSubject", fields: &[text(1, "name")] };

static GROUP_SUBJECT: Message = Message { name: "GroupSubject", fields: &[text(1, "name")] };

static SERVICE_ACCOUNT_SUBJECT: Message =
    Message { name: "ServiceAccountSubject", fields: &[text(1, "namespace"), text(2, "name")] };

static RESOURCE_RULE: Message = Message {
    name: "ResourcePolicyRule",
    fields: &[
        texts(1, "verbs"),
        texts(2, "apiGroups"),
        texts(3, "resources"),
        boolean(4, "clusterScope"),
        texts(5, "namespaces"),
    ],
};

static NON_RESOURCE_RULE: Message =
    Message { name: "NonResourcePolicyRule", fields: &[texts(1, "verbs"), texts(6, "nonResourceURLs")] };

/// `PriorityLevelConfiguration`.
pub static PRIORITY_LEVEL_CONFIGURATION: Message = Message {
    name: "PriorityLevelConfiguration",
    fields: &[KIND, API_VERSION, METADATA, message(2, "spec", &LEVEL_SPEC), message(3, "status", &STATUS)],
};

static LEVEL_SPEC: Message = Message {
    name: "PriorityLevelConfigurationSpec",
    fields: &[text(1, "type"), message(2, "limited", &LIMITED).pointer(), message(3, "exempt", &EXEMPT).pointer()],
};

static LIMITED: Message = Message {
    name: "LimitedPriorityLevelConfiguration",
    fields: &[
        int32(1, "nominalConcurrencyShares").pointer(),
        message(2, "limitResponse", &LIMIT_RESPONSE),
        int32(3, "lendablePercent").pointer(),
        int32(4, "borrowingLimitPercent").pointer(),
    ],
};

static EXEMPT: Message = Message {
    name: "ExemptPriorityLevelConfiguration",
    fields: &[int32(1, "nominalConcurrencyShares").pointer(), int32(2, "lendablePercent").pointer()],
};

static LIMIT_RESPONSE: Message =
    Message { name: "LimitResponse", fields: &[text(1, "type"), message(2, "queuing", &QUEUING).pointer()] };

static QUEUING: Message = Message {
    name: "QueuingConfiguration",
    fields: &[int32(1, "queues"), int32(2, "handSize"), int32(3, "queueLengthLimit")],
};

/// `FlowSchemaStatus` and `PriorityLevelConfigurationStatus` are alike.
static STATUS: Message = Message { name: "FlowSchemaStatus", fields: &[conditions(1, &CONDITION)] };

static CONDITION: Message = Message {
    name: "FlowSchemaCondition",
    fields: &[text(1, "type"), text(2, "status"), time(3, "lastTransitionTime"), text(4, "reason"), text(5, "message")],
};
