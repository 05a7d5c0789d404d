//! Sessions as files: what one that sleeps, branches or can be taken back is made of again.
//!
//! ```text
//! FROZEN/<session id>/           an album
//!     ID.json                    a picture: what belongs to it, written last
//!     ID.index, ID.pages         its Python kernel: an index, and a layer of memory
//!     ID.files                   an archive of its files, which nobody but a guest looks into
//! ```
//!
//! A picture is there when its `ID.json` is. Its layers may be those of earlier pictures; a file that
//! no picture speaks of is removed. Albums that share something have hard links to it, so each can be
//! removed without a thought for the others.
//!
//! [`album`] keeps them, [`capture`] takes one of a sandbox at rest, [`revive`] makes a fresh sandbox
//! into what one shows.

mod album;
mod capture;
mod revive;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use album::{Album, Branch, Manifest};
pub(crate) use capture::{Ask, capture};
pub(crate) use revive::revive;

use crate::clock;
use crate::error::EngineError;
use crate::lock;

/// The name of a directory that is no album.
const COMMONS: &str = "commons";

/// Where pictures are kept, and how much of them.
#[derive(Debug, Clone)]
pub struct FrozenConfig {
    pub directory: PathBuf,
    /// Bytes of all of them together; none: no limit.
    pub total_bytes: Option<u64>,
    /// After how long without use a session is put to sleep; none: only if somebody asks.
    pub hibernate_after: Option<std::time::Duration>,
}

/// All albums.
#[derive(Debug)]
pub(crate) struct Pictures {
    config: FrozenConfig,
    /// Numbers of pictures grow, across restarts as well, and no two sessions have the same: a
    /// branch goes on with the layers of another.
    last: AtomicU64,
    /// Bytes in each album.
    used: Mutex<HashMap<String, u64>>,
}

impl Pictures {
    pub(crate) fn open(config: FrozenConfig) -> io::Result<Pictures> {
        album::make_directory(&config.directory)?;
        Ok(Pictures { config, last: AtomicU64::new(0), used: Mutex::default() })
    }

    pub(crate) fn config(&self) -> &FrozenConfig {
        &self.config
    }

    pub(crate) fn album(&self, session: &str) -> Album {
        Album::new(self.config.directory.join(session))
    }

    /// Where layers are that pictures of many sessions share; an album has a link to those it needs.
    pub(super) fn commons(&self) -> PathBuf {
        self.config.directory.join(COMMONS)
    }

    /// A number that no picture has.
    pub(crate) fn next_id(&self) -> u64 {
        let now = u64::try_from(clock::now_ms()).unwrap_or(0).saturating_mul(1000);
        let next = |last: u64| Some(now.max(last + 1));
        let before = self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        now.max(before.unwrap_or(0) + 1)
    }

    /// Refuses one more picture if there is no room for any.
    pub(crate) fn room(&self) -> Result<u64, EngineError> {
        let Some(total) = self.config.total_bytes else { return Ok(u64::MAX) };
        let used: u64 = lock(&self.used).values().sum();
        match total.checked_sub(used) {
            Some(left) if left > 0 => Ok(left),
            _ => Err(EngineError::PicturesFull { used, total }),
        }
    }

    /// Counts what a session's album holds now.
    pub(crate) fn count(&self, session: &str) {
        let bytes = self.album(session).bytes();
        let mut used = lock(&self.used);
        match bytes {
            0 => drop(used.remove(session)),
            bytes => drop(used.insert(session.to_owned(), bytes)),
        }
    }

    /// The session has ended, and nobody needs its pictures.
    pub(crate) fn remove(&self, session: &str) {
        let album = self.album(session);
        if let Err(error) = album.remove() {
            tracing::warn!(session.id = session, "failed to remove its pictures: {error}");
        }
        lock(&self.used).remove(session);
    }

    /// Removes what an earlier server left unfinished, and everything of sessions that are not
    /// among these. To be called before anybody takes pictures.
    pub(crate) fn tidy(&self, sessions: &[String]) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.config.directory)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            if name == COMMONS {
                // Albums have links to what they need; those that we need we make anew.
                self.album(&name).remove()?;
            } else if sessions.contains(&name) {
                if let Err(error) = self.album(&name).sweep() {
                    tracing::warn!(session.id = name, "failed to tidy up its pictures: {error}");
                }
                self.count(&name);
            } else {
                self.remove(&name);
            }
        }
        Ok(())
    }

    /// A picture of a session that is to become others: it stays for as long as this is held.
    pub(crate) fn branch(&self, album: &Album, manifest: &Manifest) -> io::Result<Branch> {
        let name = format!("branch_{}", self.next_id());
        Branch::of(self.album(&name), album, manifest)
    }
}
