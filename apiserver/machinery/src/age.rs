//! Times in objects: RFC 3339 to Unix seconds and back, and ages as `kubectl get` shows them.

use time::{
    OffsetDateTime,
    format_description::well_known::{Rfc2822, Rfc3339},
};

/// RFC 3339 in UTC with whole seconds.
///
/// # Panics
/// Never: seconds beyond the years 0 to 9999 are held at the ends of that range.
pub fn rfc3339(unix_seconds: i64) -> String {
    // 0000-01-01 and 9999-12-31: what RFC 3339 can write.
    let held = unix_seconds.clamp(-62_167_219_200, 253_402_300_799);
    let at = OffsetDateTime::from_unix_timestamp(held).expect("within the range of the calendar");
    at.format(&Rfc3339).expect("years of four digits can be written")
}

/// The form of dates in headers of HTTP (RFC 9110 section 5.6.7).
///
/// # Panics
/// As [`rfc3339`].
pub fn http_date(unix_seconds: i64) -> String {
    // 1900-01-01 and 9999-12-31: what RFC 2822 can write.
    let held = unix_seconds.clamp(-2_208_988_800, 253_402_300_799);
    let at = OffsetDateTime::from_unix_timestamp(held).expect("within the range of the calendar");
    at.format(&Rfc2822).expect("years of four digits from 1900 on can be written").replace("+0000", "GMT")
}

/// RFC 3339 in UTC with six digits of fraction, for `MicroTime`.
pub fn rfc3339_micro(unix_seconds: i64, nanos: u32) -> String {
    let mut text = rfc3339(unix_seconds);
    text.truncate(text.len() - 1);
    format!("{text}.{:06}Z", nanos.min(999_999_999) / 1000)
}

/// Unix seconds and nanoseconds of an RFC 3339 text; `None` when it is none.
pub fn parse_rfc3339(text: &str) -> Option<(i64, u32)> {
    let at = OffsetDateTime::parse(text, &Rfc3339).ok()?;
    Some((at.unix_timestamp(), at.nanosecond()))
}

/// The age of something that happened at `since` (RFC 3339): `<unknown>` when empty, `<invalid>` when it
/// cannot be read or lies in the future.
pub fn age(since: &str, now: i64) -> String {
    if since.is_empty() {
        return "<unknown>".into();
    }
    match parse_rfc3339(since) {
        Some((seconds, _)) => duration(now.saturating_sub(seconds)),
        None => "<invalid>".into(),
    }
}

/// kubectl's short form of a number of seconds (api-server.md 3.7).
pub fn duration(seconds: i64) -> String {
    /// `1d2h`, without the second part when that is zero.
    fn two(big: i64, big_unit: char, small: i64, small_unit: char) -> String {
        if small == 0 { format!("{big}{big_unit}") } else { format!("{big}{big_unit}{small}{small_unit}") }
    }
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match seconds {
        // Clocks differ a little: one second in the future is not worth an error.
        ..=-2 => "<invalid>".into(),
        -1 => "0s".into(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if hours < 192 => two(days, 'd', hours % 24, 'h'),
        _ if days < 730 => format!("{days}d"),
        _ if days < 2920 => two(days / 365, 'y', days % 365, 'd'),
        _ => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_of_http() {
        // The example of RFC 9110.
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn durations_at_the_boundaries() {
        const M: i64 = 60;
        const H: i64 = 3600;
        const D: i64 = 86_400;
        for (seconds, want) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (59, "59s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (10 * M - 1, "9m59s"),
            (10 * M, "10m"),
            (59 * M + 59, "59m"),
            (3 * H - 1, "179m"),
            (3 * H, "3h"),
            (3 * H + 5 * M, "3h5m"),
            (8 * H - 1, "7h59m"),
            (8 * H, "8h"),
            (48 * H - 1, "47h"),
            (48 * H, "2d"),
            (51 * H, "2d3h"),
            (8 * D - 1, "7d23h"),
            (8 * D, "8d"),
            (12 * D, "12d"),
            (730 * D - 1, "729d"),
            (730 * D, "2y"),
            (775 * D, "2y45d"),
            (2920 * D - 1, "7y364d"),
            (2920 * D, "8y"),
        ] {
            assert_eq!(duration(seconds), want, "{seconds}");
        }
    }

    #[test]
    fn ages_of_times() {
        assert_eq!(age("", 5), "<unknown>");
        assert_eq!(age("yesterday", 5), "<invalid>");
        assert_eq!(age("1970-01-01T00:00:05Z", 47), "42s");
        assert_eq!(age("1970-01-01T01:00:05.123456+01:00", 47), "42s");
    }

    #[test]
    fn times_there_and_back() {
        assert_eq!(rfc3339(1_796_000_000), "2026-11-30T00:53:20Z");
        assert_eq!(rfc3339_micro(0, 123_456_789), "1970-01-01T00:00:00.123456Z");
        assert_eq!(parse_rfc3339("1970-01-01T00:00:00.123456Z"), Some((0, 123_456_000)));
        assert_eq!(rfc3339(i64::MAX), "9999-12-31T23:59:59Z");
        assert_eq!(rfc3339(i64::MIN), "0000-01-01T00:00:00Z");
    }
}
