//! Parses the values of flags.

use belljar_engine::exec::timeout_ms;
use belljar_engine::size;
use belljar_proto::exec::Language;
use belljar_runtime::{Limits, languages};

pub(crate) fn parse_language(text: &str) -> Result<Language, String> {
    languages::find(text).ok_or_else(|| format!("expected {}", languages::names()))
}

pub(crate) fn parse_seconds(text: &str) -> Result<u64, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds".to_owned())?;
    timeout_ms(seconds).ok_or_else(|| "expected more than 0 seconds and at most a year".into())
}

pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    size::parse(text).ok_or_else(|| format!("expected a size such as 512M or 2G, not `{text}`"))
}

pub(crate) fn parse_cpus(text: &str) -> Result<u32, String> {
    let cpus: f64 = text.parse().map_err(|_| "expected a number of processors".to_owned())?;
    let millicpus = Limits::millicpus_of(cpus);
    millicpus.ok_or_else(|| "expected between 0.01 and 1024 processors".into())
}

pub(crate) fn parse_env(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !text.contains('\0') => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("expected KEY=VALUE".into()),
    }
}

pub(crate) fn parse_name(text: &str) -> Result<String, String> {
    const MOST: usize = 100;
    let name = text.trim();
    match name.chars().count() {
        0 => Err("expected a name that is not empty".into()),
        1..=MOST if !name.contains(char::is_control) => Ok(name.to_owned()),
        _ => Err(format!("expected at most {MOST} printable characters")),
    }
}

pub(crate) fn parse_day(text: &str) -> Result<String, String> {
    let is_day = belljar_engine::clock::is_day(text);
    is_day.then(|| text.to_owned()).ok_or_else(|| "expected a day such as 2026-01-31".to_owned())
}

/// Parses `NAME`, `NAME:rw` or `NAME:ro`. The server checks whether the name is valid.
pub(crate) fn parse_volume(text: &str) -> Result<(String, String), String> {
    let (name, mode) = text.split_once(':').unwrap_or((text, "rw"));
    match mode {
        "rw" | "ro" if !name.is_empty() => Ok((name.to_owned(), mode.to_owned())),
        _ => Err(format!("expected NAME, NAME:rw or NAME:ro, not `{text}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_refused() {
        for text in ["0", "-3", "inf", "NaN", "1e30", ""] {
            assert!(parse_seconds(text).is_err(), "{text}");
            assert!(parse_cpus(text).is_err(), "{text}");
        }
        assert_eq!(parse_seconds("0.5"), Ok(500));
        assert_eq!(parse_cpus("1.5"), Ok(1500));
        assert!(parse_env("=x").is_err() && parse_env("x").is_err());
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        for day in ["2026-11-15", "2024-02-29", "2000-02-29", "1999-12-31"] {
            assert_eq!(parse_day(day).as_deref(), Ok(day));
        }
        for day in [
            "",
            "today",
            "2026-1-1",
            "2026-13-01",
            "2026-00-10",
            "2026-02-29",
            "1900-02-29",
            "2026-04-31",
            "2026-01-00",
            "2026-01-01T00",
            "20260101",
            "２026-01-01",
        ] {
            assert!(parse_day(day).is_err(), "{day}");
        }
    }

    #[test]
    fn names_are_short_and_printable() {
        assert_eq!(parse_name(" ci of team ä ").as_deref(), Ok("ci of team ä"));
        for name in ["", "  ", "a\nb", "\u{1b}[31m", &"x".repeat(101)] {
            assert!(parse_name(name).is_err(), "{name:?}");
        }
    }
}
