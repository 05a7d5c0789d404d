//! Terminals in sessions. The guest keeps them, so that they survive connections and servers. This module connects
//! clients to them.

use std::sync::Arc;
use std::time::Duration;

use belljar_proto::terminal::{
    TerminalEnd, TerminalEvent, TerminalInfo, TerminalSize, TerminalSpec,
};
use belljar_runtime::TerminalOutput;

use super::{Engine, Principal};
use crate::audit::AuditEntry;
use crate::checks::{check_argv, path_inside};
use crate::error::{EngineError, in_full};
use crate::exec::shell_argv;
use crate::session::{InUse, Session};

/// How often a connection to a terminal marks the session as used.
const USE_PACE: Duration = Duration::from_secs(15);

/// How long to wait for the end of a session to be published after its sandbox is gone.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// The default prompt of a shell: the directory.
const PROMPT: &str = "\\w \\$ ";

/// The most rows and columns, because programs allocate memory for them.
const MAX_SIDE: u16 = 1_000;

/// `TERM` of a client that does not name one.
const DEFAULT_TERM: &str = "xterm-256color";

/// A terminal to open.
#[derive(Debug, Clone, Default)]
pub struct TerminalAsk {
    /// A command line for a shell. Without one, an interactive shell is started.
    pub command: Option<String>,
    /// The working directory; `/session` by default.
    pub cwd: Option<String>,
    /// The kind of terminal, as `TERM` names it.
    pub term: Option<String>,
    pub size: TerminalSize,
}

impl TerminalAsk {
    /// The terminal without its environment, and `TERM`.
    fn check(self) -> Result<(TerminalSpec, String), EngineError> {
        let argv = match self.command {
            Some(command) => shell_argv(command),
            None => vec!["/bin/bash".into()],
        };
        check_argv(&argv)?;
        check_size(self.size)?;
        let term = self.term.unwrap_or_else(|| DEFAULT_TERM.into());
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
        if term.is_empty() || term.len() > 64 || !term.bytes().all(known) {
            let message = "term: expected the name of a kind of terminal";
            return Err(EngineError::Invalid(message.into()));
        }
        let cwd = path_inside(self.cwd.as_deref())?;
        let terminal = crate::new_id("term");
        Ok((TerminalSpec { terminal, argv, env: Vec::new(), cwd, size: self.size }, term))
    }
}

fn check_size(size: TerminalSize) -> Result<(), EngineError> {
    let sides = 1..=MAX_SIDE;
    match sides.contains(&size.rows) && sides.contains(&size.cols) {
        true => Ok(()),
        false => {
            Err(EngineError::Invalid(format!("rows and cols must be between 1 and {MAX_SIDE}")))
        }
    }
}

/// A client that is attached to a terminal. Meanwhile the session counts as in use.
#[derive(Debug)]
pub struct AttachedTerminal {
    pub info: TerminalInfo,
    output: TerminalOutput,
    control: TerminalControl,
    _in_use: InUse,
    /// Marks the session as used now and then.
    reporting: tokio::task::JoinHandle<()>,
}

/// Writes to a terminal and controls it.
#[derive(Debug, Clone)]
pub struct TerminalControl {
    session: Arc<Session>,
    terminal: String,
}

/// What a terminal sends to its client.
#[derive(Debug)]
pub enum TerminalUpdate {
    Output(Vec<u8>),
    /// This many bytes of output were dropped.
    Skipped(u64),
    Ended(TerminalEnd),
}

impl AttachedTerminal {
    #[must_use]
    pub fn control(&self) -> TerminalControl {
        self.control.clone()
    }

    /// The next update; `None` when the sandbox is gone, or this server leaves the session to the next one. Cancel
    /// safe.
    pub async fn next(&mut self) -> Result<Option<TerminalUpdate>, EngineError> {
        let next = self.output.next().await.map_err(EngineError::Terminal)?;
        Ok(next.map(|(event, body)| match event {
            TerminalEvent::Output { .. } => TerminalUpdate::Output(body),
            TerminalEvent::Skipped { bytes } => TerminalUpdate::Skipped(bytes),
            TerminalEvent::Ended(end) => TerminalUpdate::Ended(end),
        }))
    }
}

impl Drop for AttachedTerminal {
    fn drop(&mut self) {
        self.reporting.abort();
    }
}

impl TerminalControl {
    /// Writes to the terminal; returns when all bytes are written.
    pub async fn type_in(&self, bytes: &[u8]) -> Result<(), EngineError> {
        let sandbox = self.session.sandbox()?;
        sandbox.type_at_terminal(&self.terminal, bytes).await.map_err(EngineError::Terminal)
    }

    pub async fn resize(&self, size: TerminalSize) -> Result<(), EngineError> {
        check_size(size)?;
        let sandbox = self.session.sandbox()?;
        sandbox.resize_terminal(&self.terminal, size).await.map_err(EngineError::Terminal)
    }

    /// Closes the terminal and ends everything that was started in it.
    pub async fn close(&self) -> Result<(), EngineError> {
        let sandbox = self.session.sandbox()?;
        sandbox.close_terminal(&self.terminal).await.map_err(EngineError::Terminal)
    }

    /// Why the session has ended. It is published a moment after the sandbox is gone.
    pub async fn ended_because(&self) -> Option<String> {
        let ended = tokio::time::timeout(END_PATIENCE, self.session.ended()).await;
        ended.ok()?.ok()?.ended_because
    }
}

impl Engine {
    /// Starts a program on a new terminal, and attaches to it.
    pub async fn open_terminal(
        &self,
        who: &Principal,
        id: &str,
        ask: TerminalAsk,
    ) -> Result<AttachedTerminal, EngineError> {
        let is_command = ask.command.is_some();
        let (spec, term) = ask.check()?;
        let code = is_command.then(|| spec.argv.join(" "));
        let opened = self.open_terminal_unnoted(who, id, spec, term, is_command).await;
        let outcome = opened.as_ref().map_or_else(|error| in_full(error), |_| "opened".into());
        self.audit.note(
            who,
            &AuditEntry {
                action: "terminal",
                outcome: &outcome,
                session: Some(id),
                exec: opened.as_ref().ok().map(|attached| attached.info.terminal.as_str()),
                code: code.as_ref().map(String::as_bytes),
                detail: None,
            },
        );
        opened
    }

    async fn open_terminal_unnoted(
        &self,
        who: &Principal,
        id: &str,
        mut spec: TerminalSpec,
        term: String,
        is_command: bool,
    ) -> Result<AttachedTerminal, EngineError> {
        let session = self.settled_session(who, id).await?;
        let in_use = session.in_use()?;
        let sandbox = session.sandbox()?;
        // A sandbox of the pool does not have the environment variables of the session.
        let own = session.spec.environment();
        let mut env = sandbox.environment();
        env.retain(|(name, _)| name != "TERM" && !own.contains_key(name));
        env.extend(own.into_iter().filter(|(name, _)| name != "TERM"));
        env.push(("TERM".into(), term));
        if !is_command && !env.iter().any(|(name, _)| name == "PS1") {
            env.push(("PS1".into(), PROMPT.into()));
        }
        spec.env = env;
        let info = sandbox.open_terminal(spec).await.map_err(EngineError::Terminal)?;
        drop(sandbox);
        attach(Arc::clone(&session), in_use, &info.terminal, None).await
    }

    /// Attaches to an open terminal. The output begins at a position, or includes all output that is kept.
    pub async fn attach_terminal(
        &self,
        who: &Principal,
        id: &str,
        terminal: &str,
        from: Option<u64>,
    ) -> Result<AttachedTerminal, EngineError> {
        let session = self.settled_session(who, id).await?;
        let in_use = session.in_use()?;
        attach(Arc::clone(&session), in_use, terminal, from).await
    }

    /// The terminals of a session, the oldest first.
    pub async fn terminals(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<Vec<TerminalInfo>, EngineError> {
        let session = self.settled_session(who, id).await?;
        let terminals = session.sandbox()?.terminals().await;
        terminals.map_err(EngineError::Terminal)
    }

    /// Closes a terminal and ends everything that was started in it.
    pub async fn close_terminal(
        &self,
        who: &Principal,
        id: &str,
        terminal: &str,
    ) -> Result<(), EngineError> {
        let session = self.settled_session(who, id).await?;
        session.used()?;
        let closed = session.sandbox()?.close_terminal(terminal).await;
        closed.map_err(EngineError::Terminal)
    }
}

async fn attach(
    session: Arc<Session>,
    in_use: InUse,
    terminal: &str,
    from: Option<u64>,
) -> Result<AttachedTerminal, EngineError> {
    let attached = session.sandbox()?.attach_terminal(terminal, from).await;
    let (info, output) = attached.map_err(EngineError::Terminal)?;
    let reporting = {
        let session = Arc::clone(&session);
        // The use is stored, because the next server must know that the session was in use until now.
        tokio::spawn(async move {
            while session.used().is_ok() {
                tokio::time::sleep(USE_PACE).await;
            }
        })
    };
    let control = TerminalControl { session, terminal: info.terminal.clone() };
    Ok(AttachedTerminal { info, output, control, _in_use: in_use, reporting })
}
