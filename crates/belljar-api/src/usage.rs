//! `GET /v1/usage`: the usage of the caller's tenant, per day.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use belljar_engine::store::UsageRow;
use belljar_engine::{EngineError, Principal, clock};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::Query;

/// How many days are listed by default.
const DEFAULT_DAYS: i64 = 30;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct UsageSince {
    /// The first day, as YYYY-MM-DD. Default: 30 days ago.
    #[param(format = Date)]
    pub since: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UsageBody {
    #[schema(value_type = Vec<Object>)]
    pub usage: Vec<UsageRow>,
}

/// What this tenant has used, per day: sessions, runs, executions by status, CPU seconds, memory,
/// bytes in and out.
#[utoipa::path(get, path = "/v1/usage", tag = "server", params(UsageSince),
    responses((status = 200, body = UsageBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn usage(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Query(query): Query<UsageSince>,
) -> Result<Json<UsageBody>, ApiError> {
    let since = match query.since {
        Some(day) if clock::is_day(&day) => day,
        Some(day) => {
            let day = day.escape_debug();
            return Err(ApiError::invalid(format!(
                "since: `{day}` is not a day; expected YYYY-MM-DD"
            )));
        }
        None => clock::day(clock::now_ms() - DEFAULT_DAYS * 86_400_000),
    };
    app.engine.flush_usage().await?;
    let usage = app.engine.store().usage(Some(who.tenant), since).await;
    Ok(Json(UsageBody { usage: usage.map_err(EngineError::from)? }))
}
