//! Structs of `authentication.k8s.io/v1`. What only the server writes is open: nobody's input is taken from it.

use super::{API_VERSION, Field, KIND, METADATA, Message, Type, int64, message, text, texts};

const STATUS: Field = Field::new(0, "status", Type::Raw);

/// `TokenRequest`.
pub static TOKEN_REQUEST: Message = Message {
    name: "TokenRequest",
    fields: &[KIND, API_VERSION, METADATA, message(2, "spec", &TOKEN_REQUEST_SPEC), STATUS],
};

static TOKEN_REQUEST_SPEC: Message = Message {
    name: "TokenRequestSpec",
    fields: &[
        texts(1, "audiences"),
        int64(4, "expirationSeconds").pointer(),
        message(3, "boundObjectRef", &BOUND_OBJECT_REFERENCE),
    ],
};

static BOUND_OBJECT_REFERENCE: Message = Message {
    name: "BoundObjectReference",
    fields: &[text(1, "kind"), text(2, "apiVersion"), text(3, "name"), text(4, "uid")],
};

/// `TokenReview`.
pub static TOKEN_REVIEW: Message = Message {
    name: "TokenReview",
    fields: &[KIND, API_VERSION, METADATA, message(2, "spec", &TOKEN_REVIEW_SPEC), STATUS],
};

static TOKEN_REVIEW_SPEC: Message =
    Message { name: "TokenReviewSpec", fields: &[text(1, "token"), texts(2, "audiences")] };

/// `SelfSubjectReview`.
pub static SELF_SUBJECT_REVIEW: Message =
    Message { name: "SelfSubjectReview", fields: &[KIND, API_VERSION, METADATA, STATUS] };
