//! Asks an idle kernel to move large values to disk.
//!
//! It delays nothing: a cell or a request that arrives meanwhile is sent to the kernel, which then stops
//! moving values.

use std::rc::Rc;
use std::time::Duration;

use belljar_proto::guest::{Refusal, RefusalCode, SpillAsk};
use belljar_proto::kernel::ToKernel;
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::Kernel;

/// How long the guest waits for the result: less than the host does. The kernel goes on after that, and is
/// asked again later.
const SPILL_TIMEOUT: Duration = Duration::from_secs(50);

impl Kernel {
    /// Returns what the kernel moved to disk, as JSON. The kernel must be idle.
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
        let answer = async {
            self.say(&ToKernel::Spill(ask), &[]).await;
            receiver.await
        };
        tokio::select! {
            biased;
            body = answer => body.or_else(|_| refuse(RefusalCode::Failed, "another request replaced this one")),
            _ = self.died() => refuse(RefusalCode::NoKernel, "the kernel died while it moved values"),
            () = sleep(SPILL_TIMEOUT) => refuse(RefusalCode::Busy, "the kernel is still moving values"),
        }
    }
}
