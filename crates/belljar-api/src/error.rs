//! Errors as clients get them: a status, a stable code, a message, and a hint what to do. This is
//! the only place where the engine's errors get an HTTP status.

use std::io::ErrorKind;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::datasets::source::SourceError;
use belljar_engine::network::NetworkError;
use belljar_engine::session::rules::Refusal;
use belljar_engine::store::StoreError;
use belljar_engine::{EngineError, in_full};
use belljar_proto::guest::RefusalCode;
use belljar_runtime::ContainerEngineError as ContainerError;
use belljar_runtime::RuntimeError;
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

/// The header with the node that owns a session. Gateways read it; clients of a single server never get it.
pub const OWNER: HeaderName = HeaderName::from_static("belljar-owner");

/// Seconds after which there may be capacity again.
const RETRY_FOR_ROOM: u32 = 5;

/// The hint if a Python kernel cannot be written to files.
const LOSES_VARIABLES: &str = "the session goes on as it was; \"force\": true keeps its files and loses the kernel's variables";

#[derive(Debug, Clone)]
pub struct ApiError {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
    pub retry_after_s: Option<u32>,
    /// The node that owns the session, if another one does.
    pub owner: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorBody {
    pub error: ErrorDetail,
}

#[derive(Debug, Serialize, ToSchema)]
pub struct ErrorDetail {
    /// Stable, for programs.
    pub code: String,
    /// For people.
    pub message: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl ApiError {
    #[must_use]
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            code,
            message: message.into(),
            hint: None,
            retry_after_s: None,
            owner: None,
        }
    }

    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> ApiError {
        self.hint = Some(hint.into());
        self
    }

    #[must_use]
    pub fn retry_after(mut self, seconds: u32) -> ApiError {
        self.retry_after_s = Some(seconds);
        self
    }

    #[must_use]
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }

    #[must_use]
    pub fn unauthorized(message: &str) -> ApiError {
        ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", message).hint(
            "send `Authorization: Bearer KEY` or `X-API-Key: KEY`; `belljar key create` makes one",
        )
    }

    #[must_use]
    pub fn forbidden(code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::FORBIDDEN, code, message)
    }

    #[must_use]
    pub fn too_many(message: impl Into<String>, seconds: u32) -> ApiError {
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limited", message).retry_after(seconds)
    }
}

impl ApiError {
    /// The error as the data of an event, in a stream that has already begun with status 200.
    pub(crate) fn event_data(&self) -> Value {
        json!({
            "status": self.status.as_u16(),
            "retry_after": self.retry_after_s,
            "error": {"code": self.code, "message": self.message, "hint": self.hint},
        })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let detail = ErrorDetail { code: self.code.into(), message: self.message, hint: self.hint };
        let mut response = (self.status, Json(ErrorBody { error: detail })).into_response();
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if let Some(owner) = self.owner.and_then(|owner| HeaderValue::from_str(&owner).ok()) {
            response.headers_mut().insert(OWNER, owner);
        }
        if self.status == StatusCode::UNAUTHORIZED {
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
        }
        response
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> ApiError {
        let message = in_full(&error);
        match &error {
            EngineError::Invalid(_) => ApiError::invalid(message),
            EngineError::NotNow { refusal, .. } => not_now(*refusal, message),
            EngineError::Stopping => {
                ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message).retry_after(2)
            }
            EngineError::Unavailable(_)
            | EngineError::Store(StoreError::Unavailable(_) | StoreError::Fenced { .. }) => {
                unavailable(message)
            }
            EngineError::Elsewhere { node, .. } => elsewhere(node.clone(), message),
            EngineError::Store(store) if store.is_full() => out_of_space(message),
            EngineError::Store(store) if store.is_busy() => database_locked(message),
            EngineError::Source(source) => from_source(source, message),
            EngineError::RemoveFiles { .. } => {
                internal(message).hint("the next start of the server tries to remove them again")
            }
            EngineError::Directory { cause, .. }
            | EngineError::KeepDataset(cause)
            | EngineError::KeepArtifacts(cause)
            | EngineError::KeepSnapshot(cause)
            | EngineError::Create(RuntimeError::Prepare { cause, .. })
                if is_out_of_space(cause) =>
            {
                out_of_space(message)
            }
            EngineError::Objects(_) => objects_away(&message),
            EngineError::KeepArtifacts(cause) | EngineError::KeepSnapshot(cause)
                if is_of_objects(cause) =>
            {
                objects_away(&message)
            }
            _ => from_not_found(&error, message)
                .or_else(|message| from_limit(&error, message))
                .or_else(|message| from_volume(&error, message))
                .or_else(|message| from_snapshot(&error, message))
                .or_else(|message| from_conflict(&error, message))
                .or_else(|message| from_data(&error, message))
                .or_else(|message| from_sandbox(&error, message))
                .unwrap_or_else(internal),
        }
    }
}

/// The result of the functions below. Each of them converts some errors, and returns the message of
/// all others unchanged.
type Answered = Result<ApiError, String>;

fn from_not_found(error: &EngineError, message: String) -> Answered {
    let code = match error {
        EngineError::NoSession(_) => "session_not_found",
        EngineError::NoExec(_) => "exec_not_found",
        EngineError::NoArtifact(_) => "artifact_not_found",
        EngineError::NoImage(_) | EngineError::Create(RuntimeError::NoImage(_)) => {
            "image_not_found"
        }
        EngineError::NoVolume(_) => "volume_not_found",
        EngineError::NoCheckpoint(_) => "checkpoint_not_found",
        _ => return Err(message),
    };
    let not_found = ApiError::new(StatusCode::NOT_FOUND, code, message);
    Ok(match error {
        EngineError::NoCheckpoint(_) => not_found.hint(
            "GET /v1/sessions/{id}/checkpoints lists them; create a session with \
             \"checkpoints\": true to have some",
        ),
        _ => not_found,
    })
}

/// Errors of limits on concurrent use.
fn from_limit(error: &EngineError, message: String) -> Answered {
    let too_many = |code| ApiError::new(StatusCode::TOO_MANY_REQUESTS, code, message.clone());
    Ok(match error {
        EngineError::Full(full) => {
            too_many("no_room").retry_after(RETRY_FOR_ROOM).hint(match full.whose {
                "this server's" => {
                    "stop sessions that are not needed, or raise BELLJAR_MAX_SESSIONS, \
                     BELLJAR_MAX_MEMORY or BELLJAR_MAX_PIDS"
                }
                _ => "stop sessions that are not needed, or ask for a key with a larger quota",
            })
        }
        EngineError::QueueFull(_) => too_many("queue_full")
            .retry_after(1)
            .hint("wait for earlier executions to end, or interrupt them"),
        EngineError::Files(RuntimeError::Refused(refusal))
            if refusal.code == RefusalCode::TooMany =>
        {
            too_many("too_many_watches").hint("watch a directory above them with `recursive`")
        }
        EngineError::TooManyAttached(_) => too_many_terminals(message),
        EngineError::TooManyUploads { .. } => too_many("too_many_uploads")
            .retry_after(RETRY_FOR_ROOM)
            .hint("wait for those, or send many files as one archive (`?archive=tar`)"),
        _ => return Err(message),
    })
}

/// Errors of hibernate, fork and restore.
fn from_snapshot(error: &EngineError, message: String) -> Answered {
    let conflict = |code| ApiError::new(StatusCode::CONFLICT, code, message.clone());
    let full = |code| {
        ApiError::new(StatusCode::INSUFFICIENT_STORAGE, code, message.clone())
            .hint("stop sleeping sessions, or keep fewer checkpoints")
    };
    Ok(match error {
        EngineError::NotAtRest { .. } => conflict("not_quiescent")
            .retry_after(1)
            .hint("wait for it, or go on without what cannot be kept: \"force\": true"),
        EngineError::NotKept { .. } => conflict("not_kept").hint(LOSES_VARIABLES),
        EngineError::TenantSnapshotsFull { .. } => full("snapshots_full"),
        EngineError::SnapshotsFull => {
            tracing::error!("BELLJAR_SNAPSHOT_SIZE is used up: {message}");
            full("out_of_space")
        }
        // A kernel that cannot be captured or restored is not a failure of the server.
        EngineError::Freeze(cause) if is_of_the_kernel(cause) => {
            conflict("not_kept").hint(match cause {
                RuntimeError::MemorySnapshot(_) => LOSES_VARIABLES,
                _ => "the session goes on as it was; try again",
            })
        }
        EngineError::Thaw(cause) if is_of_the_kernel(cause) => conflict("not_woken").hint(
            "what was kept of the session cannot be brought back: stop it, or go back to an \
             earlier checkpoint",
        ),
        _ => return Err(message),
    })
}

/// Errors of requests that conflict with the present state or with the settings.
fn from_conflict(error: &EngineError, message: String) -> Answered {
    let conflict = |code| ApiError::new(StatusCode::CONFLICT, code, message.clone());
    Ok(match error {
        EngineError::DuplicateExec(_) => conflict("exec_exists"),
        EngineError::ExecDiffers(_) => conflict("exec_differs")
            .hint("the same exec_id must come with the same request; choose another id"),
        EngineError::Different { .. } => conflict("session_differs").hint(
            "leave these out to use the session as it is, or stop it first: a session with \
             storage BIND then continues with its files and the new values",
        ),
        EngineError::KeyTaken { .. } => conflict("key_taken").hint("stop that session first"),
        EngineError::DiskNotEnforced(_) => conflict("disk_not_enforced"),
        EngineError::NoInterpreter { .. } => conflict("no_interpreter")
            .hint("use commands or a language that the image has, or ask for another image"),
        EngineError::Terminal(RuntimeError::OldGuest)
        | EngineError::Files(RuntimeError::OldGuest) => {
            conflict("session_too_old").hint("create a new session")
        }
        EngineError::WorkspaceRefused(_) | EngineError::Create(RuntimeError::Workspace(_)) => {
            ApiError::forbidden("workspace_not_allowed", message)
        }
        EngineError::Network(NetworkError::NotAllowed { .. } | NetworkError::NoSecret { .. }) => {
            ApiError::forbidden("network_not_allowed", message)
        }
        _ => return Err(message),
    })
}

/// Errors of datasets, and of files that are too large.
fn from_data(error: &EngineError, message: String) -> Answered {
    Ok(match error {
        EngineError::Create(RuntimeError::DataClosed(_)) => {
            tracing::error!("{message}");
            ApiError::new(StatusCode::CONFLICT, "data_not_readable", message)
        }
        // Code in the session, or the owner of the data, changed the directory.
        EngineError::ListDatasets(RuntimeError::Refused(_)) => {
            ApiError::new(StatusCode::CONFLICT, "data_not_readable", message)
        }
        EngineError::TooLarge(_) => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
        }
        EngineError::KeepDataset(cause) if cause.kind() == ErrorKind::FileTooLarge => {
            ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
        }
        EngineError::OtherContent { .. } => {
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "sha256_mismatch", message)
        }
        EngineError::NoStaging(_) => ApiError::new(StatusCode::CONFLICT, "no_staging", message),
        EngineError::NoRoomInside(_) | EngineError::FullInside => {
            ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "no_room_inside", message).hint(
                "remove files in it, or ask for a session with a larger tmpfs limit or with \
                 storage BIND, whose size is BELLJAR_SESSION_SIZE",
            )
        }
        EngineError::Stage(RuntimeError::Refused(refusal)) => no_place(refusal.code, message),
        EngineError::Stage(RuntimeError::Open { .. }) => no_place(RefusalCode::NotAFile, message),
        _ => return Err(message),
    })
}

/// Errors of a sandbox that ended, refused a call, or could not be created.
fn from_sandbox(error: &EngineError, message: String) -> Answered {
    Ok(match error {
        EngineError::Files(RuntimeError::Gone)
        | EngineError::Terminal(RuntimeError::Gone)
        | EngineError::Stdin(RuntimeError::Gone)
        | EngineError::State(RuntimeError::Gone)
        | EngineError::Stage(RuntimeError::Gone)
        | EngineError::ListDatasets(RuntimeError::Gone)
        | EngineError::ListArtifacts(RuntimeError::Gone)
        | EngineError::Exec(RuntimeError::Gone) => not_now(Refusal::Ended, message),
        EngineError::Create(RuntimeError::Engine(engine)) => from_engine(engine, message),
        EngineError::Stdin(RuntimeError::Refused(refusal))
        | EngineError::Files(RuntimeError::Refused(refusal))
        | EngineError::Terminal(RuntimeError::Refused(refusal))
        | EngineError::State(RuntimeError::Refused(refusal))
        | EngineError::Exec(RuntimeError::Refused(refusal)) => refused(refusal.code, message),
        _ => return Err(message),
    })
}

/// The error for a dataset that could not be fetched from its source.
fn from_source(error: &SourceError, message: String) -> ApiError {
    let status = match error {
        SourceError::NoSource { .. } => StatusCode::NOT_FOUND,
        SourceError::Timeout { .. } => StatusCode::GATEWAY_TIMEOUT,
        // These are failures of this server, not of the source.
        SourceError::Tls(_) | SourceError::Abandoned => {
            tracing::error!("{message}");
            StatusCode::INTERNAL_SERVER_ERROR
        }
        _ if error.code() == "invalid_dataset" => StatusCode::UNPROCESSABLE_ENTITY,
        _ if error.code() == "source_too_large" => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::BAD_GATEWAY,
    };
    ApiError::new(status, error.code(), message)
}

/// The error for a sandbox that the container engine did not create. The message says what to do.
fn from_engine(error: &ContainerError, message: String) -> ApiError {
    match error {
        ContainerError::NoSpace => return out_of_space(message),
        ContainerError::Ended => return internal(message),
        _ => tracing::error!("{message}"),
    }
    match error {
        ContainerError::Unreachable { .. } | ContainerError::Hangs { .. } => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "engine_unreachable", message)
                .retry_after(RETRY_FOR_ROOM)
        }
        ContainerError::NoImage(_) => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_image", message)
        }
        ContainerError::NoRuntime(_) => {
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_runtime", message)
        }
        ContainerError::NoGpu => ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "no_gpu", message),
        _ => ApiError::new(StatusCode::BAD_GATEWAY, "engine_refused", message),
    }
}

fn not_now(refusal: Refusal, message: String) -> ApiError {
    match refusal {
        Refusal::Ending => ApiError::new(StatusCode::CONFLICT, "session_ending", message),
        Refusal::Ended => ApiError::new(StatusCode::GONE, "session_ended", message).hint(
            "create a new one; a session with storage BIND can be started again with POST \
             /v1/sessions/{id}/start",
        ),
        Refusal::Resting => {
            ApiError::new(StatusCode::CONFLICT, "session_resting", message).retry_after(1)
        }
        Refusal::Alive => ApiError::new(StatusCode::CONFLICT, "session_alive", message),
    }
}

fn from_volume(error: &EngineError, message: String) -> Answered {
    let conflict = |code| ApiError::new(StatusCode::CONFLICT, code, message.clone());
    Ok(match error {
        EngineError::VolumeExists(_) => conflict("volume_exists"),
        EngineError::VolumeInUse { .. } => {
            conflict("volume_in_use").hint("stop what uses it first")
        }
        EngineError::VolumeQuota(_) => conflict("volume_quota").hint(
            "remove volumes that are not needed, or raise BELLJAR_TENANT_VOLUMES or \
             BELLJAR_TENANT_VOLUME_BYTES",
        ),
        EngineError::VolumeNotEnforced(_) => conflict("volume_not_enforced"),
        EngineError::VolumeFull { .. } => {
            ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "volume_full", message)
                .hint("ask for it with `ro`, or make a larger one and copy what is needed")
        }
        EngineError::Volume(RuntimeError::Volume { cause, .. })
        | EngineError::Create(RuntimeError::Volume { cause, .. })
            if is_out_of_space(cause) =>
        {
            out_of_space(message)
        }
        _ => return Err(message),
    })
}

fn refused(code: RefusalCode, message: String) -> ApiError {
    match code {
        RefusalCode::Busy => ApiError::new(StatusCode::CONFLICT, "busy", message)
            .retry_after(1)
            .hint("try again when the execution has ended"),
        RefusalCode::UnknownExec => ApiError::new(StatusCode::NOT_FOUND, "exec_not_found", message),
        RefusalCode::UnknownTerminal => {
            ApiError::new(StatusCode::NOT_FOUND, "terminal_not_found", message)
        }
        RefusalCode::NoDescriptors => {
            ApiError::new(StatusCode::NOT_IMPLEMENTED, "not_with_this_runtime", message)
                .hint("use commands and whole files, or another runtime")
        }
        RefusalCode::TooMany => too_many_terminals(message),
        RefusalCode::Invalid => ApiError::invalid(message),
        RefusalCode::NotFound => ApiError::new(StatusCode::NOT_FOUND, "file_not_found", message),
        RefusalCode::NotADirectory => {
            ApiError::new(StatusCode::CONFLICT, "not_a_directory", message)
        }
        RefusalCode::IsADirectory => ApiError::new(StatusCode::CONFLICT, "is_a_directory", message),
        RefusalCode::NotAFile => ApiError::new(StatusCode::CONFLICT, "not_a_file", message),
        RefusalCode::NotEmpty => ApiError::new(StatusCode::CONFLICT, "not_empty", message)
            .hint("`?recursive` removes it with everything in it"),
        RefusalCode::Exists => ApiError::new(StatusCode::CONFLICT, "exists", message),
        RefusalCode::NoSpace => {
            ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "no_room_inside", message)
        }
        RefusalCode::NotPermitted => {
            ApiError::new(StatusCode::CONFLICT, "not_permitted_inside", message)
        }
        _ => internal(message),
    }
}

fn too_many_terminals(message: String) -> ApiError {
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_terminals", message)
        .hint("attach to one of GET /v1/sessions/{id}/terminals, or close one with DELETE")
}

/// The error if code in the session replaced the directory of the datasets with something else.
fn no_place(code: RefusalCode, message: String) -> ApiError {
    match code {
        RefusalCode::NotFound
        | RefusalCode::NotAFile
        | RefusalCode::NotADirectory
        | RefusalCode::IsADirectory => {
            ApiError::new(StatusCode::CONFLICT, "no_place_inside", message)
                .hint("/session/data must be a directory, and so must the folders in the name")
        }
        code => refused(code, message),
    }
}

/// Whether the kernel failed, died or did not answer; otherwise the server failed.
fn is_of_the_kernel(error: &RuntimeError) -> bool {
    matches!(
        error,
        RuntimeError::MemorySnapshot(_)
            | RuntimeError::TimedOut(_)
            | RuntimeError::Connect(_)
            | RuntimeError::Gone
            | RuntimeError::Kernel(_)
            | RuntimeError::Refused(_)
            | RuntimeError::UnexpectedAnswer
            | RuntimeError::Nonsense(_)
    )
}

/// Whether the cause is an S3 server, and not the content of an object.
fn is_of_objects(cause: &std::io::Error) -> bool {
    cause.kind() != std::io::ErrorKind::InvalidData
        && cause.get_ref().is_some_and(|cause| cause.is::<belljar_engine::objects::ObjectError>())
}

/// Clients do not get the address of the S3 server.
fn objects_away(message: &str) -> ApiError {
    tracing::error!("{message}");
    let message = "the object store of this server cannot be used at the moment";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).retry_after(1)
}

fn is_out_of_space(cause: &std::io::Error) -> bool {
    matches!(cause.kind(), std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded)
}

/// The error if this server cannot serve the request at present, and nothing was changed.
pub(crate) fn unavailable(message: String) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).retry_after(1)
}

/// The error if another node owns the session. Gateways handle it; clients never get it, so the document does not list it.
fn elsewhere(node: String, message: String) -> ApiError {
    let error = ApiError::new(StatusCode::MISDIRECTED_REQUEST, "session_elsewhere", message);
    ApiError { owner: Some(node), ..error }
}

pub(crate) fn database_locked(message: String) -> ApiError {
    tracing::error!("{message}");
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "database_locked", message)
        .retry_after(1)
        .hint("another program has locked the server's database; try again later")
}

pub(crate) fn out_of_space(message: String) -> ApiError {
    tracing::error!("{message}");
    ApiError::new(StatusCode::INSUFFICIENT_STORAGE, "out_of_space", message)
        .hint("make room on the server's disk")
}

/// A failure of the server itself.
pub(crate) fn internal(message: String) -> ApiError {
    tracing::error!("{message}");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_engine::objects::ObjectError;

    #[test]
    fn failures_of_the_server_are_500_and_bad_requests_4xx() {
        let io = || std::io::Error::other("broken");
        for (error, status, code) in [
            (EngineError::Internal("broken".into()), 500, "internal"),
            (EngineError::KeepArtifacts(io()), 500, "internal"),
            (EngineError::Create(RuntimeError::Gone), 500, "internal"),
            (EngineError::Volume(RuntimeError::Gone), 500, "internal"),
            (EngineError::Invalid("ttl: expected 1".into()), 422, "invalid"),
            (EngineError::ExecDiffers("e".into()), 409, "exec_differs"),
            (EngineError::NoExec("e".into()), 404, "exec_not_found"),
            (EngineError::Unavailable("frozen"), 503, "unavailable"),
            (StoreError::Fenced { session: "s".into() }.into(), 503, "unavailable"),
        ] {
            let message = in_full(&error);
            let answer = ApiError::from(error);
            assert_eq!((answer.status.as_u16(), answer.code), (status, code), "{message}");
            assert_eq!(answer.message, message);
        }
        let full = std::io::Error::from(ErrorKind::StorageFull);
        assert_eq!(ApiError::from(EngineError::KeepArtifacts(full)).code, "out_of_space");
    }

    #[test]
    fn clients_do_not_see_why_the_object_store_fails() {
        for error in [
            ObjectError::Key("a".into()).into(),
            EngineError::KeepSnapshot(ObjectError::Key("a".into()).into()),
        ] {
            let answer = ApiError::from(error);
            assert_eq!((answer.status.as_u16(), answer.code), (503, "unavailable"));
            let message = "the object store of this server cannot be used at the moment";
            assert_eq!(answer.message, message);
        }
    }

    #[test]
    fn the_owner_of_a_session_is_named() {
        let error = EngineError::Elsewhere { node: "n-1".into(), address: "10.0.0.1:1".into() };
        let answer = ApiError::from(error);
        assert_eq!((answer.status.as_u16(), answer.code), (421, "session_elsewhere"));
        assert!(!answer.message.contains("10.0.0.1"), "addresses of nodes are not shown");
        let response = answer.into_response();
        assert_eq!(response.headers()["belljar-owner"], "n-1");
        let busy = ApiError::from(EngineError::Unavailable("frozen")).into_response();
        assert_eq!(busy.headers()[header::RETRY_AFTER], "1");
    }

    #[test]
    fn failures_of_datasets_and_the_network_are_500_unless_others_cause_them() {
        let io_error = || std::io::Error::other("broken");
        for error in [
            EngineError::UploadInterrupted,
            EngineError::KeepDataset(io_error()),
            EngineError::Network(NetworkError::Authority(io_error())),
            EngineError::Relay(RuntimeError::UnexpectedAnswer),
            EngineError::Source(SourceError::Abandoned),
        ] {
            let shown = error.to_string();
            assert_eq!(ApiError::from(error).status, StatusCode::INTERNAL_SERVER_ERROR, "{shown}");
        }
        let refused = NetworkError::NotAllowed { rule: "a.test".into() };
        let missing = NetworkError::NoSecret { secret: "K".into(), origin: "https://h".into() };
        let id = || "s/a".to_owned();
        for (error, status) in [
            (EngineError::Network(refused), 403),
            (EngineError::Network(missing), 403),
            (EngineError::Source(SourceError::NoSource { id: id() }), 404),
            (EngineError::Source(SourceError::InvalidId { id: id(), why: "x".into() }), 422),
            (EngineError::Source(SourceError::Unconditional304 { origin: id() }), 502),
        ] {
            let shown = error.to_string();
            assert_eq!(ApiError::from(error).status.as_u16(), status, "{shown}");
        }
    }
}
