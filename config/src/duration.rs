//! Durations as files have them: text with a unit, such as `90s` or `1h30m`.

use std::{ops::RangeInclusive, time::Duration};

use apiserver_api::list_options::parse_duration;
use serde::Deserialize;

/// A duration as written, with its unit or without.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct RawDuration(pub(crate) String);

/// The name of that type.
pub(crate) const NAME: &str = "RawDuration";

impl RawDuration {
    /// The duration, if it lies within `seconds`.
    ///
    /// # Errors
    /// What is wrong, and what would be right, for example `example`.
    pub(crate) fn within(&self, seconds: RangeInclusive<u64>, example: Duration) -> Result<Duration, String> {
        let Self(text) = self;
        let (min, max) = (Duration::from_secs(*seconds.start()), Duration::from_secs(*seconds.end()));
        let parsed = parse_duration(text).and_then(|nanos| u64::try_from(nanos).ok()).map(Duration::from_nanos);
        parsed.filter(|time| (min..=max).contains(time)).ok_or_else(|| {
            let (min, max, example) = (shown(min), shown(max), shown(example));
            format!("is {text:?}; want a duration from {min} to {max}, for example {example}")
        })
    }
}

/// As it would be written.
fn shown(time: Duration) -> String {
    match time.as_secs() {
        _ if time.subsec_millis() > 0 => format!("{}ms", time.as_millis()),
        s if s > 0 && s.is_multiple_of(3600) => format!("{}h", s / 3600),
        s if s > 0 && s.is_multiple_of(60) => format!("{}m", s / 60),
        s => format!("{s}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_inclusive_and_faults_have_an_example() {
        let within = |text: &str| RawDuration(text.into()).within(1..=600, Duration::from_millis(1500));
        assert_eq!(within("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(within("10m"), Ok(Duration::from_secs(600)));
        for text in ["5", "999ms", "10m1s", "-1s", ""] {
            let want = format!("is {text:?}; want a duration from 1s to 10m, for example 1500ms");
            assert_eq!(within(text), Err(want));
        }
    }

    #[test]
    fn whole_units_are_shown() {
        let shown = |seconds| super::shown(Duration::from_secs(seconds));
        assert_eq!([0, 59, 60, 90, 3600, 7200].map(shown), ["0s", "59s", "1m", "90s", "1h", "2h"]);
    }
}
