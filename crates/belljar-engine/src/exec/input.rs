//! Passes standard input to an execution while it runs.

use std::convert::Infallible;
use std::time::Duration;

use belljar_proto::guest::RefusalCode;
use belljar_runtime::{RuntimeError, Sandbox};
use tokio::sync::mpsc;

/// The pause while the guest's buffer is full: the first one, and the longest.
const FULL_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Sends every piece until the input ends or the code reads no more. Never returns, because an execution ends with its
/// code, not with its input.
pub(super) async fn feed(
    sandbox: &Sandbox,
    exec_id: &str,
    input: Option<mpsc::Receiver<Vec<u8>>>,
) -> Infallible {
    let Some(mut input) = input else { return std::future::pending().await };
    while let Some(piece) = input.recv().await {
        if give(sandbox, exec_id, &piece, false).await.is_err() {
            return std::future::pending().await;
        }
    }
    // This fails if the code has ended; the caller follows the execution and sees that.
    let _ = give(sandbox, exec_id, &[], true).await;
    std::future::pending().await
}

/// Sends one piece, as soon as the guest has room for it.
async fn give(
    sandbox: &Sandbox,
    exec_id: &str,
    piece: &[u8],
    close: bool,
) -> Result<(), RuntimeError> {
    let (mut pause, longest) = FULL_PAUSE;
    loop {
        match sandbox.stdin(exec_id, piece, close).await {
            Err(RuntimeError::Refused(refusal)) if refusal.code == RefusalCode::Busy => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
            given => return given,
        }
    }
}
