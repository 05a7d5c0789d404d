//! Request bodies and queries, refused with a sentence where they make no sense.

use std::time::Duration;

use axum::body::Bytes;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use http_body_util::BodyExt;
use serde::de::DeserializeOwned;

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
    serde_json::from_slice(bytes).map_err(|error| {
        if error.is_data() {
            ApiError::invalid(error.to_string())
        } else {
            let message = format!("the body is not JSON: {error}");
            ApiError::new(StatusCode::BAD_REQUEST, "malformed", message)
        }
    })
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
