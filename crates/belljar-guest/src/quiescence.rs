//! Whether the sandbox is quiescent: which kernels, terminals, jobs and processes are alive in it.

use belljar_proto::exec::Language;
use belljar_proto::guest::{Answer, Refusal};
use belljar_proto::quiescence::{KEPT_DIRECTORIES, MAX_NAMED, QuiescenceReport};
use belljar_sys::{procfs, tree};

use crate::Guest;
use crate::reply::Reply;

/// Characters of a command line that are reported.
const MAX_COMMAND: usize = 80;

pub(crate) fn report(guest: &Guest) -> Result<Reply, Refusal> {
    let kernels: Vec<(Language, Option<u32>)> =
        guest.kernels.borrow().iter().map(|(language, kernel)| (*language, kernel.pid())).collect();
    let mut busy = Vec::new();
    match guest.jobs.running() {
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
    let files = KEPT_DIRECTORIES.iter().filter_map(|(_, path)| tree::fingerprint_of_all(path));
    let files = files.reduce(u64::wrapping_add);
    let kernels = kernels.into_iter().map(|(language, _)| language).collect();
    let gone = guest.lost_kernel.borrow();
    let gone = gone.iter().map(|(language, reason)| (*language, reason.clone())).collect();
    let report = QuiescenceReport { kernels, busy, gone, files };
    Reply::with_json(Answer::Quiescence, &report)
}

/// Processes that user code started and that still run.
fn left_behind(guest: &Guest, kernels: &[(Language, Option<u32>)]) -> Vec<String> {
    const INIT: u32 = 1;
    guest.reaper.collect();
    // The guest's own processes: a zygote, and the keepers of commands. A keeper ends a moment after its command, when the
    // result has been sent already. Processes below a keeper are not in this list, and so are found.
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
