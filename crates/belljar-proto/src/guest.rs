//! Between the host and the guest, PID 1 of a sandbox.
//!
//! The host connects to a UNIX socket that it bound itself; it may connect several times and come
//! back after a crash. Every request has an id and gets exactly one reply with that id, but for
//! [`Call::Relayed`], which gets none. The events of an execution follow its `Started` reply on the connection that asked, numbered from zero; a
//! lost connection loses none of them, `Join` asks for the rest.
//!
//! The guest is not trusted: user code might have taken it over. The host bounds every frame,
//! checks every file descriptor and believes no path.

use serde::{Deserialize, Serialize};

use crate::exec::{Event, ExecSpec, Language};
use crate::job::{ArchiveFormat, JobReport};
use crate::relay::Part;
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
    /// and the host sends that memory over the line that this is answered with ([`Answer::Line`]). Only for guests of
    /// [`crate::PROTOCOL_WITH_LOADING`] and later.
    LoadKernel {
        language: Language,
        argv: Vec<String>,
    },
    /// Fork a kernel from an interpreter inside this sandbox, which is started and warmed first if
    /// it is not there. Only where no zygote outside can reach in.
    ForkKernel {
        language: Language,
        zygote: ZygoteOrder,
        env: Vec<(String, String)>,
        cwd: String,
    },
    /// Wait until the kernel that was prepared or spawned has said hello.
    AwaitKernel {
        language: Language,
    },
    /// Run something; the body is the code or the standard input.
    Exec(ExecSpec),
    /// Send the events of an execution again, from byte `offset` of number `from` on, and those
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
    /// Stop an execution. One that is over already stays as it is.
    Interrupt {
        exec_id: String,
    },
    /// The result is safe with the host: the guest may forget this execution.
    Forget {
        exec_ids: Vec<String>,
    },
    /// List what lies below a directory, without following links.
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
    /// Begin to write a file below `root`, with its directories. Answered with
    /// [`Answer::Created`]: it is written beside its final place, under another name.
    CreateFile {
        root: String,
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        /// Permissions; those of ordinary files, if nothing is said. Guests before
        /// [`crate::PROTOCOL_WITH_TERMINALS`] do not hear it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<u32>,
    },
    /// Put a file that was created in its place, also over another file. Answered with
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
    /// What stands at a path, links not followed; answered with [`Answer::Entry`].
    Look {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
    },
    /// What a directory holds; answered with [`Answer::Listing`].
    ListDirectory {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        recursive: bool,
        limits: TreeLimits,
        /// Only what matches this pattern, which may lie deeper. Guests before
        /// [`crate::PROTOCOL_WITH_TERMINALS`] do not hear it, nor the next.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        glob: Option<String>,
        /// Leave out what begins with a dot.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        without_hidden: bool,
    },
    /// Open a plain file so that what is written comes after what is there, and make it if there is
    /// none; answered with [`Answer::Appending`].
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
    /// Unpack an archive into a directory, which is made: one that is written to the pipe of
    /// [`Answer::Stream`], or, where the format must be read from its end, a file in that directory
    /// that [`Call::CreateFile`] made, answered with [`Answer::Started`].
    Unpack {
        job: String,
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        format: ArchiveFormat,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        archive: Option<String>,
    },
    /// What goes on besides what the host asked for; answered with [`Answer::Resting`]. This and the
    /// next three only for guests of [`crate::PROTOCOL_WITH_REST`] and later.
    Rest,
    /// Pack all files in those of [`crate::quiescence::PLACES`] that are named; answered with
    /// [`Answer::Stream`].
    KeepFiles {
        job: String,
        places: Vec<String>,
    },
    /// Unpack what [`Call::KeepFiles`] packed; answered with [`Answer::Stream`].
    BringFiles {
        job: String,
    },
    /// A kernel of this language could not be brought along: say so in the result of the next cell.
    LoseKernel {
        language: Language,
        reason: String,
    },
    /// What came of a job, which is then forgotten; [`Answer::Working`] if it takes longer than a
    /// call should.
    FinishJob {
        job: String,
    },
    /// Open a plain file as any program inside would; answered with its descriptor.
    OpenPath {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
    },
    /// Make a directory, and those above it.
    MakeDirectory {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
    },
    /// Remove a file, or a directory: an empty one, or with everything in it.
    RemovePath {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        recursive: bool,
    },
    /// Give something another name, over a file that has it.
    MovePath {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        #[serde(with = "path_bytes")]
        to: Vec<u8>,
    },
    /// Read from a file that a reply left with the guest ([`HeldFile`]): at most `length` bytes, in
    /// the body of [`Answer::Read`].
    ReadHeld {
        held: u64,
        offset: u64,
        length: u64,
    },
    /// Write the body to such a file.
    WriteHeld {
        held: u64,
        offset: u64,
    },
    /// Such files are not needed any more.
    DropHeld {
        held: Vec<u64>,
    },
    /// A connection more, welcome from the start, for what the guest tells by itself; answered with
    /// [`Answer::Connection`].
    Connect,
    /// Tell, on this connection, what changes in a directory; answered with [`Answer::Started`].
    WatchFiles {
        #[serde(with = "path_bytes")]
        path: Vec<u8>,
        recursive: bool,
    },
    /// Start a program on a terminal of its own; answered with [`Answer::Terminal`].
    OpenTerminal(TerminalSpec),
    /// Every terminal; answered with [`Answer::Terminals`].
    ListTerminals,
    /// Send what a terminal prints on this connection, from position `from` on, or all that is
    /// kept; answered with [`Answer::Terminal`].
    AttachTerminal {
        terminal: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
    },
    /// Type the body. Answered when all of it is typed: a program that does not read holds up
    /// whoever types, who must not send more before.
    TerminalInput {
        terminal: String,
    },
    ResizeTerminal {
        terminal: String,
        size: TerminalSize,
    },
    /// End everything that was started at a terminal, and forget it.
    CloseTerminal {
        terminal: String,
    },
    /// What the variables of a language's kernel are; answered with [`Answer::State`].
    KernelState {
        language: Language,
    },
    /// Have the kernel of a language move large values to disk, if it is idle; answered with
    /// [`Answer::Spilled`]. Only for guests of [`crate::PROTOCOL_WITH_SPILL`] and later.
    Spill {
        language: Language,
        #[serde(flatten)]
        ask: SpillAsk,
    },
    /// A line to the kernel of a language, if it is idle: packets, with descriptors beside them. Answered with
    /// [`Answer::Line`]. Only for guests of [`crate::PROTOCOL_WITH_PICTURES`] and later.
    KernelLine {
        language: Language,
    },
    /// From now on, go on for this long while nobody is connected; 0: end with the last
    /// connection.
    OutliveHost {
        alone_for_s: u64,
    },
    /// From now on, hand connections to [`crate::relay::PORT`] inside the sandbox to this
    /// connection, and no longer to another. The body is a bundle of certificates in PEM, which is
    /// put at [`crate::relay::CERTIFICATES`].
    Relay,
    /// Something of a relayed connection; the one call that is not answered.
    Relayed {
        stream: u64,
        #[serde(flatten)]
        part: Part,
    },
    /// Try to exceed a limit, from inside, on purpose.
    Probe {
        probe: Probe,
    },
    /// End everything in the sandbox.
    Shutdown,
}

/// What the guest tells the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "snake_case")]
pub enum FromGuest {
    Reply {
        id: u64,
        #[serde(flatten)]
        outcome: ReplyOutcome,
        /// Instead of descriptors, on a connection that can carry none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        held: Vec<HeldFile>,
        /// Instead of the descriptor of a pipe or a socket, on such a connection: what goes through
        /// it is carried as parts of this stream, both ways, until it ends.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        carried: Option<u64>,
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
    /// Something of a connection that is relayed since [`Call::Relay`], or carried for a reply.
    Relayed {
        stream: u64,
        #[serde(flatten)]
        part: Part,
    },
    /// Sent to whoever watches.
    Changed(FileChange),
    /// Sent to whoever is attached.
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
    /// A socket follows; what is said over it is between the host and the kernel ([`crate::snapshot`]).
    Line,
    /// The body is a JSON [`crate::quiescence::QuiescenceReport`].
    Resting,
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
        /// What lies in the artifact directory now, as in [`crate::exec::Outcome`].
        #[serde(default, skip_serializing_if = "Option::is_none")]
        artifacts: Option<u64>,
    },
    /// One descriptor follows, for writing; the name stands in the directory of the final one.
    Created {
        temporary: String,
    },
    Committed(TreeFile),
    Entry(Entry),
    /// The body is a JSON [`Listing`].
    Listing,
    /// The body is what was read; less than was asked for only at the end. Also when the file was
    /// written to last, as seen after that.
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

/// A file that the guest keeps open for the host, until the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldFile {
    pub held: u64,
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

/// Files held for one connection.
pub const MAX_HELD: usize = 256;

/// Bytes that one [`Call::ReadHeld`] or [`Call::WriteHeld`] carries.
pub const MAX_HELD_BYTES: u64 = 4 << 20;

/// What came of one file that was to be opened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Opening {
    Opened {
        size: u64,
        /// Somebody has it open for writing, or mapped. False also where that cannot be known.
        being_written: bool,
    },
    Refused(Refusal),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownExec {
    pub exec_id: String,
    pub running: bool,
}

/// The variables of a kernel, as the kernel itself tells: bounded in number and length.
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

/// A module that a variable stands for: `import pandas as pd` has the name `pd`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    pub name: String,
    pub module: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// What is large enough to be moved to disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpillAsk {
    /// Bytes of a table or a column, and of an array.
    pub frame_bytes: u64,
    pub array_bytes: u64,
}

/// What came of it, as the kernel tells: bounded in number and length.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpillReport {
    pub spilled: Vec<SpilledValue>,
    /// Large values that stayed in memory.
    #[serde(default)]
    pub stayed: Vec<StayedValue>,
    /// Bytes of values that are on disk now.
    #[serde(default)]
    pub bytes: u64,
    /// Somebody wanted something of the kernel, so everything stayed.
    #[serde(default)]
    pub disturbed: bool,
    /// There was no room for some of it.
    #[serde(default)]
    pub full: bool,
    /// Why nothing was moved, where that is not about single values.
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

/// Why the guest did not do what it was asked.
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
    /// The program that a kernel is made of is not there.
    NoInterpreter,
    /// The kernel runs something else.
    Busy,
    UnknownExec,
    UnknownTerminal,
    UnknownJob,
    /// It needs a descriptor, which this connection cannot carry.
    NoDescriptors,
    /// There are as many as there may be.
    TooMany,
    /// The exec id was used already.
    DuplicateExec,
    NotFound,
    /// Not a plain file, or a link on the way to it.
    NotAFile,
    /// Something on the way to it is no directory: a file, or a link.
    NotADirectory,
    /// A directory stands where a file should.
    IsADirectory,
    NotEmpty,
    /// Something else has the name.
    Exists,
    /// The file system has no room, or no room for this user.
    NoSpace,
    /// It may not be read or written, or nothing there may be.
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
    /// With the size these tell one state of a file from another. Times are those of the last
    /// change of anything and of the contents, in nanoseconds. Old guests do not tell: 0.
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
pub struct Entry {
    /// As it was asked for, or relative to the directory that was listed.
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

/// Something happened to a file or a directory that is watched.
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
    /// It is there now: made, or moved there.
    Created,
    /// Whoever wrote to it has closed it, or its permissions are others.
    Modified,
    /// It is not there any more: removed, or moved elsewhere.
    Removed,
    /// More has happened than could be told: look for yourself.
    Lost,
    /// The directory itself is gone; nothing follows.
    Gone,
}

/// What a directory holds, by name.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub entries: Vec<Entry>,
    /// How many more there are at least; what lies below them is not counted.
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
    /// Burn processor time on two threads of execution for this long.
    Cpu { wall_ms: u64 },
    /// Look for a network interface that is up, other than loopback, and try to leave.
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
