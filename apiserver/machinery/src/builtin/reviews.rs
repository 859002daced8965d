//! Kinds that are asked and answered, never stored: the server does what they ask when they are created.

use super::{columns, prepare_nothing, validate_nothing};
use crate::{
    resource::{NameRule, Resource, Scope},
    schema::{Message, authentication, authorization},
};

const AUTHENTICATION: &str = "authentication.k8s.io";
const AUTHORIZATION: &str = "authorization.k8s.io";

static REVIEWS: [Resource; 7] = [
    review(
        AUTHENTICATION,
        ["selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview"],
        &authentication::SELF_SUBJECT_REVIEW,
        Scope::Cluster,
    ),
    review(
        AUTHENTICATION,
        ["tokenreviews", "tokenreview", "TokenReview"],
        &authentication::TOKEN_REVIEW,
        Scope::Cluster,
    ),
    // For clients of before Kubernetes 1.28.
    Resource {
        version: "v1beta1",
        ..review(
            AUTHENTICATION,
            ["selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview"],
            &authentication::SELF_SUBJECT_REVIEW,
            Scope::Cluster,
        )
    },
    review(
        AUTHORIZATION,
        ["localsubjectaccessreviews", "localsubjectaccessreview", "LocalSubjectAccessReview"],
        &authorization::SUBJECT_ACCESS_REVIEW,
        Scope::Namespaced,
    ),
    review(
        AUTHORIZATION,
        ["selfsubjectaccessreviews", "selfsubjectaccessreview", "SelfSubjectAccessReview"],
        &authorization::SELF_SUBJECT_ACCESS_REVIEW,
        Scope::Cluster,
    ),
    review(
        AUTHORIZATION,
        ["selfsubjectrulesreviews", "selfsubjectrulesreview", "SelfSubjectRulesReview"],
        &authorization::SELF_SUBJECT_RULES_REVIEW,
        Scope::Cluster,
    ),
    review(
        AUTHORIZATION,
        ["subjectaccessreviews", "subjectaccessreview", "SubjectAccessReview"],
        &authorization::SUBJECT_ACCESS_REVIEW,
        Scope::Cluster,
    ),
];

/// The body of `serviceaccounts/token`. It has no path of its own.
pub static TOKEN_REQUESTS: Resource = review(
    AUTHENTICATION,
    ["tokenrequests", "tokenrequest", "TokenRequest"],
    &authentication::TOKEN_REQUEST,
    Scope::Cluster,
);

/// The kinds that are only created, and answered with what was asked.
pub fn reviews() -> &'static [Resource] {
    &REVIEWS
}

const fn review(
    group: &'static str,
    [plural, singular, kind]: [&'static str; 3],
    schema: &'static Message,
    scope: Scope,
) -> Resource {
    Resource {
        group,
        version: "v1",
        plural,
        singular,
        kind,
        short_names: &[],
        categories: &[],
        scope,
        columns: &[columns::NAME],
        verbs: &["create"],
        subresources: &[],
        generation: false,
        create_on_update: false,
        name_rule: NameRule::PathSegment,
        schema,
        protobuf: true,
        selectable: &[],
        prepare: prepare_nothing,
        validate: validate_nothing,
        immortal: &[],
        ttl: None,
        is_copy: false,
        view: None,
        mandatory: || &[],
    }
}
