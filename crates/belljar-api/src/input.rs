//! Request bodies and queries, refused with a sentence where they make no sense.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::error::ApiError;

/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(300);

/// A body that is too large anyway is read on for as long as it comes without such a pause.
const DISCARD_PAUSE: Duration = Duration::from_millis(500);

/// Bytes of a body that are read after they are too many.
const MAX_DISCARDED: usize = 256 << 20;

/// The largest body this server accepts; the guard leaves it with every request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimit(pub(crate) usize);

/// A JSON body. An empty one is an empty object, where that is enough.
#[derive(Debug)]
pub(crate) struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _: &S) -> Result<Self, ApiError> {
        let declared = request.headers().get(header::CONTENT_TYPE).cloned();
        let limit = request.extensions().get().map_or(usize::MAX, |BodyLimit(limit)| *limit);
        let reading = read(request.into_body(), limit);
        let bytes = tokio::time::timeout(BODY_TIMEOUT, reading).await.unwrap_or_else(|_| {
            let message = format!("the body took longer than {} s", BODY_TIMEOUT.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message))
        })?;
        if bytes.is_empty() {
            return parse(b"{}").map(Body);
        }
        let essence = declared.as_ref().and_then(|value| value.to_str().ok()).unwrap_or_default();
        let is_json = essence.split(';').next().is_some_and(|kind| {
            let kind = kind.trim();
            kind == "application/json" || kind.ends_with("+json")
        });
        // A form or plain text can be sent across sites without asking the server first.
        if !is_json {
            return Err(ApiError::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                format!("expected a JSON body, got `{essence}`"),
            )
            .hint("send `Content-Type: application/json`"));
        }
        parse(&bytes).map(Body)
    }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let not_json = |error: &dyn std::fmt::Display| {
        let message = format!("the body is not JSON: {error}");
        ApiError::new(StatusCode::BAD_REQUEST, "malformed", message)
    };
    let text = std::str::from_utf8(bytes).map_err(|error| not_json(&error))?;
    // Asked on its own: some of what is no error of the notation is reported as if it were one.
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| not_json(&error))?;
    if !text.trim_start().starts_with('{') {
        return Err(ApiError::invalid("the body is not an object"));
    }
    let mut reader = serde_json::Deserializer::from_str(text);
    serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let (path, why) = (error.path().to_string(), in_plain_words(error.inner()));
        // Of the whole body, or of what has no name yet.
        let unnamed = matches!(path.as_str(), "." | "?");
        ApiError::invalid(if unnamed { why } else { format!("{path}: {why}") })
    })
}

/// Characters of an error: it repeats the value, which may be as long as the body.
const MAX_ERROR: usize = 400;

/// What is wrong with a value, without the names of our types and without its line, which nobody
/// has written.
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

/// What JSON calls what Rust calls so.
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

/// The whole body, or why not. What is too large is read to its end, within reason: who is still
/// sending when we hang up would never read our answer.
async fn read(mut body: axum::body::Body, limit: usize) -> Result<Vec<u8>, ApiError> {
    let mut bytes = Vec::new();
    let mut length = 0;
    loop {
        // Of what is too large we take what comes, and do not wait for it.
        let patience = if length <= limit { Duration::MAX } else { DISCARD_PAUSE };
        let next = tokio::time::timeout(patience, body.frame()).await;
        let Some(frame) = next.ok().flatten() else { break };
        let Ok(data) = frame.map_err(cut_off)?.into_data() else { continue };
        length += data.len();
        if length <= limit {
            bytes.extend_from_slice(&data);
        } else if length - limit < MAX_DISCARDED {
            bytes = Vec::new();
        } else {
            break;
        }
    }
    if length <= limit {
        return Ok(bytes);
    }
    let message = format!("the body is larger than the {limit} bytes this server accepts");
    Err(ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
        .hint("send large data as a file, or raise BELLJAR_MAX_BODY"))
}

/// How long an upload may be silent.
const SILENCE: Duration = Duration::from_secs(60);

/// The next bytes of an upload; `None` at its end.
pub(crate) async fn next_piece(body: &mut axum::body::Body) -> Result<Option<Bytes>, ApiError> {
    loop {
        let next = tokio::time::timeout(SILENCE, body.frame()).await.map_err(|_| {
            let message = format!("nothing came for {} s", SILENCE.as_secs());
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message)
        })?;
        let Some(frame) = next else { return Ok(None) };
        if let Ok(bytes) = frame.map_err(cut_off)?.into_data() {
            return Ok(Some(bytes));
        }
    }
}

fn cut_off(_: axum::Error) -> ApiError {
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
        let path = parsed.map_err(|error: PathRejection| {
            ApiError::new(StatusCode::BAD_REQUEST, "malformed", error.body_text())
        })?;
        Ok(Path(path.0))
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read from JSON")]
    struct Outer {
        number: Option<u64>,
        inner: Option<Inner>,
        list: Option<Vec<f64>>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read from JSON")]
    struct Inner {
        word: Option<String>,
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
}
