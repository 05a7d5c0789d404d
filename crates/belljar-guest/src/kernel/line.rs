//! A line between the host and a kernel: packets and files, in which the guest has no part.

use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::kernel::ToKernel;
use belljar_sys::channel;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::Kernel;
use crate::Guest;

/// An idle kernel listens, unless it is tidying up.
const LINE_PATIENCE: Duration = Duration::from_secs(20);

impl Kernel {
    /// The host's end of a line; only while the kernel is idle.
    pub(crate) async fn line(self: Rc<Self>, guest: &Guest) -> Result<OwnedFd, Refusal> {
        let refuse = |code, message: &str| Refusal { code, message: message.into() };
        self.available()?;
        if self.is_shell() {
            return Err(refuse(RefusalCode::Invalid, "a shell has no line to the host"));
        }
        let busy = || refuse(RefusalCode::Busy, "the kernel is doing something else");
        let _turn = timeout(LINE_PATIENCE, self.turn.lock()).await.map_err(|_| busy())?;
        let failed = |error: std::io::Error| refuse(RefusalCode::Failed, &error.to_string());
        let (theirs, hosts) = channel::packet_pair().map_err(failed)?;
        let (sender, ready) = oneshot::channel();
        *self.wants_line.borrow_mut() = Some(sender);
        // FileTable until the descriptor is sent: nothing may come before it.
        let mut writer = self.to_kernel.lock().await;
        let words = self.dialect.borrow_mut().say(&ToKernel::Line, &[]);
        let _ = writer.write_all(&words).await;
        tokio::select! {
            biased;
            _ = ready => {}
            _ = self.died() => {
                return Err(refuse(RefusalCode::NoKernel, "the kernel died before it took the line"));
            }
            () = sleep(LINE_PATIENCE) => {
                // What it would read next is not what we would have meant.
                self.kill_everything(guest);
                return Err(refuse(RefusalCode::NoKernel, "the kernel did not listen, and was ended"));
            }
        }
        let socket: &tokio::net::UnixStream = writer.as_ref();
        let hand_over = || channel::send_with_fds(socket, &[0], &[theirs.as_fd()]);
        socket.async_io(Interest::WRITABLE, hand_over).await.map_err(failed)?;
        Ok(hosts)
    }
}
