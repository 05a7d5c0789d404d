//! Executions in sessions: accepts and reads them, sends them input, and interrupts them.

use std::collections::BTreeMap;
use std::sync::Arc;

use belljar_proto::exec::Language;
use belljar_proto::guest::KernelVariables;

use super::views::{info_of_exec_row, info_of_live, log_entry, log_entry_of_live, transcript_of};
use super::{Engine, ExecInfo, Principal};
use crate::audit::AuditEntry;
use crate::error::{EngineError, in_full};
use crate::exec::log::LogEntry;
use crate::exec::transcript::Transcript;
use crate::exec::{Exec, ExecAsk, ExecParams, Stage};
use crate::store::{ExecFilter, ExecRow, Page};

/// The result of a request to execute.
#[derive(Debug)]
pub enum Accepted {
    /// It waits or runs: it is new, or the same request came before and has not ended.
    Live(Arc<Exec>),
    /// The same request came before and has ended; [`Engine::transcript`] returns its output.
    Replayed { exec_id: String },
}

impl Accepted {
    #[must_use]
    pub fn exec_id(&self) -> &str {
        match self {
            Accepted::Live(exec) => &exec.id,
            Accepted::Replayed { exec_id } => exec_id,
        }
    }
}

/// Which executions are on a page.
#[derive(Debug, Clone, Copy)]
pub enum Beyond {
    /// Those before this number; without a number, the newest.
    Before(Option<u64>),
    /// Ended ones after this number; without a number, the newest ended ones.
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
    /// Executes something in a session. A new execution is stored when this returns. If the id was used before, the
    /// request is compared with the earlier one and not executed again.
    pub async fn exec(
        &self,
        who: &Principal,
        id: &str,
        params: ExecParams,
    ) -> Result<Accepted, EngineError> {
        let ask = params.into_ask()?;
        let code = Arc::clone(&ask.code);
        let accepted = self.accept(who, id, ask).await;
        let outcome = match &accepted {
            Ok(Accepted::Live(_)) => "accepted".to_owned(),
            Ok(Accepted::Replayed { .. }) => "replayed".to_owned(),
            Err(error) => in_full(error),
        };
        self.audit.note(
            who,
            &AuditEntry {
                action: "exec",
                outcome: &outcome,
                session: Some(id),
                exec: accepted.as_ref().ok().map(Accepted::exec_id),
                code: Some(&code),
                detail: None,
            },
        );
        accepted
    }

    async fn accept(
        &self,
        who: &Principal,
        id: &str,
        ask: ExecAsk,
    ) -> Result<Accepted, EngineError> {
        let session = self.live_session(who, id).await?;
        session.awake_for_work(who.quota()).await?;
        match session.exec(ask.clone()).await {
            Ok(exec) => Ok(Accepted::Live(exec)),
            Err(EngineError::DuplicateExec(exec_id)) => self.replay(id, exec_id, &ask).await,
            Err(error) => Err(error),
        }
    }

    /// Answers a request whose id the store knows.
    async fn replay(
        &self,
        id: &str,
        exec_id: String,
        ask: &ExecAsk,
    ) -> Result<Accepted, EngineError> {
        let request = |row: ExecRow| (row.request, row.code, row.ended_ms.is_some());
        let stored = self.state.store.exec(id, &exec_id, request).await?;
        match stored {
            Some((request, code, _)) if request != ask.request || *code != *ask.code => {
                Err(EngineError::ExecDiffers(exec_id))
            }
            Some((.., true)) => Ok(Accepted::Replayed { exec_id }),
            // The execution ended, but its end could not be stored.
            _ => Err(EngineError::DuplicateExec(exec_id)),
        }
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
        let info = self.state.store.exec(id, exec_id, info_of_exec_row).await?;
        info.ok_or_else(|| EngineError::NoExec(exec_id.to_owned()))
    }

    /// The size of an execution's output in bytes, in memory or in the store.
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

    /// Bytes that [`Engine::transcript`] reads from the store; 0 if the transcript is in memory.
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
        Ok(self.state.store.exec_bytes(id, exec_id).await?)
    }

    /// Bytes of the page that [`Engine::execs`] returns for `before`, or [`Engine::log`] for `after`.
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
        Ok(live + self.state.store.execs_bytes(id, which.filter(limit)).await?)
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
        Ok(self.state.store.execs(id, filter, info).await?)
    }

    /// The transcript of an execution, ended or not.
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
        let transcript = self.state.store.exec(id, exec_id, |row| transcript_of(&row)).await?;
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
            // The execution has ended, or never existed.
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
            return Err(EngineError::Invalid(format!("execution `{exec_id}` has ended")));
        };
        if !exec.request.stdin {
            return Err(EngineError::Invalid(format!(
                "execution `{exec_id}` takes no input: it was not started with \"stdin\": true"
            )));
        }
        let mut stage = exec.stage.subscribe();
        // Input for a queued execution waits until it starts.
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

    /// The log of a session, the oldest entry first.
    pub async fn log(
        &self,
        who: &Principal,
        id: &str,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Page<LogEntry>, EngineError> {
        self.row(who, id).await?;
        // Executions that are not stored yet are read first: they may be stored while we read the store.
        let live = self.session(who, id).map(|session| session.live_execs()).unwrap_or_default();
        let ended = live.iter().filter(|exec| exec.transcript.outcome().is_some());
        let newest = after.is_none();
        let filter = Beyond::After(after).filter(limit);
        let page = self.state.store.execs(id, filter, log_entry).await?;
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

    /// An execution whose end is not stored yet. Waits if the session is being recovered: its executions are not known
    /// until its sandbox is found.
    async fn live_exec(&self, who: &Principal, id: &str, exec_id: &str) -> Option<Arc<Exec>> {
        let session = self.session(who, id).ok()?;
        session.settled().await;
        // An execution that the store refuses does not count.
        session.live_exec(exec_id)?.once_accepted().await.ok()
    }
}
