//! Reads and checks the bodies, queries and paths of requests.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::Value;
use tokio::time::Instant;

use crate::error::ApiError;
use crate::tenants::{SMALL, Share, SharePermit};

/// How long a JSON body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(300);

/// Bytes per second that a client must send on average during the stall time.
const LEAST_RATE: u64 = 1024;

/// How much memory is reserved in one step for a body of unknown length.
const STEP: u64 = 1 << 20;

/// A body that is too large is read until its end, or until the client sends nothing for this long.
const DISCARD_PAUSE: Duration = Duration::from_millis(500);

/// How many bytes beyond the limit are read and discarded.
const MAX_DISCARDED: usize = 256 << 20;

/// The largest body this server accepts; the guard adds it to every request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimit(pub(crate) usize);

/// How long a client may stall; the guard adds it to every request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stall(pub(crate) Duration);

/// A JSON body. An empty body counts as an empty object, if no field is required.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let declared = request.headers().get(header::CONTENT_TYPE).cloned();
        let limit = request.extensions().get().map_or(usize::MAX, |BodyLimit(limit)| *limit);
        let stall = request.extensions().get().copied();
        let share = request.extensions().get::<Share>().cloned();
        let pieces = BodyPieces::new(request.into_body(), stall.unwrap_or(Stall(BODY_TIMEOUT)));
        let reading = read(pieces, limit, share.as_ref());
        // The memory for the body is reserved until it is parsed.
        let (bytes, _permit) =
            tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_| {
                let message = format!("the body took longer than {} s", BODY_TIMEOUT.as_secs());
                Err(too_slow(message))
            })?;
        if bytes.is_empty() {
            return parse(b"{}").map(JsonBody);
        }
        let essence = declared.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_json = essence.split(';').next().is_some_and(|kind| {
            let kind = kind.trim();
            kind == "application/json" || kind.ends_with("+json")
        });
        // A form or plain text can be sent across sites without a preflight request, so only JSON is accepted.
        if !is_json {
            return Err(not_json(essence));
        }
        parse(&bytes).map(JsonBody)
    }
}

/// The errors of bodies; the OpenAPI document lists them too.
pub(crate) fn too_slow(message: String) -> ApiError {
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message)
}

pub(crate) fn not_json(essence: &str) -> ApiError {
    let message = format!("expected a JSON body, got `{essence}`");
    ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
        .hint("send `Content-Type: application/json`")
}

pub(crate) fn malformed(message: impl Into<String>) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "malformed", message)
}

pub fn too_large(limit: usize) -> ApiError {
    let message = format!("the body is larger than the {limit} bytes this server accepts");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
        .hint("send large data as a file, or raise BELLJAR_MAX_BODY")
}

pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let not_json =
        |error: &dyn std::fmt::Display| malformed(format!("the body is not JSON: {error}"));
    let text = std::str::from_utf8(bytes).map_err(|error| not_json(&error))?;
    // Checked separately: serde reports some invalid values as if they were invalid JSON.
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| not_json(&error))?;
    if !text.trim_start().starts_with('{') {
        return Err(ApiError::invalid("the body is not an object"));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    let parsed = serde_path_to_error::deserialize(&mut reader);
    parsed.or_else(|error| with_whole_numbers(text).ok_or(error)).map_err(|error| {
        let (path, why) = (error.path().to_string(), in_plain_words(error.inner()));
        // The error is about the whole body, or about a value without a name.
        let unnamed = matches!(path.as_str(), "." | "?");
        ApiError::invalid(if unnamed { why } else { format!("{path}: {why}") })
    })
}

/// Parses again with `7.0` read as `7`: in JSON both are the same number.
fn with_whole_numbers<T: DeserializeOwned>(text: &str) -> Option<T> {
    fn make_whole(value: &mut Value) -> bool {
        match value {
            Value::Number(number) => match number.as_f64().filter(|_| number.is_f64()) {
                // Below this limit, every whole number has an exact floating-point value.
                Some(float) if float.fract() == 0.0 && float.abs() < 9_007_199_254_740_992.0 => {
                    #[expect(clippy::cast_possible_truncation, reason = "whole, and in range")]
                    let whole = float as i64;
                    *value = whole.into();
                    true
                }
                _ => false,
            },
            Value::Array(items) => items.iter_mut().fold(false, |any, item| make_whole(item) | any),
            Value::Object(fields) => {
                fields.values_mut().fold(false, |any, field| make_whole(field) | any)
            }
            _ => false,
        }
    }
    let mut value = serde_json::from_str(text).ok()?;
    make_whole(&mut value).then(|| serde_json::from_value(value).ok()).flatten()
}

/// The longest error, in characters. An error repeats the value, which may be as long as the body.
const MAX_ERROR: usize = 400;

/// Describes what is wrong with a value, without names of Rust types and without the line number: clients do not write
/// JSON by hand.
pub(crate) fn in_plain_words(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let text = text.rsplit_once(" at line ").map_or(&text[..], |(text, _)| text);
    let text = match text.split_once(", expected ") {
        Some((found, wanted)) => format!("{found}, expected {}", plain_type(wanted)),
        None => text.to_owned(),
    };
    match text.char_indices().nth(MAX_ERROR) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// The JSON name of a Rust type.
fn plain_type(wanted: &str) -> &str {
    match wanted.split(' ').next().unwrap_or_default() {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number, not below 0",
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "struct" | "map" => "an object",
        _ if wanted == "a map" => "an object",
        _ if wanted == "a sequence" => "an array",
        _ if wanted == "string or map" => "a string",
        _ => wanted,
    }
}

/// Reads the whole body. A body that is too large is read to its end, within limits: a client that is still sending
/// when the connection is closed never reads the response.
async fn read(
    mut pieces: BodyPieces,
    limit: usize,
    share: Option<&Share>,
) -> Result<(Vec<u8>, SharePermit), ApiError> {
    let mut bytes = Vec::new();
    let mut length = 0;
    let mut reserved = SMALL;
    let mut permit = SharePermit::default();
    loop {
        // For the rest of a body that is too large, the wait is short.
        let patience = if length <= limit { Duration::MAX } else { DISCARD_PAUSE };
        let next = tokio::time::timeout(patience, pieces.next()).await;
        let Ok(next) = next else { break };
        let Some(data) = next? else { break };
        length += data.len();
        if length <= limit {
            if let Some(share) = share
                && length as u64 > reserved
            {
                let declared = pieces.body.size_hint().upper().unwrap_or(0);
                let more = STEP.max(declared).min(limit as u64);
                permit = permit.and(share.reserve(more).await?);
                reserved += more;
            }
            bytes.extend_from_slice(&data);
        } else if length - limit < MAX_DISCARDED {
            bytes = Vec::new();
        } else {
            break;
        }
    }
    if length <= limit {
        return Ok((bytes, permit));
    }
    Err(too_large(limit))
}

/// The body of a request, piece by piece. The client must send at least [`LEAST_RATE`] on average during the stall
/// time. Only the time in which we wait for the client counts, not the time in which it waits for us.
pub(crate) struct BodyPieces {
    pub(crate) body: axum::body::Body,
    stall: Duration,
    /// How long we have waited since the client last sent enough.
    waited: Duration,
    came: u64,
}

impl BodyPieces {
    pub(crate) fn new(body: axum::body::Body, Stall(stall): Stall) -> BodyPieces {
        BodyPieces { body, stall, waited: Duration::ZERO, came: 0 }
    }

    /// The next bytes; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ApiError> {
        loop {
            let begun = Instant::now();
            let patience = self.stall.saturating_sub(self.waited);
            let next = tokio::time::timeout(patience, self.body.frame()).await;
            self.waited += begun.elapsed();
            let Some(frame) = next.map_err(|_| self.too_slow())? else { return Ok(None) };
            let Ok(bytes) = frame.map_err(|_| cut_off())?.into_data() else { continue };
            self.came += bytes.len() as u64;
            if self.came >= self.enough() {
                (self.waited, self.came) = (Duration::ZERO, 0);
            }
            return Ok(Some(bytes));
        }
    }

    fn enough(&self) -> u64 {
        LEAST_RATE.saturating_mul(self.stall.as_secs())
    }

    fn too_slow(&self) -> ApiError {
        let (came, seconds) = (self.came, self.stall.as_secs());
        let message = format!("{came} bytes of the body came in {seconds} s, which is too slow");
        too_slow(message)
    }
}

pub(crate) fn cut_off() -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "cut_off", "the body was cut off")
}

/// Parameters of the URL.
#[derive(Debug)]
pub(crate) struct Query<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Query<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let parsed = axum::extract::Query::from_request_parts(parts, state).await;
        let query = parsed.map_err(|error: QueryRejection| ApiError::invalid(error.body_text()))?;
        Ok(Query(query.0))
    }
}

/// Parts of the URL's path.
#[derive(Debug)]
pub(crate) struct Path<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned + Send> FromRequestParts<S> for Path<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let parsed = axum::extract::Path::from_request_parts(parts, state).await;
        let path = parsed.map_err(|error: PathRejection| malformed(error.body_text()))?;
        Ok(Path(path.0))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read from JSON")]
    struct Outer {
        number: Option<u64>,
        inner: Option<Nested>,
        list: Option<Vec<f64>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read from JSON")]
    struct Nested {
        word: Option<String>,
    }

    #[test]
    fn a_whole_number_may_be_written_with_a_fraction_of_zero() {
        let Outer { number, list, .. } =
            parse(br#"{"number": 7.0, "list": [1, 2.5, 3e0]}"#).unwrap();
        assert_eq!((number, list), (Some(7), Some(vec![1.0, 2.5, 3.0])));
        for wrong in ["7.5", "-7.0", "1e300", "\"7.0\""] {
            let body = format!("{{\"number\": {wrong}}}");
            assert!(parse::<Outer>(body.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn errors_name_the_field_and_speak_of_json() {
        for (body, said) in [
            (
                "{\"number\": \"x\"}",
                "number: invalid type: string \"x\", expected a whole number, not below 0",
            ),
            (
                "{\"number\": -1}",
                "number: invalid value: integer `-1`, expected a whole number, not below 0",
            ),
            ("{\"number\": 1e999}", "number: number out of range"),
            ("{\"inner\": 1}", "inner: invalid type: integer `1`, expected an object"),
            (
                "{\"inner\": {\"word\": []}}",
                "inner.word: invalid type: sequence, expected a string",
            ),
            ("{\"inner\": {\"x\": 1}}", "inner.x: unknown field `x`, expected `word`"),
            ("{\"list\": [1, null]}", "list[1]: invalid type: null, expected a number"),
            ("{\"list\": 1}", "list: invalid type: integer `1`, expected an array"),
            ("[1, {}, []]", "the body is not an object"),
            ("7", "the body is not an object"),
        ] {
            let error = parse::<Outer>(body.as_bytes()).unwrap_err();
            assert_eq!((error.status.as_u16(), &error.message[..]), (422, said), "{body}");
        }
        for body in ["", "{", "{'a': 1}", "{} {}", "{\"number\": 01}", "nul"] {
            let error = parse::<Outer>(body.as_bytes()).unwrap_err();
            assert_eq!(error.status.as_u16(), 400, "{body}: {}", error.message);
        }
        let long = format!("{{\"number\": \"{}\"}}", "x".repeat(100_000));
        assert!(parse::<Outer>(long.as_bytes()).unwrap_err().message.len() < 1000);
    }

    const STALL: Stall = Stall(Duration::from_secs(60));

    /// A body of pieces of this length, with a pause before each.
    fn dripping(pause: Duration, length: usize, pieces: usize) -> BodyPieces {
        let pieces = stream::unfold(0, move |sent| async move {
            if sent == pieces {
                return None;
            }
            tokio::time::sleep(pause).await;
            Some((Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; length])), sent + 1))
        });
        BodyPieces::new(axum::body::Body::from_stream(pieces), STALL)
    }

    async fn all(mut pieces: BodyPieces) -> Result<usize, ApiError> {
        let mut length = 0;
        while let Some(piece) = pieces.next().await? {
            length += piece.len();
        }
        Ok(length)
    }

    /// The clock is paused: it jumps to the next timer.
    #[tokio::test(start_paused = true)]
    async fn who_sends_a_byte_now_and_then_is_cut_off() {
        let begun = Instant::now();
        let error = all(dripping(Duration::from_secs(25), 1, 1000)).await.unwrap_err();
        assert_eq!((error.status.as_u16(), error.code), (408, "too_slow"));
        assert_eq!(error.message, "2 bytes of the body came in 60 s, which is too slow");
        assert_eq!(begun.elapsed(), STALL.0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_slow_and_goes_on_is_heard() {
        let slow = dripping(Duration::from_secs(50), 60 * 1024, 20);
        assert_eq!(all(slow).await.unwrap(), 20 * 60 * 1024);
        let steady = dripping(Duration::from_secs(1), 2048, 600);
        assert_eq!(all(steady).await.unwrap(), 600 * 2048);
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_we_take_is_not_the_clients() {
        let mut pieces = dripping(Duration::from_secs(1), 1, 50);
        while pieces.next().await.unwrap().is_some() {
            tokio::time::sleep(Duration::from_secs(100)).await;
        }
    }
}
