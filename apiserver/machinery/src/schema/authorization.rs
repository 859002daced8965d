//! Structs of `authorization.k8s.io/v1`. What only the server writes is open in what is read, and spelt out in the answers.

use super::{API_VERSION, Field, KIND, METADATA, Message, Type, boolean, message, text, texts};

const STATUS: Field = Field::new(0, "status", Type::Raw);

/// `SelfSubjectAccessReview`.
pub static SELF_SUBJECT_ACCESS_REVIEW: Message = Message {
    name: "SelfSubjectAccessReview",
    fields: &[KIND, API_VERSION, METADATA, message(2, "spec", &SELF_SUBJECT_ACCESS_REVIEW_SPEC), STATUS],
};

/// The same as it is answered.
pub static SELF_SUBJECT_ACCESS_REVIEW_ANSWER: Message = Message {
    name: "SelfSubjectAccessReview",
    fields: &[METADATA, message(2, "spec", &SELF_SUBJECT_ACCESS_REVIEW_SPEC), message(3, "status", &ACCESS_STATUS)],
};

/// `SubjectAccessReview`, and `LocalSubjectAccessReview`, which has the same fields.
pub static SUBJECT_ACCESS_REVIEW: Message = Message {
    name: "SubjectAccessReview",
    fields: &[KIND, API_VERSION, METADATA, message(2, "spec", &SUBJECT_ACCESS_REVIEW_SPEC), STATUS],
};

/// The same as it is answered.
pub static SUBJECT_ACCESS_REVIEW_ANSWER: Message = Message {
    name: "SubjectAccessReview",
    fields: &[METADATA, message(2, "spec", &SUBJECT_ACCESS_REVIEW_SPEC), message(3, "status", &ACCESS_STATUS)],
};

/// `SelfSubjectRulesReview`.
pub static SELF_SUBJECT_RULES_REVIEW: Message = Message {
    name: "SelfSubjectRulesReview",
    fields: &[KIND, API_VERSION, METADATA, message(2, "spec", &SELF_SUBJECT_RULES_REVIEW_SPEC), STATUS],
};

/// The same as it is answered.
pub static SELF_SUBJECT_RULES_REVIEW_ANSWER: Message = Message {
    name: "SelfSubjectRulesReview",
    fields: &[METADATA, message(2, "spec", &SELF_SUBJECT_RULES_REVIEW_SPEC), message(3, "status", &RULES_STATUS)],
};

static SELF_SUBJECT_ACCESS_REVIEW_SPEC: Message = Message {
    name: "SelfSubjectAccessReviewSpec",
    fields: &[
        message(1, "resourceAttributes", &RESOURCE_ATTRIBUTES).pointer(),
        message(2, "nonResourceAttributes", &NON_RESOURCE_ATTRIBUTES).pointer(),
    ],
};

static SUBJECT_ACCESS_REVIEW_SPEC: Message = Message {
    name: "SubjectAccessReviewSpec",
    fields: &[
        message(1, "resourceAttributes", &RESOURCE_ATTRIBUTES).pointer(),
        message(2, "nonResourceAttributes", &NON_RESOURCE_ATTRIBUTES).pointer(),
        text(3, "user"),
        texts(4, "groups"),
        // Lists by key; no rule of ours asks for them.
        Field::new(0, "extra", Type::Raw),
        text(6, "uid"),
    ],
};

static SELF_SUBJECT_RULES_REVIEW_SPEC: Message =
    Message { name: "SelfSubjectRulesReviewSpec", fields: &[text(1, "namespace")] };

static RESOURCE_ATTRIBUTES: Message = Message {
    name: "ResourceAttributes",
    fields: &[
        text(1, "namespace"),
        text(2, "verb"),
        text(3, "group"),
        text(4, "version"),
        text(5, "resource"),
        text(6, "subresource"),
        text(7, "name"),
        message(8, "fieldSelector", &SELECTOR_ATTRIBUTES).pointer(),
        message(9, "labelSelector", &SELECTOR_ATTRIBUTES).pointer(),
    ],
};

/// Of fields and of labels alike.
static SELECTOR_ATTRIBUTES: Message = Message {
    name: "SelectorAttributes",
    fields: &[text(1, "rawSelector"), message(2, "requirements", &SELECTOR_REQUIREMENT).list()],
};

static SELECTOR_REQUIREMENT: Message =
    Message { name: "SelectorRequirement", fields: &[text(1, "key"), text(2, "operator"), texts(3, "values")] };

static NON_RESOURCE_ATTRIBUTES: Message =
    Message { name: "NonResourceAttributes", fields: &[text(1, "path"), text(2, "verb")] };

static ACCESS_STATUS: Message = Message {
    name: "SubjectAccessReviewStatus",
    fields: &[boolean(1, "allowed"), text(2, "reason"), text(3, "evaluationError"), boolean(4, "denied")],
};

static RULES_STATUS: Message = Message {
    name: "SubjectRulesReviewStatus",
    fields: &[
        message(1, "resourceRules", &RESOURCE_RULE).list(),
        message(2, "nonResourceRules", &NON_RESOURCE_RULE).list(),
        boolean(3, "incomplete"),
        text(4, "evaluationError"),
    ],
};

static RESOURCE_RULE: Message = Message {
    name: "ResourceRule",
    fields: &[texts(1, "verbs"), texts(2, "apiGroups"), texts(3, "resources"), texts(4, "resourceNames")],
};

static NON_RESOURCE_RULE: Message =
    Message { name: "NonResourceRule", fields: &[texts(1, "verbs"), texts(2, "nonResourceURLs")] };
