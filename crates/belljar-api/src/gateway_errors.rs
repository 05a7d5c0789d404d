//! Errors that only gateways return. They are here because the document of the API lists them.

use axum::http::StatusCode;

use crate::error::ApiError;

/// Seconds after which a node may be there again.
const RETRY_NODE: u32 = 2;

/// Nothing was sent to the node.
#[must_use]
pub fn node_unreachable() -> ApiError {
    let message = "the node for this request cannot be reached";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "node_unreachable", message)
        .retry_after(RETRY_NODE)
}

/// The request was sent, and may have had an effect.
#[must_use]
pub fn node_failed() -> ApiError {
    let message = "the node for this request failed before it answered";
    ApiError::new(StatusCode::BAD_GATEWAY, "node_failed", message)
        .hint("the request may have been carried out; check before you send it again")
        .retry_after(RETRY_NODE)
}

/// The node that got the request does not own the session any more, and did nothing.
#[must_use]
pub fn session_moving() -> ApiError {
    let message = "the session is moving to another node";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "session_moving", message).retry_after(1)
}

#[must_use]
pub fn no_node(message: &str) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_node", message).retry_after(RETRY_NODE)
}

/// One of each.
pub(crate) fn samples() -> [ApiError; 4] {
    [node_unreachable(), node_failed(), session_moving(), no_node("")]
}
