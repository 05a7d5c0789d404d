//! Tries a limit of the sandbox from inside, for the runtime's self-test.

use std::time::Duration;

use belljar_proto::guest::{Answer, Probe, ProbeReport, Refusal};
use belljar_sys::probe;

use crate::reply::{Reply, failed};

pub(super) fn run(probe: Probe) -> Result<Reply, Refusal> {
    let millis = |d: Duration| u64::try_from(d.as_millis()).unwrap_or(u64::MAX);
    let report = match probe {
        Probe::Memory { bytes } => {
            probe::memory(bytes).map(|killed| ProbeReport::Memory { killed })
        }
        Probe::Processes { count } => {
            probe::processes(count).map(|started| ProbeReport::Processes { started })
        }
        Probe::Cpu { wall_ms } => probe::cpu(Duration::from_millis(wall_ms))
            .map(|(used, wall)| ProbeReport::Cpu { used_ms: millis(used), wall_ms: millis(wall) }),
        Probe::Network => probe::network()
            .map(|(interfaces, reached_out)| ProbeReport::Network { interfaces, reached_out }),
    };
    report
        .map(|report| Answer::Probed(report).into())
        .map_err(|error| failed(format!("the probe itself failed: {error}")))
}
