//! What operators are told of a configuration file: which content is in force, and why a later one is not.

use std::path::Path;

use config::{Change, Source};
use serde::Serialize;
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// One file.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FileStatus {
    /// `null`: the defaults.
    file: Option<String>,
    sha256: Option<String>,
    /// Contents put in force so far.
    pub(crate) generation: u64,
    in_force_since: String,
    /// Why the latest content of the file is not in force; `null` when it is.
    last_error: Option<Refused>,
}

#[derive(Clone, Debug, Serialize)]
struct Refused {
    at: String,
    /// One for each fault.
    faults: Vec<String>,
}

impl FileStatus {
    pub(crate) fn new(source: Option<&Source>) -> Self {
        let (file, sha256) = names(source);
        Self { file, sha256, generation: 1, in_force_since: now(), last_error: None }
    }

    /// Another content is in force.
    pub(crate) fn applied(&mut self, source: Option<&Source>) {
        (self.file, self.sha256) = names(source);
        (self.generation, self.in_force_since, self.last_error) = (self.generation + 1, now(), None);
    }

    /// Notes why a content was refused, one fault in each line.
    pub(crate) fn refused(&mut self, error: &str) {
        self.last_error = Some(Refused { at: now(), faults: error.lines().map(str::to_owned).collect() });
    }

    pub(crate) fn is_refused(&self) -> bool {
        self.last_error.is_some()
    }
}

/// `gateway.yaml`.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct GatewayStatus {
    #[serde(flatten)]
    pub(crate) file: FileStatus,
    /// What the content in force changed in the one before.
    pub(crate) changes: Vec<Change>,
    /// What the file says otherwise than the running gateway.
    pub(crate) needs_restart: Vec<Change>,
}

fn names(source: Option<&Source>) -> (Option<String>, Option<String>) {
    source.map(|s| (Path::display(&s.file).to_string(), s.sha256.clone())).unzip()
}

/// RFC 3339, in UTC.
pub(crate) fn now() -> String {
    OffsetDateTime::now_utc().format(&Rfc3339).unwrap_or_default()
}
