//! Sessions as files: what one that sleeps, branches or can be taken back is made of again.
//!
//! ```text
//! FROZEN/<session id>/           the snapshots of one session
//!     ID.json                    a snapshot: what belongs to it, written last
//!     ID.index, ID.pages         its Python kernel: an index, and a layer of memory
//!     ID.files                   an archive of its files, which nobody but a guest looks into
//! ```
//!
//! A snapshot is there when its `ID.json` is. Its layers may be those of earlier snapshots; a file that
//! no snapshot speaks of is removed. Albums that share something have hard links to it, so each can be
//! removed without a thought for the others. Kernels have layers open for reading: one that is open somewhere
//! stays in its snapshots, and is counted ([`books`]), until it is not or the session ends.
//!
//! [`snapshots`] keeps them, [`capture`] takes one of a sandbox at rest, [`revive`] makes a fresh sandbox
//! into what one shows.

mod capture;
mod disk_usage;
mod revive;
mod session_snapshots;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use capture::{Ask, capture};
pub(crate) use revive::revive;
pub(crate) use session_snapshots::{ForkSource, Manifest, SessionSnapshots};

use disk_usage::{Most, SnapshotUsage, Tally};

use crate::clock;
use crate::error::EngineError;

/// The name of a directory that is no snapshots.
const COMMONS: &str = "commons";

/// Where snapshots are kept, and how much of them.
#[derive(Debug, Clone)]
pub struct SnapshotConfig {
    pub directory: PathBuf,
    /// Bytes of all of them together; none: no limit.
    pub total_bytes: Option<u64>,
    /// Bytes of those of a tenant; none: no limit.
    pub tenant_bytes: Option<u64>,
    /// Sleeping sessions of a tenant whose key has no limit of its own; none: no limit.
    pub tenant_sleeping: Option<u64>,
    /// After how long without use a session is put to sleep; none: only if somebody asks.
    pub hibernate_after: Option<std::time::Duration>,
}

/// The snapshots of all sessions.
#[derive(Debug)]
pub(crate) struct SnapshotStore {
    config: SnapshotConfig,
    /// Numbers of snapshots grow, across restarts as well, and no two sessions have the same: a
    /// branch goes on with the layers of another.
    last: AtomicU64,
    books: SnapshotUsage,
}

impl SnapshotStore {
    pub(crate) fn open(config: SnapshotConfig) -> io::Result<SnapshotStore> {
        session_snapshots::make_directory(&config.directory)?;
        let most = Most { total: config.total_bytes, tenant: config.tenant_bytes };
        Ok(SnapshotStore { config, last: AtomicU64::new(0), books: SnapshotUsage::new(most) })
    }

    pub(crate) fn config(&self) -> &SnapshotConfig {
        &self.config
    }

    pub(crate) fn of_session(&self, session: &str) -> SessionSnapshots {
        SessionSnapshots::new(self.config.directory.join(session))
    }

    /// Where layers are that snapshots of many sessions share; the snapshots of one session has a link to those it needs.
    pub(super) fn commons(&self) -> PathBuf {
        self.config.directory.join(COMMONS)
    }

    /// A number that no snapshot has.
    pub(crate) fn next_id(&self) -> u64 {
        let now = u64::try_from(clock::now_ms()).unwrap_or(0).saturating_mul(1000);
        let next = |last: u64| Some(now.max(last + 1));
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        now.max(before.unwrap_or(0) + 1)
    }

    /// Counts a snapshot while it is taken; refused if there is no room for any.
    fn meter(&self, tenant: &str, room: u64) -> Result<Arc<Tally>, EngineError> {
        self.books.meter(tenant, room)
    }

    /// Counts what a session's snapshots holds now.
    pub(crate) fn count(&self, session: &str, tenant: &str) {
        self.books.set(session, tenant, self.of_session(session).files());
    }

    /// The session has ended, and nobody needs its snapshots.
    pub(crate) fn remove(&self, session: &str) {
        let snapshots = self.of_session(session);
        if let Err(error) = snapshots.remove() {
            tracing::warn!(session.id = session, "failed to remove its snapshots: {error}");
        }
        self.books.remove(session);
    }

    /// Removes what an earlier server left unfinished, and everything of sessions that are not
    /// among these (id and tenant). To be called before anybody takes snapshots.
    pub(crate) fn tidy(&self, sessions: &[(String, String)]) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.config.directory)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            if name == COMMONS {
                // Albums have links to what they need; those that we need we make anew.
                std::fs::remove_dir_all(self.commons())?;
            } else if let Some((_, tenant)) = sessions.iter().find(|(id, _)| *id == name) {
                if let Err(error) = self.of_session(&name).sweep() {
                    tracing::warn!(session.id = name, "failed to tidy up its snapshots: {error}");
                }
                self.count(&name, tenant);
            } else {
                self.remove(&name);
            }
        }
        Ok(())
    }

    /// A snapshot of a session that is to become others: it stays for as long as this is held.
    pub(crate) fn branch(
        &self,
        snapshots: &SessionSnapshots,
        manifest: &Manifest,
    ) -> io::Result<ForkSource> {
        let name = format!("branch_{}", self.next_id());
        ForkSource::of(self.of_session(&name), snapshots, manifest)
    }
}

fn too_large(room: u64) -> EngineError {
    EngineError::TooLarge(format!("what is to be kept of this session is more than {room} bytes"))
}
