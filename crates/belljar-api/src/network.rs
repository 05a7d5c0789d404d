//! `/v1/sessions/{id}/network`: the hosts that a session's code reached, and those that were refused.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use belljar_engine::network::{Policy, Visit};
use belljar_engine::{Principal, clock};
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::Path;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct NetworkBody {
    /// As requested.
    #[schema(value_type = Object)]
    pub policy: Policy,
    /// Connections by outcome, since this server has the session.
    pub reached: u64,
    pub refused: u64,
    pub failed: u64,
    /// Bytes of connections that have ended.
    pub sent: u64,
    pub received: u64,
    /// The last connections, the newest first.
    #[schema(value_type = Vec<Object>)]
    pub visits: Vec<VisitBody>,
}

#[derive(Debug, Serialize)]
pub(crate) struct VisitBody {
    time: String,
    #[serde(flatten)]
    visit: Visit,
}

/// Show the network use of a session: its policy, counts, and the last connections, refused ones included.
#[utoipa::path(get, path = "/v1/sessions/{id}/network", tag = "sessions",
    params(("id" = String, Path)),
    responses((status = 200, body = NetworkBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It has ended")))]
pub(crate) async fn network(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Json<NetworkBody>, ApiError> {
    let traffic = app.engine.traffic(&who, &id).await?;
    let policy = app.engine.describe(&who, &id).await?.spec.network;
    let totals = traffic.totals();
    let visit = |visit: Visit| VisitBody { time: clock::rfc3339(visit.begun_ms), visit };
    Ok(Json(NetworkBody {
        policy,
        reached: totals.reached,
        refused: totals.refused,
        failed: totals.failed,
        sent: totals.sent,
        received: totals.received,
        visits: traffic.recent().into_iter().map(visit).collect(),
    }))
}
