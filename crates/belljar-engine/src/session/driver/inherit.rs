//! Going on with what an earlier server had begun.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar_runtime::Sandbox;
use tokio::sync::oneshot;

use super::Driver;
use crate::error::in_full;
use crate::exec::Exec;
use crate::lock;
use crate::session::perform::{Begin, perform};
use crate::store::ExecRow;

impl Driver {
    /// Goes on with what an earlier server had begun.
    pub(super) async fn inherit(&mut self, sandbox: &Arc<Sandbox>) {
        let unfinished = match self.shared.store.unfinished_execs(&self.session.id).await {
            Ok(unfinished) => unfinished,
            Err(error) => {
                tracing::error!(session.id = self.session.id, "{}", in_full(&error));
                return;
            }
        };
        let known: Vec<&str> =
            sandbox.link().known_execs().iter().map(|known| known.exec_id.as_str()).collect();
        // What is safe with us may be forgotten; an earlier server may not have come to say so.
        let safe = known.iter().filter(|id| !unfinished.iter().any(|row| row.id == **id));
        lock(&self.session.forgettable).extend(safe.map(|id| (*id).to_owned()));
        // Those the guest knows are ahead of those it does not.
        let (joined, again): (Vec<ExecRow>, Vec<ExecRow>) =
            unfinished.into_iter().partition(|row| known.contains(&row.id.as_str()));
        for (rows, join) in [(joined, true), (again, false)] {
            for row in rows {
                self.next_number = self.next_number.max(row.number + 1);
                self.inherited.push(row.id.clone());
                let exec =
                    Exec::new(row.id, row.number, row.request, row.code.into(), row.accepted_ms);
                let begin = if join { Begin::Join } else { Begin::Again };
                if join {
                    self.join(sandbox, Arc::new(exec), begin);
                } else {
                    self.begin(sandbox, Arc::new(exec), begin);
                }
            }
        }
    }

    /// Several of one lane may have ended while nobody looked: none of them waits for another.
    fn join(&mut self, sandbox: &Arc<Sandbox>, exec: Arc<Exec>, begin: Begin) {
        lock(&self.session.live).insert(exec.id.clone(), Arc::clone(&exec));
        let running = sandbox.link().known_execs().iter();
        let running = running.filter(|known| known.running).any(|known| known.exec_id == exec.id);
        match exec.request.lane() {
            Some(language) if running => {
                self.lanes.entry(language).or_default().hold(&exec.id);
            }
            Some(_) => {}
            None => self.beside += 1,
        }
        if !running {
            // Its result may have been returned already, by a server that was killed before it had stored it.
            exec.at_rest.store(true, Ordering::Relaxed);
            self.ended_before.insert(exec.id.clone());
        }
        let (go, turn) = oneshot::channel();
        let _ = go.send(());
        let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
        self.performing.spawn(perform(shared, session, Arc::clone(sandbox), exec, begin, turn));
    }
}
