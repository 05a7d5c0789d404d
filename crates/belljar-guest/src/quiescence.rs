//! Whether the sandbox rests: what is alive in it although nobody waits for it.

use belljar_proto::exec::Language;
use belljar_proto::guest::{Answer, Refusal};
use belljar_proto::quiescence::{MAX_NAMED, PLACES, QuiescenceReport};
use belljar_sys::{procfs, tree};

use crate::Guest;
use crate::connection::{Reply, failed};

/// Characters of a command line that are told.
const MAX_COMMAND: usize = 80;

pub(crate) fn report(guest: &Guest) -> Result<Reply, Refusal> {
    let kernels: Vec<(Language, Option<u32>)> =
        guest.kernels.borrow().iter().map(|(language, kernel)| (*language, kernel.pid())).collect();
    let mut busy = Vec::new();
    match guest.jobs.going_on() {
        0 => {}
        jobs => busy.push(format!("{jobs} copies or archives are being made")),
    }
    match guest.terminals.alive() {
        0 => {}
        1 => busy.push("a terminal is open".into()),
        terminals => busy.push(format!("{terminals} terminals are open")),
    }
    busy.extend(left_behind(guest, &kernels));
    busy.truncate(MAX_NAMED);
    let files = PLACES.iter().filter_map(|(_, path)| tree::fingerprint_of_all(path));
    let files = files.reduce(u64::wrapping_add);
    let kernels = kernels.into_iter().map(|(language, _)| language).collect();
    let gone = guest.lost_kernel.borrow();
    let gone = gone.iter().map(|(language, reason)| (*language, reason.clone())).collect();
    let report = QuiescenceReport { kernels, busy, gone, files };
    let body = serde_json::to_vec(&report).map_err(|error| failed(error.to_string()))?;
    Ok(Reply { answer: Answer::Resting, body, fds: Vec::new() })
}

/// Processes that code has started and that outlived it.
fn left_behind(guest: &Guest, kernels: &[(Language, Option<u32>)]) -> Vec<String> {
    const INIT: u32 = 1;
    guest.reaper.collect();
    // Processes that the guest itself started: a zygote, and the keepers of commands. A keeper ends a moment after its
    // command, when the result has been told already. What it keeps alive has numbers of its own in the table.
    let watched = guest.reaper.watched();
    let ours = |pid: &u32| {
        *pid == INIT || watched.contains(pid) || kernels.iter().any(|(_, own)| *own == Some(*pid))
    };
    let others = procfs::parents().into_keys().filter(|pid| !ours(pid) && !procfs::is_zombie(*pid));
    others
        .filter_map(|pid| {
            let command = procfs::command_line(pid, MAX_COMMAND)?;
            Some(format!("process {pid} (`{command}`) runs"))
        })
        .take(MAX_NAMED)
        .collect()
}
