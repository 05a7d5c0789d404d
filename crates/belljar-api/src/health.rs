//! Whether the server is well, and what it counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::Principal;
use belljar_runtime::native::zygote::ZygoteState;
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;
use crate::error::ErrorBody;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthBody {
    pub status: &'static str,
    /// This and what follows is told to whoever shows a key, where keys are needed.
    #[serde(flatten)]
    pub detail: Option<HealthDetail>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthDetail {
    pub version: &'static str,
    pub backend: String,
    /// Which limits this machine was seen to enforce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforced: Option<BTreeMap<String, bool>>,
    /// Whether new kernels are forked from a warm interpreter: warming, warm or failed.
    pub zygote: String,
    /// Of all tenants: told to operators, and where no keys are needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<usize>,
}

/// The process lives and can write to its database.
#[utoipa::path(get, path = "/healthz", tag = "server",
    responses((status = 200, body = HealthBody), (status = 503, body = HealthBody)))]
pub(crate) async fn healthz(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
) -> Response {
    let written = app.engine.store().check().await;
    if let Err(error) = &written {
        tracing::error!("the database cannot be written to: {}", belljar_engine::in_full(error));
    }
    let (status, word) = match written {
        Ok(()) => (StatusCode::OK, "ok"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "database cannot be written to"),
    };
    let is_stranger = app.wants_keys() && who.key_id.is_none();
    let sees_all = !app.wants_keys() || who.limits.operator;
    let detail = (!is_stranger).then(|| detail(&app, sees_all));
    let body = HealthBody { status: word, detail };
    (status, Json(body)).into_response()
}

fn detail(app: &App, sees_all: bool) -> HealthDetail {
    let zygote = match app.engine.runtime().zygote_state() {
        None => "absent".into(),
        Some(ZygoteState::Warming) => "warming".into(),
        Some(ZygoteState::Warm(_)) => "warm".into(),
        Some(ZygoteState::Failed(why)) => format!("failed: {why}"),
    };
    HealthDetail {
        version: env!("CARGO_PKG_VERSION"),
        backend: app.engine.runtime().backend(),
        enforced: app.enforced().cloned(),
        zygote,
        sessions: sees_all.then(|| app.engine.live_sessions()),
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReadyBody {
    pub ready: bool,
}

/// Everything an earlier server left has been taken over, and requests are welcome.
#[utoipa::path(get, path = "/readyz", tag = "server",
    responses((status = 200, body = ReadyBody), (status = 503, body = ReadyBody)))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    let ready = app.engine.is_recovered() && !app.is_draining();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(ReadyBody { ready })).into_response()
}

/// Counters in the text format of Prometheus. They tell of all tenants: where keys are needed, this is
/// for an operator's key.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, content_type = "application/openmetrics-text", body = String),
        (status = 403, body = ErrorBody)))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.engine.render_metrics()).into_response()
}
