//! `/v1/sessions/{id}/exec` and `/execs`: executing, and reading executions.

mod ask;
mod follow;

use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::exec::Stage;
use belljar_engine::exec::result::ExecResult;
use belljar_engine::{Beyond, ExecInfo, Principal, clock};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub(crate) use ask::ExecBody;
pub(crate) use follow::Followed;

use crate::App;
use crate::artifacts::Links;
use crate::error::{ApiError, ErrorBody};
use crate::fields::page_size;
use crate::input::{JsonBody, Path, Query};
use crate::large;
use crate::tenants::Share;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecStateBody {
    pub exec_id: String,
    pub number: u64,
    pub language: &'static str,
    pub background: bool,
    pub accepted: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// queued, running or finished.
    pub state: &'static str,
    /// How many executions are ahead of it in the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Once it has finished: status, exit_code, stdout, stderr, results, error, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<ExecResult>,
}

impl ExecStateBody {
    fn of(links: &Links, info: ExecInfo) -> ExecStateBody {
        let (state, position) = match info.stage {
            Stage::Queued { position } => ("queued", Some(position)),
            Stage::Running => ("running", None),
            Stage::Finished => ("finished", None),
        };
        ExecStateBody {
            exec_id: info.id,
            number: info.number,
            language: info.language,
            background: info.background,
            accepted: clock::rfc3339(info.accepted_ms),
            ended: info.ended_ms.map(clock::rfc3339),
            state,
            position,
            result: info.result.map(|result| links.linked(result)),
        }
    }
}

pub(crate) fn wants_stream(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    accept.is_some_and(|accept| accept.contains("text/event-stream"))
}

/// Execute code or a command. Answers with the result, or with events as they happen
/// (`Accept: text/event-stream`), or at once (`background`).
#[utoipa::path(post, path = "/v1/sessions/{id}/exec", tag = "execs", params(("id" = String, Path)),
    request_body = ExecBody,
    responses(
        (status = 200, body = Object, description = "The result, or a stream of events"),
        (status = 202, body = ExecStateBody, description = "It runs in the background"),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 410, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 422, body = ErrorBody), (status = 429, body = ErrorBody),
    ))]
pub(crate) async fn exec(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Extension(share): Extension<Share>,
    links: Links,
    headers: HeaderMap,
    JsonBody(body): JsonBody<ExecBody>,
) -> Result<Response, ApiError> {
    let background = body.background;
    let followed = Followed::start(&app, &who, &share, &id, body.into_params()?).await?;
    if wants_stream(&headers) {
        return Ok(followed.events(links, 0));
    }
    if background && !followed.replayed {
        let info = app.engine.exec_info(&who, &id, &followed.exec_id).await?;
        return Ok((StatusCode::ACCEPTED, Json(ExecStateBody::of(&links, info))).into_response());
    }
    followed.answer(links, &share).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListExecs {
    /// At most this many. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Only executions accepted before the one with this number.
    pub before: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecsBody {
    pub execs: Vec<ExecStateBody>,
    /// There are older ones: repeat the request with the last number as `before`. A page may be
    /// shorter than `limit` when its executions have much output.
    pub more: bool,
}

/// List the executions of a session, the newest first.
#[utoipa::path(get, path = "/v1/sessions/{id}/execs", tag = "execs",
    params(("id" = String, Path), ListExecs),
    responses((status = 200, body = ExecsBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Query(query): Query<ListExecs>,
    Extension(share): Extension<Share>,
    links: Links,
) -> Result<Response, ApiError> {
    let limit = page_size(query.limit)?;
    let bytes = app.engine.page_bytes(&who, &id, Beyond::Before(query.before), limit).await?;
    let (permit, _loading) = share.load(bytes).await?;
    let page = app.engine.execs(&who, &id, query.before, limit).await?;
    let execs = page.items.into_iter().map(|info| ExecStateBody::of(&links, info)).collect();
    Ok(large::json(StatusCode::OK, &ExecsBody { execs, more: page.more }, permit))
}

/// Show an execution, running or ended.
#[utoipa::path(get, path = "/v1/sessions/{id}/execs/{exec}", tag = "execs",
    params(("id" = String, Path), ("exec" = String, Path)),
    responses((status = 200, body = ExecStateBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, exec)): Path<(String, String)>,
    Extension(share): Extension<Share>,
    links: Links,
) -> Result<Response, ApiError> {
    let bytes = app.engine.exec_bytes(&who, &id, &exec).await?;
    let (permit, _loading) = share.load(bytes).await?;
    let info = app.engine.exec_info(&who, &id, &exec).await?;
    Ok(large::json(StatusCode::OK, &ExecStateBody::of(&links, info), permit))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadEvents {
    /// The id of the last event that the client has; the events after it follow. A `Last-Event-ID`
    /// header has the same effect.
    pub offset: Option<u64>,
}

/// Stream the events of an execution, from any position on, as they happen.
#[utoipa::path(get, path = "/v1/sessions/{id}/execs/{exec}/events", tag = "execs",
    params(("id" = String, Path), ("exec" = String, Path), ReadEvents),
    responses((status = 200, content_type = "text/event-stream", body = String),
        (status = 404, body = ErrorBody)))]
pub(crate) async fn events(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, exec)): Path<(String, String)>,
    Query(query): Query<ReadEvents>,
    Extension(share): Extension<Share>,
    links: Links,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let offset = query.offset.or(last).unwrap_or(0);
    Ok(Followed::find(&app, &who, &share, &id, exec).await?.events(links, offset))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InterruptedBody {
    /// How many executions were interrupted; 0 if they had ended already.
    pub interrupted: usize,
}

/// Interrupt an execution, as Ctrl-C would.
#[utoipa::path(post, path = "/v1/sessions/{id}/execs/{exec}/interrupt", tag = "execs",
    params(("id" = String, Path), ("exec" = String, Path)),
    responses((status = 200, body = InterruptedBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn interrupt(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, exec)): Path<(String, String)>,
) -> Result<Json<InterruptedBody>, ApiError> {
    let interrupted = app.engine.interrupt(&who, &id, Some(exec)).await?;
    Ok(Json(InterruptedBody { interrupted }))
}

/// Interrupt everything that runs or waits in a session.
#[utoipa::path(post, path = "/v1/sessions/{id}/interrupt", tag = "execs",
    params(("id" = String, Path)),
    responses((status = 200, body = InterruptedBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn interrupt_all(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Json<InterruptedBody>, ApiError> {
    let interrupted = app.engine.interrupt(&who, &id, None).await?;
    Ok(Json(InterruptedBody { interrupted }))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StdinBody {
    /// The input; a line ends with a newline.
    #[serde(default)]
    pub data: String,
    /// Close standard input afterwards.
    #[serde(default)]
    pub close: bool,
}

/// Send input to an execution that was started with `stdin`.
#[utoipa::path(post, path = "/v1/sessions/{id}/execs/{exec}/stdin", tag = "execs",
    params(("id" = String, Path), ("exec" = String, Path)), request_body = StdinBody,
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
pub(crate) async fn stdin(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, exec)): Path<(String, String)>,
    JsonBody(body): JsonBody<StdinBody>,
) -> Result<StatusCode, ApiError> {
    app.engine.stdin(&who, &id, &exec, body.data.as_bytes(), body.close).await?;
    Ok(StatusCode::NO_CONTENT)
}
