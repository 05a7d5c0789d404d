//! What the variables of a kernel are, as it tells itself.

use std::rc::Rc;
use std::time::Duration;

use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::kernel::ToKernel;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use super::{INTERRUPT_PACE, Kernel};

/// How long a kernel may take to tell its variables; it has bounds of its own, which are lower.
const STATE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a kernel is interrupted that does not come back from telling its variables. After
/// that it is left alone; the next cell has a time limit, and kills it.
const STATE_INTERRUPTS: usize = 10;

impl Kernel {
    /// The variables of the kernel, as JSON; only while it is idle.
    pub(crate) async fn state(self: Rc<Self>) -> Result<Vec<u8>, Refusal> {
        self.available()?;
        let (sender, receiver) = oneshot::channel();
        tokio::task::spawn_local(self.inspect(sender));
        receiver.await.unwrap_or_else(|_| {
            let message = "the kernel died while it told its variables".into();
            Err(Refusal { code: RefusalCode::NoKernel, message })
        })
    }

    /// Has the kernel tell its variables, and if it takes too long, stops it.
    async fn inspect(self: Rc<Self>, asker: oneshot::Sender<Result<Vec<u8>, Refusal>>) {
        let refuse = |code, message: &str| Err(Refusal { code, message: message.into() });
        let Ok(_turn) = timeout(STATE_TIMEOUT, self.turn.lock()).await else {
            let _ = asker.send(refuse(RefusalCode::Busy, "the kernel runs another execution"));
            return;
        };
        let (sender, receiver) = oneshot::channel();
        *self.wants_state.borrow_mut() = Some(sender);
        let told = async {
            self.say(&ToKernel::State, &[]).await;
            receiver.await.unwrap_or_default()
        };
        tokio::select! {
            biased;
            body = told => {
                let nothing = refuse(RefusalCode::Failed, "the kernel could not tell its variables");
                let _ = asker.send(if body.is_empty() { nothing } else { Ok(body) });
            }
            _ = self.died() => {}
            () = sleep(STATE_TIMEOUT) => {
                let message = "the kernel took too long to tell its variables";
                let _ = asker.send(refuse(RefusalCode::Failed, message));
                *self.wants_state.borrow_mut() = None;
                tokio::select! {
                    () = self.call_back() => {}
                    _ = self.died() => {}
                }
            }
        }
    }

    /// Interrupts whatever the kernel does until it listens again.
    async fn call_back(&self) {
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
