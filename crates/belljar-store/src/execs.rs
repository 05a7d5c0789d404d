//! Executions: their requests, and the transcripts of their events.

use async_trait::async_trait;
use belljar_proto::exec::Status;
use tokio::sync::oneshot;

use crate::{ExecRequest, Page, Store, StoreError};

#[derive(Debug, Clone)]
pub struct ExecRow {
    pub session: String,
    pub id: String,
    pub number: u64,
    pub request: ExecRequest,
    pub code: Vec<u8>,
    pub accepted_ms: i64,
    pub ended_ms: Option<i64>,
    pub status: Option<Status>,
    /// Encoded by the engine.
    pub transcript: Option<Vec<u8>>,
}

/// An execution that has ended, and the changes of its session.
#[derive(Debug)]
pub struct FinishedExec {
    pub session: String,
    pub id: String,
    pub number: u64,
    pub ended_ms: i64,
    pub status: Status,
    pub transcript: Vec<u8>,
    /// When the session expires now. The engine does not set it with every execution.
    pub expires_ms: Option<i64>,
}

/// Which executions of a session to list.
#[derive(Debug, Clone, Copy)]
pub struct ExecFilter {
    /// The newest first, or the oldest first.
    pub newest_first: bool,
    /// Only those after this number, in the direction of the list.
    pub beyond: Option<u64>,
    pub finished: bool,
    pub limit: u32,
}

/// Called with a row on a thread that may block for a while, for example to decode a large
/// transcript.
pub type ExecVisitor = Box<dyn FnMut(ExecRow) + Send>;

#[async_trait]
pub trait ExecRecords {
    /// Adds an execution before it begins. Returns false if the session had one with this id.
    async fn accept_exec(&self, row: ExecRow) -> Result<bool, StoreError>;

    /// Stores the end of an execution. Sometimes also deletes the oldest executions of its session.
    /// Uses [`Durability::Soon`](crate::Durability::Soon).
    async fn finish_exec(&self, finished: FinishedExec) -> Result<(), StoreError>;

    /// Calls `visit` with the execution, if there is one.
    async fn visit_exec(
        &self,
        session: &str,
        id: &str,
        visit: ExecVisitor,
    ) -> Result<(), StoreError>;

    /// Calls `visit` with each execution of a page. Returns whether there are more.
    async fn visit_execs(
        &self,
        session: &str,
        filter: ExecFilter,
        visit: ExecVisitor,
    ) -> Result<bool, StoreError>;

    /// The bytes of code and transcript of an execution; 0 if it does not exist.
    async fn exec_bytes(&self, session: &str, id: &str) -> Result<u64, StoreError>;

    /// The bytes of code and transcripts of a page of executions.
    async fn execs_bytes(&self, session: &str, filter: ExecFilter) -> Result<u64, StoreError>;

    /// Executions of a session that have not ended, in their order.
    async fn unfinished_execs(&self, session: &str) -> Result<Vec<ExecRow>, StoreError>;
}

impl dyn Store + '_ {
    /// An execution, converted by `view` on the thread that read it.
    pub async fn exec<T: Send + 'static>(
        &self,
        session: &str,
        id: &str,
        view: impl FnOnce(ExecRow) -> T + Send + 'static,
    ) -> Result<Option<T>, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let mut once = Some((view, sender));
        let visit: ExecVisitor = Box::new(move |row| {
            if let Some((view, sender)) = once.take() {
                let _ = sender.send(view(row));
            }
        });
        self.visit_exec(session, id, visit).await?;
        // The visitor is dropped by now. If it was not called, its sender is dropped too.
        Ok(receiver.await.ok())
    }

    /// A page of executions, each converted by `view` on the thread that read it.
    pub async fn execs<T: Send + 'static>(
        &self,
        session: &str,
        filter: ExecFilter,
        mut view: impl FnMut(ExecRow) -> T + Send + 'static,
    ) -> Result<Page<T>, StoreError> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let visit: ExecVisitor = Box::new(move |row| {
            let _ = sender.send(view(row));
        });
        let more = self.visit_execs(session, filter, visit).await?;
        Ok(Page { items: receiver.try_iter().collect(), more })
    }
}

pub const STATUSES: [Status; 6] =
    [Status::Ok, Status::Error, Status::Timeout, Status::Interrupted, Status::Crashed, Status::Oom];

/// The name of a status, as the API and the database write it.
#[must_use]
pub fn status_name(status: Status) -> &'static str {
    match status {
        Status::Ok => "ok",
        Status::Error => "error",
        Status::Timeout => "timeout",
        Status::Interrupted => "interrupted",
        Status::Crashed => "crashed",
        Status::Oom => "oom",
    }
}
