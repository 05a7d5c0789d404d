//! Handles commands for a hibernated session, which has no sandbox, only files.

use tokio::task::JoinError;
use tokio::time::sleep_until;

use super::serve::until;
use super::upload::Uploaded;
use super::{Command, Driver, SandboxLease};
use crate::admission::Quota;
use crate::error::EngineError;
use crate::rules::Happening;
use crate::snapshots::{ForkSource, SnapshotManifest};

/// How a sleep ended.
pub(super) enum SleepEnd {
    Awake(SandboxLease),
    Stop(String),
    ServerLeaving,
    /// Any node can claim the session.
    Released,
    /// Another node owns the session.
    Fenced,
}

enum SleepEvent {
    End(SleepEnd),
    Command(Command),
    Uploaded(Result<Uploaded, JoinError>),
    UploadDue,
    ReleaseDue,
}

impl Driver {
    pub(super) async fn sleep(&mut self) -> SleepEnd {
        loop {
            match self.next_event_asleep().await {
                SleepEvent::End(end) => return end,
                SleepEvent::Command(command) => {
                    if let Some(sandbox) = self.handle_asleep(command).await {
                        return SleepEnd::Awake(sandbox);
                    }
                }
                SleepEvent::Uploaded(uploaded) => self.uploaded(uploaded),
                SleepEvent::UploadDue => self.next_upload(),
                SleepEvent::ReleaseDue => {
                    if let Some(end) = self.release().await {
                        return end;
                    }
                }
            }
        }
    }

    async fn next_event_asleep(&mut self) -> SleepEvent {
        let deadline = self.deadline();
        let (upload, release) = (self.uploads.due(), self.release_at());
        let mut stop = self.session.stop.subscribe();
        let mut leaving = self.state.leaving.subscribe();
        let mut fenced = self.session.fenced.subscribe();
        tokio::select! {
            biased;
            _ = fenced.wait_for(|fenced| *fenced) => SleepEvent::End(SleepEnd::Fenced),
            _ = stop.wait_for(Option::is_some) => {
                SleepEvent::End(SleepEnd::Stop(self.stop_reason()))
            }
            _ = leaving.wait_for(|leaving| *leaving) => SleepEvent::End(SleepEnd::ServerLeaving),
            Some(command) = self.commands.recv() => SleepEvent::Command(command),
            Some(uploaded) = self.uploads.running.join_next() => SleepEvent::Uploaded(uploaded),
            () = until(upload) => SleepEvent::UploadDue,
            () = until(release) => SleepEvent::ReleaseDue,
            () = sleep_until(deadline) => SleepEvent::End(SleepEnd::Stop(self.expired())),
        }
    }

    /// Handles a command. Returns the sandbox if the session was woken for it.
    async fn handle_asleep(&mut self, command: Command) -> Option<SandboxLease> {
        match command {
            Command::Wake { quota, answer } => match self.wake(quota).await {
                Ok(sandbox) => {
                    let _ = answer.send(Ok(sandbox.clone()));
                    return Some(sandbox);
                }
                Err(error) => drop(answer.send(Err(error))),
            },
            Command::Exec { ask, answer } => match self.wake(Quota::default()).await {
                Ok(sandbox) => {
                    self.accept(&sandbox, ask, answer);
                    return Some(sandbox);
                }
                Err(error) => drop(answer.send(Err(error))),
            },
            Command::Interrupt { exec_id: None, answer } => drop(answer.send(Ok(0))),
            Command::Interrupt { exec_id: Some(id), answer } => {
                let _ = answer.send(Err(EngineError::NoExec(id)));
            }
            Command::Extend { ttl_s, answer } => self.extend(ttl_s, answer),
            Command::Used => {}
            Command::Warn(warning) => self.warn(warning),
            Command::Hibernate { answer, .. } => {
                let lost = match &self.unfetched {
                    Some(pointer) => Ok(pointer.resume().notes),
                    None => self.hibernated().await.map(|manifest| manifest.left_out()),
                };
                let _ = answer.send(lost);
            }
            Command::Fork { from, answer, .. } => {
                let _ = answer.send(self.fork_asleep(from.as_deref()).await);
            }
            Command::Restore { exec, answer } => {
                let _ = answer.send(self.restore_asleep(&exec).await);
            }
        }
        None
    }

    async fn fork_asleep(&mut self, from: Option<&str>) -> Result<ForkSource, EngineError> {
        match from {
            Some(exec) => {
                self.fetch_snapshot().await?;
                self.fork_checkpoint(exec).await
            }
            None => {
                let manifest = self.hibernated().await?;
                self.fork_source(&manifest).await
            }
        }
    }

    /// Makes the checkpoint the state of the session, which stays hibernated.
    async fn restore_asleep(&mut self, exec: &str) -> Result<(), EngineError> {
        self.fetch_snapshot().await?;
        let manifest = self.checkpoint(exec).await?;
        let id = self.state.snapshot_store.next_id();
        let again = self.snapshots().run(move |files| files.repeat(&manifest, id)).await;
        let again = again.map_err(EngineError::KeepSnapshot)?;
        self.begin_changes().await?;
        self.drop_earlier(&again).await;
        self.fall_asleep(&again);
        self.is_at(exec);
        Ok(())
    }

    /// The snapshot of a hibernated session.
    pub(super) async fn hibernated(&mut self) -> Result<SnapshotManifest, EngineError> {
        self.fetch_snapshot().await?;
        let last = self.snapshots().last().await.ok_or_else(|| {
            let gone = std::io::Error::other("its snapshot is gone");
            EngineError::KeepSnapshot(gone)
        })?;
        Ok(self.without_foreign_memory(last))
    }

    /// Ends a hibernated session.
    pub(super) async fn end_hibernated(&mut self, because: &str) {
        self.apply(Happening::StopAsked);
        let end = self.final_view(Happening::SandboxGone, because);
        self.write_last_metadata(&end).await;
        self.over(end).await;
    }
}
