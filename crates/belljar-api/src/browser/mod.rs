//! `/v1/sessions/{id}/browser`: controls a browser in the session, one action at a time.
//!
//! An action is an execution like any other: it has an id and a record, waits for its turn, can be
//! followed as a stream and interrupted. The driver of Chromium runs in the sandbox
//! (`kernels/browser`). This module checks the requests, and passes on only known fields of the
//! answers, which are not trusted.

mod actions;
mod answer;

use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::Response;
use belljar_engine::Principal;
use belljar_engine::exec::{ExecParams, Source};
use belljar_proto::exec::Language;
use serde_json::{Map, Value};

pub(crate) use actions::*;
pub(crate) use answer::{BrowserAnswer, samples};

use crate::App;
use crate::artifacts::Links;
use crate::error::{ApiError, ErrorBody};
use crate::execs::{Followed, wants_stream};
use crate::input::Path;

/// Settings of browsers.
#[derive(Debug, Clone)]
pub struct BrowserConfig {
    /// Seconds without use after which a browser is stopped.
    pub idle_s: u64,
    /// The default model of tasks, and its URL.
    pub model: Option<String>,
    pub model_url: Option<String>,
}

impl Default for BrowserConfig {
    fn default() -> Self {
        BrowserConfig { idle_s: 90, model: None, model_url: None }
    }
}

/// Default time limits, in seconds.
const DEFAULT_TIMEOUT_S: f64 = 30.0;
const DEFAULT_TASK_TIMEOUT_S: f64 = 600.0;

/// The driver enforces the time limit itself, and reports what it waited for. If it does not, it is
/// interrupted this much later. The start of Chromium on a busy machine does not count.
const SLACK_MS: u64 = 40_000;

/// The variable with the idle time after which the driver stops Chromium.
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

/// Performs one action and responds.
async fn perform(
    app: &Arc<App>,
    who: &Principal,
    id: &str,
    headers: &HeaderMap,
    action: &'static str,
    fields: Map<String, Value>,
) -> Result<Response, ApiError> {
    let (share, links) = (app.tenants.of(&who.tenant), Links::of(app, headers));
    let started = Followed::start(app, who, &share, id, params(app, action, fields)).await;
    let followed = started.map_err(|error| match error.code {
        "no_interpreter" => answer::missing(error.message),
        _ => error,
    })?;
    if wants_stream(headers) {
        return Ok(followed.events(links, 0));
    }
    let result = followed.result().await;
    answer::of(app, &links, result, wants_png(action, headers)).await
}

fn wants_png(action: &str, headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok());
    action == "screenshot" && accept.is_some_and(|accept| accept.contains("image/png"))
}

/// The execution that performs an action.
fn params(app: &App, action: &str, mut fields: Map<String, Value>) -> ExecParams {
    let id = fields.remove("exec_id").and_then(|id| id.as_str().map(str::to_owned));
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
    fields.insert("action".into(), action.into());
    let text = Value::Object(fields).to_string();
    ExecParams {
        id,
        timeout_s: Some(timeout),
        extra_ms: SLACK_MS,
        env: [(IDLE_VARIABLE.to_owned(), config.idle_s.to_string())].into(),
        ..ExecParams::new(Source::Code { language: Language::Browser, text })
    }
}
