//! `/v1/sessions`: creating, finding, listing, extending and stopping sessions.

mod ask;
mod body;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::exec::language_named;
use belljar_engine::exec::log::LogEntry;
use belljar_engine::session::rules::Phase;
use belljar_engine::store::SessionFilter;
use belljar_engine::{Beyond, Created, CreatedHow, Principal};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub(crate) use ask::{AskedLimits, CreateSession};
pub(crate) use body::{CreatedBody, ReplacedBody, SessionBody};

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::fields::page_size;
use crate::input::{JsonBody, Path, Query};
use crate::large;
use crate::tenants::Share;

/// Create a session, or find the one with this key.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = CreateSession,
    responses(
        (status = 201, body = CreatedBody, description = "Created"),
        (status = 200, body = CreatedBody, description = "Found by its key, or restarted"),
        (status = 409, body = ErrorBody,
            description = "The live session with this key has other settings"),
        (status = 422, body = ErrorBody), (status = 429, body = ErrorBody, description = "No room"),
    ))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    JsonBody(body): JsonBody<CreateSession>,
) -> Result<Response, ApiError> {
    let created = app.engine.create(&who, body.into_ask()?).await?;
    let Created { session, how, replaced } = created;
    let (status, how) = match how {
        CreatedHow::Created => (StatusCode::CREATED, "created"),
        CreatedHow::Found => (StatusCode::OK, "found"),
        CreatedHow::Restarted => (StatusCode::OK, "restarted"),
    };
    let replaced = replaced.map(|(id, because)| ReplacedBody { id, because });
    let session = app.session_body(session);
    Ok((status, Json(CreatedBody { how, replaced, session })).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSessions {
    /// Only sessions in this state.
    pub state: Option<String>,
    /// Only sessions with this key.
    pub key: Option<String>,
    /// At most this many. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Only sessions created before this one: the `next` of the page before.
    pub before: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionsBody {
    pub sessions: Vec<SessionBody>,
    /// The `before` of the next page, if there may be one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// List sessions, the newest first, ended ones included.
#[utoipa::path(get, path = "/v1/sessions", tag = "sessions", params(ListSessions),
    responses((status = 200, body = SessionsBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Query(query): Query<ListSessions>,
) -> Result<Json<SessionsBody>, ApiError> {
    let phase = match &query.state {
        Some(name) => Some(Phase::parse(name).ok_or_else(|| {
            let names: Vec<&str> = Phase::ALL.iter().map(|phase| phase.name()).collect();
            ApiError::invalid(format!("state: expected one of {}", names.join(", ")))
        })?),
        None => None,
    };
    let limit = page_size(query.limit)?;
    let filter = SessionFilter { tenant: None, phase, key: query.key, before: query.before, limit };
    let infos = app.engine.list(&who, filter).await?;
    let full = infos.len() == limit as usize;
    let next = infos.last().filter(|_| full).map(|info| info.id.clone());
    let sessions = infos.into_iter().map(|info| app.session_body(info)).collect();
    Ok(Json(SessionsBody { sessions, next }))
}

/// Show a session, live or ended.
#[utoipa::path(get, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    responses((status = 200, body = SessionBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Json<SessionBody>, ApiError> {
    Ok(Json(app.session_body(app.engine.describe(&who, &id).await?)))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExtendSession {
    /// Seconds to live from now, at most `BELLJAR_MAX_TTL` of the server.
    #[schema(minimum = 1)]
    pub ttl: u64,
}

/// Extend the life of a session. It never becomes shorter.
#[utoipa::path(patch, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    request_body = ExtendSession,
    responses((status = 200, body = SessionBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody)))]
pub(crate) async fn extend(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<ExtendSession>,
) -> Result<Json<SessionBody>, ApiError> {
    Ok(Json(app.session_body(app.engine.extend(&who, &id, body.ttl).await?)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopSession {
    /// Also delete the session with its files, snapshots, executions and log, even if it has ended
    /// already. Its artifacts are kept.
    pub purge: Option<String>,
}

/// Stop a session. Running executions are interrupted. With `?purge` the session is deleted with its
/// files.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path), StopSession),
    responses(
        (status = 200, body = SessionBody, description = "The session, which is stopped, or with `purge` deleted"),
        (status = 404, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn stop(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Query(query): Query<StopSession>,
) -> Result<Json<SessionBody>, ApiError> {
    let purge = match query.purge.as_deref() {
        None | Some("false" | "0") => false,
        Some("" | "true" | "1") => true,
        Some(_) => return Err(ApiError::invalid("purge: expected true or false")),
    };
    let info = match purge {
        true => app.engine.purge(&who, &id).await?,
        false => app.engine.stop(&who, &id).await?,
    };
    Ok(Json(app.session_body(info)))
}

/// Start an ended session again, with its files on disk. Its variables are lost.
#[utoipa::path(post, path = "/v1/sessions/{id}/start", tag = "sessions",
    params(("id" = String, Path)),
    responses((status = 200, body = SessionBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn start(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Json<SessionBody>, ApiError> {
    Ok(Json(app.session_body(app.engine.start_again(&who, &id).await?)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct StateOf {
    /// Default: `python`.
    pub language: Option<String>,
}

/// List the variables of a kernel: name, type, size, shape, preview.
#[utoipa::path(get, path = "/v1/sessions/{id}/state", tag = "sessions",
    params(("id" = String, Path), StateOf),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "The kernel is busy")))]
pub(crate) async fn state(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Query(query): Query<StateOf>,
) -> Result<Response, ApiError> {
    let language = language_named(query.language.as_deref())?;
    Ok(Json(app.engine.state(&who, &id, language).await?).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadLog {
    /// At most this many entries. Default: 100. Without `after`, the last ones.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Only entries after the execution with this number.
    pub after: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LogBody {
    #[schema(value_type = Vec<Object>)]
    pub entries: Vec<LogEntry>,
    /// There are more: newer entries if `after` was given, older ones otherwise. A page may be shorter
    /// than `limit` when its executions have much output.
    pub more: bool,
}

/// Read the log of a session: executions with code and output, the oldest first.
#[utoipa::path(get, path = "/v1/sessions/{id}/log", tag = "sessions",
    params(("id" = String, Path), ReadLog),
    responses((status = 200, body = LogBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn log(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Query(query): Query<ReadLog>,
    Extension(share): Extension<Share>,
) -> Result<Response, ApiError> {
    let limit = page_size(query.limit)?;
    let bytes = app.engine.page_bytes(&who, &id, Beyond::After(query.after), limit).await?;
    let (permit, _loading) = share.load(bytes).await?;
    let page = app.engine.log(&who, &id, query.after, limit).await?;
    Ok(large::json(StatusCode::OK, &LogBody { entries: page.items, more: page.more }, permit))
}
