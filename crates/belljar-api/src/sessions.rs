//! `/v1/sessions`: making, finding, listing, prolonging and stopping them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::exec::log::LogEntry;
use belljar_engine::network::Policy;
use belljar_engine::session::rules::Phase;
use belljar_engine::spec::{Checkpoints, Datasets, SessionAsk, Storage};
use belljar_engine::store::SessionFilter;
use belljar_engine::volumes::{AskedVolumes, VolumeMode};
use belljar_engine::{Beyond, Created, How, Principal, SessionInfo, clock, size};
use belljar_proto::exec::Language;
use belljar_runtime::{Limits, languages};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::{Body, Path, Query};
use crate::large;
use crate::snapshots::AskedCheckpoints;
use crate::tenants::Share;
use crate::volumes::parse_volumes;

/// The longest key of a session, in characters.
const MAX_KEY: usize = 512;

/// The longest notes of a caller's own.
const MAX_METADATA: usize = 16 * 1024;

/// More than any machine has: a mistake.
const MAX_MEMORY: u64 = 1 << 44;

/// The most that one page of a list holds.
const MAX_PAGE: u32 = 1000;

/// The kernel takes no longer argument or variable.
pub(crate) const MAX_ARGUMENT: usize = 128 * 1024 - 1;

/// All variables of one environment. That of the session and that of an execution travel together,
/// in the head of a frame, with room for the arguments of a command.
const MAX_ENVIRONMENT: usize = 256 * 1024;

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateSession {
    /// Your own name for it: a conversation, a thread, a user. The same key finds the same session.
    #[schema(min_length = 1, max_length = 512, pattern = r"^[^\u0000-\u001f\u007f-\u009f]+$")]
    pub key: Option<String>,
    /// What it is made from: an image that the server has and allows, or `host`, the server's machine.
    pub image: Option<String>,
    /// Where `/session` lives: `TMPFS` (memory) or `BIND` (disk, outlives the session).
    #[schema(value_type = Option<String>, example = "TMPFS")]
    pub storage: Option<Storage>,
    /// `NONE`, `LOCAL_RO` (the server's datasets at `/data`) or `API` (staged on demand).
    #[schema(value_type = Option<String>, example = "NONE")]
    pub datasets: Option<Datasets>,
    #[serde(default)]
    pub limits: AskedLimits,
    /// Where its code may go: `"none"`, `"open"` (every public address), or
    /// `{"allow": ["example.org", "*.example.com:443"], "inject": [...]}`.
    #[schema(value_type = Option<Object>)]
    pub network: Option<serde_json::Value>,
    /// What it sees below `/volumes`, by name: `rw`, or `ro` to read only.
    #[schema(value_type = Option<BTreeMap<String, String>>, example = json!({"models": "ro"}))]
    pub volumes: Option<BTreeMap<String, VolumeMode>>,
    /// A directory of the server's machine to have at `/workspace`, to read and to write, where the operator
    /// allows that (`BELLJAR_WORKSPACES`); code then starts there.
    #[schema(value_type = Option<String>, example = "/srv/projects/sales")]
    pub workspace: Option<PathBuf>,
    /// Seconds it lives on after its last use, at most `BELLJAR_MAX_TTL` of the server.
    #[schema(minimum = 1)]
    pub ttl: Option<u64>,
    /// Seconds without use after which it ends earlier.
    #[schema(minimum = 1)]
    pub idle_timeout: Option<u64>,
    /// Seconds without use after which large values of its Python go to disk, to be back before code runs
    /// again; 0: never. As the server says, if left out.
    pub idle_hibernate_sec: Option<u64>,
    /// For everything that runs in it.
    pub env: Option<BTreeMap<String, String>>,
    /// Leave a point to go back to after every execution: `true`, or
    /// `{"max": 20, "max_bytes": "256M"}`.
    pub checkpoints: Option<AskedCheckpoints>,
    /// Your own notes.
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AskedLimits {
    /// Bytes, or text such as `512M`.
    pub memory: Option<Size>,
    /// Processors, such as 0.5.
    #[schema(minimum = 0.01, maximum = 1024)]
    pub cpus: Option<f64>,
    /// Processes and threads.
    #[schema(minimum = 4, maximum = 100_000)]
    pub pids: Option<u64>,
    /// Bytes of files in memory. They are part of `memory` and may take three quarters of it: where
    /// only this is given, `memory` is raised as needed; with too little `memory` it is refused.
    pub tmpfs: Option<Size>,
}

/// A number of bytes.
#[derive(Debug, Clone, Copy, Deserialize, ToSchema)]
#[serde(try_from = "NumberOrText")]
#[schema(value_type = NumberOrText)]
pub(crate) struct Size(pub u64);

#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a number of bytes, or text such as 512M")]
pub(crate) enum NumberOrText {
    Number(u64),
    Text(String),
}

impl TryFrom<NumberOrText> for Size {
    type Error = String;

    fn try_from(size: NumberOrText) -> Result<Size, String> {
        match size {
            NumberOrText::Number(bytes) => Ok(Size(bytes)),
            NumberOrText::Text(text) => size::parse(&text)
                .map(Size)
                .ok_or_else(|| format!("`{text}` is not a size; expected bytes, or such as 512M")),
        }
    }
}

impl CreateSession {
    pub(crate) fn into_ask(self) -> Result<SessionAsk, ApiError> {
        if let Some(key) = &self.key
            && (key.is_empty() || key.chars().count() > MAX_KEY || key.contains(char::is_control))
        {
            return Err(ApiError::invalid(format!(
                "key: expected 1 to {MAX_KEY} characters, none of them a control character"
            )));
        }
        let notes = self
            .metadata
            .as_ref()
            .map_or(0, |notes| serde_json::to_string(notes).map_or(usize::MAX, |text| text.len()));
        if notes > MAX_METADATA {
            return Err(ApiError::invalid(format!("metadata: at most {MAX_METADATA} bytes")));
        }
        if let Some(env) = &self.env {
            check_env(env)?;
        }
        let network = self.network.map(parse_network).transpose()?;
        let volumes = parse_volumes(self.volumes)?;
        let limits = self.limits.checked()?;
        Ok(SessionAsk {
            network,
            volumes,
            key: self.key,
            image: self.image,
            storage: self.storage,
            datasets: self.datasets,
            env: self.env,
            ttl_s: self.ttl,
            idle_s: self.idle_timeout,
            spill_s: self.idle_hibernate_sec,
            workspace: self.workspace,
            checkpoints: self.checkpoints.map(AskedCheckpoints::checked).transpose()?,
            metadata: self.metadata,
            ..limits
        })
    }
}

impl AskedLimits {
    /// The limits as part of a request for a session.
    pub(crate) fn checked(&self) -> Result<SessionAsk, ApiError> {
        let memory = self.memory.map(|size| size.0);
        if memory.is_some_and(|memory| memory < Limits::MIN_MEMORY) {
            let least = Limits::MIN_MEMORY >> 20;
            return Err(ApiError::invalid(format!("limits.memory: at least {least} MiB")));
        }
        if [memory, self.tmpfs.map(|size| size.0)].iter().flatten().any(|size| *size > MAX_MEMORY) {
            return Err(ApiError::invalid("limits: no machine has that much memory"));
        }
        let cpus = |cpus| {
            let millicpus = Limits::millicpus_of(cpus);
            millicpus.ok_or_else(|| ApiError::invalid("limits.cpus: expected 0.01 to 1024"))
        };
        let millicpus = self.cpus.map(cpus).transpose()?;
        if self.pids.is_some_and(|pids| !(4..=100_000).contains(&pids)) {
            return Err(ApiError::invalid("limits.pids: expected 4 to 100000"));
        }
        if self.tmpfs.is_some_and(|size| size.0 < 1 << 20) {
            return Err(ApiError::invalid("limits.tmpfs: at least 1 MiB"));
        }
        let tmpfs = self.tmpfs.map(|size| size.0);
        Ok(SessionAsk { memory, millicpus, pids: self.pids, tmpfs, ..SessionAsk::default() })
    }
}

/// Where code may go.
pub(crate) fn parse_network(written: serde_json::Value) -> Result<Policy, ApiError> {
    Policy::try_from(written).map_err(|why| ApiError::invalid(format!("network: {why}")))
}

/// Environment variables that a process can have.
pub(crate) fn check_env(env: &BTreeMap<String, String>) -> Result<(), ApiError> {
    let length = |(name, value): (&String, &String)| name.len() + "=".len() + value.len();
    if env.iter().any(|variable| length(variable) > MAX_ARGUMENT) {
        return Err(ApiError::invalid(format!(
            "env: a variable is longer than {MAX_ARGUMENT} bytes; write it to a file"
        )));
    }
    if env.iter().map(length).sum::<usize>() > MAX_ENVIRONMENT {
        return Err(ApiError::invalid(format!(
            "env: more than {MAX_ENVIRONMENT} bytes in all; write them to a file"
        )));
    }
    for (name, value) in env {
        if name.is_empty() || name.contains(['=', '\0']) || value.contains('\0') {
            return Err(ApiError::invalid(format!(
                "env: `{}` cannot be a variable: names are not empty and have no `=`, and there \
                 are no NUL bytes",
                name.escape_debug()
            )));
        }
    }
    Ok(())
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionBody {
    pub id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// creating, ready, busy, hibernating, hibernated, waking, stopping, stopped or failed.
    pub state: &'static str,
    pub image: String,
    #[schema(value_type = String)]
    pub storage: Storage,
    #[schema(value_type = String)]
    pub datasets: Datasets,
    pub limits: LimitsBody,
    /// Which limits this machine was seen to enforce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforced: Option<BTreeMap<String, bool>>,
    /// As it was asked for.
    #[schema(value_type = Object)]
    pub network: Policy,
    /// By name: `rw` or `ro`.
    #[schema(value_type = BTreeMap<String, String>)]
    #[serde(skip_serializing_if = "AskedVolumes::is_empty")]
    pub volumes: AskedVolumes,
    /// The directory of the server's machine that is at `/workspace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub workspace: Option<PathBuf>,
    pub ttl: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_timeout: Option<u64>,
    /// Where it was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_hibernate_sec: Option<u64>,
    /// How many checkpoints are kept, and bytes of them, where they are asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub checkpoints: Option<Checkpoints>,
    pub created: String,
    pub last_used: String,
    pub expires: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_because: Option<String>,
    /// Executions that run now, wait, and were accepted in all.
    pub running: usize,
    pub queued: usize,
    pub execs: u64,
    /// The execution after which it is what it is: the last to end in the foreground, or that which it
    /// was taken back to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub at: Option<String>,
    /// Bytes that it holds, without copies of files on disk, which go when somebody needs the room.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    /// Where its files are on the server, with storage BIND.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    #[schema(value_type = Object)]
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// When it is removed with its files, if it has ended and nobody starts it again
    /// (`BELLJAR_SESSION_RETENTION`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept_until: Option<String>,
    /// What went wrong without ending anything, and limits that the server's machine does not enforce.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// What could not be kept and is gone, in the answer to `hibernate` and `fork`. Without `force` nothing is, but for
    /// variables of kernels that had died before.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lost: Vec<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LimitsBody {
    pub memory: u64,
    pub cpus: f64,
    pub pids: u64,
    pub tmpfs: u64,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CreatedBody {
    /// created, found, or restarted on the files it left.
    pub how: &'static str,
    /// The session that had this key before and is gone, with everything in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replaced: Option<ReplacedBody>,
    #[serde(flatten)]
    pub session: SessionBody,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReplacedBody {
    pub id: String,
    pub because: String,
}

impl App {
    pub(crate) fn session_body(&self, info: SessionInfo) -> SessionBody {
        let SessionInfo {
            id,
            key,
            spec,
            created_ms,
            view,
            memory_used,
            directory,
            kept_until_ms,
            lost,
            ..
        } = info;
        SessionBody {
            id,
            key,
            state: view.phase.name(),
            image: spec.image,
            storage: spec.storage,
            datasets: spec.datasets,
            limits: LimitsBody {
                memory: spec.limits.memory,
                cpus: f64::from(spec.limits.millicpus) / 1000.0,
                pids: spec.limits.pids,
                tmpfs: spec.limits.effective_tmpfs(),
            },
            enforced: self.enforced().cloned(),
            network: spec.network,
            volumes: spec.volumes,
            ttl: spec.ttl_s,
            idle_timeout: spec.idle_s,
            idle_hibernate_sec: spec.spill_s,
            workspace: spec.workspace,
            checkpoints: spec.checkpoints,
            created: clock::rfc3339(created_ms),
            last_used: clock::rfc3339(view.used_ms),
            expires: clock::rfc3339(view.expires_ms),
            ended: view.ended_ms.map(clock::rfc3339),
            ended_because: view.ended_because,
            running: view.running,
            queued: view.queued,
            execs: view.execs,
            at: view.at,
            memory_used,
            directory: directory.map(|path| path.display().to_string()),
            metadata: spec.metadata,
            kept_until: kept_until_ms.map(clock::rfc3339),
            warnings: match view.ended_ms {
                None => self.limit_warnings().into_iter().chain(view.warnings).collect(),
                Some(_) => view.warnings,
            },
            lost,
        }
    }
}

/// Make a session, or find the one with this key.
#[utoipa::path(post, path = "/v1/sessions", tag = "sessions", request_body = CreateSession,
    responses(
        (status = 201, body = CreatedBody, description = "Made"),
        (status = 200, body = CreatedBody, description = "Found by its key, or restarted"),
        (status = 409, body = ErrorBody,
            description = "The session with this key is alive and different"),
        (status = 422, body = ErrorBody), (status = 429, body = ErrorBody, description = "No room"),
    ))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Body(body): Body<CreateSession>,
) -> Result<Response, ApiError> {
    let created = app.engine.create(&who, body.into_ask()?).await?;
    let Created { session, how, replaced } = created;
    let (status, how) = match how {
        How::Created => (StatusCode::CREATED, "created"),
        How::Found => (StatusCode::OK, "found"),
        How::Restarted => (StatusCode::OK, "restarted"),
    };
    let replaced = replaced.map(|(id, because)| ReplacedBody { id, because });
    let session = app.session_body(session);
    Ok((status, Json(CreatedBody { how, replaced, session })).into_response())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListSessions {
    /// Only those in this state.
    pub state: Option<String>,
    /// Only those with this key.
    pub key: Option<String>,
    /// At most this many (100 unless told, 1000 at most).
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Only those made before the session with this id: the last of the page before.
    pub before: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct SessionsBody {
    pub sessions: Vec<SessionBody>,
    /// For `before`, where there may be more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// Sessions, the newest first; also those that have ended.
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

pub(crate) fn page_size(asked: Option<u32>) -> Result<u32, ApiError> {
    match asked.unwrap_or(100) {
        limit @ 1..=MAX_PAGE => Ok(limit),
        _ => Err(ApiError::invalid(format!("limit: expected 1 to {MAX_PAGE}"))),
    }
}

/// One session, alive or not.
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
    /// Seconds from now that it is to live at least, at most `BELLJAR_MAX_TTL` of the server.
    #[schema(minimum = 1)]
    pub ttl: u64,
}

/// Let a session live longer; never shorter than it would have.
#[utoipa::path(patch, path = "/v1/sessions/{id}", tag = "sessions", params(("id" = String, Path)),
    request_body = ExtendSession,
    responses((status = 200, body = SessionBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody)))]
pub(crate) async fn extend(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Body(body): Body<ExtendSession>,
) -> Result<Json<SessionBody>, ApiError> {
    Ok(Json(app.session_body(app.engine.extend(&who, &id, body.ttl).await?)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct StopSession {
    /// Forget the session as well, with its files, snapshots, executions and log, also one that has
    /// ended already. Its artifacts stay.
    pub purge: Option<String>,
}

/// Stop a session. What runs in it is ended, and says so in its result. With `?purge` it is
/// forgotten with its files.
#[utoipa::path(delete, path = "/v1/sessions/{id}", tag = "sessions",
    params(("id" = String, Path), StopSession),
    responses(
        (status = 200, body = SessionBody, description = "Stopped; with `purge`, what it was"),
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

/// Start a session again that has ended and whose files are on disk. Its variables are gone.
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
    /// `python` unless told.
    pub language: Option<String>,
}

/// The variables of a kernel: name, type, size, shape, preview.
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
    let language = parse_language(query.language.as_deref())?;
    Ok(Json(app.engine.state(&who, &id, language).await?).into_response())
}

pub(crate) fn parse_language(name: Option<&str>) -> Result<Language, ApiError> {
    let name = name.unwrap_or("python");
    languages::find(name).ok_or_else(|| {
        ApiError::invalid(format!(
            "language: `{}` is not there; expected {}",
            name.escape_debug(),
            languages::names()
        ))
    })
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadLog {
    /// At most this many entries (100 unless told); the last ones, unless `after` is given.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Only entries after the execution with this number.
    pub after: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct LogBody {
    #[schema(value_type = Vec<Object>)]
    pub entries: Vec<LogEntry>,
    /// There are others: newer ones if `after` was given, older ones otherwise. A page ends early
    /// when its executions have said much.
    pub more: bool,
}

/// What was executed in a session, with code and output, the oldest first.
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
    let (held, _loading) = share.load(bytes).await?;
    let page = app.engine.log(&who, &id, query.after, limit).await?;
    Ok(large::json(StatusCode::OK, &LogBody { entries: page.items, more: page.more }, held))
}
