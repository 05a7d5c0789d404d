//! Errors of the engine: one sentence each, with the cause as the source. They do not depend on
//! HTTP.

use std::error::Error;
use std::fmt::Write as _;
use std::path::PathBuf;

use belljar_network::NetworkError;
use belljar_proto::exec::Language;
use belljar_runtime::RuntimeError;

use crate::admission::Full;
use crate::datasets::source::SourceError;
use crate::objects::ObjectError;
use crate::rules::Refusal;
use crate::store::{Digest, StoreError};
use crate::volumes::VolumeName;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("failed to create a sandbox")]
    Create(#[source] RuntimeError),
    #[error("failed to start a kernel")]
    StartKernel(#[source] RuntimeError),
    #[error("the image `{image}` has no {language}; {advice}")]
    NoInterpreter { image: String, language: Language, advice: &'static str },
    #[error("failed to execute the code")]
    Exec(#[source] RuntimeError),
    #[error("failed to copy `{}` into the sandbox", path.display())]
    Bring {
        path: std::path::PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("failed to list the artifacts")]
    ListArtifacts(#[source] RuntimeError),
    #[error("failed to store artifacts")]
    KeepArtifacts(#[source] std::io::Error),
    #[error(transparent)]
    Objects(#[from] ObjectError),
    #[error("failed to store the dataset")]
    KeepDataset(#[source] std::io::Error),
    #[error("failed to copy the dataset into the session")]
    Stage(#[source] RuntimeError),
    #[error("failed to list the datasets")]
    ListDatasets(#[source] RuntimeError),
    #[error("the content has the SHA-256 {found}, not {promised}")]
    OtherContent { promised: Digest, found: Digest },
    #[error("the upload was interrupted")]
    UploadInterrupted,
    #[error("failed to fetch the dataset")]
    Source(#[source] SourceError),
    #[error("the session has no room for {0} bytes more")]
    NoRoomInside(u64),
    #[error("{0}")]
    TooLarge(String),
    #[error("session `{0}` takes no datasets: create it with \"datasets\": \"API\" to stage them")]
    NoStaging(String),
    #[error(transparent)]
    Files(RuntimeError),
    #[error(transparent)]
    Terminal(RuntimeError),
    #[error("this session already has {0} connections to terminals and file watches")]
    TooManyAttached(usize),
    #[error("this {whose} has {most} uploads in progress already")]
    TooManyUploads { whose: &'static str, most: usize },
    #[error("the session has no room for this file")]
    FullInside,
    #[error("failed to write into the session")]
    WriteInside(#[source] std::io::Error),
    #[error("failed to read from the session")]
    ReadInside(#[source] std::io::Error),
    #[error("failed to send input to the execution")]
    Stdin(#[source] RuntimeError),
    #[error("failed to list the kernel's variables")]
    State(#[source] RuntimeError),
    #[error("session `{session}` cannot be hibernated, forked or restored now: {}", reasons.join("; "))]
    NotAtRest { session: String, reasons: Vec<String> },
    /// The Python kernel cannot be written to files at all, so `force` would lose its variables.
    #[error("the variables of session `{session}` cannot be kept: {}", reasons.join("; "))]
    NotKept { session: String, reasons: Vec<String> },
    #[error("there is no checkpoint of execution `{0}` in this session")]
    NoCheckpoint(String),
    #[error(transparent)]
    FreezeAll(RuntimeError),
    #[error("failed to capture the kernel")]
    Freeze(#[source] RuntimeError),
    #[error("failed to restore the kernel")]
    Thaw(#[source] RuntimeError),
    #[error("failed to store the snapshot of the session")]
    KeepSnapshot(#[source] std::io::Error),
    #[error(
        "no room for the snapshot: this tenant's limit of {limit} bytes for sleeping sessions, forks and \
         checkpoints is reached ({used} in use)"
    )]
    TenantSnapshotsFull { used: u64, limit: u64 },
    #[error("this server has no room for more sleeping sessions, forks and checkpoints")]
    SnapshotsFull,
    #[error("failed to connect the sandbox to the proxy")]
    Relay(#[source] RuntimeError),
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error("failed to take over the sandbox of an earlier server")]
    Adopt(#[source] RuntimeError),
    #[error("failed to prepare `{path}`")]
    Directory {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Full(#[from] Full),
    #[error("{0}")]
    NoImage(String),
    #[error("there is no session `{0}`")]
    NoSession(String),
    #[error("there is no execution `{0}` in this session")]
    NoExec(String),
    #[error("there is no artifact `{0}`")]
    NoArtifact(String),
    /// The message names the directory and the reason.
    #[error("{0}")]
    WorkspaceRefused(String),
    #[error("there is no volume `{0}`")]
    NoVolume(VolumeName),
    #[error("there is a volume `{0}` already")]
    VolumeExists(VolumeName),
    #[error("volume `{name}` is used by {}", by.join(", "))]
    VolumeInUse { name: VolumeName, by: Vec<String> },
    #[error("{0}")]
    VolumeQuota(String),
    #[error("{0}")]
    VolumeNotEnforced(String),
    #[error("volume `{name}` holds {used} bytes of {size} and takes no more writers")]
    VolumeFull { name: VolumeName, used: u64, size: u64 },
    #[error(transparent)]
    Volume(RuntimeError),
    #[error("{0}")]
    DiskNotEnforced(String),
    #[error("session `{session}` is forgotten, but its files could not be removed from `{path}`")]
    RemoveFiles {
        session: String,
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("session `{session}` {}{}", state(*refusal), because.as_ref().map(|why| format!(": {why}")).unwrap_or_default())]
    NotNow { session: String, refusal: Refusal, because: Option<String> },
    #[error("{0} executions are waiting in this session already")]
    QueueFull(usize),
    #[error("execution `{0}` exists already")]
    DuplicateExec(String),
    #[error("execution `{0}` exists already, and is a different request")]
    ExecDiffers(String),
    #[error(
        "the session with this key exists and has another {}",
        differences.join(", ")
    )]
    Different { session: String, differences: Vec<&'static str> },
    #[error("its key belongs to session `{session}` now")]
    KeyTaken { session: String },
    /// The request is invalid; the message names the field.
    #[error("{0}")]
    Invalid(String),
    /// A failure of the server itself.
    #[error("{0}")]
    Internal(String),
    #[error("the server is stopping")]
    Stopping,
    /// This server cannot serve the request at present; another node, or this one later, can.
    #[error("{0}")]
    Unavailable(&'static str),
    #[error("node `{node}` owns this session")]
    Elsewhere { node: String, address: String },
}

fn state(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::Ending => "is being stopped",
        Refusal::Ended => "has ended",
        Refusal::Alive => "is alive already",
        Refusal::Resting => "is being hibernated or restored",
    }
}

impl EngineError {
    pub(crate) fn not_now(session: &str, refusal: Refusal, because: Option<String>) -> EngineError {
        EngineError::NotNow { session: session.to_owned(), refusal, because }
    }
}

/// An error with all its causes, in one line.
pub fn in_full(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}
