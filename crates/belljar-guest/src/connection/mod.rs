//! One connection from the host: requests in, replies and events out.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::exec::{ExecSpec, Language, What};
use belljar_proto::frame::{self, Decoder, Frame};
use belljar_proto::guest::{
    Answer, Call, FromGuest, HeldFile, Probe, ProbeReport, Refusal, RefusalCode, ReplyOutcome,
    Request, SpillAsk,
};
use belljar_proto::{OLDEST_PROTOCOL, PROTOCOL};
use belljar_sys::{channel, probe, process};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, pipe};
use tokio::sync::mpsc;

use crate::Guest;
use crate::execs::{Exec, Place};
use crate::file_table::FileTable;
use crate::files;
use crate::input::{MAX_WAITING, NotFed};
use crate::jobs;
use crate::kernel::Kernel;
use crate::relay::Relay;
use crate::terminal;
use crate::transport::MAX_CONNECTIONS;
use crate::watching;
use crate::zygote;

/// Messages waiting to be written. Events are pulled from the spool, so a slow host fills this and
/// nothing else.
const OUTBOX: usize = 16;

/// Small frames are written together up to this size.
const MAX_WRITE: usize = 64 * 1024;

/// A frame on its way out, with descriptors for its first byte.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

pub(crate) type ToHost = mpsc::Sender<Outgoing>;

/// Where replies and events of a connection go.
#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    sender: ToHost,
    /// What is done with descriptors that the connection cannot carry.
    instead: Option<Instead>,
}

/// Files are kept here, to be read and written by number; pipes and sockets are carried.
#[derive(Debug, Clone)]
struct Instead {
    held: Rc<FileTable>,
    relay: Rc<Relay>,
}

impl Outbox {
    /// Resolves when nobody hears us any more.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// An answer, and what goes with it.
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Reply { answer, body: Vec::new(), fds: Vec::new() }
    }
}

/// What a connection can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carries {
    /// Descriptors beside the bytes.
    Fds,
    BytesOnly,
}

pub(crate) async fn serve(guest: Rc<Guest>, stream: UnixStream, carries: Carries) {
    let _present = guest.company.join();
    let (sender, to_write) = mpsc::channel(OUTBOX);
    let (reader, writer) = stream.into_split();
    let writing = tokio::task::spawn_local(write(writer, to_write));
    let instead = (carries == Carries::BytesOnly)
        .then(|| Instead { held: Rc::default(), relay: Rc::clone(&guest.relay) });
    read(&guest, reader, Outbox { sender: sender.clone(), instead }, false).await;
    guest.relay.leave(&sender);
    // Events of executions that this connection followed end with it; the spool keeps them.
    writing.abort();
}

/// Another connection for somebody who is known: the host's end of it.
fn connect(guest: &Rc<Guest>) -> Result<Reply, Refusal> {
    if guest.company.connections() >= MAX_CONNECTIONS {
        let message = format!("there are {MAX_CONNECTIONS} connections already");
        return Err(refuse(RefusalCode::TooMany, message));
    }
    let cannot = |error: io::Error| failed(format!("failed to connect: {error}"));
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(cannot)?;
    ours.set_nonblocking(true).map_err(cannot)?;
    let stream = UnixStream::from_std(ours).map_err(cannot)?;
    let guest = Rc::clone(guest);
    tokio::task::spawn_local(async move {
        let _present = guest.company.join();
        let (sender, to_write) = mpsc::channel(OUTBOX);
        let (reader, writer) = stream.into_split();
        let writing = tokio::task::spawn_local(write(writer, to_write));
        read(&guest, reader, Outbox { sender, instead: None }, true).await;
        writing.abort();
    });
    Ok(Reply { answer: Answer::Connection, body: Vec::new(), fds: vec![theirs.into()] })
}

async fn read(guest: &Rc<Guest>, mut reader: OwnedReadHalf, outbox: Outbox, known: bool) {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 8 * 1024];
    let mut welcome = known;
    loop {
        loop {
            let frame = match decoder.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                // Out of step: nothing that follows can be understood.
                Err(_) => return,
            };
            let Ok(Request { id, call }) = frame.head::<Request>() else {
                return;
            };
            if !welcome && !matches!(call, Call::Hello { .. }) {
                return;
            }
            if let Call::Hello { protocol, nonce } = &call {
                welcome = *protocol >= OLDEST_PROTOCOL && guest.recognises(nonce);
            }
            if !answer(guest, id, call, frame, welcome, &outbox).await {
                return;
            }
        }
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(n) => decoder.push(&buffer[..n]),
        }
    }
}

/// Deals with one request; false when the connection is of no further use.
async fn answer(
    guest: &Rc<Guest>,
    id: u64,
    call: Call,
    frame: Frame,
    welcome: bool,
    outbox: &Outbox,
) -> bool {
    let outcome: Result<Reply, Refusal> = match call {
        Call::Hello { .. } if !welcome => Err(refuse(
            RefusalCode::NotWelcome,
            format!(
                "this guest speaks protocol {OLDEST_PROTOCOL} to {PROTOCOL} and knows its host"
            ),
        )),
        Call::Hello { .. } => Ok(Answer::Welcome {
            protocol: PROTOCOL,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            execs: guest.execs.known(),
        }
        .into()),
        // A kernel's memory is files that are passed; without it there is no use for the rest.
        Call::Rest
        | Call::KernelLine { .. }
        | Call::LoadKernel { .. }
        | Call::KeepFiles { .. }
        | Call::BringFiles { .. }
            if outbox.instead.is_some() =>
        {
            let message = "this runtime has one connection, over which this cannot be done";
            Err(refuse(RefusalCode::NoDescriptors, message.into()))
        }
        Call::SpawnKernel { language, argv, env, cwd } => {
            Kernel::spawn(guest, language, &argv, &env, &cwd)
                .map(|()| Answer::Done.into())
                .map_err(|error| not_started(&argv, &error))
        }
        Call::LoadKernel { language, argv } => Kernel::load(guest, language, &argv)
            .map(|line| Reply { answer: Answer::Line, body: Vec::new(), fds: vec![line] })
            .map_err(|error| not_started(&argv, &error)),
        Call::ForkKernel { language, zygote, env, cwd } => {
            // Warming takes a while; other requests need not wait for it.
            let (guest, outbox) = (Rc::clone(guest), outbox.clone());
            tokio::task::spawn_local(async move {
                let forked = zygote::fork(&guest, language, &zygote, &env, &cwd).await;
                reply(&outbox, id, forked.map(|()| Answer::Done.into())).await;
            });
            return true;
        }
        Call::AwaitKernel { language } => {
            // Answered when it is known, without holding up other requests.
            let (guest, outbox) = (Rc::clone(guest), outbox.clone());
            tokio::task::spawn_local(async move {
                let outcome = await_kernel(&guest, language).await;
                reply(&outbox, id, outcome).await;
            });
            return true;
        }
        Call::Exec(spec) => match begin(guest, spec, frame.body) {
            Ok(exec) => {
                let alive = reply(outbox, id, Ok(Answer::Started.into())).await;
                follow(exec, Place::default(), outbox.clone());
                return alive;
            }
            Err(refusal) => Err(refusal),
        },
        Call::Join { exec_id, from, offset } => match guest.execs.get(&exec_id) {
            Some(exec) if exec.is_over_before(from) => Err(refuse(
                RefusalCode::Invalid,
                format!("execution {exec_id} ended before event {from}"),
            )),
            Some(exec) => {
                let alive = reply(outbox, id, Ok(Answer::Started.into())).await;
                follow(exec, Place { entry: from, offset }, outbox.clone());
                return alive;
            }
            None => Err(unknown(&exec_id)),
        },
        Call::Interrupt { exec_id } => match guest.execs.get(&exec_id) {
            Some(exec) => {
                exec.interrupt.send_replace(true);
                Ok(Answer::Done.into())
            }
            None => Err(unknown(&exec_id)),
        },
        Call::Stdin { exec_id, close } => feed(guest, &exec_id, &frame.body, close),
        Call::KernelState { language } => {
            // Answered when it is known, as above.
            let (guest, outbox) = (Rc::clone(guest), outbox.clone());
            tokio::task::spawn_local(async move {
                let outcome = kernel_state(&guest, language).await;
                reply(&outbox, id, outcome).await;
            });
            return true;
        }
        Call::Spill { language, ask } => {
            // Answered when it is known, as above.
            let (guest, outbox) = (Rc::clone(guest), outbox.clone());
            tokio::task::spawn_local(async move {
                let outcome = spill(&guest, language, ask).await;
                reply(&outbox, id, outcome).await;
            });
            return true;
        }
        Call::KernelLine { language } => {
            // Answered when the kernel is ready, as above.
            let (guest, outbox) = (Rc::clone(guest), outbox.clone());
            tokio::task::spawn_local(async move {
                let outcome = kernel_line(&guest, language).await;
                reply(&outbox, id, outcome).await;
            });
            return true;
        }
        Call::OutliveHost { alone_for_s } => {
            guest.company.may_be_alone_for(alone_for_s);
            Ok(Answer::Done.into())
        }
        Call::Forget { exec_ids } => {
            exec_ids.iter().for_each(|exec_id| guest.execs.forget(exec_id));
            Ok(Answer::Done.into())
        }
        Call::ListTree { root, limits } => files::list_tree(&root, limits),
        Call::OpenFile { root, path } => files::open_file(&root, &path),
        Call::OpenFiles { root } => files::open_files(&root, &frame.body),
        Call::RemoveFiles { root } => files::remove_files(&root, &frame.body),
        Call::CreateFile { root, path, mode } => files::create_file(&root, &path, mode),
        Call::AppendFile { path, mode } => files::append_file(&path, mode),
        Call::Look { path } => files::look(path),
        Call::ListDirectory { path, recursive, limits, glob, without_hidden } => {
            files::list_directory(&path, recursive, limits, glob.as_deref(), !without_hidden)
        }
        Call::CopyPath { job, path, to } => jobs::copy(guest, job, path, to),
        Call::Pack { job, path, format } => jobs::pack(guest, job, path, format),
        Call::Unpack { job, path, format, archive } => {
            jobs::unpack(guest, job, path, format, archive)
        }
        Call::Rest => crate::quiescence::report(guest),
        Call::KeepFiles { job, places } => jobs::keep(guest, job, &places),
        Call::BringFiles { job } => jobs::bring(guest, job),
        Call::LoseKernel { language, reason } => {
            guest.lost_kernel.borrow_mut().insert(language.kernel(), reason);
            Ok(Answer::Done.into())
        }
        Call::FinishJob { job } => {
            // Answered when it has ended, without holding up other requests.
            let (guest, outbox) = (Rc::clone(guest), outbox.clone());
            tokio::task::spawn_local(async move {
                let outcome = jobs::finish(&guest, &job).await;
                reply(&outbox, id, outcome).await;
            });
            return true;
        }
        Call::OpenPath { path } => files::open_path(&path),
        Call::MakeDirectory { path } => files::make_directory(&path),
        Call::RemovePath { path, recursive } => files::remove_path(&path, recursive),
        Call::MovePath { path, to } => files::move_path(&path, &to),
        Call::CommitFile { root, path, temporary } => files::commit_file(&root, path, &temporary),
        Call::DiscardFile { root, path, temporary } => {
            files::discard_file(&root, &path, &temporary)
        }
        Call::ReadHeld { held, offset, length } => {
            in_table(outbox, |table| table.read(held, offset, length))
        }
        Call::WriteHeld { held, offset } => {
            in_table(outbox, |table| table.write(held, offset, &frame.body))
        }
        Call::DropHeld { held } => in_table(outbox, |table| Ok(table.release(&held))),
        Call::Relay => {
            guest.relay.attach(&outbox.sender, &frame.body).map(|()| Answer::Done.into())
        }
        Call::Relayed { stream, part } => {
            guest.relay.hear(stream, part, &frame.body);
            return true;
        }
        Call::Connect => connect(guest),
        Call::WatchFiles { path, recursive } => {
            watching::start(guest, &path, recursive, outbox.clone())
        }
        Call::OpenTerminal(spec) => terminal::open(guest, &spec),
        Call::ListTerminals => guest.terminals.list(),
        Call::AttachTerminal { terminal, from } => match guest.terminals.get(&terminal) {
            Ok(terminal) => {
                let alive = reply(outbox, id, Ok(Answer::Terminal(terminal.info()).into())).await;
                terminal::follow(terminal, from, outbox.clone());
                return alive;
            }
            Err(refusal) => Err(refusal),
        },
        Call::TerminalInput { terminal } => match guest.terminals.get(&terminal) {
            Ok(terminal) => {
                let outbox = outbox.clone();
                tokio::task::spawn_local(async move {
                    let outcome = terminal.type_in(&frame.body).await;
                    reply(&outbox, id, outcome).await;
                });
                return true;
            }
            Err(refusal) => Err(refusal),
        },
        Call::ResizeTerminal { terminal, size } => {
            guest.terminals.get(&terminal).and_then(|terminal| terminal.resize(size))
        }
        Call::CloseTerminal { terminal } => match guest.terminals.get(&terminal) {
            Ok(terminal) => {
                let (guest, outbox) = (Rc::clone(guest), outbox.clone());
                tokio::task::spawn_local(async move {
                    let outcome = terminal.close(&guest).await;
                    reply(&outbox, id, outcome).await;
                });
                return true;
            }
            Err(refusal) => Err(refusal),
        },
        Call::Probe { probe } => run_probe(probe),
        Call::Shutdown => process::exit_now(0),
    };
    reply(outbox, id, outcome).await
}

fn in_table(
    outbox: &Outbox,
    ask: impl FnOnce(&FileTable) -> Result<Reply, Refusal>,
) -> Result<Reply, Refusal> {
    let nothing = || refuse(RefusalCode::Invalid, "nothing is held on this connection".into());
    ask(&outbox.instead.as_ref().ok_or_else(nothing)?.held)
}

async fn await_kernel(guest: &Guest, language: Language) -> Result<Reply, Refusal> {
    let kernel = live_kernel(guest, language)?;
    let language_version = kernel
        .ready()
        .await
        .map_err(|why| refuse(RefusalCode::NoKernel, format!("the kernel {why}")))?;
    Ok(Answer::KernelReady { language_version }.into())
}

async fn kernel_state(guest: &Guest, language: Language) -> Result<Reply, Refusal> {
    let body = live_kernel(guest, language)?.state().await?;
    Ok(Reply { answer: Answer::State, body, fds: Vec::new() })
}

async fn spill(guest: &Guest, language: Language, ask: SpillAsk) -> Result<Reply, Refusal> {
    let body = live_kernel(guest, language)?.spill(ask).await?;
    Ok(Reply { answer: Answer::Spilled, body, fds: Vec::new() })
}

async fn kernel_line(guest: &Guest, language: Language) -> Result<Reply, Refusal> {
    let line = live_kernel(guest, language)?.line(guest).await?;
    Ok(Reply { answer: Answer::Line, body: Vec::new(), fds: vec![line] })
}

fn begin(guest: &Rc<Guest>, spec: ExecSpec, body: Vec<u8>) -> Result<Rc<Exec>, Refusal> {
    match spec.what.clone() {
        What::Cell { language, echo } => begin_cell(guest, spec, language, echo, &body),
        What::Command { argv, cwd } => {
            let exec = guest.execs.begin(&spec).ok_or_else(|| duplicate(&spec))?;
            match crate::command::start(guest, &spec, &argv, &cwd, body, &exec) {
                Ok(()) => Ok(exec),
                Err(error) => {
                    guest.execs.discard(&spec.exec_id);
                    let program = argv.first().map_or("", String::as_str);
                    Err(failed(format!("failed to start `{program}` in `{cwd}`: {error}")))
                }
            }
        }
    }
}

fn begin_cell(
    guest: &Rc<Guest>,
    spec: ExecSpec,
    language: Language,
    echo: bool,
    code: &[u8],
) -> Result<Rc<Exec>, Refusal> {
    let kernel = live_kernel(guest, language)?;
    kernel.occupy()?;
    let Some(exec) = guest.execs.begin(&spec) else {
        kernel.release();
        return Err(duplicate(&spec));
    };
    let exec_id = spec.exec_id.clone();
    match kernel.job(spec, echo, code) {
        Ok(job) => {
            let running = kernel.run_cell(Rc::clone(guest), job, Rc::clone(&exec));
            tokio::task::spawn_local(running);
            Ok(exec)
        }
        Err(refusal) => {
            guest.execs.discard(&exec_id);
            kernel.release();
            Err(refusal)
        }
    }
}

/// Why a kernel's program did not start; that it is not there is something else than a failure.
pub(crate) fn not_started(argv: &[String], error: &io::Error) -> Refusal {
    let program = argv.first().map_or("", String::as_str);
    if error.kind() == io::ErrorKind::NotFound {
        return refuse(
            RefusalCode::NoInterpreter,
            format!("there is no `{program}` in this image"),
        );
    }
    failed(format!("failed to start {}: {error}", argv.join(" ")))
}

fn live_kernel(guest: &Guest, language: Language) -> Result<Rc<Kernel>, Refusal> {
    let kernel = guest.kernels.borrow().get(&language.kernel()).cloned();
    kernel.ok_or_else(|| refuse(RefusalCode::NoKernel, "there is no live kernel".into()))
}

fn feed(guest: &Guest, exec_id: &str, bytes: &[u8], close: bool) -> Result<Reply, Refusal> {
    let exec = guest.execs.get(exec_id).ok_or_else(|| unknown(exec_id))?;
    let why = match exec.input.feed(bytes, close) {
        Ok(()) => return Ok(Answer::Done.into()),
        Err(why) => why,
    };
    let (code, message) = match why {
        NotFed::NotWanted => (RefusalCode::Invalid, "was not started with standard input".into()),
        NotFed::Closed => (RefusalCode::Invalid, "has had the end of its input already".into()),
        NotFed::Over => (RefusalCode::Invalid, "is over or has closed its input".into()),
        NotFed::TooLarge => {
            (RefusalCode::Invalid, format!("takes at most {MAX_WAITING} bytes at a time"))
        }
        NotFed::Full => {
            let message = format!("has {MAX_WAITING} bytes or nearly so which it has not read yet");
            (RefusalCode::Busy, message)
        }
    };
    Err(refuse(code, format!("execution {exec_id} {message}")))
}

/// Sends the events of an execution from `place` on, until its end or the connection's.
fn follow(exec: Rc<Exec>, mut place: Place, outbox: Outbox) {
    tokio::task::spawn_local(async move {
        while let Some((from, event, body)) = exec.next(&mut place).await {
            let head = FromGuest::Event {
                exec_id: exec.id.clone(),
                seq: from.entry,
                offset: from.offset,
                event,
            };
            if !send_frame(&outbox, &head, &body).await {
                return;
            }
        }
    });
}

/// Queues a message; false when the connection is gone.
pub(crate) async fn send_frame(outbox: &Outbox, head: &FromGuest, body: &[u8]) -> bool {
    let bytes = frame::encode(head, body);
    outbox.sender.send(Outgoing { bytes, fds: Vec::new() }).await.is_ok()
}

fn run_probe(probe: Probe) -> Result<Reply, Refusal> {
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let report = match probe {
        Probe::Memory { bytes } => {
            probe::memory(bytes).map(|killed| ProbeReport::Memory { killed })
        }
        Probe::Processes { count } => {
            probe::processes(count).map(|started| ProbeReport::Processes { started })
        }
        Probe::Cpu { wall_ms } => probe::cpu(Duration::from_millis(wall_ms))
            .map(|(used, wall)| ProbeReport::Cpu { used_ms: millis(used), wall_ms: millis(wall) }),
        Probe::Network => probe::network()
            .map(|(interfaces, reached_out)| ProbeReport::Network { interfaces, reached_out }),
    };
    report
        .map(|report| Answer::Probed(report).into())
        .map_err(|error| failed(format!("the probe itself failed: {error}")))
}

/// Queues a reply; false when the connection is gone.
async fn reply(outbox: &Outbox, id: u64, outcome: Result<Reply, Refusal>) -> bool {
    let (outcome, body, fds) = match outcome {
        Ok(reply) => (ReplyOutcome::Ok(reply.answer), reply.body, reply.fds),
        Err(refusal) => (ReplyOutcome::Err(refusal), Vec::new(), Vec::new()),
    };
    let message = match &outbox.instead {
        Some(instead) if !fds.is_empty() => match instead.of(&outcome, fds, &outbox.sender) {
            // Queued at once, and so before anything that is carried.
            Ok((held, carried)) => FromGuest::Reply { id, outcome, held, carried },
            Err(refusal) => refused(id, refusal),
        },
        _ => {
            let head = FromGuest::Reply { id, outcome, held: Vec::new(), carried: None };
            let bytes = frame::encode(&head, &body);
            return outbox.sender.send(Outgoing { bytes, fds }).await.is_ok();
        }
    };
    send_frame(outbox, &message, &body).await
}

fn refused(id: u64, refusal: Refusal) -> FromGuest {
    FromGuest::Reply { id, outcome: ReplyOutcome::Err(refusal), held: Vec::new(), carried: None }
}

impl Instead {
    /// What goes with a reply instead of its descriptors.
    fn of(
        &self,
        outcome: &ReplyOutcome,
        mut fds: Vec<OwnedFd>,
        sender: &ToHost,
    ) -> Result<(Vec<HeldFile>, Option<u64>), Refusal> {
        let streams = [ReplyOutcome::Ok(Answer::Stream), ReplyOutcome::Ok(Answer::Connection)];
        if !streams.contains(outcome) {
            return self.held.hold(fds).map(|held| (held, None));
        }
        let cannot = |error: io::Error| failed(format!("failed to carry a stream: {error}"));
        let fd = fds.pop().ok_or_else(|| failed("there is no stream to carry".into()))?;
        let carried = if *outcome == streams[1] {
            let stream = std::os::unix::net::UnixStream::from(fd);
            stream.set_nonblocking(true).map_err(cannot)?;
            let (reader, writer) = UnixStream::from_std(stream).map_err(cannot)?.into_split();
            self.relay.give(sender, reader, writer)
        } else if let Ok(reader) = pipe::Receiver::from_owned_fd(fd.try_clone().map_err(cannot)?) {
            self.relay.give(sender, reader, tokio::io::sink())
        } else {
            // Not for reading, so for writing.
            let writer = pipe::Sender::from_owned_fd(fd).map_err(cannot)?;
            self.relay.give(sender, tokio::io::empty(), writer)
        };
        carried.map(|number| (Vec::new(), Some(number)))
    }
}

async fn write(mut writer: tokio::net::unix::OwnedWriteHalf, mut outbox: mpsc::Receiver<Outgoing>) {
    while let Some(Outgoing { mut bytes, fds }) = outbox.recv().await {
        // What else is ready goes with it, up to the next one that carries descriptors.
        let mut next = None;
        while next.is_none() && bytes.len() < MAX_WRITE {
            match outbox.try_recv() {
                Ok(more) if more.fds.is_empty() => bytes.extend_from_slice(&more.bytes),
                Ok(other) => next = Some(other),
                Err(_) => break,
            }
        }
        if !send(&mut writer, &bytes, &fds).await {
            return;
        }
        if let Some(Outgoing { bytes, fds }) = next
            && !send(&mut writer, &bytes, &fds).await
        {
            return;
        }
    }
}

/// False when the host has gone.
async fn send(
    writer: &mut tokio::net::unix::OwnedWriteHalf,
    bytes: &[u8],
    fds: &[OwnedFd],
) -> bool {
    let mut rest = bytes;
    if !fds.is_empty() {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = writer
            .as_ref()
            .async_io(tokio::io::Interest::WRITABLE, || {
                channel::send_with_fds(writer.as_ref(), bytes, &borrowed)
            })
            .await;
        match sent {
            Ok(n) => rest = &bytes[n..],
            Err(_) => return false,
        }
    }
    writer.write_all(rest).await.is_ok()
}

pub(crate) fn refuse(code: RefusalCode, message: String) -> Refusal {
    Refusal { code, message }
}

pub(crate) fn failed(message: String) -> Refusal {
    refuse(RefusalCode::Failed, message)
}

fn duplicate(spec: &ExecSpec) -> Refusal {
    refuse(RefusalCode::DuplicateExec, format!("execution {} exists already", spec.exec_id))
}

fn unknown(exec_id: &str) -> Refusal {
    refuse(RefusalCode::UnknownExec, format!("there is no execution {exec_id}"))
}
