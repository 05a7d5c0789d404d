//! One connection from the host: reads requests, routes each to its handler and sends the replies.
//!
//! Handlers that need a kernel, an execution or a terminal are in the submodules; those of files, jobs,
//! watches and the relay are functions of the modules that own them.

mod execs;
mod kernels;
mod probes;
mod terminals;

use std::io;
use std::pin::Pin;
use std::rc::Rc;

use belljar_proto::frame::Decoder;
use belljar_proto::guest::{Answer, Call, Refusal, RefusalCode, Request};
use belljar_proto::{OLDEST_PROTOCOL, PROTOCOL};
use belljar_sys::process;
use tokio::io::AsyncReadExt;
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;

use crate::Guest;
use crate::file_table::FileTable;
use crate::host_presence::MAX_CONNECTIONS;
use crate::outbox::{FdProxy, Outbox};
use crate::reply::{Reply, failed, refuse};
use crate::{files, host_writer, jobs, quiescence, watching};

/// What a connection can carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Carries {
    /// Descriptors beside the bytes.
    Fds,
    BytesOnly,
}

/// Serves a host that must first prove that it knows the nonce.
pub(crate) async fn serve(guest: Rc<Guest>, stream: UnixStream, carries: Carries) {
    converse(guest, stream, carries, false).await;
}

async fn converse(guest: Rc<Guest>, stream: UnixStream, carries: Carries, is_trusted: bool) {
    let _present = guest.presence.join();
    let (reader, writer) = stream.into_split();
    let (sender, writing) = host_writer::start(writer);
    let fd_proxy = (carries == Carries::BytesOnly).then(|| FdProxy::new(Rc::clone(&guest.relay)));
    read(&guest, reader, &Outbox::new(sender.clone(), fd_proxy), is_trusted).await;
    guest.relay.leave(&sender);
    // Events of executions that this connection followed end with it; the spool keeps them.
    writing.abort();
}

async fn read(guest: &Rc<Guest>, mut reader: OwnedReadHalf, outbox: &Outbox, is_trusted: bool) {
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 8 * 1024];
    let mut is_trusted = is_trusted;
    loop {
        loop {
            let frame = match decoder.next_frame() {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                // After a broken frame no later one can be decoded.
                Err(_) => return,
            };
            let Ok(Request { id, call }) = frame.head::<Request>() else {
                return;
            };
            if !is_trusted && !matches!(call, Call::Hello { .. }) {
                return;
            }
            if let Call::Hello { protocol, nonce } = &call {
                is_trusted = *protocol >= OLDEST_PROTOCOL && guest.recognises(nonce);
            }
            let response = route(guest, call, frame.body, is_trusted, outbox);
            if !respond(outbox, id, response).await {
                return;
            }
        }
        match reader.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(n) => decoder.push(&buffer[..n]),
        }
    }
}

/// How a request is answered.
enum Response {
    Now(Result<Reply, Refusal>),
    /// By a task, so that other requests do not wait.
    Later(Pin<Box<dyn Future<Output = Result<Reply, Refusal>>>>),
    /// At once; the events that `follow` sends come after the reply.
    Followed {
        reply: Reply,
        follow: Box<dyn FnOnce(Outbox)>,
    },
    Nothing,
}

/// Sends the answer when it is known, without delaying other requests.
fn later(outcome: impl Future<Output = Result<Reply, Refusal>> + 'static) -> Response {
    Response::Later(Box::pin(outcome))
}

/// Sends a response; false when the connection is gone.
async fn respond(outbox: &Outbox, id: u64, response: Response) -> bool {
    match response {
        Response::Now(outcome) => outbox.reply(id, outcome).await,
        Response::Later(outcome) => {
            let outbox = outbox.clone();
            tokio::task::spawn_local(async move { outbox.reply(id, outcome.await).await });
            true
        }
        Response::Followed { reply, follow } => {
            let is_alive = outbox.reply(id, Ok(reply)).await;
            follow(outbox.clone());
            is_alive
        }
        Response::Nothing => true,
    }
}

/// The table of all requests: each calls one handler.
fn route(
    guest: &Rc<Guest>,
    call: Call,
    body: Vec<u8>,
    is_trusted: bool,
    outbox: &Outbox,
) -> Response {
    let owned = || Rc::clone(guest);
    let outcome = match call {
        Call::Hello { .. } => hello(guest, is_trusted),
        // A kernel's memory travels as descriptors. Without it the other calls are of no use.
        Call::Quiescence
        | Call::SnapshotSocket { .. }
        | Call::LoadKernel { .. }
        | Call::KeepFiles { .. }
        | Call::BringFiles { .. }
            if outbox.file_table().is_some() =>
        {
            Err(refuse(RefusalCode::NoDescriptors, "this connection cannot carry descriptors"))
        }
        Call::SpawnKernel { language, argv, env, cwd } => {
            kernels::spawn(guest, language, &argv, &env, &cwd)
        }
        Call::LoadKernel { language, argv } => kernels::load(guest, language, &argv),
        Call::ForkKernel { language, zygote, env, cwd } => {
            return later(kernels::fork(owned(), language, zygote, env, cwd));
        }
        Call::AwaitKernel { language } => return later(kernels::ready(owned(), language)),
        Call::KernelState { language } => return later(kernels::state(owned(), language)),
        Call::Spill { language, ask } => return later(kernels::spill(owned(), language, ask)),
        Call::SnapshotSocket { language } => {
            return later(kernels::snapshot_socket(owned(), language));
        }
        Call::LoseKernel { language, reason } => kernels::lose(guest, language, reason),
        Call::Exec(spec) => return execs::begin(guest, spec, body),
        Call::Join { exec_id, from, offset } => return execs::join(guest, &exec_id, from, offset),
        Call::Interrupt { exec_id } => execs::interrupt(guest, &exec_id),
        Call::Stdin { exec_id, close } => execs::feed(guest, &exec_id, &body, close),
        Call::Forget { exec_ids } => execs::forget(guest, &exec_ids),
        Call::ListTree { root, limits } => files::list_tree(&root, limits),
        Call::OpenFile { root, path } => files::open_file(&root, &path),
        Call::OpenFiles { root } => files::open_files(&root, &body),
        Call::RemoveFiles { root } => files::remove_files(&root, &body),
        Call::CreateFile { root, path, mode } => files::create_file(&root, &path, mode),
        Call::AppendFile { path, mode } => files::append_file(&path, mode),
        Call::CommitFile { root, path, temporary } => files::commit_file(&root, path, &temporary),
        Call::DiscardFile { root, path, temporary } => {
            files::discard_file(&root, &path, &temporary)
        }
        Call::Look { path } => files::look(path),
        Call::ListDirectory { path, recursive, limits, glob, without_hidden } => {
            files::list_directory(&path, recursive, limits, glob.as_deref(), !without_hidden)
        }
        Call::OpenPath { path } => files::open_path(&path),
        Call::MakeDirectory { path } => files::make_directory(&path),
        Call::RemovePath { path, recursive } => files::remove_path(&path, recursive),
        Call::MovePath { path, to } => files::move_path(&path, &to),
        Call::ReadTableFile { file, offset, length } => {
            file_table(outbox).and_then(|table| table.read(file, offset, length))
        }
        Call::WriteTableFile { file, offset } => {
            file_table(outbox).and_then(|table| table.write(file, offset, &body))
        }
        Call::CloseTableFiles { files } => file_table(outbox).map(|table| table.close(&files)),
        Call::CopyPath { job, path, to } => jobs::copy(guest, job, path, to),
        Call::Pack { job, path, format } => jobs::pack(guest, job, path, format),
        Call::Unpack { job, path, format, archive } => {
            jobs::unpack(guest, job, path, format, archive)
        }
        Call::KeepFiles { job, directories } => jobs::keep(guest, job, &directories),
        Call::BringFiles { job } => jobs::bring(guest, job),
        Call::FinishJob { job } => return later(jobs::finish(owned(), job)),
        Call::Quiescence => quiescence::report(guest),
        Call::WatchFiles { path, recursive } => {
            watching::start(guest, &path, recursive, outbox.clone())
        }
        Call::OpenTerminal(spec) => crate::terminal::open(guest, &spec),
        Call::ListTerminals => guest.terminals.list(),
        Call::AttachTerminal { terminal, from } => {
            return terminals::attach(guest, &terminal, from);
        }
        Call::TerminalInput { terminal } => return terminals::write(guest, &terminal, body),
        Call::ResizeTerminal { terminal, size } => terminals::resize(guest, &terminal, size),
        Call::CloseTerminal { terminal } => return terminals::close(guest, &terminal),
        Call::Relay => guest.relay.attach(outbox.sender(), &body).map(|()| Answer::Done.into()),
        Call::Relayed { stream, part } => {
            guest.relay.receive(stream, part, &body);
            return Response::Nothing;
        }
        Call::Connect => connect(guest),
        Call::OutliveHost { alone_for_s } => {
            guest.presence.may_be_alone_for(alone_for_s);
            Ok(Answer::Done.into())
        }
        Call::Probe { probe } => probes::run(probe),
        Call::Shutdown => process::exit_now(0),
    };
    Response::Now(outcome)
}

fn hello(guest: &Guest, is_trusted: bool) -> Result<Reply, Refusal> {
    if !is_trusted {
        let message = format!(
            "this guest speaks protocols {OLDEST_PROTOCOL} to {PROTOCOL} and requires the nonce of its sandbox"
        );
        return Err(refuse(RefusalCode::NotWelcome, message));
    }
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Ok(Answer::Welcome { protocol: PROTOCOL, version, execs: guest.execs.known() }.into())
}

/// Opens another connection for a trusted host, and replies with the host's end.
fn connect(guest: &Rc<Guest>) -> Result<Reply, Refusal> {
    if guest.presence.connections() >= MAX_CONNECTIONS {
        let message = format!("there are {MAX_CONNECTIONS} connections already");
        return Err(refuse(RefusalCode::TooMany, message));
    }
    let cannot = |error: io::Error| failed(format!("failed to connect: {error}"));
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(cannot)?;
    ours.set_nonblocking(true).map_err(cannot)?;
    let stream = UnixStream::from_std(ours).map_err(cannot)?;
    tokio::task::spawn_local(converse(Rc::clone(guest), stream, Carries::Fds, true));
    Ok(Reply::with_fd(Answer::Connection, theirs))
}

fn file_table(outbox: &Outbox) -> Result<&FileTable, Refusal> {
    let none = "no files are open on this connection: it carries descriptors";
    outbox.file_table().ok_or_else(|| refuse(RefusalCode::Invalid, none))
}
