//! Kinds that are asked and answered, never stored: the server does what they ask when they are created.

use super::{columns, prepare_nothing, validate_nothing};
use crate::{
    resource::{NameRule, Resource, Scope},
    schema::{Message, authentication},
};

const GROUP: &str = "authentication.k8s.io";

static REVIEWS: [Resource; 2] = [
    review("selfsubjectreviews", "selfsubjectreview", "SelfSubjectReview", &authentication::SELF_SUBJECT_REVIEW),
    review("tokenreviews", "tokenreview", "TokenReview", &authentication::TOKEN_REVIEW),
];

/// The body of `serviceaccounts/token`. It has no path of its own.
pub static TOKEN_REQUESTS: Resource =
    review("tokenrequests", "tokenrequest", "TokenRequest", &authentication::TOKEN_REQUEST);

/// The kinds that are only created, and answered with what was asked.
pub fn reviews() -> &'static [Resource] {
    &REVIEWS
}

const fn review(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    schema: &'static Message,
) -> Resource {
    Resource {
        group: GROUP,
        version: "v1",
        plural,
        singular,
        kind,
        short_names: &[],
        categories: &[],
        scope: Scope::Cluster,
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
    }
}
