//! `/v1/sessions/{id}/exec` and what came of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::exec::result::ExecResult;
use belljar_engine::exec::transcript::Transcript;
use belljar_engine::exec::{Exec, ExecRequest, MAX_TIMEOUT_S, Stage, timeout_ms};
use belljar_engine::session::ExecAsk;
use belljar_engine::{Beyond, EngineError, ExecInfo, Principal, clock};
use belljar_proto::exec::{DEFAULT_OUTPUT_LIMIT, Language, What};
use belljar_runtime::{USER_ID, languages, paths};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::{Body, Path, Query};
use crate::sessions::{MAX_ARGUMENT, Size, check_env, page_size, parse_language};
use crate::tenants::{Held, Share};
use crate::{large, stream};

/// The name of the one user that a sandbox has.
pub(crate) const USER_NAME: &str = "belljar";

/// The most output that can be asked for, per stream.
const MAX_OUTPUT: u64 = 64 << 20;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExecBody {
    /// `python` (default), `bash`, `javascript`, `typescript` or another that the image has; each
    /// has a kernel that remembers, and JavaScript and TypeScript share one.
    pub language: Option<String>,
    /// Code for the kernel of that language.
    pub code: Option<String>,
    /// Instead of code: one command in a process of its own, as text for a shell or as a list.
    pub command: Option<CommandLine>,
    /// Seconds it may run.
    #[schema(exclusive_minimum = 0, maximum = 31_622_400)]
    pub timeout: Option<f64>,
    pub env: Option<BTreeMap<String, String>>,
    /// Where a command runs.
    pub cwd: Option<String>,
    /// Do not wait: it runs beside everything else, in a process of its own.
    #[serde(default)]
    pub background: bool,
    /// Of a command, what it reads, as text; or, of anything, `true` to keep standard input open and
    /// feed it with `POST .../stdin`. Without either nothing can be read, and nobody waits for it.
    #[serde(default)]
    pub stdin: Stdin,
    /// Who runs it: the sandbox's own user, `belljar` or `1000`. There is no other.
    pub user: Option<User>,
    /// Your own id for it: asked twice with the same id, it is executed once.
    pub exec_id: Option<String>,
    /// Bytes of stdout and of stderr to keep, each.
    pub max_output: Option<Size>,
}

#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected text for a shell, or an array of words")]
pub(crate) enum CommandLine {
    Text(String),
    List(Vec<String>),
}

/// Standard input: all of it now, or whether more may come.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected text, or true or false")]
pub(crate) enum Stdin {
    Open(bool),
    Text(String),
}

impl Default for Stdin {
    fn default() -> Self {
        Stdin::Open(false)
    }
}

/// By number or by name.
#[derive(Debug, Clone, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a name or a number")]
pub(crate) enum User {
    Id(u32),
    Name(String),
}

impl User {
    fn check(&self) -> Result<(), ApiError> {
        let (is_own, shown) = match self {
            User::Id(id) => (*id == USER_ID, id.to_string()),
            User::Name(name) => {
                (name == USER_NAME || *name == USER_ID.to_string(), name.escape_debug().to_string())
            }
        };
        match is_own {
            true => Ok(()),
            false => Err(ApiError::invalid(format!(
                "user: nothing in a sandbox can be `{shown}`; all of it is `{USER_NAME}` ({USER_ID})"
            ))),
        }
    }
}

impl ExecBody {
    pub(crate) fn into_ask(self) -> Result<ExecAsk, ApiError> {
        if let Some(id) = &self.exec_id {
            check_exec_id(id)?;
        }
        if let Some(env) = &self.env {
            check_env(env)?;
        }
        self.user.as_ref().map_or(Ok(()), User::check)?;
        let (what, code) = self.what()?;
        let mut request = ExecRequest::new(what);
        // Work in the background has all the time there is, unless told.
        let default = self.background.then_some(MAX_TIMEOUT_S);
        if let Some(seconds) = self.timeout.or(default) {
            request.timeout_ms = parse_timeout(seconds)?;
        }
        if let Some(size) = self.max_output {
            request.output_limit = checked_output(size)?;
        }
        request.env = self.env.unwrap_or_default();
        request.background = self.background;
        request.stdin = self.stdin == Stdin::Open(true);
        Ok(ExecAsk { id: self.exec_id, request, code: code.into() })
    }

    /// What is to be executed, and the code or input that goes with it.
    fn what(&self) -> Result<(What, Vec<u8>), ApiError> {
        let language = parse_language(self.language.as_deref())?;
        match (&self.code, &self.command) {
            (Some(_), Some(_)) | (None, None) => {
                Err(ApiError::invalid("give either `code` or `command`"))
            }
            (Some(code), None) => {
                if matches!(self.stdin, Stdin::Text(_)) {
                    return Err(ApiError::invalid(
                        "stdin: text is for a command; code that reads is fed with \"stdin\": true \
                         and POST .../stdin",
                    ));
                }
                if self.cwd.is_some() && !self.background {
                    return Err(ApiError::invalid(
                        "cwd: a kernel has its own working directory; change it in the code",
                    ));
                }
                if language == Language::Bash && code.contains('\0') {
                    return Err(ApiError::invalid("code: a shell cannot read NUL bytes"));
                }
                if self.background {
                    let argv = background_argv(language, code)?;
                    return Ok((What::Command { argv, cwd: self.cwd()? }, Vec::new()));
                }
                Ok((What::Cell { language, echo: true }, code.clone().into_bytes()))
            }
            (None, Some(command)) => {
                let argv = match command {
                    CommandLine::Text(text) => {
                        vec!["/bin/bash".into(), "-c".into(), text.clone()]
                    }
                    CommandLine::List(list) => list.clone(),
                };
                check_argv(&argv)?;
                let argv = found_on_path(argv);
                let input = match &self.stdin {
                    Stdin::Text(text) => text.clone().into_bytes(),
                    Stdin::Open(_) => Vec::new(),
                };
                Ok((What::Command { argv, cwd: self.cwd()? }, input))
            }
        }
    }

    fn cwd(&self) -> Result<String, ApiError> {
        path_inside(self.cwd.as_deref())
    }
}

/// Where something is to run: in the session's directory, or relative to it.
pub(crate) fn path_inside(cwd: Option<&str>) -> Result<String, ApiError> {
    match cwd {
        None => Ok(paths::SESSION.into()),
        Some(path) if path.is_empty() || path.contains('\0') => {
            Err(ApiError::invalid("cwd: expected a path"))
        }
        Some(path) if path.starts_with('/') => Ok(path.to_owned()),
        Some(path) => Ok(format!("{}/{path}", paths::SESSION)),
    }
}

/// Work in the background has a process of its own: the kernel stays free.
fn background_argv(language: Language, code: &str) -> Result<Vec<String>, ApiError> {
    let argv = languages::script(language, code).unwrap_or_default();
    check_argv(&argv)?;
    Ok(argv)
}

/// A program without a path is looked for inside, where the code's own PATH counts.
fn found_on_path(argv: Vec<String>) -> Vec<String> {
    // `env` would take these for a variable or a flag of its own.
    if argv[0].contains(['/', '=']) || argv[0].starts_with('-') {
        return argv;
    }
    ["/usr/bin/env".to_owned()].into_iter().chain(argv).collect()
}

pub(crate) fn check_argv(argv: &[String]) -> Result<(), ApiError> {
    if argv.first().is_none_or(String::is_empty) {
        return Err(ApiError::invalid("command: expected a program"));
    }
    if argv.iter().any(|argument| argument.contains('\0')) {
        return Err(ApiError::invalid("command: arguments cannot have NUL bytes"));
    }
    if argv.iter().any(|argument| argument.len() > MAX_ARGUMENT) {
        return Err(ApiError::invalid(format!(
            "command: an argument is longer than {MAX_ARGUMENT} bytes; write it to a file first"
        )));
    }
    Ok(())
}

pub(crate) fn check_exec_id(id: &str) -> Result<(), ApiError> {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if (1..=64).contains(&id.len()) && id.bytes().all(fine) {
        return Ok(());
    }
    Err(ApiError::invalid("exec_id: expected 1 to 64 letters, digits, `_`, `-` or `.`"))
}

pub(crate) fn parse_timeout(seconds: f64) -> Result<u64, ApiError> {
    timeout_ms(seconds).ok_or_else(|| {
        ApiError::invalid("timeout: expected more than 0 seconds and at most a year")
    })
}

pub(crate) fn checked_output(size: Size) -> Result<u64, ApiError> {
    if size.0 > MAX_OUTPUT {
        return Err(ApiError::invalid(format!(
            "max_output: at most {} MiB; write larger output to a file",
            MAX_OUTPUT >> 20
        )));
    }
    Ok(size.0)
}

pub(crate) const DEFAULT_OUTPUT: u64 = DEFAULT_OUTPUT_LIMIT;

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
    /// How many are ahead of it, while it waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Once it has finished: status, exit_code, stdout, stderr, results, error, ...
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub result: Option<ExecResult>,
}

impl ExecStateBody {
    fn of(app: &App, info: ExecInfo) -> ExecStateBody {
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
            result: info.result.map(|result| app.linked(result)),
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
    headers: HeaderMap,
    Body(body): Body<ExecBody>,
) -> Result<Response, ApiError> {
    let background = body.background;
    let asked_id = body.exec_id.clone();
    let ask = body.into_ask()?;
    let (request, code) = (ask.request.clone(), Arc::clone(&ask.code));
    let exec = match app.engine.exec(&who, &id, ask).await {
        Ok(exec) => exec,
        // Asked for before, and over: the answer is the same.
        Err(EngineError::DuplicateExec(exec_id)) if asked_id.is_some() => {
            if !app.engine.is_same_exec(&who, &id, &exec_id, &request, &code).await? {
                return Err(EngineError::ExecDiffers(exec_id).into());
            }
            return again(&app, &who, &share, &id, &exec_id, &headers).await;
        }
        Err(error) => return Err(error.into()),
    };
    if wants_stream(&headers) {
        // Its transcript is there anyway, and shared by all who follow it.
        let (transcript, held) = (Arc::clone(&exec.transcript), Held::default());
        return Ok(stream::events(app.linker(), exec.id.clone(), transcript, 0, held));
    }
    if background {
        let info = app.engine.exec_info(&who, &id, &exec.id).await?;
        return Ok((StatusCode::ACCEPTED, Json(ExecStateBody::of(&app, info))).into_response());
    }
    exec.transcript.ended().await;
    result_of(&app, &share, exec).await
}

/// Results with more output than this are put together on another thread: it takes a while, and
/// others wait for this one.
const LARGE: u64 = 256 * 1024;

async fn result_of(app: &Arc<App>, share: &Share, exec: Arc<Exec>) -> Result<Response, ApiError> {
    let app = Arc::clone(app);
    let bytes = exec.transcript.held_bytes();
    let held = share.reserve(bytes).await?;
    let render = move || {
        let result = ExecResult::of(exec.id.clone(), &exec.transcript);
        large::json(StatusCode::OK, &app.linked(result), held)
    };
    if bytes <= LARGE {
        return Ok(render());
    }
    let rendering = tokio::task::spawn_blocking(render).await;
    Ok(rendering.unwrap_or_else(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response()))
}

async fn again(
    app: &Arc<App>,
    who: &Principal,
    share: &Share,
    id: &str,
    exec_id: &str,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let bytes = app.engine.exec_bytes(who, id, exec_id).await?;
    let (held, _loading) = share.load(bytes).await?;
    if wants_stream(headers) {
        let transcript = app.engine.transcript(who, id, exec_id).await?;
        return Ok(stream::events(app.linker(), exec_id.to_owned(), transcript, 0, held));
    }
    let info = app.engine.exec_info(who, id, exec_id).await?;
    Ok(match info.result {
        Some(result) => large::json(StatusCode::OK, &app.linked(result), held),
        None => large::json(StatusCode::OK, &ExecStateBody::of(app, info), held),
    })
}

/// The transcript of an execution, and the tenant's memory that it takes if it was read from the database.
pub(crate) async fn transcript(
    app: &App,
    who: &Principal,
    share: &Share,
    id: &str,
    exec_id: &str,
) -> Result<(Arc<Transcript>, Held), ApiError> {
    let bytes = app.engine.stored_bytes(who, id, exec_id).await?;
    let (held, _loading) = share.load(bytes).await?;
    Ok((app.engine.transcript(who, id, exec_id).await?, held))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListExecs {
    /// At most this many (100 unless told, 1000 at most).
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Only those accepted before the one with this number.
    pub before: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExecsBody {
    pub execs: Vec<ExecStateBody>,
    /// There are older ones: ask again with `before` the number of the last. A page ends early
    /// when its executions have said much.
    pub more: bool,
}

/// Executions of a session, the newest first.
#[utoipa::path(get, path = "/v1/sessions/{id}/execs", tag = "execs",
    params(("id" = String, Path), ListExecs),
    responses((status = 200, body = ExecsBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Query(query): Query<ListExecs>,
    Extension(share): Extension<Share>,
) -> Result<Response, ApiError> {
    let limit = page_size(query.limit)?;
    let bytes = app.engine.page_bytes(&who, &id, Beyond::Before(query.before), limit).await?;
    let (held, _loading) = share.load(bytes).await?;
    let page = app.engine.execs(&who, &id, query.before, limit).await?;
    let execs = page.items.into_iter().map(|info| ExecStateBody::of(&app, info)).collect();
    Ok(large::json(StatusCode::OK, &ExecsBody { execs, more: page.more }, held))
}

/// One execution, ended or not.
#[utoipa::path(get, path = "/v1/sessions/{id}/execs/{exec}", tag = "execs",
    params(("id" = String, Path), ("exec" = String, Path)),
    responses((status = 200, body = ExecStateBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, exec)): Path<(String, String)>,
    Extension(share): Extension<Share>,
) -> Result<Response, ApiError> {
    let bytes = app.engine.exec_bytes(&who, &id, &exec).await?;
    let (held, _loading) = share.load(bytes).await?;
    let info = app.engine.exec_info(&who, &id, &exec).await?;
    Ok(large::json(StatusCode::OK, &ExecStateBody::of(&app, info), held))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadEvents {
    /// Where to begin: the id of the last event that was seen. A `Last-Event-ID` header does too.
    pub offset: Option<u64>,
}

/// What an execution says, from any point on, as it happens.
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
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()?.parse().ok());
    let offset = query.offset.or(last).unwrap_or(0);
    let (transcript, held) = transcript(&app, &who, &share, &id, &exec).await?;
    Ok(stream::events(app.linker(), exec, transcript, offset, held))
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct InterruptedBody {
    /// How many executions were interrupted; none if they were over already.
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
    /// What to feed; a line of input ends with a newline.
    #[serde(default)]
    pub data: String,
    /// Nothing follows.
    #[serde(default)]
    pub close: bool,
}

/// Feed an execution that was started with `stdin`.
#[utoipa::path(post, path = "/v1/sessions/{id}/execs/{exec}/stdin", tag = "execs",
    params(("id" = String, Path), ("exec" = String, Path)), request_body = StdinBody,
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
pub(crate) async fn stdin(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, exec)): Path<(String, String)>,
    Body(body): Body<StdinBody>,
) -> Result<StatusCode, ApiError> {
    app.engine.stdin(&who, &id, &exec, body.data.as_bytes(), body.close).await?;
    Ok(StatusCode::NO_CONTENT)
}
