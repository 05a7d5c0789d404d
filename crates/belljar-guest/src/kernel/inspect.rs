//! Asks a kernel for its variables.

use std::rc::Rc;
use std::time::Duration;

use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::kernel::ToKernel;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{INTERRUPT_PACE, Kernel};

/// How long a kernel may take to list its variables; its own limits are lower.
const STATE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a kernel that does not finish the list is interrupted. After that the guest waits; the time
/// limit of the next cell kills the kernel.
const STATE_INTERRUPTS: usize = 10;

impl Kernel {
    /// The variables of the kernel, as JSON; only while it is idle.
    pub(crate) async fn state(self: Rc<Self>) -> Result<Vec<u8>, Refusal> {
        self.available()?;
        let (sender, receiver) = oneshot::channel();
        tokio::task::spawn_local(self.inspect(sender));
        receiver.await.unwrap_or_else(|_| {
            let message = "the kernel died while it listed its variables".into();
            Err(Refusal { code: RefusalCode::NoKernel, message })
        })
    }

    /// Asks the kernel, and interrupts it if it takes too long.
    async fn inspect(self: Rc<Self>, asker: oneshot::Sender<Result<Vec<u8>, Refusal>>) {
        let refuse = |code, message: &str| Err(Refusal { code, message: message.into() });
        let Ok(_turn) = timeout(STATE_TIMEOUT, self.turn.lock()).await else {
            let _ = asker.send(refuse(RefusalCode::Busy, "the kernel runs another execution"));
            return;
        };
        let (sender, receiver) = oneshot::channel();
        *self.wants_state.borrow_mut() = Some(sender);
        let answer = async {
            self.say(&ToKernel::State, &[]).await;
            receiver.await.unwrap_or_default()
        };
        tokio::select! {
            biased;
            body = answer => {
                let nothing = refuse(RefusalCode::Failed, "the kernel could not list its variables");
                let _ = asker.send(if body.is_empty() { nothing } else { Ok(body) });
            }
            _ = self.died() => {}
            () = sleep(STATE_TIMEOUT) => {
                let message = "the kernel took too long to list its variables";
                let _ = asker.send(refuse(RefusalCode::Failed, message));
                *self.wants_state.borrow_mut() = None;
                tokio::select! {
                    () = self.interrupt_until_ready() => {}
                    _ = self.died() => {}
                }
            }
        }
    }

    /// Interrupts the kernel until it answers again.
    async fn interrupt_until_ready(&self) {
        let mut token = None;
        for _ in 0..STATE_INTERRUPTS {
            self.interrupt_once().await;
            token = self.ping().or(token);
            if timeout(INTERRUPT_PACE, self.answered(token)).await.is_ok() {
                return;
            }
        }
        self.answered(token).await;
    }
}
