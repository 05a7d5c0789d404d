//! The response to an action. The driver's answer comes from a sandbox, so it is not trusted: only
//! known fields are passed on.

use std::sync::Arc;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::artifacts::{Artifact, Artifacts};
use belljar_engine::exec::result::ExecResult;
use belljar_proto::exec::{BundleKind, ErrorReport, KILLED_FOR_MEMORY, Status};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::App;
use crate::artifacts::Links;
use crate::error::ApiError;

const MORE_MEMORY: &str = "use a session with more memory: limits {\"memory\": \"1G\"}";

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct BrowserAnswer {
    pub exec_id: String,
    pub duration_ms: f64,
    #[serde(flatten)]
    pub driver: DriverAnswer,
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub artifacts: Artifacts,
}

/// The answer of the driver in the sandbox.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DriverAnswer {
    /// What became of earlier pages: `kept`; `started` (the first); `restored` (it had been stopped
    /// while idle: cookies are there, pages were loaded again); `lost` (it had crashed, and `note`
    /// says how); `stopped` (it does not run).
    browser: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
    /// What the action is about: `text`, `snapshot`, `value`, `path`, ...
    #[schema(value_type = Object)]
    result: serde_json::Map<String, Value>,
    /// The current tab, and where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tab: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    tabs: Vec<TabBody>,
    /// What pages said in dialogs, all of which were accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    dialogs: Vec<DialogBody>,
    /// Files that arrived meanwhile without being asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    downloads: Vec<BrowserFileBody>,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct TabBody {
    tab: u32,
    url: String,
    title: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct DialogBody {
    /// alert, confirm, prompt or beforeunload.
    r#type: String,
    message: String,
}

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct BrowserFileBody {
    /// In the sandbox.
    path: String,
    size: u64,
    url: String,
}

/// The answer to the client.
pub(super) async fn of(
    app: &Arc<App>,
    links: &Links,
    result: ExecResult,
    as_png: bool,
) -> Result<Response, ApiError> {
    let driver = understood(&result)?;
    let screenshot = driver.result.get("path").and_then(Value::as_str).map(str::to_owned);
    if as_png {
        return bytes(app, &result, screenshot.as_deref().unwrap_or_default()).await;
    }
    if let Some(refused) = refusal(&result.artifacts, screenshot.as_deref()) {
        return Err(refused);
    }
    let result = links.linked(result);
    let ExecResult { exec_id, duration_ms, artifacts, .. } = result;
    Ok(Json(BrowserAnswer { exec_id, duration_ms, driver, artifacts }).into_response())
}

fn understood(result: &ExecResult) -> Result<DriverAnswer, ApiError> {
    let out_of_memory =
        result.reason.as_deref().is_some_and(|why| why.ends_with(KILLED_FOR_MEMORY));
    match (result.status, &result.error) {
        (Status::Ok, _) => {
            let bundle = result.results.iter().rfind(|one| one.kind == Some(BundleKind::Result));
            let json = bundle.and_then(|one| one.data.get("application/json").cloned());
            let answer = json.and_then(|json| serde_json::from_value(json).ok());
            answer.ok_or_else(|| {
                failed("browser_failed", "the answer of the browser is not valid".into())
            })
        }
        (Status::Oom, _) => Err(memory("the browser was ended: the memory limit was reached")),
        (Status::Error, Some(error)) if out_of_memory && is_crash(error) => {
            Err(memory(&format!("{}: the memory limit was reached", error.value)))
        }
        (Status::Error, Some(error)) => Err(refused(error)),
        // The driver itself could not be started.
        (Status::Error, None) => Err(missing(result.reason.clone().unwrap_or_default())),
        (Status::Timeout, _) => {
            Err(failed("page_timeout", "the browser did not answer in time".into()))
        }
        (Status::Interrupted, _) => Err(interrupted()),
        _ => {
            let why = result.reason.clone().unwrap_or_else(|| "for unknown reasons".into());
            Err(failed("browser_crashed", format!("the browser ended: {why}"))
                .hint("the next action starts it anew"))
        }
    }
}

fn interrupted() -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "interrupted", "the action was interrupted")
}

/// One sample of each error of an action, for the OpenAPI document.
pub(crate) fn samples() -> Vec<ApiError> {
    let fails = |code: &&'static str| failed(code, String::new());
    let own = [missing(String::new()), interrupted(), memory(""), not_kept("")];
    own.into_iter().chain(CODES.iter().map(fails)).collect()
}

/// The error if the image cannot run a browser.
pub(super) fn missing(why: String) -> ApiError {
    ApiError::new(StatusCode::CONFLICT, "no_browser", why)
}

fn is_crash(error: &ErrorReport) -> bool {
    matches!(error.name.as_str(), "browser_crashed" | "page_crashed" | "no_browser")
}

fn memory(message: &str) -> ApiError {
    ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "browser_out_of_memory", message)
        .hint(MORE_MEMORY)
}

fn failed(code: &'static str, message: String) -> ApiError {
    ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, code, message)
}

/// The error that the driver reported.
fn refused(error: &ErrorReport) -> ApiError {
    let (status, code) = match error.name.as_str() {
        "no_browser" => (StatusCode::CONFLICT, "no_browser"),
        "no_browser_use" => (StatusCode::CONFLICT, "no_browser_use"),
        known => {
            let code = CODES.iter().find(|code| **code == known).unwrap_or(&"browser_failed");
            (StatusCode::UNPROCESSABLE_ENTITY, *code)
        }
    };
    let refused = ApiError::new(status, code, error.value.clone());
    match error.traceback.lines().next() {
        Some(hint) if !hint.is_empty() && !hint.starts_with("Traceback") => refused.hint(hint),
        _ => refused,
    }
}

/// The error codes in `kernels/browser/belljar_browser/errors.py`.
const CODES: [&str; 13] = [
    "invalid",
    "browser_crashed",
    "page_crashed",
    "no_such_tab",
    "page_timeout",
    "navigation_failed",
    "no_such_element",
    "stale_ref",
    "element_not_usable",
    "script_failed",
    "download_failed",
    "answer_too_large",
    "task_failed",
];

/// The error for a screenshot that could not be stored.
fn refusal(artifacts: &Artifacts, path: Option<&str>) -> Option<ApiError> {
    let refused = artifacts.artifacts_refused.iter().find(|one| Some(one.path.as_str()) == path)?;
    Some(not_kept(&refused.reason))
}

fn not_kept(reason: &str) -> ApiError {
    let message = format!("the screenshot was not kept: {reason}");
    ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "artifact_refused", message)
}

/// A response with the screenshot itself.
async fn bytes(app: &App, result: &ExecResult, path: &str) -> Result<Response, ApiError> {
    let is_it = |artifact: &&Artifact| artifact.path == path;
    let id = result.artifacts.artifacts.iter().find(is_it).and_then(|one| one.id.clone());
    let gone = || failed("artifact_refused", "the screenshot was not kept".into());
    let id = id.ok_or_else(|| refusal(&result.artifacts, Some(path)).unwrap_or_else(gone))?;
    let row = app.engine.artifact_store().find(&id).await?.ok_or_else(gone)?;
    let content = app.engine.artifact_store().content(&row).await.map_err(|_| gone())?;
    let mut response =
        crate::artifacts::stream(move |to, at| content.read_exact_at(to, at), 0, row.size)
            .into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("image/png"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(row.size));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Ok(id) = HeaderValue::try_from(id) {
        headers.insert("belljar-artifact", id);
    }
    Ok(response)
}
