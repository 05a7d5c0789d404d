//! Errors of sandboxes. Each says what was tried; the cause is its source.

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
    #[error("failed to freeze or thaw the sandboxes")]
    FreezeAll(#[source] io::Error),
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
        "`{path}` cannot be used for sockets: {why}; choose another directory with BELLJAR_RUN_DIR or \
         BELLJAR_SOCKET_DIR"
    )]
    NotPrivate { path: PathBuf, why: &'static str },
    #[error("failed to {doing} the volume in `{path}`")]
    Volume {
        doing: &'static str,
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    /// The reason.
    #[error("{0}")]
    Workspace(String),
    /// The reason, and what to do.
    #[error("{0}")]
    DataClosed(String),
    #[error("failed to reach the guest")]
    Connect(#[source] io::Error),
    #[error("the sandbox is gone")]
    Gone,
    #[error("the guest sent an invalid message")]
    Nonsense(#[source] FrameError),
    #[error("the guest sent an unexpected answer")]
    UnexpectedAnswer,
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("the sandbox was started by an older version of Belljar, which cannot do this")]
    OldGuest,
    #[error("the sandbox did not answer within {0} s")]
    TimedOut(u64),
    #[error("failed to start a kernel: {0}")]
    Kernel(String),
    /// A kernel could not be saved or restored: the kernel's own reason, or what happened.
    #[error("{0}")]
    MemorySnapshot(String),
    #[error("there is no room for the whole snapshot")]
    NoRoom,
    #[error("failed to write the snapshot to disk")]
    Keep(#[source] io::Error),
    #[error(transparent)]
    Engine(#[from] ContainerEngineError),
}

/// Why a container engine failed, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ContainerEngineError {
    #[error("no container engine answers at `{address}`; {advice}")]
    Unreachable { address: String, advice: &'static str },
    #[error(
        "the container engine at `{address}` takes connections but has not answered for {seconds} s; \
         its log may say why (`journalctl -u docker`), and a restart may help"
    )]
    Hangs { address: String, seconds: u64 },
    #[error(
        "the container engine has no image `{0}`; build one with `belljar image build`, pull it \
         with `docker pull`, or name another with SANDBOX_IMAGE"
    )]
    NoImage(String),
    #[error(
        "the container engine knows no runtime `{0}`; register it in its daemon.json, or leave \
         BELLJAR_DOCKER_RUNTIME empty"
    )]
    NoRuntime(String),
    #[error(
        "the container engine has no GPU to give; install the vendor's container toolkit, or \
         leave BELLJAR_GPUS empty"
    )]
    NoGpu,
    #[error("the disk of the container engine is full; `docker system df` shows what is on it")]
    NoSpace,
    #[error("the container engine failed to {doing}: {message}")]
    Refused { doing: &'static str, message: String },
    #[error("the container of the sandbox ended while it was started")]
    Ended,
    #[error(
        "process {peer} connected to the socket of the sandbox, but the first process of its container is {pid} \
         according to the container engine; an engine in its own PID namespace cannot be used"
    )]
    Strangers { peer: i32, pid: u32 },
}

impl RuntimeError {
    /// Whether the image lacks the interpreter.
    #[must_use]
    pub fn is_no_interpreter(&self) -> bool {
        match self {
            RuntimeError::Refused(refusal) => refusal.code == RefusalCode::NoInterpreter,
            RuntimeError::NoPython(_) => true,
            _ => false,
        }
    }
}

/// The error of a file that the guest named.
pub(crate) fn failed_to_open(path: &[u8], cause: io::Error) -> RuntimeError {
    RuntimeError::Open { path: String::from_utf8_lossy(path).into_owned().into(), cause }
}
