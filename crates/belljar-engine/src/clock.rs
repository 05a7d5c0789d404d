//! The time of day, for people and for the database. Deadlines are kept on the monotonic clock: the
//! time of day may jump.

use std::time::{SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970.
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

/// As many milliseconds, or as many as there can be.
pub(crate) fn seconds_to_ms(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX / 1000).saturating_mul(1000)
}

/// `2026-11-15T07:13:29.123Z`
#[must_use]
pub fn rfc3339(ms: i64) -> String {
    let (year, month, day) = civil(ms.div_euclid(86_400_000));
    let of_day = ms.rem_euclid(86_400_000);
    let (h, m, s) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{:03}Z", of_day % 1000)
}

/// Reads what [`rfc3339`] writes.
#[must_use]
pub fn parse_rfc3339(text: &str) -> Option<i64> {
    let shape: String = text.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    if shape != "0000-00-00T00:00:00.000Z" {
        return None;
    }
    let number = |range: std::ops::Range<usize>| text[range].parse::<i64>().ok();
    let days = days(number(0..4)?, number(5..7)?, number(8..10)?);
    let (h, m, s) = (number(11..13)?, number(14..16)?, number(17..19)?);
    Some((((days * 24 + h) * 60 + m) * 60 + s) * 1000 + number(20..23)?)
}

/// `2026-11-15`
#[must_use]
pub fn day(ms: i64) -> String {
    let (year, month, day) = civil(ms.div_euclid(86_400_000));
    format!("{year:04}-{month:02}-{day:02}")
}

/// Whether this is a day of the calendar, as [`day`] writes them.
#[must_use]
pub fn is_day(text: &str) -> bool {
    // One that is none, such as 30 February, is another when it is written again.
    parse_rfc3339(&format!("{text}T00:00:00.000Z")).is_some_and(|ms| day(ms) == text)
}

/// The date of a day counted from 1970. Years are made to begin in March, so that the leap day is
/// the last day of one, and 400 of them are always as long as any other 400.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let of_era = shifted.rem_euclid(146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

/// The inverse of [`civil`].
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = year - i64::from(month <= 2);
    let year_of_era = year.rem_euclid(400);
    let month_from_march = (month + 9) % 12;
    let of_year = (153 * month_from_march + 2) / 5 + day - 1;
    let of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    year.div_euclid(400) * 146_097 + of_era - 719_468
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
        for good in ["2026-01-31", "2024-02-29", "2000-02-29"] {
            assert!(is_day(good), "{good}");
        }
        for bad in ["2026-02-29", "2100-02-29", "2026-99-99", "2026-00-01", "2026-1-1", "", "x"] {
            assert!(!is_day(bad), "{bad}");
        }
    }
}
