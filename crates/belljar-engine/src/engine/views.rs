//! Descriptions of sessions and executions: from the handle of a live session, otherwise from the database.

use std::path::PathBuf;
use std::sync::Arc;

use belljar_proto::exec::Status;

use super::{Engine, Principal};
use crate::clock;
use crate::error::EngineError;
use crate::exec::log::LogEntry;
use crate::exec::result::ExecResult;
use crate::exec::transcript::Transcript;
use crate::exec::{Exec, Stage};
use crate::rules::Phase;
use crate::session::{Session, View};
use crate::session_directory::SessionDirectory;
use crate::spec::{SessionSpec, Storage};
use crate::store::{ExecRow, SessionFilter, SessionRow};

/// The reason of an execution whose session could not go on elsewhere.
const NODE_LOST: &str = "the node that ran it was lost";

/// The description of a session, live or ended.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    pub id: String,
    pub tenant: String,
    pub key: Option<String>,
    pub spec: SessionSpec,
    pub created_ms: i64,
    pub view: View,
    pub memory_used: Option<u64>,
    /// Where its files are on the host.
    pub directory: Option<PathBuf>,
    /// When the ended session is removed with its files, unless it is started again.
    pub kept_until_ms: Option<i64>,
    /// What could not be kept; only in the result of hibernate and fork.
    pub lost: Vec<String>,
}

/// The description of an execution, ended or not.
#[derive(Debug)]
pub struct ExecInfo {
    pub id: String,
    pub number: u64,
    pub language: &'static str,
    pub background: bool,
    pub accepted_ms: i64,
    pub ended_ms: Option<i64>,
    pub stage: Stage,
    /// `None` until it has ended.
    pub result: Option<ExecResult>,
}

impl Engine {
    /// Describes a session, live or ended.
    pub async fn describe(&self, who: &Principal, id: &str) -> Result<SessionInfo, EngineError> {
        match self.session(who, id) {
            Ok(session) => Ok(self.info(&session)),
            Err(_) => Ok(self.info_of_row(self.row(who, id).await?)),
        }
    }

    /// Sessions of this tenant, the newest first.
    pub async fn list(
        &self,
        who: &Principal,
        filter: SessionFilter,
    ) -> Result<Vec<SessionInfo>, EngineError> {
        // The database has only `ready`; the driver publishes whether a session is busy.
        let wanted = filter.phase;
        let stored = match wanted {
            Some(Phase::Busy) => Some(Phase::Ready),
            other => other,
        };
        let tenant = Some(who.tenant.clone());
        let limit = filter.limit as usize;
        let mut filter = SessionFilter { tenant, phase: stored, ..filter };
        let mut found = Vec::new();
        // A page of the database may have fewer sessions in this phase than were requested, so more pages are read.
        loop {
            let rows = self.state.store.sessions(filter.clone()).await?;
            let is_last = rows.len() < limit;
            filter.before = rows.last().map(|row| row.id.clone());
            let infos = rows.into_iter().map(|row| {
                let live = self.registry.find(&row.id);
                live.map_or_else(|| self.info_of_row(row), |session| self.info(&session))
            });
            found.extend(infos.filter(|info| wanted.is_none_or(|phase| info.view.phase == phase)));
            if is_last || found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }

    pub(super) fn info(&self, session: &Session) -> SessionInfo {
        SessionInfo {
            id: session.id.clone(),
            tenant: session.tenant.clone(),
            key: session.key.clone(),
            spec: session.spec.clone(),
            created_ms: session.created_ms,
            kept_until_ms: None,
            view: session.view(),
            memory_used: session.memory_used(),
            directory: session.record.as_ref().map(|record| record.directory().to_owned()),
            lost: Vec::new(),
        }
    }

    pub(super) fn info_of_row(&self, row: SessionRow) -> SessionInfo {
        let record = SessionDirectory::of(&self.state.config.sessions_root, &row.id);
        let directory = (row.spec.storage == Storage::Bind).then(|| record.directory().to_owned());
        let is_on_disk = directory.is_some();
        let retention_s = self.state.config.disk.retention_s.filter(|_| is_on_disk);
        let kept_until_ms = row.ended_ms.zip(retention_s).map(|(ended_ms, retention_s)| {
            ended_ms.saturating_add(clock::seconds_to_ms(retention_s))
        });
        SessionInfo {
            kept_until_ms,
            view: view_of(&row),
            id: row.id,
            tenant: row.tenant,
            key: row.key,
            spec: row.spec,
            created_ms: row.created_ms,
            memory_used: None,
            directory,
            lost: Vec::new(),
        }
    }
}

pub(super) fn view_of(row: &SessionRow) -> View {
    View {
        phase: row.phase,
        used_ms: row.used_ms,
        expires_ms: row.expires_ms,
        ended_ms: row.ended_ms,
        ended_because: row.ended_because.clone(),
        running: 0,
        queued: 0,
        execs: row.execs,
        at: None,
        warnings: Vec::new(),
    }
}

pub(super) fn info_of_live(exec: &Exec) -> ExecInfo {
    let finished = exec.stage() == Stage::Finished;
    ExecInfo {
        id: exec.id.clone(),
        number: exec.number,
        language: exec.request.language(),
        background: exec.request.background,
        accepted_ms: exec.accepted_ms,
        ended_ms: None,
        stage: exec.stage(),
        result: finished.then(|| ExecResult::of(exec.id.clone(), &exec.transcript)),
    }
}

pub(super) fn info_of_exec_row(row: ExecRow) -> ExecInfo {
    let transcript = transcript_of(&row);
    ExecInfo {
        number: row.number,
        language: row.request.language(),
        background: row.request.background,
        accepted_ms: row.accepted_ms,
        ended_ms: row.ended_ms,
        stage: if row.ended_ms.is_some() { Stage::Finished } else { Stage::Queued { position: 0 } },
        result: transcript.map(|transcript| ExecResult::of(row.id.clone(), &transcript)),
        id: row.id,
    }
}

/// The transcript of an execution that has ended. One whose node was lost has no output, only an end.
pub(super) fn transcript_of(row: &ExecRow) -> Option<Arc<Transcript>> {
    if let Some(bytes) = &row.transcript {
        return Transcript::decode(bytes).map(Arc::new);
    }
    row.ended_ms?;
    let (id, request) = (row.id.clone(), row.request.clone());
    let exec = Exec::new(id, row.number, request, Arc::default(), row.accepted_ms);
    exec.end(Status::Crashed, NODE_LOST);
    Some(exec.transcript)
}

pub(super) fn log_entry_of_live(exec: &Exec) -> LogEntry {
    let result = ExecResult::of(exec.id.clone(), &exec.transcript);
    LogEntry::new(exec.number, exec.accepted_ms, &exec.request, &exec.code, result)
}

pub(super) fn log_entry(row: ExecRow) -> Option<LogEntry> {
    let transcript = transcript_of(&row)?;
    let result = ExecResult::of(row.id, &transcript);
    Some(LogEntry::new(row.number, row.accepted_ms, &row.request, &row.code, result))
}
