//! Large values of an idle kernel, moved to disk by the kernel itself.
//!
//! Nothing is held up by it: a cell or a question that arrives meanwhile is said to the kernel, which
//! gives up what it was doing.

use std::rc::Rc;
use std::time::Duration;

use belljar_proto::guest::{Refusal, RefusalCode, SpillAsk};
use belljar_proto::kernel::ToKernel;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Kernel;

/// How long we wait for what came of it. The kernel goes on after that, and is asked again some day.
/// Less than a host waits for an answer.
const SPILL_PATIENCE: Duration = Duration::from_secs(50);

impl Kernel {
    /// What the kernel moved to disk, as JSON; only while it is idle.
    pub(crate) async fn spill(self: Rc<Self>, ask: SpillAsk) -> Result<Vec<u8>, Refusal> {
        let refuse = |code, message: &str| Err(Refusal { code, message: message.into() });
        self.available()?;
        if self.is_shell() {
            return refuse(RefusalCode::Invalid, "a shell has no values that could be moved");
        }
        let (sender, receiver) = oneshot::channel();
        if self.wants_spilled.borrow().as_ref().is_some_and(|asker| !asker.is_closed()) {
            return refuse(RefusalCode::Busy, "the kernel is moving values already");
        }
        *self.wants_spilled.borrow_mut() = Some(sender);
        let told = async {
            self.say(&ToKernel::Spill(ask), &[]).await;
            receiver.await
        };
        tokio::select! {
            biased;
            body = told => body.or_else(|_| refuse(RefusalCode::Failed, "another asked the same")),
            _ = self.died() => refuse(RefusalCode::NoKernel, "the kernel died while it moved values"),
            () = sleep(SPILL_PATIENCE) => refuse(RefusalCode::Busy, "the kernel is still moving values"),
        }
    }
}
