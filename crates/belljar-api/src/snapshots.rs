//! `/v1/sessions/{id}/hibernate`, `/fork`, `/checkpoints`, `/restore`.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use belljar_engine::{Checkpoint, Principal, clock};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::{JsonBody, Path};
use crate::sessions::SessionBody;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HibernateSession {
    /// Hibernate even if something is lost (threads, connections, processes, kernels other than Python's). `lost` in the
    /// answer lists it. Variables that can be kept are kept; if that fails it is an error, as without `force`.
    #[serde(default)]
    pub force: bool,
}

/// Hibernate a session: it becomes files. It uses neither memory nor processor, survives a restart of the
/// server, and wakes with its variables and files at the next call that needs it.
#[utoipa::path(post, path = "/v1/sessions/{id}/hibernate", tag = "sessions",
    params(("id" = String, Path)), request_body = HibernateSession,
    responses((status = 200, body = SessionBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It is not at rest; the message says why"),
        (status = 410, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn hibernate(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<HibernateSession>,
) -> Result<Json<SessionBody>, ApiError> {
    Ok(Json(app.session_body(app.engine.hibernate(&who, &id, body.force).await?)))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ForkSession {
    /// How many forks to make. Default: 1.
    #[serde(default = "one")]
    #[schema(default = 1, minimum = 1, maximum = 100)]
    pub count: usize,
    /// Fork without what cannot be copied (threads, connections, processes, kernels other than Python's). `lost` in the
    /// answer lists it.
    #[serde(default)]
    pub force: bool,
    /// Fork the state after this execution; there must be a checkpoint of it.
    pub from: Option<String>,
}

fn one() -> usize {
    1
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ForkedBody {
    pub sessions: Vec<SessionBody>,
}

/// Fork a session: the new sessions have the same variables and files, and change independently. Either all
/// forks are made, or none.
#[utoipa::path(post, path = "/v1/sessions/{id}/fork", tag = "sessions",
    params(("id" = String, Path)), request_body = ForkSession,
    responses((status = 201, body = ForkedBody),
        (status = 404, body = ErrorBody, description = "No such session or checkpoint"),
        (status = 409, body = ErrorBody, description = "It is not at rest; the message says why"),
        (status = 410, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 429, body = ErrorBody, description = "No room"), (status = 507, body = ErrorBody)))]
pub(crate) async fn fork(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<ForkSession>,
) -> Result<(StatusCode, Json<ForkedBody>), ApiError> {
    let ForkSession { count, force, from } = body;
    let forked = app.engine.fork(&who, &id, count, force, from).await?;
    let sessions = forked.into_iter().map(|info| app.session_body(info)).collect();
    Ok((StatusCode::CREATED, Json(ForkedBody { sessions })))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckpointBody {
    pub exec_id: String,
    pub created: String,
    /// Bytes that it added to the checkpoints before it.
    pub bytes: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CheckpointsBody {
    pub checkpoints: Vec<CheckpointBody>,
}

/// List the checkpoints of a session, the oldest first.
#[utoipa::path(get, path = "/v1/sessions/{id}/checkpoints", tag = "sessions",
    params(("id" = String, Path)),
    responses((status = 200, body = CheckpointsBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn checkpoints(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Json<CheckpointsBody>, ApiError> {
    let body = |Checkpoint { exec_id, made_ms, bytes }| CheckpointBody {
        exec_id,
        created: clock::rfc3339(made_ms),
        bytes,
    };
    let checkpoints = app.engine.checkpoints(&who, &id).await?.into_iter().map(body).collect();
    Ok(Json(CheckpointsBody { checkpoints }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RestoreSession {
    pub exec_id: String,
}

/// Restore a session to its state after an execution. Checkpoints of later executions are kept.
#[utoipa::path(post, path = "/v1/sessions/{id}/restore", tag = "sessions",
    params(("id" = String, Path)), request_body = RestoreSession,
    responses((status = 200, body = SessionBody),
        (status = 404, body = ErrorBody, description = "No such session or checkpoint"),
        (status = 409, body = ErrorBody, description = "Something runs in it"),
        (status = 410, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn restore(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<RestoreSession>,
) -> Result<Json<SessionBody>, ApiError> {
    Ok(Json(app.session_body(app.engine.restore(&who, &id, &body.exec_id).await?)))
}
