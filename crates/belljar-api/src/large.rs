//! JSON responses with much text, which is escaped piece by piece while it is sent.

use std::convert::Infallible;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::text::JsonParts;
use futures_util::stream;
use serde::Serialize;

use crate::error::internal;
use crate::tenants::{SMALL, SharePermit, keeping};

/// The value as JSON; `permit` is held until all of it is sent.
pub(crate) fn json(status: StatusCode, value: &impl Serialize, permit: SharePermit) -> Response {
    let parts = match JsonParts::of(value) {
        Ok(parts) => parts,
        Err(error) => {
            return internal(format!("failed to write the answer as JSON: {error}"))
                .into_response();
        }
    };
    let body = match parts.held() as u64 <= SMALL {
        true => Body::from(parts.flatten().collect::<Vec<u8>>()),
        false => Body::from_stream(stream::unfold(parts, |mut parts| async move {
            // Escaping takes processor time, so other tasks run between two pieces.
            tokio::task::yield_now().await;
            let piece = parts.next()?;
            Some((Ok::<_, Infallible>(Bytes::from(piece)), parts))
        })),
    };
    let kind = HeaderValue::from_static("application/json");
    let response = (status, [(header::CONTENT_TYPE, kind)], body).into_response();
    keeping(response, permit)
}
