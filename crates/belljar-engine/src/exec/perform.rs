//! Performs one execution in a sandbox. Runs and sessions both execute through [`perform`]; they
//! differ in what they pass to it.
//!
//! ```text
//!   start, or join ─▶ follow ─────────────▶ take artifacts ─▶ complete the outcome ─▶ transcript ends
//!                      │ input, interrupt,
//!                      │ time limit
//!                      └─ sandbox lost, or silent
//! ```

use std::time::Duration;

use belljar_proto::exec::{DEFAULT_GRACE_MS, ExecSpec, Outcome, Script, Status, What};
use belljar_runtime::Sandbox;
use belljar_runtime::link::{ExecEvent, Following};
use tokio::sync::{mpsc, watch};

use super::Exec;
use super::follow::follow;
use super::input;
use super::outcome::{UNANSWERED, ended_by_us};
use super::start::start;
use crate::EngineError;
use crate::artifacts::Artifacts;

/// The longest time after its own limits within which a healthy guest reports the end of an execution.
const GUEST_SLACK: Duration = Duration::from_secs(10);

/// How an execution begins.
pub(crate) enum Start {
    /// The guest does not have it yet. `env` is the environment of the session or run.
    New { env: Vec<(String, String)>, script: Option<Script> },
    /// An earlier server started it: it runs in the guest, or has ended there.
    Join,
}

/// The controls of a caller over a running execution.
#[derive(Default)]
pub(crate) struct Controls {
    /// A change to true interrupts the code.
    pub(crate) interrupt: Option<watch::Receiver<bool>>,
    /// Standard input; closing the channel closes the input.
    pub(crate) input: Option<mpsc::Receiver<Vec<u8>>>,
    /// Whether all sandboxes are frozen. That time does not count.
    pub(crate) frozen: Option<watch::Receiver<bool>>,
}

/// The steps after the end of an execution, before readers of its transcript see the end.
pub(crate) trait Aftermath {
    /// Stores the files that the code left.
    fn take_artifacts(&self, outcome: &mut Outcome) -> impl Future<Output = Artifacts> + Send;

    /// Adds what only the server knows to the outcome.
    fn complete(&self, _: &mut Outcome) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// How a started execution ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PerformEnd {
    Finished,
    /// The sandbox ended first. The transcript has no end yet, because the caller has to find the reason.
    SandboxLost,
    /// The guest did not report the end in time. The transcript says so. The sandbox cannot be used any more.
    Unanswered,
}

/// Performs an execution to its end, from its start or from the end of its transcript.
pub(crate) async fn perform(
    sandbox: &Sandbox,
    exec: &Exec,
    begin: Start,
    controls: Controls,
    watch: impl FnMut(&ExecEvent),
    aftermath: &impl Aftermath,
) -> Result<PerformEnd, EngineError> {
    let mut following = match begin {
        Start::New { env, script } => start_new(sandbox, exec, env, script).await?,
        Start::Join => {
            let (entry, offset) = exec.transcript.place();
            let joined = sandbox.link().join(&exec.id, entry, offset).await;
            joined.map_err(EngineError::Exec)?
        }
    };
    let mut outcome =
        match follow_within_limits(sandbox, exec, &mut following, controls, watch).await {
            Followed::Ended(outcome) => outcome,
            Followed::SandboxLost => return Ok(PerformEnd::SandboxLost),
            Followed::Unanswered => {
                exec.finish(ended_by_us(Status::Timeout, UNANSWERED));
                return Ok(PerformEnd::Unanswered);
            }
        };
    // Only the server decides about checkpoints; the guest is not trusted to set these fields.
    (outcome.checkpoint, outcome.no_checkpoint) = (None, None);
    let artifacts = aftermath.take_artifacts(&mut outcome).await;
    exec.transcript.tell_artifacts(&artifacts);
    aftermath.complete(&mut outcome).await;
    exec.finish(outcome);
    Ok(PerformEnd::Finished)
}

async fn start_new(
    sandbox: &Sandbox,
    exec: &Exec,
    env: Vec<(String, String)>,
    script: Option<Script>,
) -> Result<Following, EngineError> {
    let env: Vec<(String, String)> = match &exec.request.what {
        // The kernel has the sandbox's own environment already.
        What::Cell { .. } => env,
        What::Command { .. } => sandbox.environment().into_iter().chain(env).collect(),
    };
    let spec = ExecSpec { script, ..exec.request.spec(&exec.id, &env) };
    start(sandbox, spec, &exec.code).await
}

enum Followed {
    Ended(Outcome),
    SandboxLost,
    Unanswered,
}

async fn follow_within_limits(
    sandbox: &Sandbox,
    exec: &Exec,
    following: &mut Following,
    Controls { interrupt, input, frozen }: Controls,
    watch: impl FnMut(&ExecEvent),
) -> Followed {
    // The guest enforces the time limit. This limit is for a guest that can no longer do so.
    let grace = Duration::from_millis(DEFAULT_GRACE_MS) + GUEST_SLACK;
    let limit = Duration::from_millis(exec.request.timeout_ms).saturating_add(grace);
    let followed = follow(&exec.transcript, following, watch);
    tokio::pin!(followed);
    let ended = tokio::select! {
        ended = &mut followed => Some(ended),
        () = thawed_for(limit, frozen) => None,
        never = input::feed(sandbox, &exec.id, input) => match never {},
        () = interrupted(interrupt) => {
            let interrupting = async {
                // If the guest cannot be reached, the execution is about to end anyway.
                let _ = sandbox.interrupt(&exec.id).await;
                followed.await
            };
            tokio::time::timeout(grace, interrupting).await.ok()
        }
    };
    match ended {
        Some(Some(outcome)) => Followed::Ended(outcome),
        Some(None) => Followed::SandboxLost,
        None => Followed::Unanswered,
    }
}

/// Waits for this long, without the time in which sandboxes are frozen.
async fn thawed_for(limit: Duration, frozen: Option<watch::Receiver<bool>>) {
    let Some(mut frozen) = frozen else { return tokio::time::sleep(limit).await };
    let mut left = limit;
    loop {
        // An error means that the server ends. Then nothing is frozen any more.
        let _ = frozen.wait_for(|frozen| !frozen).await;
        let began = tokio::time::Instant::now();
        let froze = async {
            if frozen.wait_for(|frozen| *frozen).await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        if tokio::time::timeout(left, froze).await.is_err() {
            return;
        }
        left = left.saturating_sub(began.elapsed());
    }
}

/// Waits for an interrupt; without a sender, forever.
async fn interrupted(interrupt: Option<watch::Receiver<bool>>) {
    if let Some(mut interrupt) = interrupt
        && interrupt.wait_for(|wanted| *wanted).await.is_ok()
    {
        return;
    }
    std::future::pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn frozen_time_does_not_count() {
        let frozen = watch::Sender::new(false);
        let began = tokio::time::Instant::now();
        let waiting = tokio::spawn(thawed_for(Duration::from_secs(10), Some(frozen.subscribe())));
        tokio::time::sleep(Duration::from_secs(4)).await;
        frozen.send_replace(true);
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert!(!waiting.is_finished());
        frozen.send_replace(false);
        waiting.await.unwrap();
        assert_eq!(began.elapsed().as_secs(), 110);
    }
}
