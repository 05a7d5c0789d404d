//! Standard input of a run, as it comes.

use std::convert::Infallible;
use std::time::Duration;

use belljar_proto::guest::RefusalCode;
use belljar_runtime::{RuntimeError, Sandbox};
use tokio::sync::mpsc;

/// How long to wait before a full buffer in the guest is tried again: first, and at most.
const FULL_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Hands on every piece until the input ends or the code takes no more. Never returns: the end of the code ends
/// the run, not the end of its input.
pub(crate) async fn feed(
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
    // If that fails the code is over, which we hear of elsewhere.
    let _ = give(sandbox, exec_id, &[], true).await;
    std::future::pending().await
}

/// Gives one piece, as soon as the guest has room for it.
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
