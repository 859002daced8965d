//! `metav1.Status`: how every refusal looks on the wire (api-server.md 2.10).

use serde::Serialize;

/// The machine-readable reason of a [`Status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "the names are Kubernetes'")]
pub enum Reason {
    BadRequest,
    Unauthorized,
    Forbidden,
    NotFound,
    MethodNotAllowed,
    NotAcceptable,
    AlreadyExists,
    Conflict,
    Gone,
    Expired,
    RequestEntityTooLarge,
    UnsupportedMediaType,
    Invalid,
    TooManyRequests,
    InternalError,
    ServerTimeout,
    ServiceUnavailable,
    Timeout,
}

impl Reason {
    /// The HTTP status code that goes with the reason.
    pub fn code(self) -> u16 {
        match self {
            Self::BadRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::NotAcceptable => 406,
            Self::AlreadyExists | Self::Conflict => 409,
            Self::Gone | Self::Expired => 410,
            Self::RequestEntityTooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::Invalid => 422,
            Self::TooManyRequests => 429,
            // ServerTimeout with 500 is upstream's choice, kept for its clients.
            Self::InternalError | Self::ServerTimeout => 500,
            Self::ServiceUnavailable => 503,
            Self::Timeout => 504,
        }
    }
}

/// One cause of a refusal, usually one wrong field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// For example `FieldValueRequired`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Text for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Path of the field, for example `spec.list[0].x`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

/// The `details` of a [`Status`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// The *resource* for NotFound, AlreadyExists and Conflict, the Kind for Invalid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// The object's uid.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// What exactly is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// Seconds; also sent as the header `Retry-After`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// A failure as Kubernetes clients read it. Usable as an error type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// None for codes without a Kubernetes reason (501, 502).
    pub reason: Option<Reason>,
    /// Text for people.
    pub message: String,
    /// Written as `details` when present, `{}` included. Boxed to keep `Result<T, Status>` small.
    pub details: Option<Box<Details>>,
    /// `metadata.continue`, only for 410 Expired of a chunked list.
    pub continue_token: Option<String>,
}

impl Status {
    /// A refusal without details.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self { code: reason.code(), reason: Some(reason), message: message.into(), details: None, continue_token: None }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}
