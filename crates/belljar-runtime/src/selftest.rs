//! Tries to exceed every limit from inside temporary sandboxes, and reports which limits hold.
//!
//! Container runtimes may accept limits and ignore them: one that was registered without cgroups used 600 MiB under a limit of
//! 512. So every limit is tested.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::guest::{Answer, Call, Probe, ProbeReport};
use belljar_sys::probe;
use serde::{Deserialize, Serialize};

use crate::spec::{Limits, SandboxSpec};
use crate::{Runtime, RuntimeError, Sandbox};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    pub limit: Limit,
    pub enforced: bool,
    /// What was observed.
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    Memory,
    Processes,
    Cpu,
    Network,
}

impl Limit {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Limit::Memory => "memory limit",
            Limit::Processes => "process limit",
            Limit::Cpu => "cpu limit",
            Limit::Network => "no network",
        }
    }
}

/// Small limits, so that the test is quick, cannot harm the machine if they do not hold, and reaches its share of the processors
/// even on a busy machine. The number of processes is larger, because a sandbox with its own Linux kernel needs some itself.
const TEST_LIMITS: Limits = Limits { memory: 48 << 20, millicpus: 100, pids: 96, tmpfs: 8 << 20 };

/// Clearly beyond the limits.
const MEMORY_TRIED: u64 = 96 << 20;
const PROCESSES_TRIED: u32 = 240;
const CPU_WALL_MS: u64 = 300;

/// How long it may take until the end of a killed sandbox is noticed.
const DEATH_NOTICE: Duration = Duration::from_secs(10);

/// How often the processor limit is tried on a machine that is too busy to reach it.
const CPU_ATTEMPTS: u32 = 10;

/// Without a counter for throttling, the same work without a limit must get this many times as much processor time.
const UNLIMITED_GETS: u32 = 3;

/// How often in a row: on a busy machine it may happen once by chance.
const UNLIMITED_IN_A_ROW: u32 = 3;

/// The share of a processor beyond which the limit does not hold: two busy processes under a limit of 0.1 get 0.1 if it holds,
/// and between 1 and 2 if it does not.
const CPU_SHARE_ALLOWED: f64 = 0.6;

pub async fn run(runtime: &Arc<dyn Runtime>) -> Result<Vec<Verdict>, RuntimeError> {
    let spec = SandboxSpec { limits: TEST_LIMITS, ..SandboxSpec::default() };
    let mut verdicts = Vec::new();
    let mut sandbox = Arc::clone(runtime).create(&spec).await?;
    for probe in [
        Probe::Network,
        Probe::Cpu { wall_ms: CPU_WALL_MS },
        Probe::Memory { bytes: MEMORY_TRIED },
        Probe::Processes { count: PROCESSES_TRIED },
    ] {
        match attempt(&sandbox, probe).await {
            Ok(verdict) => verdicts.push(verdict),
            // In a sandbox with its own Linux kernel, that kernel dies.
            Err(RuntimeError::Gone)
                if matches!(probe, Probe::Memory { .. } | Probe::Processes { .. })
                    && has_ended(&sandbox).await =>
            {
                let (limit, died) = (limit_of(probe), "the whole sandbox ended during the test");
                verdicts.push(Verdict { limit, enforced: true, detail: died.to_owned() });
                sandbox.destroy().await;
                sandbox = Arc::clone(runtime).create(&spec).await?;
            }
            Err(error) => return Err(error),
        }
    }
    sandbox.destroy().await;
    Ok(verdicts)
}

async fn attempt(sandbox: &Sandbox, probe: Probe) -> Result<Verdict, RuntimeError> {
    match probe {
        Probe::Cpu { wall_ms } => attempt_cpu(sandbox, probe, wall_ms).await,
        _ => Ok(judge(&ask(sandbox, probe).await?)),
    }
}

/// On a busy machine, little processor time proves nothing: an enforced limit throttles the sandbox. So the test is repeated until
/// throttling is seen, or the limit is exceeded, or the attempts are used up.
async fn attempt_cpu(
    sandbox: &Sandbox,
    probe: Probe,
    wall_ms: u64,
) -> Result<Verdict, RuntimeError> {
    let wall = Duration::from_millis(wall_ms);
    let (mut attempts, mut in_a_row) = (0, 0);
    loop {
        attempts += 1;
        let is_counted = sandbox.throttled().is_some();
        let unlimited =
            (!is_counted).then(|| tokio::task::spawn_blocking(move || probe::unlimited_cpu(wall)));
        let report = ask(sandbox, probe).await?;
        let unlimited = match unlimited {
            Some(burning) => burning.await.unwrap_or_default(),
            None => Duration::ZERO,
        };
        let mut verdict = judge(&report);
        let held_back = match sandbox.throttled() {
            Some(times) => times > 0,
            None => {
                in_a_row = if got_less(&report, unlimited) { in_a_row + 1 } else { 0 };
                in_a_row >= UNLIMITED_IN_A_ROW
            }
        };
        if held_back || !verdict.enforced {
            return Ok(verdict);
        }
        if attempts == CPU_ATTEMPTS {
            verdict.enforced = false;
            verdict.detail += ", and they were not throttled";
            return Ok(verdict);
        }
    }
}

/// Whether the sandbox got much less processor time than the same work outside of it.
fn got_less(report: &ProbeReport, unlimited: Duration) -> bool {
    match report {
        ProbeReport::Cpu { used_ms, .. } => {
            Duration::from_millis(*used_ms) * UNLIMITED_GETS <= unlimited && !unlimited.is_zero()
        }
        _ => false,
    }
}

async fn has_ended(sandbox: &Sandbox) -> bool {
    tokio::time::timeout(DEATH_NOTICE, sandbox.ended()).await.is_ok()
}

/// What a probe tries to exceed.
fn limit_of(probe: Probe) -> Limit {
    match probe {
        Probe::Memory { .. } => Limit::Memory,
        Probe::Processes { .. } => Limit::Processes,
        Probe::Cpu { .. } => Limit::Cpu,
        Probe::Network => Limit::Network,
    }
}

async fn ask(sandbox: &Sandbox, probe: Probe) -> Result<ProbeReport, RuntimeError> {
    match sandbox.link().call(Call::Probe { probe }, &[]).await?.answer {
        Answer::Probed(report) => Ok(report),
        _ => Err(RuntimeError::UnexpectedAnswer),
    }
}

fn judge(report: &ProbeReport) -> Verdict {
    let (limit, enforced, detail) = match report {
        ProbeReport::Memory { killed } => (
            Limit::Memory,
            *killed,
            if *killed {
                "a process beyond the limit was killed".to_owned()
            } else {
                format!(
                    "{} MiB could be used under a limit of {} MiB",
                    MEMORY_TRIED >> 20,
                    TEST_LIMITS.memory >> 20
                )
            },
        ),
        ProbeReport::Processes { started } => (
            Limit::Processes,
            u64::from(*started) < TEST_LIMITS.pids,
            format!("{started} processes could be started under a limit of {}", TEST_LIMITS.pids),
        ),
        ProbeReport::Cpu { used_ms, wall_ms } => {
            #[expect(clippy::cast_precision_loss, reason = "milliseconds of a short test")]
            let share = *used_ms as f64 / (*wall_ms).max(1) as f64;
            (
                Limit::Cpu,
                share < CPU_SHARE_ALLOWED,
                format!(
                    "{share:.2} processors were used under a limit of {:.1}",
                    f64::from(TEST_LIMITS.millicpus) / 1000.0
                ),
            )
        }
        ProbeReport::Network { interfaces, reached_out } => (
            Limit::Network,
            interfaces.is_empty() && !reached_out,
            if interfaces.is_empty() {
                "there is only loopback".to_owned()
            } else {
                format!("interfaces are visible: {}", interfaces.join(", "))
            },
        ),
    };
    Verdict { limit, enforced, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_void_limit_is_seen_as_such() {
        let enforced = |report| judge(&report).enforced;
        assert!(enforced(ProbeReport::Memory { killed: true }));
        assert!(!enforced(ProbeReport::Memory { killed: false }));
        assert!(!enforced(ProbeReport::Processes { started: 240 }));
        assert!(enforced(ProbeReport::Processes { started: 14 }));
        assert!(enforced(ProbeReport::Cpu { used_ms: 40, wall_ms: 300 }));
        let burned = |used_ms| ProbeReport::Cpu { used_ms, wall_ms: 300 };
        assert!(got_less(&burned(30), Duration::from_millis(90)));
        assert!(!got_less(&burned(30), Duration::from_millis(89)));
        assert!(!got_less(&burned(0), Duration::ZERO), "nothing ran, which proves nothing");
        assert!(!enforced(ProbeReport::Cpu { used_ms: 300, wall_ms: 300 }));
        let eth = vec!["eth0".to_owned()];
        assert!(!enforced(ProbeReport::Network { interfaces: eth, reached_out: false }));
        assert!(!enforced(ProbeReport::Network { interfaces: vec![], reached_out: true }));
    }
}
