//! Messages between the host and the guest, which is PID 1 of a sandbox.
//!
//! The host connects to a UNIX socket that it bound itself. It may connect several times, also after a
//! crash. Every request has an id and gets exactly one reply with that id, except [`Call::Relayed`], which
//! gets none. The events of an execution follow its `Started` reply on the same connection, numbered from
//! zero. They are not lost with the connection: `Join` requests the rest.
//!
//! The guest is not trusted: user code might have taken it over. The host bounds every frame, checks
//! every file descriptor and trusts no path.

use serde::{Deserialize, Serialize};

use crate::exec::{Event, ExecSpec, Language};
use crate::job::{ArchiveFormat, JobReport};
use crate::relay::RelayMessage;
use crate::terminal::{TerminalEvent, TerminalInfo, TerminalSize, TerminalSpec};

/// Files that one [`Call::RemoveFiles`] may name.
pub const MAX_REMOVED: usize = 1_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub id: u64,
    #[serde(flatten)]
    pub call: Call,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "call", rename_all = "snake_case")]
pub enum Call {
    /// Must come first on every connection. The nonce shows that the caller is the host that made
    /// this sandbox (or its successor) and not a process inside that found the socket.
    Hello {
        protocol: u32,
        nonce: String,
    },
    /// Start a kernel the slow way, by executing its interpreter.
    SpawnKernel {
        language: Language,
        argv: Vec<String>,
        env: Vec<(String, String)>,
        cwd: String,
    },
    /// Start a kernel that begins with the memory of a preloaded interpreter: the guest executes `argv`, the loader,
    /// and the host sends that memory over the socket of the answer ([`Answer::SnapshotSocket`]). Only for guests of
    /// [`crate::PROTOCOL_WITH_LOADING`] and later.
    LoadKernel {
        language: Language,
        argv: Vec<String>,
    },
    /// Fork a kernel from a zygote inside this sandbox, which is started first if there is none. Only where
    /// the host's zygote cannot be used.
    ForkKernel {
        language: Language,
        zygote: ZygoteOrder,
        env: Vec<(String, String)>,
        cwd: String,
    },
    /// Wait until the kernel is ready.
    AwaitKernel {
        language: Language,
    },
    /// Begin an execution; the body is the code or the standard input.
    Exec(ExecSpec),
    /// Send the events of an execution, from byte `offset` of event number `from` on, including those
    /// still to come.
    Join {
        exec_id: String,
        from: u64,
        offset: u64,
    },
    /// More standard input for an execution that was started with `stdin`: the body. With `close`
    /// nothing comes after it.
    Stdin {
        exec_id: String,
        close: bool,
    },
    /// Stop an execution. Has no effect on one that has ended.
    Interrupt {
        exec_id: String,
    },
    /// The host has stored the results: the guest may forget these executions.
    Forget {
        exec_ids: Vec<String>,
    },
    /// List the files below a directory, without following links.
    ListTree {
        root: String,
        limits: TreeLimits,
    },
    /// Open a file that `ListTree` reported, below `root`; answered with its descriptor. Hosts use
    /// it with guests that do not know `OpenFiles`.
    OpenFile {
        root: String,
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
    },
    /// Open several files below `root`, as many as descriptors fit beside one message. The body is
    /// a JSON list of [`TreeFile`]s, of which only the paths count. Answered with
    /// [`Answer::Files`].
    OpenFiles {
        root: String,
    },
    /// Remove files below `root` that are still as `ListTree` reported them, at most
    /// [`MAX_REMOVED`]. The body is a JSON list of [`TreeFile`]s. Directories stay.
    RemoveFiles {
        root: String,
    },
    /// Begin to write a file below `root`, and make its directories. Answered with [`Answer::Created`]: the
    /// file is written under a temporary name in the same directory.
    CreateFile {
        root: String,
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        /// Permissions; those of ordinary files by default. Guests before
        /// [`crate::PROTOCOL_WITH_TERMINALS`] ignore it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
    },
    /// Rename a created file to its final name, also over another file. Answered with
    /// [`Answer::Committed`].
    CommitFile {
        root: String,
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        temporary: String,
    },
    /// Remove a file that was created and is not to be committed.
    DiscardFile {
        root: String,
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        temporary: String,
    },
    /// Describe what is at a path, without following links; answered with [`Answer::Entry`].
    Look {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
    },
    /// List a directory; answered with [`Answer::Listing`].
    ListDirectory {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        recursive: bool,
        limits: TreeLimits,
        /// Only entries that match this pattern, which may be deeper. Guests before
        /// [`crate::PROTOCOL_WITH_TERMINALS`] ignore this and the next field.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob: Option<String>,
        /// Leave out names that begin with a dot.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        without_hidden: bool,
    },
    /// Open a plain file for appending, and create it if there is none; answered with
    /// [`Answer::Appending`].
    AppendFile {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        mode: u32,
    },
    /// Copy a file, or a directory with everything in it; answered with [`Answer::Started`].
    CopyPath {
        job: String,
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        #[serde(with = "path_bytes")]
        to: Vec<u8>,
    },
    /// Pack a directory; answered with [`Answer::Stream`], from which the archive is read.
    Pack {
        job: String,
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        format: ArchiveFormat,
    },
    /// Unpack an archive into a directory, which is created. The host writes the archive to the pipe of
    /// [`Answer::Stream`]. A format that must be read from its end comes as a file in that directory that
    /// [`Call::CreateFile`] made; then the answer is [`Answer::Started`].
    Unpack {
        job: String,
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        format: ArchiveFormat,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        archive: Option<String>,
    },
    /// Which kernels, terminals, jobs and processes are alive; answered with [`Answer::Quiescence`]. This
    /// and the next three only for guests of [`crate::PROTOCOL_WITH_QUIESCENCE`] and later.
    #[serde(rename = "rest")]
    Quiescence,
    /// Pack all files of the named [`crate::quiescence::KEPT_DIRECTORIES`]; answered with
    /// [`Answer::Stream`].
    KeepFiles {
        job: String,
        #[serde(rename = "places")]
        directories: Vec<String>,
    },
    /// Unpack what [`Call::KeepFiles`] packed; answered with [`Answer::Stream`].
    BringFiles {
        job: String,
    },
    /// A kernel of this language was not restored: report it in the result of the next cell.
    LoseKernel {
        language: Language,
        reason: String,
    },
    /// The result of a job, which is then forgotten; [`Answer::Working`] if the job takes longer than a
    /// call should.
    FinishJob {
        job: String,
    },
    /// Open a plain file with the rights of a program inside; answered with its descriptor.
    OpenPath {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
    },
    /// Create a directory and its parents.
    MakeDirectory {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
    },
    /// Remove a file, an empty directory or, if `recursive`, a directory with its content.
    RemovePath {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        recursive: bool,
    },
    /// Rename a file or a directory. A file at the new path is replaced.
    MovePath {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        #[serde(with = "path_bytes")]
        to: Vec<u8>,
    },
    /// Read from a file that the guest keeps open ([`TableFile`]): at most `length` bytes, in the body
    /// of [`Answer::Read`].
    #[serde(rename = "read_held")]
    ReadTableFile {
        #[serde(rename = "held")]
        file: u64,
        offset: u64,
        length: u64,
    },
    /// Write the body to such a file.
    #[serde(rename = "write_held")]
    WriteTableFile {
        #[serde(rename = "held")]
        file: u64,
        offset: u64,
    },
    /// Close such files.
    #[serde(rename = "drop_held")]
    CloseTableFiles {
        #[serde(rename = "held")]
        files: Vec<u64>,
    },
    /// Open another connection, which needs no `Hello`, for events of watches and terminals; answered with
    /// [`Answer::Connection`].
    Connect,
    /// Send the changes in a directory on this connection; answered with [`Answer::Started`].
    WatchFiles {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        recursive: bool,
    },
    /// Start a program on a new terminal; answered with [`Answer::Terminal`].
    OpenTerminal(TerminalSpec),
    /// Every terminal; answered with [`Answer::Terminals`].
    ListTerminals,
    /// Send the output of a terminal on this connection, from position `from` on, or all that is kept;
    /// answered with [`Answer::Terminal`].
    AttachTerminal {
        terminal: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
    },
    /// Write the body to a terminal. Answered when the program has read all of it; the host must not send
    /// more before that.
    TerminalInput {
        terminal: String,
    },
    ResizeTerminal {
        terminal: String,
        size: TerminalSize,
    },
    /// End every process that was started at a terminal, and forget the terminal.
    CloseTerminal {
        terminal: String,
    },
    /// List the variables of a language's kernel; answered with [`Answer::State`].
    KernelState {
        language: Language,
    },
    /// Ask the kernel of a language, if it is idle, to move large values to disk; answered with
    /// [`Answer::Spilled`]. Only for guests of [`crate::PROTOCOL_WITH_SPILL`] and later.
    Spill {
        language: Language,
        #[serde(flatten)]
        ask: SpillAsk,
    },
    /// Connect the host with the kernel of a language, if it is idle, to save or restore snapshots
    /// ([`crate::snapshot`]). Answered with [`Answer::SnapshotSocket`]. Only for guests of
    /// [`crate::PROTOCOL_WITH_SNAPSHOTS`] and later.
    #[serde(rename = "kernel_line")]
    SnapshotSocket {
        language: Language,
    },
    /// From now on, live for this long without a connected host; 0: end with the last connection.
    OutliveHost {
        alone_for_s: u64,
    },
    /// From now on, relay connections to [`crate::relay::PORT`] inside the sandbox over this connection
    /// only. The body is a bundle of certificates in PEM, which the guest writes to
    /// [`crate::relay::CERTIFICATES`].
    Relay,
    /// A message about a relayed stream. The only call without a reply.
    Relayed {
        stream: u64,
        #[serde(flatten)]
        part: RelayMessage,
    },
    /// Try to exceed a limit from inside.
    Probe {
        probe: Probe,
    },
    /// End everything in the sandbox.
    Shutdown,
}

/// Messages of the guest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum FromGuest {
    Reply {
        id: u64,
        #[serde(flatten)]
        outcome: ReplyOutcome,
        /// Replaces the descriptors of files, on a connection that cannot carry descriptors.
        #[serde(default, rename = "held", skip_serializing_if = "Vec::is_empty")]
        files: Vec<TableFile>,
        /// Replaces the descriptor of a pipe or a socket, on such a connection: its bytes are relayed both
        /// ways as this stream, until it ends.
        #[serde(default, rename = "carried", skip_serializing_if = "Option::is_none")]
        relayed: Option<u64>,
    },
    /// Event number `seq` of an execution; the payload is the body. Output grows while it is
    /// read: the same number may come again with a higher `offset` and the bytes from there on.
    Event {
        exec_id: String,
        seq: u64,
        offset: u64,
        #[serde(flatten)]
        event: Event,
    },
    /// A message about a stream that is relayed, because of [`Call::Relay`] or for a reply.
    Relayed {
        stream: u64,
        #[serde(flatten)]
        part: RelayMessage,
    },
    /// Sent on connections that watch files.
    Changed(FileChange),
    /// Sent on connections that follow a terminal.
    Terminal {
        terminal: String,
        #[serde(flatten)]
        event: TerminalEvent,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyOutcome {
    Ok(Answer),
    Err(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    Welcome {
        protocol: u32,
        /// Version of the belljar binary the guest runs.
        version: String,
        /// Executions the guest still remembers, oldest first.
        execs: Vec<KnownExec>,
    },
    KernelReady {
        language_version: String,
    },
    /// Events follow.
    Started,
    Done,
    /// The body is a JSON [`Tree`]: a sandbox may have many files with long names.
    Tree,
    /// The body is a JSON [`KernelVariables`].
    State,
    /// The body is a JSON [`SpillReport`].
    Spilled,
    /// A socket follows, which connects the host with the kernel ([`crate::snapshot`]).
    #[serde(rename = "line")]
    SnapshotSocket,
    /// The body is a JSON [`crate::quiescence::QuiescenceReport`].
    #[serde(rename = "resting")]
    Quiescence,
    /// One descriptor follows.
    File {
        size: u64,
    },
    /// The body is a JSON list of [`Opening`]s in the order of the paths; as many descriptors
    /// follow, one for each that was opened.
    Files {
        descriptors: usize,
    },
    Removed {
        removed: u64,
        /// The fingerprint of the artifact directory now, as in [`crate::exec::Outcome`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        artifacts: Option<u64>,
    },
    /// One descriptor follows, for writing; the temporary name is in the directory of the final one.
    Created {
        temporary: String,
    },
    Committed(TreeFile),
    Entry(FileEntry),
    /// The body is a JSON [`Listing`].
    Listing,
    /// The body is what was read: less than requested only at the end of the file. The time of the last write
    /// is taken after the read.
    Read {
        modified_ns: i64,
    },
    /// One descriptor follows, for writing.
    Appending,
    /// One descriptor follows: a pipe.
    Stream,
    /// One descriptor follows: a UNIX socket.
    Connection,
    Working,
    Finished(JobReport),
    Terminal(TerminalInfo),
    /// The body is a JSON list of [`TerminalInfo`]s, the oldest first.
    Terminals,
    Probed(ProbeReport),
}

/// A file that the guest keeps open for the host, until it is closed or the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableFile {
    #[serde(rename = "held")]
    pub number: u64,
    pub size: u64,
    pub inode: u64,
    pub changed_ns: i64,
    pub modified_ns: i64,
}

/// How to start a zygote.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZygoteOrder {
    pub argv: Vec<String>,
    pub env: Vec<(String, String)>,
    pub preload: Vec<String>,
}

/// Files that a guest keeps open for one connection.
pub const MAX_TABLE_FILES: usize = 256;

/// Bytes that one [`Call::ReadTableFile`] or [`Call::WriteTableFile`] carries.
pub const MAX_TABLE_FILE_BYTES: u64 = 4 << 20;

/// The result of opening one file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Opening {
    Opened {
        size: u64,
        /// A process has it open for writing, or mapped. Also false where that cannot be known.
        being_written: bool,
    },
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownExec {
    pub exec_id: String,
    pub running: bool,
}

/// The variables of a kernel, as the kernel reports them: bounded in number and length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelVariables {
    pub variables: Vec<Variable>,
    #[serde(default)]
    pub imports: Vec<Import>,
    #[serde(default)]
    pub cwd: String,
    /// How many variables there are beyond those listed.
    #[serde(default)]
    pub truncated: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Variable {
    pub name: String,
    #[serde(rename = "type")]
    pub type_name: String,
    /// Bytes for data and objects, characters or elements for a shell; absent where it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Of arrays and tables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
    /// Of arrays and tables, whose columns may have different ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    pub preview: String,
    /// The value was moved to disk, and comes back when code runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_disk: bool,
}

/// An imported module and its variable: `import pandas as pd` has the name `pd`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    pub name: String,
    pub module: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// The sizes from which on values are moved to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpillAsk {
    /// Bytes of a table or a column, and of an array.
    pub frame_bytes: u64,
    pub array_bytes: u64,
}

/// The result of a spill, as the kernel reports it: bounded in number and length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpillReport {
    pub spilled: Vec<SpilledValue>,
    /// Large values that stayed in memory.
    #[serde(default)]
    pub stayed: Vec<StayedValue>,
    /// Bytes of values that are on disk now.
    #[serde(default)]
    pub bytes: u64,
    /// The kernel got another request meanwhile, so nothing was moved.
    #[serde(default)]
    pub disturbed: bool,
    /// There was no room for some of it.
    #[serde(default)]
    pub full: bool,
    /// Why nothing was moved, if the reason is not about single values.
    #[serde(default)]
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpilledValue {
    pub name: String,
    #[serde(rename = "type")]
    pub type_name: String,
    pub bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StayedValue {
    pub name: String,
    pub reason: String,
}

/// Why the guest refused or failed a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Refusal {
    pub code: RefusalCode,
    pub message: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalCode {
    /// The nonce or the protocol version does not fit.
    NotWelcome,
    /// There is no live kernel for this language: start one and ask again.
    NoKernel,
    /// The interpreter of the kernel does not exist.
    NoInterpreter,
    /// The kernel runs something else.
    Busy,
    UnknownExec,
    UnknownTerminal,
    UnknownJob,
    /// It needs a descriptor, which this connection cannot carry.
    NoDescriptors,
    /// The limit on their number is reached.
    TooMany,
    /// The exec id was used already.
    DuplicateExec,
    NotFound,
    /// Not a plain file, or a link on the way to it.
    NotAFile,
    /// Something on the way to it is no directory: a file, or a link.
    NotADirectory,
    /// A directory is at the path of a file.
    IsADirectory,
    NotEmpty,
    /// Something else has the name.
    Exists,
    /// The file system has no room, or no room for this user.
    NoSpace,
    /// Permissions or a read-only file system forbid it.
    NotPermitted,
    Invalid,
    Failed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeLimits {
    pub files: u64,
    pub depth: u32,
}

/// What was found below a directory. Names are bytes: a sandbox may choose any.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    pub files: Vec<TreeFile>,
    /// Entries that are not plain files, or lie beyond a limit, each with the reason.
    pub skipped: Vec<Skipped>,
    /// How many more were skipped than the list names.
    pub skipped_more: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeFile {
    /// Relative to the root, components joined by `/`.
    #[serde(with = "path_bytes")]
    pub path: Vec<u8>,
    pub size: u64,
    /// With the size, these distinguish one state of a file from another. The times are those of the last
    /// change of the inode and of the content, in nanoseconds. Old guests send 0.
    #[serde(default)]
    pub inode: u64,
    #[serde(default)]
    pub changed_ns: i64,
    #[serde(default)]
    pub modified_ns: i64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    #[serde(with = "path_bytes")]
    pub path: Vec<u8>,
    pub reason: String,
}

/// Something in the file system of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    /// As in the request, or relative to the directory that was listed.
    #[serde(with = "path_bytes")]
    pub path: Vec<u8>,
    pub kind: EntryKind,
    pub size: u64,
    /// Permissions.
    pub mode: u32,
    pub modified_ns: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    File,
    Directory,
    Link,
    Other,
}

/// A change of a file or a directory that is watched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileChange {
    pub change: ChangeKind,
    /// Below the directory that is watched.
    #[serde(with = "path_bytes")]
    pub path: Vec<u8>,
    pub directory: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChangeKind {
    /// It was created, or moved here.
    Created,
    /// A writer has closed it, or its permissions changed.
    Modified,
    /// It was removed, or moved elsewhere.
    Removed,
    /// There were more changes than could be reported: list the directory again.
    Lost,
    /// The directory itself is gone; nothing follows.
    Gone,
}

/// What a directory holds, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub entries: Vec<FileEntry>,
    /// How many more there are at least. Files below unlisted directories are not counted.
    pub more: u64,
}

/// A deliberate attempt to exceed a limit, made by a child of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "probe", rename_all = "snake_case")]
pub enum Probe {
    /// Touch this much memory.
    Memory { bytes: u64 },
    /// Start this many processes.
    Processes { count: u32 },
    /// Use processor time with two processes for this long.
    Cpu { wall_ms: u64 },
    /// Look for a network interface that is up, other than loopback, and try to reach the internet.
    Network,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "probed", rename_all = "snake_case")]
pub enum ProbeReport {
    /// The child was killed (the limit works) or touched everything (it does not).
    Memory {
        killed: bool,
    },
    /// How many processes could be started.
    Processes {
        started: u32,
    },
    Cpu {
        used_ms: u64,
        wall_ms: u64,
    },
    Network {
        interfaces: Vec<String>,
        reached_out: bool,
    },
}

/// Paths are bytes on Linux and text in JSON: bytes that are not printable ASCII, and `%`, travel
/// as `%XX`.
mod path_bytes {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(
        bytes: &Vec<u8>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        use std::fmt::Write as _;
        let mut text = String::with_capacity(bytes.len());
        for &byte in bytes {
            if (0x20..0x7f).contains(&byte) && byte != b'%' {
                text.push(byte as char);
            } else {
                write!(text, "%{byte:02X}").expect("writing to a string succeeds");
            }
        }
        serializer.serialize_str(&text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<u8>, D::Error> {
        let text = String::deserialize(deserializer)?;
        let mut bytes = Vec::with_capacity(text.len());
        let mut rest = text.as_bytes();
        while let Some((&byte, after)) = rest.split_first() {
            rest = after;
            if byte != b'%' {
                bytes.push(byte);
                continue;
            }
            let decoded = rest
                .split_at_checked(2)
                .and_then(|(hex, after)| {
                    rest = after;
                    u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()
                })
                .ok_or_else(|| D::Error::custom("stray % in a path"))?;
            bytes.push(decoded);
        }
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_file_name_survives_the_wire(path in prop::collection::vec(any::<u8>(), 0..60)) {
            let file = TreeFile { path, size: 7, inode: 1, changed_ns: 2, modified_ns: -3 };
            let text = serde_json::to_string(&file).unwrap();
            prop_assert_eq!(serde_json::from_str::<TreeFile>(&text).unwrap(), file);
        }
    }
}
