//! Structs of `authentication.k8s.io/v1`. What only the server writes is open in what is read: nobody's input is taken from
//! it. The answers have it.

use super::{API_VERSION, Field, KIND, METADATA, Message, Type, boolean, int64, message, text, texts, time};

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

/// A `TokenRequest` as it is answered.
pub static TOKEN_REQUEST_ANSWER: Message = Message {
    name: "TokenRequest",
    fields: &[METADATA, message(2, "spec", &TOKEN_REQUEST_SPEC), message(3, "status", &TOKEN_REQUEST_STATUS)],
};

static TOKEN_REQUEST_STATUS: Message =
    Message { name: "TokenRequestStatus", fields: &[text(1, "token"), time(2, "expirationTimestamp")] };

/// A `TokenReview` as it is answered.
pub static TOKEN_REVIEW_ANSWER: Message = Message {
    name: "TokenReview",
    fields: &[METADATA, message(2, "spec", &TOKEN_REVIEW_SPEC), message(3, "status", &TOKEN_REVIEW_STATUS)],
};

static TOKEN_REVIEW_STATUS: Message = Message {
    name: "TokenReviewStatus",
    fields: &[boolean(1, "authenticated"), message(2, "user", &USER_INFO), text(3, "error"), texts(4, "audiences")],
};

/// A `SelfSubjectReview` as it is answered.
pub static SELF_SUBJECT_REVIEW_ANSWER: Message =
    Message { name: "SelfSubjectReview", fields: &[METADATA, message(2, "status", &SELF_SUBJECT_REVIEW_STATUS)] };

static SELF_SUBJECT_REVIEW_STATUS: Message =
    Message { name: "SelfSubjectReviewStatus", fields: &[message(1, "userInfo", &USER_INFO)] };

static USER_INFO: Message = Message {
    name: "UserInfo",
    fields: &[text(1, "username"), text(2, "uid"), texts(3, "groups"), message(4, "extra", &EXTRA_VALUE).map()],
};

/// A list in JSON, which protobuf puts into a message.
static EXTRA_VALUE: Message = Message { name: "ExtraValue", fields: &[texts(1, "items")] };
