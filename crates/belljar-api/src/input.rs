//! Request bodies and queries, refused with a sentence where they make no sense.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use serde::de::DeserializeOwned;

use crate::error::ApiError;

/// A JSON body. An empty one is an empty object, where that is enough.
#[derive(Debug)]
pub(crate) struct Body<T>(pub T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let declared = request.headers().get(header::CONTENT_TYPE).cloned();
        let bytes = Bytes::from_request(request, state).await.map_err(|error| too_large(&error))?;
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

fn too_large(error: &BytesRejection) -> ApiError {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            "the body is larger than this server accepts",
        )
        .hint("send large data as a file, or raise BELLJAR_MAX_BODY"),
        _ => ApiError::new(StatusCode::BAD_REQUEST, "cut_off", "the body was cut off"),
    }
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
