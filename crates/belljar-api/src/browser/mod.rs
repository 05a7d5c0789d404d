//! `/v1/sessions/{id}/browser`: what a person does with a browser, one action at a time.
//!
//! An action is an execution like any other: it has an id and a record, waits its turn, can be
//! followed as a stream and interrupted. What drives Chromium is inside (`kernels/browser`); here
//! its requests are checked and its answers, which nobody believes, are put into a known shape.

mod actions;
mod answer;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use belljar_engine::exec::ExecRequest;
use belljar_engine::session::ExecAsk;
use belljar_engine::{EngineError, Principal};
use belljar_proto::exec::{Language, What};
use serde_json::{Map, Value};

pub(crate) use actions::*;
pub(crate) use answer::{BrowserAnswer, samples};

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::execs::{self, check_exec_id, parse_timeout, wants_stream};
use crate::input::Path;
use crate::stream;
use crate::tenants::Held;

/// What the operator says about browsers.
#[derive(Debug, Clone)]
pub struct BrowserConfig {
    /// Seconds without use after which one is stopped.
    pub idle_s: u64,
    /// The model of tasks that name none, and where it answers.
    pub model: Option<String>,
    pub model_url: Option<String>,
}

impl Default for BrowserConfig {
    fn default() -> Self {
        BrowserConfig { idle_s: 90, model: None, model_url: None }
    }
}

/// How long an action may take unless told, in seconds.
const DEFAULT_TIMEOUT_S: f64 = 30.0;
const DEFAULT_TASK_TIMEOUT_S: f64 = 600.0;

/// The driver keeps to the time itself, and says what it waited for; this much later it is
/// interrupted. Starting Chromium, on a busy machine, is not counted.
const SLACK_MS: u64 = 40_000;

/// By which the driver is told when to stop.
const IDLE_VARIABLE: &str = "BELLJAR_BROWSER_IDLE";

/// Whether the browser runs, and what its tabs show. Starts nothing.
#[utoipa::path(get, path = "/v1/sessions/{id}/browser", tag = "browser",
    params(("id" = String, Path)),
    responses(
        (status = 200, body = BrowserAnswer), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody), (status = 422, body = ErrorBody),
    ))]
pub(crate) async fn status(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    perform(&app, &who, &id, &headers, "status", Map::new()).await
}

/// Does one action and answers.
async fn perform(
    app: &Arc<App>,
    who: &Principal,
    id: &str,
    headers: &HeaderMap,
    action: &'static str,
    fields: Map<String, Value>,
) -> Result<Response, ApiError> {
    let ask = order(app, action, fields)?;
    let (request, code, asked_id) = (ask.request.clone(), Arc::clone(&ask.code), ask.id.clone());
    match app.engine.exec(who, id, ask).await {
        Ok(exec) if wants_stream(headers) => {
            let transcript = Arc::clone(&exec.transcript);
            let (id, held) = (exec.id.clone(), Held::default());
            return Ok(stream::events(app.linker(), id, transcript, 0, held));
        }
        Ok(exec) => {
            let result = exec.result().await;
            return answer::of(app, result, wants_picture(action, headers)).await;
        }
        // Asked for before, and over: the answer is the same.
        Err(EngineError::DuplicateExec(exec_id)) if asked_id.is_some() => {
            if !app.engine.is_same_exec(who, id, &exec_id, &request, &code).await? {
                return Err(EngineError::ExecDiffers(exec_id).into());
            }
        }
        Err(error @ EngineError::NoInterpreter { .. }) => {
            return Err(answer::missing(error.to_string()));
        }
        Err(error) => return Err(error.into()),
    }
    let exec_id = asked_id.unwrap_or_default();
    if wants_stream(headers) {
        let share = app.tenants.of(&who.tenant);
        let (transcript, held) = execs::transcript(app, who, &share, id, &exec_id).await?;
        return Ok(stream::events(app.linker(), exec_id, transcript, 0, held));
    }
    let info = app.engine.exec_info(who, id, &exec_id).await?;
    let result = info.result.ok_or_else(|| ApiError::from(EngineError::NoExec(exec_id)))?;
    answer::of(app, result, wants_picture(action, headers)).await
}

fn wants_picture(action: &str, headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    action == "screenshot" && accept.is_some_and(|accept| accept.contains("image/png"))
}

/// What the session's browser is told.
fn order(app: &App, action: &str, mut fields: Map<String, Value>) -> Result<ExecAsk, ApiError> {
    let id = fields.remove("exec_id").and_then(|id| id.as_str().map(str::to_owned));
    id.as_deref().map_or(Ok(()), check_exec_id)?;
    let default = if action == "task" { DEFAULT_TASK_TIMEOUT_S } else { DEFAULT_TIMEOUT_S };
    let config = app.browser();
    if action == "task" {
        fields.insert("timeout".into(), fields.get("timeout").cloned().unwrap_or(default.into()));
        let defaults = [("model", &config.model), ("base_url", &config.model_url)];
        for (name, value) in defaults {
            if let (None, Some(value)) = (fields.get(name), value) {
                fields.insert(name.into(), value.clone().into());
            }
        }
    }
    let timeout = fields.get("timeout").and_then(Value::as_f64).unwrap_or(default);
    let what = What::Cell { language: Language::Browser, echo: true };
    let mut request = ExecRequest::new(what);
    request.timeout_ms = parse_timeout(timeout)?.saturating_add(SLACK_MS);
    request.env = [(IDLE_VARIABLE.to_owned(), config.idle_s.to_string())].into();
    fields.insert("action".into(), action.into());
    let code = serde_json::to_vec(&fields).expect("JSON can be written");
    Ok(ExecAsk { id, request, code: code.into() })
}
