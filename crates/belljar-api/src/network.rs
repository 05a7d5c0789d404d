//! `/v1/sessions/{id}/network`: where a session's code went, and where it wanted to.

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
    /// As it was asked for.
    #[schema(value_type = Object)]
    pub policy: Policy,
    /// Visits by what became of them, since this server has the session.
    pub reached: u64,
    pub refused: u64,
    pub failed: u64,
    /// Bytes of those that have ended.
    pub sent: u64,
    pub received: u64,
    /// The last of them, the newest first.
    #[schema(value_type = Vec<Object>)]
    pub visits: Vec<VisitBody>,
}

#[derive(Debug, Serialize)]
pub(crate) struct VisitBody {
    time: String,
    #[serde(flatten)]
    visit: Visit,
}

/// Where a session's code went: the policy, counts, and the last visits, refused ones included.
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
