//! A socket between the host and a kernel, over which snapshots travel as packets and descriptors. The
//! guest makes it and takes no part in what is sent.

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
use crate::reply::{failed, refuse};

/// An idle kernel reads messages at once, unless it collects garbage.
const READY_TIMEOUT: Duration = Duration::from_secs(20);

impl Kernel {
    /// Connects the kernel, which must be idle, and returns the host's end.
    pub(crate) async fn snapshot_socket(self: Rc<Self>, guest: &Guest) -> Result<OwnedFd, Refusal> {
        self.available()?;
        if self.is_shell() {
            return Err(refuse(RefusalCode::Invalid, "a shell has no snapshots"));
        }
        let busy = || refuse(RefusalCode::Busy, "the kernel is doing something else");
        let _turn = timeout(READY_TIMEOUT, self.turn.lock()).await.map_err(|_| busy())?;
        let cannot = |error: std::io::Error| failed(error.to_string());
        let (theirs, hosts) = channel::packet_pair().map_err(cannot)?;
        let (sender, ready) = oneshot::channel();
        *self.wants_snapshot_socket.borrow_mut() = Some(sender);
        // Locked until the descriptor is sent: no other message may come before it.
        let mut writer = self.to_kernel.lock().await;
        let words = self.dialect.borrow_mut().encode(&ToKernel::SnapshotSocket, &[]);
        let _ = writer.write_all(&words).await;
        tokio::select! {
            biased;
            _ = ready => {}
            _ = self.died() => {
                return Err(refuse(RefusalCode::NoKernel, "the kernel died before it received the socket"));
            }
            () = sleep(READY_TIMEOUT) => {
                // It would take the next message for the descriptor.
                self.kill_everything(guest);
                return Err(refuse(RefusalCode::NoKernel, "the kernel did not answer, and was killed"));
            }
        }
        let socket: &tokio::net::UnixStream = writer.as_ref();
        let hand_over = || channel::send_with_fds(socket, &[0], &[theirs.as_fd()]);
        socket.async_io(Interest::WRITABLE, hand_over).await.map_err(cannot)?;
        Ok(hosts)
    }
}
