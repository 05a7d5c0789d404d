//! The spawner: a small, single-threaded process that makes sandboxes.
//!
//! The server starts it before its async runtime, with an empty environment. It moves into a user namespace in which it is
//! root, and outside of which it has no rights: it can only make namespaces below its own. Sandboxes are clones of it, so
//! what is not in its memory cannot leak into them.
//!
//! ```text
//!  server (host ids)            spawner (outer user namespace)      sandbox (inner)
//!    start ───────────────────▶ unshare user + mount
//!    write id maps ◀── Unshared ──┘
//!    Enter ───────────────────▶ become root there, exec again, leave the host's files, stage on /sys
//!    Stage(steps) ────────────▶ assemble the image's root once
//!    Sandbox(plan) + fds ─────▶ clone3 ───────────────────────────▶ wait for id maps
//!                               write id maps ────────────────────▶ steps, then guest
//!    pid, pidfd, status ◀────── Started                             status pipe closes
//! ```
//!
//! When the server goes away its socket closes and the spawner ends. The sandboxes go on.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_sys::plan::{Access, FdIndex, IdMap, Plan, Source, Step};
use belljar_sys::process::{self, Forked};
use belljar_sys::{apply, channel, privileges, seccomp};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;

use crate::RuntimeError;

/// The directory in the spawner's mount namespace with what sandboxes are made from. Every Linux has a `/sys`, no sandbox
/// has one, and no data is kept below it.
pub const STAGE: &str = "/sys";

/// A message of the server.
#[derive(Debug, Serialize, Deserialize)]
enum SpawnerRequest {
    /// With `leave_host`, the spawner has no files of the host from then on: what a sandbox is to see comes as an open tree.
    /// Without root the spawner opens it by its path.
    Enter {
        leave_host: bool,
    },
    Stage {
        steps: Vec<Step>,
    },
    Sandbox(SandboxOrder),
    /// A child in new namespaces that does nothing until the first descriptor is closed.
    Idle {
        plan: Plan,
    },
}

#[derive(Debug, Serialize, Deserialize)]
pub struct SandboxOrder {
    pub plan: Plan,
    pub listener: FdIndex,
    pub oom_events: Option<FdIndex>,
    /// The guest keeps these locks, of its block of ids and of its image, as long as it lives.
    pub id_lock: Option<FdIndex>,
    pub image_lock: Option<FdIndex>,
    pub nonce: String,
    pub alone_for_s: u64,
}

/// A message of the spawner.
#[derive(Debug, Serialize, Deserialize)]
enum SpawnerReply {
    Unshared,
    Done,
    /// With a pidfd and the read end of the child's status pipe.
    Started {
        pid: u32,
    },
    Failed {
        message: String,
    },
}

/// What a new guest gets; the binary knows how to become one.
#[derive(Debug)]
pub struct GuestStart {
    pub listener: UnixListener,
    pub nonce: String,
    pub oom_events: Option<std::fs::File>,
    pub alone_for_s: u64,
}

/// The flag with which a spawner logs in JSON.
const JSON_LOGS: &str = "--json-logs";

static IN_JSON: AtomicBool = AtomicBool::new(false);

/// From now on spawners log in JSON, as this process does.
pub fn log_in_json() {
    IN_JSON.store(true, Ordering::Relaxed);
}

fn logging_flag() -> Option<&'static str> {
    IN_JSON.load(Ordering::Relaxed).then_some(JSON_LOGS)
}

/// The server's handle of its spawner.
#[derive(Debug)]
pub struct Spawner {
    process: Child,
    socket: OwnedFd,
}

impl Spawner {
    /// Starts the spawner: `belljar spawner`, with one end of a socket as standard input.
    pub fn start(executable: &Path, map: IdMap, leave_host: bool) -> Result<Spawner, RuntimeError> {
        let (ours, theirs) = channel::packet_pair().map_err(RuntimeError::StartSpawner)?;
        let process = Command::new(executable)
            .arg("spawner")
            .args(logging_flag())
            .env_clear()
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(RuntimeError::StartSpawner)?;
        let spawner = Spawner { process, socket: ours };
        // Sandboxes inherit this setting. Without the right to set it, they work too.
        let _ = process::prefer_as_oom_victim(spawner.process.id());
        match spawner.receive()? {
            (SpawnerReply::Unshared, _) => {}
            (SpawnerReply::Failed { message }, _) => return Err(RuntimeError::Build(message)),
            _ => return Err(RuntimeError::UnexpectedAnswer),
        }
        apply::map_ids(spawner.process.id(), map).map_err(RuntimeError::MapIds)?;
        spawner
            .send(&SpawnerRequest::Enter { leave_host }, &[])
            .map_err(RuntimeError::SpawnerGone)?;
        expect_done(spawner.receive()?)?;
        Ok(spawner)
    }

    /// Carries out steps in the spawner's own mount namespace, below [`STAGE`].
    pub fn stage(&self, steps: Vec<Step>, fds: &[BorrowedFd<'_>]) -> Result<(), RuntimeError> {
        self.send(&SpawnerRequest::Stage { steps }, fds).map_err(RuntimeError::SpawnerGone)?;
        expect_done(self.receive()?)
    }

    /// Continues inside an async runtime.
    pub fn into_async(self, generation: u64) -> Result<AsyncSpawner, RuntimeError> {
        let socket = channel::nonblocking(self.socket).map_err(RuntimeError::SpawnerGone)?;
        let conversation = tokio::sync::Mutex::new(Conversation { socket, owed: 0 });
        Ok(AsyncSpawner { process: self.process, generation, conversation })
    }

    fn send(&self, request: &SpawnerRequest, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        channel::send_packet(&self.socket, &to_bytes(request), fds)
    }

    fn receive(&self) -> Result<(SpawnerReply, Vec<OwnedFd>), RuntimeError> {
        parse(channel::recv_packet(&self.socket))
    }
}

/// A process that the spawner started; killed when dropped, unless it is kept.
#[derive(Debug)]
pub struct Spawned {
    pub pid: u32,
    pidfd: Option<OwnedFd>,
    /// Closed when the plan was carried out; otherwise has the reason.
    status: Option<OwnedFd>,
}

impl Spawned {
    /// Waits until the plan was carried out.
    pub async fn settled(&mut self) -> Result<(), RuntimeError> {
        let Some(status) = self.status.take() else { return Ok(()) };
        let mut pipe = pipe::Receiver::from_owned_fd(status).map_err(RuntimeError::SpawnerGone)?;
        let mut message = String::new();
        pipe.read_to_string(&mut message).await.map_err(RuntimeError::SpawnerGone)?;
        if message.is_empty() { Ok(()) } else { Err(RuntimeError::Build(message)) }
    }

    /// Keeps the process alive, and returns its pidfd.
    #[must_use]
    pub fn keep(mut self) -> OwnedFd {
        self.pidfd.take().expect("taken only here, which consumes it")
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        if let Some(pidfd) = &self.pidfd {
            let _ = process::kill_by_pidfd(pidfd);
        }
    }
}

#[derive(Debug)]
pub struct AsyncSpawner {
    process: Child,
    /// How many spawners there were before. Images must be assembled again in each.
    generation: u64,
    conversation: tokio::sync::Mutex<Conversation>,
}

/// One request at a time: the spawner answers each before it reads the next.
#[derive(Debug)]
struct Conversation {
    socket: AsyncFd<OwnedFd>,
    /// Replies to requests whose caller was cancelled.
    owed: u64,
}

impl Conversation {
    /// May be cancelled at any point: the next request kills what was started for a cancelled one.
    async fn start(
        &mut self,
        bytes: &[u8],
        fds: &[BorrowedFd<'_>],
    ) -> Result<Spawned, RuntimeError> {
        self.send(bytes, fds).await?;
        self.answer().await
    }

    /// Like `start`, for a request that starts nothing.
    async fn stage(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), RuntimeError> {
        self.send(bytes, fds).await?;
        expect_done(self.reply().await?)
    }

    async fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), RuntimeError> {
        while self.owed > 0 {
            if let Err(gone @ RuntimeError::SpawnerGone(_)) = self.answer().await {
                return Err(gone);
            }
        }
        channel::send_packet_async(&self.socket, bytes, fds)
            .await
            .map_err(RuntimeError::SpawnerGone)?;
        self.owed += 1;
        Ok(())
    }

    async fn reply(&mut self) -> Result<(SpawnerReply, Vec<OwnedFd>), RuntimeError> {
        let packet = channel::recv_packet_async(&self.socket).await;
        if matches!(packet, Ok(Some(_))) {
            self.owed -= 1;
        }
        parse(packet)
    }

    async fn answer(&mut self) -> Result<Spawned, RuntimeError> {
        let (reply, fds) = self.reply().await?;
        match (reply, <[OwnedFd; 2]>::try_from(fds)) {
            (SpawnerReply::Started { pid }, Ok([pidfd, status])) => {
                Ok(Spawned { pid, pidfd: Some(pidfd), status: Some(status) })
            }
            (SpawnerReply::Failed { message }, _) => Err(RuntimeError::Build(message)),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }
}

impl AsyncSpawner {
    pub async fn sandbox(
        &self,
        order: SandboxOrder,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Spawned, RuntimeError> {
        self.start(&SpawnerRequest::Sandbox(order), fds).await
    }

    /// Starts a process that has the plan's namespaces and does nothing. It ends when the result is dropped, or with the
    /// server.
    pub async fn idle(&self, plan: Plan) -> Result<(Spawned, OwnedFd), RuntimeError> {
        let (theirs, ours) = io::pipe().map_err(RuntimeError::SpawnerGone)?;
        let spawned = self.start(&SpawnerRequest::Idle { plan }, &[theirs.as_fd()]).await?;
        Ok((spawned, ours.into()))
    }

    /// Carries out steps in the spawner's own mount namespace, below [`STAGE`].
    pub async fn stage(
        &self,
        steps: Vec<Step>,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(), RuntimeError> {
        let bytes = to_bytes(&SpawnerRequest::Stage { steps });
        self.conversation.lock().await.stage(&bytes, fds).await
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    async fn start(
        &self,
        request: &SpawnerRequest,
        fds: &[BorrowedFd<'_>],
    ) -> Result<Spawned, RuntimeError> {
        let bytes = to_bytes(request);
        self.conversation.lock().await.start(&bytes, fds).await
    }
}

impl Drop for AsyncSpawner {
    fn drop(&mut self) {
        // It would end when its socket closes. Waiting for it avoids a zombie.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn to_bytes<T: Serialize>(message: &T) -> Vec<u8> {
    serde_json::to_vec(message).expect("wire types serialize to JSON")
}

fn parse(
    packet: io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>>,
) -> Result<(SpawnerReply, Vec<OwnedFd>), RuntimeError> {
    let closed = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let (bytes, fds) =
        packet.and_then(|p| p.ok_or_else(closed)).map_err(RuntimeError::SpawnerGone)?;
    let reply = serde_json::from_slice(&bytes)
        .map_err(|error| RuntimeError::SpawnerGone(io::Error::other(error)))?;
    Ok((reply, fds))
}

fn expect_done((reply, _): (SpawnerReply, Vec<OwnedFd>)) -> Result<(), RuntimeError> {
    match reply {
        SpawnerReply::Done => Ok(()),
        SpawnerReply::Failed { message } => Err(RuntimeError::Image(message)),
        _ => Err(RuntimeError::UnexpectedAnswer),
    }
}

/// The first half of the spawner: moves into a user namespace and executes itself again.
///
/// The second execution matters: memory belongs to the user namespace in which its program was executed, and nothing of the
/// first program's memory is left in guests, which are clones of the spawner.
pub fn enter_user_namespace() -> io::Result<()> {
    let socket = process::take_stdin()?;
    process::leave_terminal();
    if let Err(error) = process::unshare_user_and_mounts() {
        let message = format!(
            "failed to make a user namespace: {error} (unprivileged user namespaces may be \
             disabled on this machine)"
        );
        return send_reply(&socket, &SpawnerReply::Failed { message }, &[]);
    }
    send_reply(&socket, &SpawnerReply::Unshared, &[])?;
    // Our ids are mapped when the first request arrives. It stays in the socket for the second half.
    channel::await_packet(&socket)?;
    privileges::set_ids(0, 0)?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    let mut argv = vec!["/proc/self/exe".to_owned(), "spawner".to_owned(), "--inside".to_owned()];
    // Pass on the flag for logs.
    argv.extend(std::env::args().filter(|arg| arg == JSON_LOGS));
    let stderr = io::stderr();
    let fds = [socket.as_fd(), null.as_fd(), stderr.as_fd()];
    let error = process::execute(&argv, &[], &fds);
    let message = format!(
        "failed to start again inside a user namespace: {error} (the belljar binary must be \
         readable and executable by all users)"
    );
    send_reply(&socket, &SpawnerReply::Failed { message }, &[])
}

/// The second half: makes sandboxes until the server disconnects. `become_guest` is called in each new sandbox, as its PID 1.
pub fn serve(become_guest: fn(GuestStart) -> io::Result<()>) -> io::Result<()> {
    let socket = process::take_stdin()?;
    process::reap_automatically()?;
    privileges::forbid_core_dumps()?;
    seccomp::Filter::sandbox().map_err(io::Error::other)?;
    while let Some((bytes, fds)) = channel::recv_packet(&socket)? {
        let request: SpawnerRequest = serde_json::from_slice(&bytes).map_err(io::Error::other)?;
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        match request {
            SpawnerRequest::Enter { leave_host } => answer(&socket, make_stage(leave_host))?,
            SpawnerRequest::Stage { steps } => answer(&socket, carry_out(&steps, &borrowed))?,
            SpawnerRequest::Sandbox(order) => {
                drop(borrowed);
                start(&socket, &order.plan.clone(), fds, |fds, status| {
                    guest_in_child(order, fds, status, become_guest)
                })?;
            }
            SpawnerRequest::Idle { plan } => {
                drop(borrowed);
                start(&socket, &plan, fds, |fds, status| {
                    *status = None;
                    let closed = fds.into_iter().next().ok_or("no pipe was given")?;
                    let _ = io::Read::read(&mut std::fs::File::from(closed), &mut [0]);
                    Ok(())
                })?;
            }
        }
    }
    Ok(())
}

fn make_stage(leave_host: bool) -> Result<(), String> {
    let stage = |sub: &str| PathBuf::from(format!("{STAGE}{sub}"));
    let directory = |path: PathBuf| Step::MakeDir { path, mode: 0o755, owner: None };
    let tmpfs = || Step::Tmpfs { target: stage(""), size: 4 << 20, inodes: 16_384, mode: 0o755 };
    let mut steps = vec![Step::PrivateMounts, tmpfs()];
    if leave_host {
        // The new root has only `/proc`, where the ids of children are mapped, `/dev/null`, which is their standard input,
        // and the stage.
        let show = |path: &str, access| Step::Bind {
            source: Source::Path(path.into()),
            target: stage(path),
            access,
        };
        let null = Step::MakeFile { path: stage("/dev/null"), contents: String::new() };
        let access = Access { write: true, ..Access::READ };
        steps.extend(["/proc", "/dev", STAGE].map(|path| directory(stage(path))));
        steps.extend([show("/proc", access), null, show("/dev/null", Access::DEVICE)]);
        steps.extend([Step::PivotRoot { root: stage("") }, Step::ChangeDir { path: "/".into() }]);
        steps.push(tmpfs());
    }
    steps.extend([directory(stage("/root")), directory(stage("/scratch"))]);
    steps.push(Step::MakeFile { path: stage("/empty"), contents: String::new() });
    carry_out(&steps, &[])
}

fn carry_out(steps: &[Step], fds: &[BorrowedFd<'_>]) -> Result<(), String> {
    apply::apply(steps, fds).map_err(|error| in_full(&error))
}

fn in_full(error: &apply::StepError) -> String {
    format!("{error}: {}", error.cause)
}

/// Clones a child that does `work` after its ids are mapped, and replies to the server.
///
/// `work` closes the status pipe on success; an error is written to it.
fn start(
    socket: &OwnedFd,
    plan: &Plan,
    fds: Vec<OwnedFd>,
    work: impl FnOnce(Vec<OwnedFd>, &mut Option<OwnedFd>) -> Result<(), String>,
) -> io::Result<()> {
    let (status_read, status_write) = io::pipe()?;
    // Above the descriptors that a program gets as 0, 1, 2, ...
    let status_write = process::move_up(status_write.into())?;
    let (go_read, go_write) = io::pipe()?;
    match process::clone_process(&plan.namespaces) {
        Ok(Forked::Child) => {
            drop((status_read, go_write));
            let mut keep = fds;
            keep.push(status_write);
            let outcome = wait_for_go(go_read).and_then(|()| process::detach_from_parent(keep));
            if let Ok(mut fds) = outcome {
                let mut status = fds.pop();
                if let (Err(message), Some(status)) = (work(fds, &mut status), status) {
                    let mut status = std::fs::File::from(status);
                    let _ = io::Write::write_all(&mut status, message.as_bytes());
                }
            }
            process::exit_now(1);
        }
        Ok(Forked::Parent(started)) => {
            drop((status_write, go_read));
            if let Some(map) = plan.ids
                && let Err(error) = apply::map_ids(started.pid, map)
            {
                let message = format!("failed to map user ids: {error}");
                return send_reply(socket, &SpawnerReply::Failed { message }, &[]);
            }
            // If the child has died already, its status pipe and its pidfd show it.
            let _ = io::Write::write_all(&mut &go_write, b"!");
            let fds = [started.pidfd.as_fd(), status_read.as_fd()];
            send_reply(socket, &SpawnerReply::Started { pid: started.pid }, &fds)
        }
        Err(error) => {
            let message = format!("failed to clone: {error}");
            send_reply(socket, &SpawnerReply::Failed { message }, &[])
        }
    }
}

/// Waits until the ids are mapped. If the spawner dies before that, the child must not go on.
fn wait_for_go(go: io::PipeReader) -> io::Result<()> {
    let mut byte = [0];
    io::Read::read_exact(&mut &go, &mut byte)
}

fn guest_in_child(
    order: SandboxOrder,
    fds: Vec<OwnedFd>,
    status: &mut Option<OwnedFd>,
    become_guest: fn(GuestStart) -> io::Result<()>,
) -> Result<(), String> {
    {
        let borrowed: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        carry_out(&order.plan.steps, &borrowed)?;
    }
    let mut fds: Vec<Option<OwnedFd>> = fds.into_iter().map(Some).collect();
    let mut take = |FdIndex(n): FdIndex| fds.get_mut(n).and_then(Option::take);
    let listener = take(order.listener).ok_or("no listener was given")?;
    let start = GuestStart {
        listener: listener.into(),
        nonce: order.nonce,
        oom_events: order.oom_events.and_then(&mut take).map(Into::into),
        alone_for_s: order.alone_for_s,
    };
    // Kept open as long as the guest lives: they lock its block of ids and its image.
    let _id_lock = order.id_lock.and_then(&mut take);
    let _image_lock = order.image_lock.and_then(&mut take);
    drop(fds);
    *status = None;
    become_guest(start).map_err(|error| error.to_string())
}

fn answer(socket: &OwnedFd, outcome: Result<(), String>) -> io::Result<()> {
    let message = match outcome {
        Ok(()) => SpawnerReply::Done,
        Err(message) => SpawnerReply::Failed { message },
    };
    send_reply(socket, &message, &[])
}

fn send_reply(socket: &OwnedFd, reply: &SpawnerReply, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    channel::send_packet(socket, &to_bytes(reply), fds)
}
