//! An execution that a client follows, for any kind of response: as a result, as server-sent events or over a
//! WebSocket.

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use belljar_engine::exec::ExecParams;
use belljar_engine::exec::result::ExecResult;
use belljar_engine::exec::transcript::Transcript;
use belljar_engine::{Accepted, Principal};

use crate::App;
use crate::artifacts::Links;
use crate::error::{ApiError, internal};
use crate::tenants::{Share, SharePermit};
use crate::{large, stream};

/// Results with more output than this are built on another thread, because it takes a while.
const LARGE: u64 = 256 * 1024;

/// The transcript of an execution, and the permit for its memory.
pub(crate) struct Followed {
    pub(crate) exec_id: String,
    pub(crate) transcript: Arc<Transcript>,
    /// Whether the client repeated its request after the execution had ended.
    pub(crate) replayed: bool,
    /// Empty for an execution in memory, because all readers share its transcript.
    permit: SharePermit,
}

impl Followed {
    /// Starts an execution, or finds the one that the same request started.
    pub(crate) async fn start(
        app: &App,
        who: &Principal,
        share: &Share,
        session: &str,
        params: ExecParams,
    ) -> Result<Followed, ApiError> {
        match app.engine.exec(who, session, params).await? {
            Accepted::Live(exec) => Ok(Followed {
                exec_id: exec.id.clone(),
                transcript: Arc::clone(&exec.transcript),
                replayed: false,
                permit: SharePermit::default(),
            }),
            Accepted::Replayed { exec_id } => {
                let found = Followed::find(app, who, share, session, exec_id).await?;
                Ok(Followed { replayed: true, ..found })
            }
        }
    }

    /// An execution that was accepted before.
    pub(crate) async fn find(
        app: &App,
        who: &Principal,
        share: &Share,
        session: &str,
        exec_id: String,
    ) -> Result<Followed, ApiError> {
        let bytes = app.engine.stored_bytes(who, session, &exec_id).await?;
        let (permit, _loading) = share.load(bytes).await?;
        let transcript = app.engine.transcript(who, session, &exec_id).await?;
        Ok(Followed { exec_id, transcript, replayed: false, permit })
    }

    /// Streams the events from a position on, while they happen.
    pub(crate) fn events(self, links: Links, offset: u64) -> Response {
        stream::events(links.linker(), self.exec_id, self.transcript, offset, self.permit)
    }

    /// Waits for the end.
    pub(crate) async fn result(&self) -> ExecResult {
        self.transcript.ended().await;
        ExecResult::of(self.exec_id.clone(), &self.transcript)
    }

    /// The result as JSON, after the end.
    pub(crate) async fn answer(self, links: Links, share: &Share) -> Result<Response, ApiError> {
        self.transcript.ended().await;
        let bytes = self.transcript.held_bytes();
        let permit = match self.replayed {
            true => self.permit,
            false => share.reserve(bytes).await?,
        };
        let (exec_id, transcript) = (self.exec_id, self.transcript);
        let render = move || {
            let result = ExecResult::of(exec_id, &transcript);
            large::json(StatusCode::OK, &links.linked(result), permit)
        };
        if bytes <= LARGE {
            return Ok(render());
        }
        let rendered = tokio::task::spawn_blocking(render).await;
        rendered.map_err(|error| internal(format!("failed to build the result: {error}")))
    }
}
