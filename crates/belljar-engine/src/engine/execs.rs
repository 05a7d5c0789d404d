//! Executions in sessions: asked for, looked at, fed, interrupted.

use std::collections::BTreeMap;
use std::sync::Arc;

use belljar_proto::exec::Language;
use belljar_proto::guest::KernelVariables;

use super::views::{info_of_exec_row, info_of_live, log_entry, log_entry_of_live};
use super::{Engine, ExecInfo, Principal};
use crate::audit::Entry;
use crate::error::{EngineError, in_full};
use crate::exec::log::LogEntry;
use crate::exec::transcript::Transcript;
use crate::exec::{Exec, ExecRequest, Stage};
use crate::session::ExecAsk;
use crate::store::{ExecFilter, ExecRow, Page};

/// Which executions a page has.
#[derive(Debug, Clone, Copy)]
pub enum Beyond {
    /// Those before this number, or the newest.
    Before(Option<u64>),
    /// Those after this number, or the newest, which have ended.
    After(Option<u64>),
}

impl Beyond {
    fn filter(self, limit: u32) -> ExecFilter {
        match self {
            Beyond::Before(beyond) => {
                ExecFilter { newest_first: true, beyond, finished: false, limit }
            }
            Beyond::After(beyond) => {
                ExecFilter { newest_first: beyond.is_none(), beyond, finished: true, limit }
            }
        }
    }
}

impl Engine {
    /// Executes something in a session; it has been written down when this returns.
    pub async fn exec(
        &self,
        who: &Principal,
        id: &str,
        ask: ExecAsk,
    ) -> Result<Arc<Exec>, EngineError> {
        let code = Arc::clone(&ask.code);
        let accepted = match self.live_session(who, id).await {
            Ok(session) => match session.awake_for_work(who.quota()).await {
                Ok(()) => session.exec(ask).await,
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        let outcome = accepted.as_ref().map_or_else(|error| in_full(error), |_| "accepted".into());
        let exec = accepted.as_ref().ok().map(|exec| exec.id.as_str());
        self.audit.note(
            who,
            &Entry {
                action: "exec",
                outcome: &outcome,
                session: Some(id),
                exec,
                code: Some(&code),
                detail: None,
            },
        );
        accepted
    }

    /// Whether an execution that was asked for before is what is asked for now.
    pub async fn is_same_exec(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
        request: &ExecRequest,
        code: &[u8],
    ) -> Result<bool, EngineError> {
        self.row(who, id).await?;
        let row = self.shared.store.exec(id, exec_id, |row| (row.request, row.code)).await?;
        Ok(row.is_none_or(|(asked, with)| asked == *request && with == code))
    }

    /// An execution, ended or not.
    pub async fn exec_info(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
    ) -> Result<ExecInfo, EngineError> {
        if let Some(exec) = self.live_exec(who, id, exec_id).await {
            return Ok(info_of_live(&exec));
        }
        self.row(who, id).await?;
        let info = self.shared.store.exec(id, exec_id, info_of_exec_row).await?;
        info.ok_or_else(|| EngineError::NoExec(exec_id.to_owned()))
    }

    /// How many bytes an execution has said, or would take in memory if it were read.
    pub async fn exec_bytes(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
    ) -> Result<u64, EngineError> {
        match self.live_exec(who, id, exec_id).await {
            Some(exec) => Ok(exec.transcript.held_bytes()),
            None => self.stored_bytes(who, id, exec_id).await,
        }
    }

    /// How many bytes are read for what an execution has said; none if it is in memory anyway.
    pub async fn stored_bytes(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
    ) -> Result<u64, EngineError> {
        if self.live_exec(who, id, exec_id).await.is_some() {
            return Ok(0);
        }
        self.row(who, id).await?;
        Ok(self.shared.store.exec_bytes(id, exec_id).await?)
    }

    /// The same of the page that [`Engine::execs`] with `before`, or [`Engine::log`] with `after`,
    /// would answer.
    pub async fn page_bytes(
        &self,
        who: &Principal,
        id: &str,
        which: Beyond,
        limit: u32,
    ) -> Result<u64, EngineError> {
        self.row(who, id).await?;
        let live = self.session(who, id).map(|session| session.live_execs()).unwrap_or_default();
        let live: u64 = live.iter().map(|exec| exec.transcript.held_bytes()).sum();
        Ok(live + self.shared.store.execs_bytes(id, which.filter(limit)).await?)
    }

    /// Executions of a session, the newest first.
    pub async fn execs(
        &self,
        who: &Principal,
        id: &str,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Page<ExecInfo>, EngineError> {
        self.row(who, id).await?;
        let live = self.session(who, id).ok();
        let filter = Beyond::Before(before).filter(limit);
        let info = move |row: ExecRow| {
            let live = live.as_ref().and_then(|session| session.live_exec(&row.id));
            let live = live.filter(|exec| exec.is_accepted());
            live.map_or_else(|| info_of_exec_row(row), |exec| info_of_live(&exec))
        };
        Ok(self.shared.store.execs(id, filter, info).await?)
    }

    /// What an execution has said so far.
    pub async fn transcript(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
    ) -> Result<Arc<Transcript>, EngineError> {
        if let Some(exec) = self.live_exec(who, id, exec_id).await {
            return Ok(Arc::clone(&exec.transcript));
        }
        self.row(who, id).await?;
        let decode = |row: ExecRow| Transcript::decode(&row.transcript?).map(Arc::new);
        let transcript = self.shared.store.exec(id, exec_id, decode).await?;
        transcript.flatten().ok_or_else(|| EngineError::NoExec(exec_id.to_owned()))
    }

    pub async fn interrupt(
        &self,
        who: &Principal,
        id: &str,
        exec_id: Option<String>,
    ) -> Result<usize, EngineError> {
        let session = self.live_session(who, id).await?;
        let interrupted = session.interrupt(exec_id.clone()).await;
        match (interrupted, exec_id) {
            // Not alive; if it was once, there is nothing left to interrupt.
            (Err(EngineError::NoExec(_)), Some(exec_id)) => {
                self.exec_info(who, id, &exec_id).await.map(|_| 0)
            }
            (interrupted, _) => interrupted,
        }
    }

    pub async fn stdin(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
        bytes: &[u8],
        close: bool,
    ) -> Result<(), EngineError> {
        let session = self.live_session(who, id).await?;
        let exec = self.live_exec(who, id, exec_id).await;
        let Some(exec) = exec.filter(|exec| exec.stage() != Stage::Finished) else {
            self.exec_info(who, id, exec_id).await?;
            return Err(EngineError::Invalid(format!("execution `{exec_id}` is over")));
        };
        if !exec.request.stdin {
            return Err(EngineError::Invalid(format!(
                "execution `{exec_id}` takes no input: it was not started with \"stdin\": true"
            )));
        }
        let mut stage = exec.stage.subscribe();
        // Input for one that waits in the queue waits with it.
        let _ = stage.wait_for(|stage| !matches!(stage, Stage::Queued { .. })).await;
        session.stdin(exec_id, bytes, close).await
    }

    pub async fn state(
        &self,
        who: &Principal,
        id: &str,
        language: Language,
    ) -> Result<KernelVariables, EngineError> {
        self.live_session(who, id).await?.state(language, who.quota()).await
    }

    /// What was executed in a session, the oldest first.
    pub async fn log(
        &self,
        who: &Principal,
        id: &str,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Page<LogEntry>, EngineError> {
        self.row(who, id).await?;
        // Those on their way to the database first: they may arrive there while we read it.
        let live = self.session(who, id).map(|session| session.live_execs()).unwrap_or_default();
        let ended = live.iter().filter(|exec| exec.transcript.outcome().is_some());
        let newest = after.is_none();
        let filter = Beyond::After(after).filter(limit);
        let page = self.shared.store.execs(id, filter, log_entry).await?;
        let mut entries: BTreeMap<u64, LogEntry> = ended
            .filter(|exec| after.is_none_or(|after| exec.number > after))
            .map(|exec| (exec.number, log_entry_of_live(exec)))
            .collect();
        entries.extend(page.items.into_iter().flatten().map(|entry| (entry.number, entry)));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let too_many = entries.len().saturating_sub(limit);
        let skipped = if newest { too_many } else { 0 };
        Ok(Page {
            items: entries.into_values().skip(skipped).take(limit).collect(),
            more: page.more || too_many > 0,
        })
    }

    /// An execution that is not yet safe in the database. A session that is being taken over knows
    /// its own only when it has been found, and whoever asks for one then waits for that.
    async fn live_exec(&self, who: &Principal, id: &str, exec_id: &str) -> Option<Arc<Exec>> {
        let session = self.session(who, id).ok()?;
        session.settled().await;
        // One that the database knew already is not it.
        session.live_exec(exec_id)?.once_accepted().await.ok()
    }
}
