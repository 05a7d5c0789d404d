//! Continues the executions that an earlier server had accepted.

use std::collections::HashMap;
use std::sync::Arc;

use belljar_proto::exec::{Language, Status};
use tokio::sync::oneshot;

use super::wake::RECENT;
use super::{Driver, SandboxLease};
use crate::error::in_full;
use crate::exec::Exec;
use crate::session::perform::Begin;
use crate::store::{ExecFilter, ExecRow};

/// The reason of executions that were stored late.
const NEVER_BEGUN: &str =
    "it was not begun: the database stored it after a later execution had begun";

impl Driver {
    pub(super) async fn inherit(&mut self, sandbox: &SandboxLease) {
        let unfinished = match self.state.store.unfinished_execs(&self.session.id).await {
            Ok(unfinished) => unfinished,
            Err(error) => {
                tracing::error!(session.id = self.session.id, "{}", in_full(&error));
                return;
            }
        };
        let known: Vec<&str> =
            sandbox.link().known_execs().iter().map(|known| known.exec_id.as_str()).collect();
        // The guest may drop executions that are stored. The earlier server may have ended before it sent that.
        let stored = known.iter().filter(|id| !unfinished.iter().any(|row| row.id == **id));
        self.forgettable.extend(stored.map(|id| (*id).to_owned()));
        // Executions that the guest knows were accepted before those that it does not know.
        let (joined, again): (Vec<ExecRow>, Vec<ExecRow>) =
            unfinished.into_iter().partition(|row| known.contains(&row.id.as_str()));
        let last = if again.is_empty() { HashMap::new() } else { self.last_begun(&joined).await };
        for row in joined {
            let exec = self.inherit_exec(row);
            self.join(sandbox, exec);
        }
        for row in again {
            let exec = self.inherit_exec(row);
            let lane = exec.request.lane();
            // Cells of one kernel begin in order. So the store added this one late: its client got an error, and may
            // have sent it again.
            if lane.and_then(|lane| last.get(&lane)).is_some_and(|later| exec.number < *later) {
                exec.end(Status::Crashed, NEVER_BEGUN);
                self.settle(None, exec);
            } else {
                self.begin(sandbox, exec, Begin::Again);
            }
        }
    }

    /// The number of the last execution of each kernel that has begun.
    async fn last_begun(&self, joined: &[ExecRow]) -> HashMap<Language, u64> {
        let filter = ExecFilter { newest_first: true, beyond: None, finished: true, limit: RECENT };
        let begun = |row: &ExecRow| Some((row.request.lane()?, row.number));
        let finished = self.state.store.execs(&self.session.id, filter, move |row| begun(&row));
        let finished = finished.await.map(|page| page.items).unwrap_or_default();
        let mut last = HashMap::new();
        for (lane, number) in joined.iter().map(begun).chain(finished).flatten() {
            let latest = last.entry(lane).or_insert(number);
            *latest = number.max(*latest);
        }
        last
    }

    fn inherit_exec(&mut self, row: ExecRow) -> Arc<Exec> {
        self.next_number = self.next_number.max(row.number + 1);
        self.inherited.insert(row.id.clone());
        Arc::new(Exec::new(row.id, row.number, row.request, row.code.into(), row.accepted_ms))
    }

    /// Follows an execution that runs in the guest, or has ended there. Several executions of one lane may have ended
    /// meanwhile, so none of them waits for another.
    fn join(&mut self, sandbox: &SandboxLease, exec: Arc<Exec>) {
        let running = sandbox.link().known_execs().iter();
        let running = running.filter(|known| known.running).any(|known| known.exec_id == exec.id);
        match exec.request.lane() {
            Some(language) if running => {
                self.lanes.entry(language).or_default().hold(&exec.id);
            }
            Some(_) => {}
            None => drop(self.beside.insert(exec.id.clone())),
        }
        if !running {
            // If the earlier server was killed before it stored the result, it may have returned the result to the
            // client already.
            self.ended_before.insert(exec.id.clone());
        }
        let (go, turn) = oneshot::channel();
        let _ = go.send(());
        self.perform(sandbox, exec, Begin::Join, turn);
    }
}
