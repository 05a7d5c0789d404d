//! The time of day, as it is shown and stored. Deadlines use the monotonic clock instead, because
//! the time of day may jump.

use std::time::{SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::civil::Date;

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// Seconds as milliseconds, limited to what fits.
pub(crate) fn seconds_to_ms(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX / 1000).saturating_mul(1000)
}

/// `2026-11-15T07:13:29.123Z`
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    format!("{:.3}", timestamp(ms))
}

/// Parses the output of [`rfc3339`] to milliseconds since 1970.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    text.parse().ok().map(Timestamp::as_millisecond)
}

/// `20261115T071329Z`, for names of files.
pub(crate) fn stamp(ms: i64) -> String {
    timestamp(ms).strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// `2026-11-15`
#[must_use]
pub fn day(ms: i64) -> String {
    timestamp(ms).strftime("%F").to_string()
}

/// Whether this is a day of the calendar in the format of [`day`].
#[must_use]
pub fn is_day(text: &str) -> bool {
    // Other ways to write it, and years before 0, are refused.
    text.len() == 10 && text.parse::<Date>().is_ok_and(|date| date.to_string() == text)
}

/// The time as a timestamp. A time out of range becomes the first or last possible timestamp.
fn timestamp(ms: i64) -> Timestamp {
    let out_of_range = if ms < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_millisecond(ms).unwrap_or(out_of_range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(rfc3339(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(rfc3339(951_827_696_789), "2000-02-29T12:34:56.789Z");
        assert_eq!(day(1_794_700_800_000), "2026-11-15");
        assert_eq!(day(-86_400_000), "1969-12-31");
        assert_eq!(day(4_107_542_400_000), "2100-03-01");
        assert_eq!(stamp(951_827_696_789), "20000229T123456Z");
        assert_eq!(parse_rfc3339("2000-02-29T12:34:56.789Z"), Some(951_827_696_789));
        assert_eq!(parse_rfc3339("2000-02-30T12:34:56.789Z"), None);
        assert!(rfc3339(i64::MAX).starts_with("9999-12-3"), "the last one");
        for good in ["2026-01-31", "2024-02-29", "2000-02-29"] {
            assert!(is_day(good), "{good}");
        }
        for bad in [
            "2026-02-29",
            "2100-02-29",
            "2026-99-99",
            "2026-00-01",
            "2026-1-1",
            "20260101",
            "",
            "x",
        ] {
            assert!(!is_day(bad), "{bad}");
        }
    }
}
