//! Parses `Range` headers: which part of a file to send.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// The range of bytes of a file to send.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Span {
    pub(crate) from: u64,
    /// The end, exclusive.
    pub(crate) to: u64,
    size: u64,
    is_part: bool,
}

impl Span {
    /// The range that a `Range` header requests, or the response 416.
    #[expect(clippy::result_large_err, reason = "it is the answer, and is sent as it is")]
    pub(crate) fn of(range: Option<&str>, size: u64) -> Result<Span, Response> {
        match part(range, size) {
            RangePart::Whole => Ok(Span { from: 0, to: size, size, is_part: false }),
            RangePart::Bytes(from, to) => Ok(Span { from, to, size, is_part: true }),
            RangePart::Nothing => {
                let range = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
                Err((StatusCode::RANGE_NOT_SATISFIABLE, range).into_response())
            }
        }
    }

    /// A response with these bytes; for HEAD, `body` is empty.
    pub(crate) fn respond(self, body: Body) -> Response {
        let Span { from, to, size, is_part } = self;
        let status = if is_part { StatusCode::PARTIAL_CONTENT } else { StatusCode::OK };
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(to - from));
        headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if is_part {
            let range = HeaderValue::from_str(&format!("bytes {from}-{}/{size}", to - 1));
            headers.extend(range.map(|range| (header::CONTENT_RANGE, range)));
        }
        response
    }
}

/// What to send of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RangePart {
    Whole,
    /// Start, and end (exclusive).
    Bytes(u64, u64),
    /// The requested range is outside of the file.
    Nothing,
}

/// The part of a file of this size that a `Range` header requests. For several ranges and for
/// invalid headers it is the whole file, as the standard allows.
fn part(header: Option<&str>, size: u64) -> RangePart {
    let Some(range) = header.and_then(|text| text.trim().strip_prefix("bytes=")) else {
        return RangePart::Whole;
    };
    let Some((first, last)) = range.trim().split_once('-') else { return RangePart::Whole };
    let number = |text: &str| {
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number that does not fit is beyond the end of every file.
        digits.then(|| text.parse::<u64>().unwrap_or(u64::MAX))
    };
    match (number(first.trim()), last.trim()) {
        (None, last) if first.trim().is_empty() => match number(last) {
            Some(0) => RangePart::Nothing,
            Some(_) if size == 0 => RangePart::Nothing,
            Some(count) => RangePart::Bytes(size.saturating_sub(count), size),
            None => RangePart::Whole,
        },
        (None, _) => RangePart::Whole,
        (Some(first), _) if first >= size => RangePart::Nothing,
        (Some(first), "") => RangePart::Bytes(first, size),
        (Some(first), last) => match number(last) {
            Some(last) if last >= first => {
                RangePart::Bytes(first, last.saturating_add(1).min(size))
            }
            _ => RangePart::Whole,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_understood_as_the_standard_has_them() {
        for (header, expected) in [
            ("bytes=0-0", RangePart::Bytes(0, 1)),
            ("bytes=2-5", RangePart::Bytes(2, 6)),
            ("bytes=2-", RangePart::Bytes(2, 10)),
            ("bytes=-3", RangePart::Bytes(7, 10)),
            ("bytes=-300", RangePart::Bytes(0, 10)),
            ("bytes=5-99999999999999999999999", RangePart::Bytes(5, 10)),
            ("bytes=10-", RangePart::Nothing),
            ("bytes=-0", RangePart::Nothing),
            ("bytes=99999999999999999999999-", RangePart::Nothing),
            ("bytes=5-2", RangePart::Whole),
            ("bytes=0-1,4-5", RangePart::Whole),
            ("bytes=", RangePart::Whole),
            ("bytes=-", RangePart::Whole),
            ("bytes=a-b", RangePart::Whole),
            ("bytes=+1-2", RangePart::Whole),
            ("lines=1-2", RangePart::Whole),
        ] {
            assert_eq!(part(Some(header), 10), expected, "{header}");
        }
        assert_eq!(part(None, 10), RangePart::Whole);
        assert_eq!(part(Some("bytes=0-"), 0), RangePart::Nothing);
        assert_eq!(part(Some("bytes=-1"), 0), RangePart::Nothing);
    }
}
