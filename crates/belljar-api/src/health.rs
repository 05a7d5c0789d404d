//! Whether the server is well, and what it counts.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_runtime::native::zygote::ZygoteState;
use serde::Serialize;
use utoipa::ToSchema;

use crate::App;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthBody {
    pub status: &'static str,
    pub version: &'static str,
    pub backend: String,
    /// Which limits this machine was seen to enforce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforced: Option<BTreeMap<String, bool>>,
    /// Whether new kernels are forked from a warm interpreter: warming, warm or failed.
    pub zygote: String,
    pub sessions: usize,
}

/// The process lives and can write to its database.
#[utoipa::path(get, path = "/healthz", tag = "server",
    responses((status = 200, body = HealthBody), (status = 503, body = HealthBody)))]
pub(crate) async fn healthz(State(app): State<Arc<App>>) -> Response {
    let written = app.engine.store().check().await;
    if let Err(error) = &written {
        tracing::error!("the database cannot be written to: {}", belljar_engine::in_full(error));
    }
    let (status, word) = match written {
        Ok(()) => (StatusCode::OK, "ok"),
        Err(_) => (StatusCode::SERVICE_UNAVAILABLE, "database cannot be written to"),
    };
    let zygote = match app.engine.runtime().zygote_state() {
        None => "absent".into(),
        Some(ZygoteState::Warming) => "warming".into(),
        Some(ZygoteState::Warm(_)) => "warm".into(),
        Some(ZygoteState::Failed(why)) => format!("failed: {why}"),
    };
    let body = HealthBody {
        status: word,
        version: env!("CARGO_PKG_VERSION"),
        backend: app.engine.runtime().backend(),
        enforced: app.enforced().cloned(),
        zygote,
        sessions: app.engine.live_sessions(),
    };
    (status, Json(body)).into_response()
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

/// Counters in the text format of Prometheus.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, content_type = "application/openmetrics-text", body = String)))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.engine.render_metrics()).into_response()
}
