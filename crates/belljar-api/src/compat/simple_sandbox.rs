//! Three calls: create a session, run bash commands in it that share their state, clean up.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use axum::{Extension, Json};
use belljar_engine::Principal;
use belljar_engine::exec::transcript::Transcript;
use belljar_engine::exec::{ExecParams, Source};
use belljar_engine::spec::SessionAsk;
use belljar_engine::text::LargeText;
use belljar_proto::exec::{Event, Language};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::execs::Followed;
use crate::input::JsonBody;
use crate::large;
use crate::tenants::Share;

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionCreated {
    pub session_id: String,
    pub status: &'static str,
}

/// Create a session.
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
    /// A command for bash; its working directory, variables and files are kept for the next command.
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
    pub output: LargeText,
}

/// Run a bash command.
#[utoipa::path(post, path = "/execute", tag = "simple sandbox", request_body = Execute,
    responses((status = 200, body = Executed), (status = 404, body = ErrorBody)))]
pub(crate) async fn execute(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Extension(share): Extension<Share>,
    JsonBody(body): JsonBody<Execute>,
) -> Result<Response, ApiError> {
    let source = Source::Code { language: Language::Bash, text: body.command };
    let params = ExecParams {
        timeout_s: body.timeout,
        // One pipe for both streams, because output from two pipes has no order.
        merge_output: true,
        ..ExecParams::new(source)
    };
    let followed = Followed::start(&app, &who, &share, &body.session_id, params).await?;
    let outcome = followed.transcript.ended().await;
    let permit = share.reserve(followed.transcript.output_bytes()).await?;
    let mut output = printed(&followed.transcript);
    if let Some(reason) = &outcome.reason {
        output.push_str(&format!("{reason}\n"));
    }
    let executed = Executed { exit_code: outcome.exit_code, output: output.into() };
    Ok(large::json(StatusCode::OK, &executed, permit))
}

fn printed(transcript: &Transcript) -> String {
    let mut bytes = Vec::new();
    transcript.for_each(|event, body| {
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
    JsonBody(body): JsonBody<Cleanup>,
) -> Result<Json<CleanedUp>, ApiError> {
    app.engine.stop(&who, &body.session_id).await?;
    Ok(Json(CleanedUp { status: "cleaned up" }))
}
