//! The errors that each operation can return.
//!
//! An error gets its status and code in one place: where it is made (`crate::error` for errors of the engine, a
//! function next to the handler for the others). Here one error of each kind is made with the same code, so the
//! document cannot list a status that the server does not send. The tests check that no kind is missing: their client
//! compares every response with the document.

use belljar_engine::EngineError;
use belljar_engine::admission::Full;
use belljar_engine::datasets::source::SourceError;
use belljar_engine::network::NetworkError;
use belljar_engine::session::rules::Refusal;
use belljar_proto::exec::Language;
use belljar_proto::guest::{Refusal as GuestRefusal, RefusalCode};
use belljar_runtime::ContainerEngineError as ContainerError;
use belljar_runtime::RuntimeError;

use crate::error::{ApiError, database_locked, internal, out_of_space};
use crate::input::{cut_off, malformed, not_json, too_large, too_slow};
use crate::socket::not_a_websocket;
use crate::tenants::too_much_unread;
use crate::{artifacts, browser, datasets, gateway_errors};

/// The properties of an operation that decide which errors it can return.
pub(super) struct Operation<'a> {
    pub(super) id: &'a str,
    pub(super) path: &'a str,
    pub(super) has_query: bool,
    pub(super) body: BodyKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BodyKind {
    None,
    Json,
    /// Bytes, read while they arrive.
    Raw,
}

impl Operation<'_> {
    /// Whether it needs no key: health checks, and downloads with a signed link.
    pub(super) fn is_open(&self) -> bool {
        matches!(self.path, "/healthz" | "/readyz") || self.path.starts_with("/artifacts/")
    }

    /// All errors that it can return; some of them more than once.
    pub(super) fn errors(&self) -> Vec<ApiError> {
        let mut errors = self.of_the_request();
        if !matches!(self.path, "/healthz" | "/readyz" | "/metrics") {
            errors.extend(of_the_server());
        }
        if self.path.starts_with("/v1/sessions/{id}") {
            errors.extend(match self.reads_records() {
                true => vec![no_session()],
                false => of_a_live_session(),
            });
        }
        if self.path.contains("{exec}") {
            errors.push(EngineError::NoExec(String::new()).into());
        }
        if self.path.starts_with("/v1/sessions/{id}/files/") {
            errors.extend(of_files());
        }
        if self.path.starts_with("/v1/sessions/{id}/browser") {
            errors.extend(of_executions());
            errors.extend(browser::samples());
        }
        errors.extend(self.own());
        errors
    }

    /// Errors of the guard, the path, the query and the body.
    fn of_the_request(&self) -> Vec<ApiError> {
        let mut errors = vec![
            malformed(""),
            ApiError::forbidden("wrong_host", ""),
            ApiError::forbidden("wrong_origin", ""),
        ];
        if !self.is_open() {
            let role = if self.path == "/metrics" { "operators_only" } else { "operators_key" };
            errors.extend([
                ApiError::unauthorized(""),
                ApiError::forbidden(role, ""),
                ApiError::too_many("", 1),
            ]);
        }
        if self.has_query {
            errors.push(ApiError::invalid(""));
        }
        match self.body {
            BodyKind::None => {}
            BodyKind::Json => errors.extend([
                cut_off(),
                too_slow(String::new()),
                too_large(0),
                not_json(""),
                ApiError::invalid(""),
            ]),
            BodyKind::Raw => errors.extend([cut_off(), too_slow(String::new())]),
        }
        errors
    }

    /// Whether it only reads stored records of a session, live or ended, and needs no sandbox.
    fn reads_records(&self) -> bool {
        matches!(
            self.id,
            "sessions_show"
                | "sessions_stop"
                | "sessions_log"
                | "sessions_checkpoints"
                | "execs_list"
                | "execs_show"
                | "execs_events"
                | "artifacts_list_of_session"
        )
    }

    /// Errors that only this operation, or a few, can return.
    fn own(&self) -> Vec<ApiError> {
        match self.id {
            "sessions_create" => [of_creation(), keys(), volumes_inside()].concat(),
            "sessions_start" => [
                of_creation(),
                keys(),
                volumes_inside(),
                vec![not_now(Refusal::Alive), ApiError::invalid("")],
            ]
            .concat(),
            "runs_run" => [of_creation(), volumes_inside(), of_executions()].concat(),
            "simple_sandbox_create_session" => of_creation(),
            "simple_sandbox_execute" => [of_a_live_session(), of_executions()].concat(),
            "simple_sandbox_cleanup" => vec![no_session()],
            "sessions_hibernate" => of_snapshots(),
            "sessions_fork" => [of_snapshots(), of_creation(), vec![no_checkpoint()]].concat(),
            "sessions_restore" => [of_snapshots(), vec![no_checkpoint()]].concat(),
            "sessions_state" => [of_executions(), vec![busy()]].concat(),
            "execs_exec" => of_executions(),
            "execs_exec_socket" => vec![not_a_websocket(""), no_exec()],
            "execs_stdin" => vec![refused(EngineError::Stdin, RefusalCode::UnknownExec)],
            "terminals_open" => [of_terminals(), vec![not_a_websocket("")]].concat(),
            "terminals_ticket" | "terminals_list" | "terminals_close" => of_terminals(),
            "artifacts_list"
            | "artifacts_list_of_session"
            | "artifacts_show"
            | "artifacts_remove"
            | "artifacts_url" => {
                vec![EngineError::NoArtifact(String::new()).into()]
            }
            "artifacts_download" | "artifacts_download_head" => vec![
                artifacts::link_invalid(),
                artifacts::gone(),
                artifacts::content_damaged(),
                ApiError::too_many("", 1),
            ],
            "datasets_put" | "datasets_put_named_export" => {
                let own = vec![
                    datasets::content_unknown(),
                    ApiError::invalid(""),
                    EngineError::TooLarge(String::new()).into(),
                    EngineError::TooManyUploads { whose: "session", most: 0 }.into(),
                ];
                [of_staging(), own].concat()
            }
            "datasets_stage" => [of_staging(), of_sources()].concat(),
            "datasets_list" | "datasets_export" => of_staging(),
            "volumes_create" => vec![
                EngineError::VolumeExists(volume()).into(),
                EngineError::VolumeQuota(String::new()).into(),
                EngineError::VolumeNotEnforced(String::new()).into(),
            ],
            "volumes_show" => vec![EngineError::NoVolume(volume()).into(), ApiError::invalid("")],
            "volumes_remove" => vec![
                EngineError::NoVolume(volume()).into(),
                EngineError::VolumeInUse { name: volume(), by: Vec::new() }.into(),
                ApiError::invalid(""),
            ],
            _ => Vec::new(),
        }
    }
}

/// Errors of every operation that calls the engine, here or through a gateway.
fn of_the_server() -> Vec<ApiError> {
    let mut errors = vec![
        too_much_unread(),
        internal(String::new()),
        database_locked(String::new()),
        out_of_space(String::new()),
        EngineError::Stopping.into(),
        EngineError::Unavailable("").into(),
    ];
    errors.extend(gateway_errors::samples());
    errors
}

fn no_session() -> ApiError {
    EngineError::NoSession(String::new()).into()
}

fn no_exec() -> ApiError {
    EngineError::NoExec(String::new()).into()
}

fn no_checkpoint() -> ApiError {
    EngineError::NoCheckpoint(String::new()).into()
}

fn not_now(refusal: Refusal) -> ApiError {
    EngineError::NotNow { session: String::new(), refusal, because: None }.into()
}

/// Errors of operations that need the sandbox of a session, which may have to be woken.
fn of_a_live_session() -> Vec<ApiError> {
    let mut errors = vec![
        no_session(),
        not_now(Refusal::Ended),
        not_now(Refusal::Ending),
        not_now(Refusal::Resting),
        EngineError::Thaw(RuntimeError::Gone).into(),
        EngineError::Files(RuntimeError::OldGuest).into(),
        refused(EngineError::Files, RefusalCode::NoDescriptors),
    ];
    errors.extend(of_sandboxes());
    errors
}

/// Errors of creating a sandbox: the server is full, or its container engine fails.
fn of_sandboxes() -> Vec<ApiError> {
    let engine = |error| EngineError::Create(RuntimeError::Engine(error)).into();
    let full = Full { whose: "this server's", what: "sessions", limit: 0, used: 0 };
    vec![
        full_error(full),
        engine(ContainerError::Unreachable { address: String::new(), advice: "" }),
        engine(ContainerError::NoImage(String::new())),
        engine(ContainerError::NoRuntime(String::new())),
        engine(ContainerError::NoGpu),
        engine(ContainerError::Refused { doing: "", message: String::new() }),
    ]
}

fn full_error(full: Full) -> ApiError {
    EngineError::Full(full).into()
}

/// Errors of creating a session or a run.
fn of_creation() -> Vec<ApiError> {
    let mut errors = vec![
        EngineError::NoImage(String::new()).into(),
        EngineError::Network(NetworkError::NotAllowed { rule: String::new() }).into(),
        EngineError::WorkspaceRefused(String::new()).into(),
        EngineError::DiskNotEnforced(String::new()).into(),
        ApiError::invalid(""),
    ];
    errors.extend(of_sandboxes());
    errors
}

fn keys() -> Vec<ApiError> {
    vec![
        EngineError::Different { session: String::new(), differences: Vec::new() }.into(),
        EngineError::KeyTaken { session: String::new() }.into(),
        not_now(Refusal::Ending),
    ]
}

fn volumes_inside() -> Vec<ApiError> {
    vec![
        EngineError::NoVolume(volume()).into(),
        EngineError::VolumeInUse { name: volume(), by: Vec::new() }.into(),
        EngineError::VolumeFull { name: volume(), used: 0, size: 0 }.into(),
    ]
}

/// Errors of hibernate, fork and restore.
fn of_snapshots() -> Vec<ApiError> {
    vec![
        EngineError::NotAtRest { session: String::new(), reasons: Vec::new() }.into(),
        EngineError::NotKept { session: String::new(), reasons: Vec::new() }.into(),
        EngineError::Freeze(RuntimeError::Gone).into(),
        EngineError::TenantSnapshotsFull { used: 0, limit: 0 }.into(),
        EngineError::SnapshotsFull.into(),
        ApiError::invalid(""),
    ]
}

fn of_executions() -> Vec<ApiError> {
    let image = String::new();
    vec![
        EngineError::QueueFull(0).into(),
        EngineError::DuplicateExec(String::new()).into(),
        EngineError::ExecDiffers(String::new()).into(),
        EngineError::NoInterpreter { image, language: Language::Python, advice: "" }.into(),
        ApiError::invalid(""),
    ]
}

fn busy() -> ApiError {
    refused(EngineError::State, RefusalCode::Busy)
}

fn of_terminals() -> Vec<ApiError> {
    vec![
        refused(EngineError::Terminal, RefusalCode::UnknownTerminal),
        refused(EngineError::Terminal, RefusalCode::Invalid),
        refused(EngineError::Terminal, RefusalCode::TooMany),
        EngineError::TooManyAttached(0).into(),
    ]
}

/// Errors of file operations, which a program in the sandbox could get too.
fn of_files() -> Vec<ApiError> {
    let codes = [
        RefusalCode::NotFound,
        RefusalCode::NotAFile,
        RefusalCode::NotADirectory,
        RefusalCode::IsADirectory,
        RefusalCode::NotEmpty,
        RefusalCode::Exists,
        RefusalCode::NoSpace,
        RefusalCode::NotPermitted,
        RefusalCode::Invalid,
        RefusalCode::TooMany,
    ];
    let mut errors: Vec<ApiError> =
        codes.into_iter().map(|code| refused(EngineError::Files, code)).collect();
    errors.push(EngineError::FullInside.into());
    errors.push(EngineError::TooManyUploads { whose: "session", most: 0 }.into());
    errors.push(EngineError::TooLarge(String::new()).into());
    errors
}

fn of_staging() -> Vec<ApiError> {
    vec![
        EngineError::NoStaging(String::new()).into(),
        EngineError::FullInside.into(),
        refused(EngineError::Stage, RefusalCode::NotADirectory),
        refused(EngineError::Stage, RefusalCode::NotPermitted),
        refused(EngineError::Stage, RefusalCode::Invalid),
    ]
}

/// Errors of the sources of datasets.
fn of_sources() -> Vec<ApiError> {
    let (id, origin) = (String::new, String::new);
    let refused = SourceError::RefusedAddress { host: origin(), kind: "a", can_be_allowed: false };
    vec![
        EngineError::Source(SourceError::NoSource { id: id() }).into(),
        EngineError::Source(SourceError::InvalidId { id: id(), why: String::new() }).into(),
        EngineError::Source(refused).into(),
        EngineError::Source(SourceError::Timeout { origin: origin(), seconds: 0 }).into(),
        EngineError::TooLarge(String::new()).into(),
    ]
}

fn refused(of: impl FnOnce(RuntimeError) -> EngineError, code: RefusalCode) -> ApiError {
    let refusal = GuestRefusal { code, message: String::new() };
    of(RuntimeError::Refused(refusal)).into()
}

fn volume() -> belljar_engine::volumes::VolumeName {
    // One letter is a valid name.
    "v".parse().unwrap_or_else(|_| unreachable!("a name"))
}
