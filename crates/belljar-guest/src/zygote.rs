//! A zygote inside the sandbox, for backends where the host's zygote cannot reach in: it makes kernels
//! start in milliseconds.
//!
//! It is an ordinary process: code of the same user may kill or stop it. So every request has a time
//! limit; a zygote that does not answer is killed, and kernels are started the slow way. Kernels that it
//! forks inherit the seccomp filter and the Landlock rules.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_proto::guest::{Refusal, ZygoteOrder};
use belljar_proto::zygote::{FromZygote, KERNEL_ENDS, ToZygote, environment};
use belljar_sys::{channel, privileges, process};
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use crate::Guest;
use crate::command::SIGKILL;
use crate::kernel::{Kernel, not_started};
use crate::reaper::End;
use crate::reply::failed;

/// Importing a large preload list from a cold disk takes a while; the host's own limit is a little longer.
const WARM_TIMEOUT: Duration = Duration::from_secs(50);

/// A fork takes milliseconds; a zygote that needs this long is stuck.
const FORK_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Zygote {
    pid: u32,
    end: End,
    socket: AsyncFd<OwnedFd>,
    forks: u64,
}

/// Forks a kernel, which replaces any other of its language. One fork at a time: the zygote
/// answers each before it reads the next.
pub(crate) async fn fork(
    guest: &Rc<Guest>,
    language: Language,
    order: &ZygoteOrder,
    env: &[(String, String)],
    cwd: &str,
) -> Result<(), Refusal> {
    let mut running = guest.zygote.lock().await;
    if running.as_ref().is_none_or(|zygote| zygote.end.now().is_some()) {
        *running = Some(Zygote::start(guest, order).await?);
    }
    let Some(zygote) = running.as_mut() else { return Err(failed("the zygote is gone")) };
    let forked = zygote.fork(guest, language, env, cwd).await;
    if forked.is_err() {
        // Dropping the zygote kills it; the next fork starts a fresh one.
        *running = None;
    }
    forked
}

impl Zygote {
    async fn start(guest: &Guest, order: &ZygoteOrder) -> Result<Zygote, Refusal> {
        let (ours, theirs) = channel::packet_pair().map_err(|e| failed(e.to_string()))?;
        let zygote = Zygote::spawn(guest, order, ours, &theirs)
            .map_err(|error| not_started(&order.argv, &error))?;
        drop(theirs);
        let configure = ToZygote::Configure { preload: &order.preload };
        match timeout(WARM_TIMEOUT, zygote.ask(&configure, &[])).await {
            Ok(Ok(FromZygote::Ready(_))) => Ok(zygote),
            Ok(Ok(other)) => Err(failed(format!("the zygote answered {other:?}"))),
            Ok(Err(error)) => Err(failed(format!("the zygote died while it warmed up: {error}"))),
            Err(_) => {
                Err(failed(format!("the zygote was not ready within {} s", WARM_TIMEOUT.as_secs())))
            }
        }
    }

    fn spawn(
        guest: &Guest,
        order: &ZygoteOrder,
        ours: OwnedFd,
        theirs: &OwnedFd,
    ) -> io::Result<Zygote> {
        let argv = process::find_program(&order.argv, &order.env)?;
        let null = std::fs::File::options().read(true).write(true).open("/dev/null")?;
        let fds = [null.as_fd(), null.as_fd(), null.as_fd(), theirs.as_fd()];
        let command = process::Command {
            argv: &argv,
            env: &order.env,
            cwd: "/",
            fds: &fds,
            on_terminal: false,
        };
        let pid = process::spawn(&command)?;
        let end = guest.reaper.watch(pid);
        Ok(Zygote { pid, end, socket: channel::nonblocking(ours)?, forks: 0 })
    }

    async fn fork(
        &mut self,
        guest: &Rc<Guest>,
        language: Language,
        env: &[(String, String)],
        cwd: &str,
    ) -> Result<(), Refusal> {
        let ends = Kernel::prepare(guest, language).map_err(|e| failed(e.to_string()))?;
        let fds = [&ends.control, &ends.stdin, &ends.stdout, &ends.stderr].map(AsFd::as_fd);
        self.forks += 1;
        let (uid, gid) = privileges::own_ids();
        let order = ToZygote::Fork {
            id: self.forks,
            fds: KERNEL_ENDS.to_vec(),
            uid,
            gid,
            cwd,
            env: environment(env),
        };
        match timeout(FORK_TIMEOUT, self.ask(&order, &fds)).await {
            Ok(Ok(FromZygote::Forked { ok: true, .. })) => Ok(()),
            Ok(Ok(FromZygote::Forked { error, .. } | FromZygote::Error { error })) => {
                Err(failed(error))
            }
            Ok(Ok(other)) => Err(failed(format!("the zygote answered {other:?}"))),
            Ok(Err(error)) => Err(failed(format!("lost the zygote: {error}"))),
            Err(_) => Err(failed("the zygote does not answer")),
        }
    }

    async fn ask(&self, order: &ToZygote<'_>, fds: &[BorrowedFd<'_>]) -> io::Result<FromZygote> {
        let bytes = serde_json::to_vec(order)?;
        channel::send_packet_async(&self.socket, &bytes, fds).await?;
        match channel::recv_packet_async(&self.socket).await? {
            Some((bytes, _)) => Ok(serde_json::from_slice(&bytes)?),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        if self.end.now().is_none() {
            let _ = process::signal(self.pid, SIGKILL);
        }
    }
}
