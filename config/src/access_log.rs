//! `accessLog` of `gateway.yaml`: one line of JSON for each request.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::fault::Faults;

/// What is logged of requests, and where. Without it nothing is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    /// Where the lines go.
    pub sink: Sink,
    /// Of a million requests that went well, how many are logged. `sample: 0.01` in the file is 10,000 here. Default
    /// all.
    pub per_million: u32,
    /// Requests that went wrong are logged whatever the sample says, up to so many a second over all workers. Default
    /// 100.
    pub errors_per_second: u32,
}

/// See [`AccessLog::sink`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sink {
    /// Standard output; `file: "-"`.
    Stdout,
    /// A file that is appended to, and opened anew when its name stands for another one.
    File(PathBuf),
}

impl AccessLog {
    /// All requests that went well.
    pub const MILLION: u32 = 1_000_000;
    const ERRORS_DEFAULT: u32 = 100;
    /// More lines a second than this no disk takes.
    const ERRORS_MAX: u32 = 100_000;
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RawAccessLog {
    file: String,
    sample: Option<f64>,
    errors_per_second: Option<i64>,
}

/// `None` when something is wrong with it, which `faults` tells. A file's name counts from `directory`.
pub(crate) fn check(raw: &RawAccessLog, directory: &Path, faults: &mut Faults<'_>) -> Option<AccessLog> {
    let sink = match raw.file.as_str() {
        "" => {
            faults.add("accessLog.file", "is missing; want the name of a file, or - for standard output");
            None
        }
        "-" => Some(Sink::Stdout),
        name => Some(Sink::File(directory.join(name))),
    };
    let sample = raw.sample.unwrap_or(1.0);
    let in_range = (0.0..=1.0).contains(&sample);
    if !in_range {
        faults.add("accessLog.sample", format!("is {sample}; want the logged share of requests, from 0 to 1"));
    }
    let given = raw.errors_per_second.unwrap_or(AccessLog::ERRORS_DEFAULT.into());
    let errors_per_second = u32::try_from(given).ok().filter(|errors| *errors <= AccessLog::ERRORS_MAX);
    if errors_per_second.is_none() {
        faults.add("accessLog.errorsPerSecond", format!("is {given}; want 0 to {}", AccessLog::ERRORS_MAX));
    }
    // In range, so the conversion loses a fraction of a request in a million and nothing else.
    let per_million = (sample * f64::from(AccessLog::MILLION)).round() as u32;
    in_range.then_some(AccessLog { sink: sink?, per_million, errors_per_second: errors_per_second? })
}
