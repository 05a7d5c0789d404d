//! `/v1/sessions/{id}/terminal/ticket`: tickets for WebSockets.
//!
//! A page in a browser cannot send a key with a WebSocket. Instead its own server requests a ticket, and the page sends
//! the ticket as one of the subprotocols that it offers. So the ticket is in no URL and in no log.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::Principal;
use belljar_engine::tickets::TICKET_LIFE;
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::Path;

/// A subprotocol that a client may offer. A client with a ticket must offer it.
pub(crate) const SUBPROTOCOL: &str = "belljar.terminal";

/// The prefix of a subprotocol that is a ticket.
const TICKET_PREFIX: &str = "belljar.ticket.";

/// The ticket in a request for a WebSocket, and the session that the request is for.
pub(crate) fn ticket_of<'a>(headers: &'a HeaderMap, path: &'a str) -> Option<(&'a str, &'a str)> {
    let path = path.strip_prefix("/v1/sessions/")?;
    let session = path.strip_suffix("/terminal").or_else(|| path.strip_suffix("/exec"))?;
    headers.get(header::UPGRADE)?;
    let offered = headers.get_all(header::SEC_WEBSOCKET_PROTOCOL).into_iter();
    let mut names =
        offered.filter_map(|value| value.to_str().ok()).flat_map(|text| text.split(','));
    let ticket = names.find_map(|name| name.trim().strip_prefix(TICKET_PREFIX))?;
    Some((ticket, session))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TicketBody {
    pub ticket: String,
    /// The subprotocols for a browser: `new WebSocket(url, protocols)`.
    pub protocols: [String; 2],
    /// Seconds until the ticket expires.
    pub expires_in: u64,
}

/// Issue a ticket. With it another client, such as a page in a browser, may open one WebSocket of the
/// session (`terminal` or `exec`) without a key: once, within a minute.
#[utoipa::path(post, path = "/v1/sessions/{id}/terminal/ticket", tag = "terminals",
    params(("id" = String, Path)),
    responses((status = 200, body = TicketBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub(crate) async fn ticket(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    // Tickets are only for a live session of this tenant.
    app.engine.terminals(&who, &id).await?;
    let expires_in = TICKET_LIFE.as_secs();
    let ticket = app.tickets.issue(&who, &id, Instant::now()).ok_or_else(|| {
        let seconds = u32::try_from(expires_in).unwrap_or(u32::MAX);
        ApiError::too_many("too many tickets are unused", seconds)
    })?;
    let protocols = [SUBPROTOCOL.to_owned(), format!("{TICKET_PREFIX}{ticket}")];
    let body = Json(TicketBody { ticket, protocols, expires_in });
    Ok(([(header::CACHE_CONTROL, "no-store")], body).into_response())
}
