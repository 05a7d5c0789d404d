//! Three calls: make a session, run bash commands in it that remember each other, clean up.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Extension, Json};
use belljar_engine::exec::{Exec, ExecRequest};
use belljar_engine::session::ExecAsk;
use belljar_engine::spec::SessionAsk;
use belljar_engine::text::Text;
use belljar_engine::{EngineError, Principal};
use belljar_proto::exec::{Event, Language};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::Body;
use crate::large;
use crate::tenants::Share;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionCreated {
    pub session_id: String,
    pub status: &'static str,
}

/// Make a session.
#[utoipa::path(post, path = "/create_session", tag = "simple sandbox",
    responses((status = 200, body = SessionCreated), (status = 429, body = ErrorBody)))]
pub(crate) async fn create_session(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
) -> Result<Json<SessionCreated>, ApiError> {
    let created = app.engine.create(&who, SessionAsk::default()).await?;
    Ok(Json(SessionCreated { session_id: created.session.id, status: "created" }))
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Execute {
    pub session_id: String,
    /// For bash; directory, variables and files stay for the next.
    pub command: String,
    /// Seconds.
    #[schema(exclusive_minimum = 0, maximum = 31_622_400)]
    pub timeout: Option<f64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Executed {
    pub exit_code: i32,
    /// What it printed on both streams, in the order it came.
    #[schema(value_type = String)]
    pub output: Text,
}

/// Run a bash command.
#[utoipa::path(post, path = "/execute", tag = "simple sandbox", request_body = Execute,
    responses((status = 200, body = Executed), (status = 404, body = ErrorBody)))]
pub(crate) async fn execute(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Extension(share): Extension<Share>,
    Body(body): Body<Execute>,
) -> Result<Response, ApiError> {
    if body.command.contains('\0') {
        return Err(ApiError::invalid("command: a shell cannot read NUL bytes"));
    }
    let mut request = ExecRequest::cell(Language::Bash);
    // One pipe for both streams: what comes from two has no order.
    request.merge_output = true;
    if let Some(seconds) = body.timeout {
        request.timeout_ms = crate::execs::parse_timeout(seconds)?;
    }
    let ask = ExecAsk { id: None, request, code: body.command.into_bytes().into() };
    let exec = app.engine.exec(&who, &body.session_id, ask).await?;
    let outcome = exec.transcript.ended().await;
    let held = share.reserve(exec.transcript.output_bytes()).await?;
    let mut output = printed(&exec);
    if let Some(reason) = &outcome.reason {
        output.push_str(&format!("{reason}\n"));
    }
    let executed = Executed { exit_code: outcome.exit_code, output: output.into() };
    Ok(large::json(StatusCode::OK, &executed, held))
}

fn printed(exec: &Exec) -> String {
    let mut bytes = Vec::new();
    exec.transcript.for_each(|event, body| {
        if matches!(event, Event::Stdout | Event::Stderr) {
            bytes.extend_from_slice(body);
        }
    });
    String::from_utf8_lossy(&bytes).into_owned()
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Cleanup {
    pub session_id: String,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CleanedUp {
    pub status: &'static str,
}

/// Stop a session.
#[utoipa::path(post, path = "/cleanup", tag = "simple sandbox", request_body = Cleanup,
    responses((status = 200, body = CleanedUp), (status = 404, body = ErrorBody)))]
pub(crate) async fn cleanup(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Body(body): Body<Cleanup>,
) -> Result<Json<CleanedUp>, ApiError> {
    app.engine.stop(&who, &body.session_id).await.map_err(|error: EngineError| error)?;
    Ok(Json(CleanedUp { status: "cleaned up" }))
}
