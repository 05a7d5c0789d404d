//! What can go wrong with a sandbox. Each says what was tried; the cause is its source.

use std::io;
use std::path::PathBuf;

use belljar_proto::frame::FrameError;
use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_sys::cgroup::CgroupError;

#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    #[error("failed to start the spawner")]
    StartSpawner(#[source] io::Error),
    #[error("failed to map user ids for the spawner")]
    MapIds(#[source] io::Error),
    #[error("lost the spawner")]
    SpawnerGone(#[source] io::Error),
    #[error("failed to build the sandbox: {0}")]
    Build(String),
    #[error("failed to prepare the image: {0}")]
    Image(String),
    #[error("{0}")]
    NoImage(String),
    #[error("the image `{0}` has no python3; commands and shells work, Python does not")]
    NoPython(String),
    #[error("failed to limit the sandbox")]
    Limit(#[from] CgroupError),
    #[error("failed to reserve user ids for the sandbox")]
    Ids(#[source] io::Error),
    #[error("failed to open `{path}`")]
    Open {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("failed to prepare `{path}`")]
    Prepare {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error(
        "`{path}` cannot hold our sockets: {why}; BELLJAR_RUN_DIR and BELLJAR_SOCKET_DIR say where \
         they go"
    )]
    NotPrivate { path: PathBuf, why: &'static str },
    #[error("failed to {doing} the volume in `{path}`")]
    Volume {
        doing: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// Says why.
    #[error("{0}")]
    Workspace(String),
    /// Says why, and what to do.
    #[error("{0}")]
    DataClosed(String),
    #[error("failed to reach the guest")]
    Connect(#[source] io::Error),
    #[error("the sandbox is gone")]
    Gone,
    #[error("the guest sent something that makes no sense")]
    Nonsense(#[source] FrameError),
    #[error("the guest answered with something that was not asked for")]
    UnexpectedAnswer,
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the sandbox was started by an older version of Belljar, which cannot do this")]
    OldGuest,
    #[error("no answer within {0} s")]
    TimedOut(u64),
    #[error("failed to start a kernel: {0}")]
    Kernel(String),
    /// A kernel that could not be written down, or brought back: its own words, or what it did.
    #[error("{0}")]
    MemorySnapshot(String),
    #[error("there is no room for all of it")]
    NoRoom,
    #[error("failed to put it on disk")]
    Keep(#[source] io::Error),
    #[error(transparent)]
    Engine(#[from] crate::docker::EngineError),
}

impl RuntimeError {
    /// Whether the image lacks what would have been started.
    #[must_use]
    pub fn is_no_interpreter(&self) -> bool {
        match self {
            RuntimeError::Refused(refusal) => refusal.code == RefusalCode::NoInterpreter,
            RuntimeError::NoPython(_) => true,
            _ => false,
        }
    }
}
