//! Snapshots of released sessions, kept as a cache: a session that comes back needs no files from S3.

use std::collections::VecDeque;
use std::sync::Mutex;

use super::SnapshotStore;
use super::files::SnapshotFiles;
use crate::lock;

/// The most sessions in the cache, and their bytes together.
const MAX_SESSIONS: usize = 256;
const MAX_BYTES: u64 = 4 << 30;

/// Sessions with their bytes on disk, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Cached(Mutex<VecDeque<(String, u64)>>);

impl Cached {
    fn take(&self, session: &str) {
        lock(&self.0).retain(|(known, _)| known != session);
    }

    /// Adds a session. Returns those that no longer fit.
    fn add(&self, session: &str, bytes: u64) -> Vec<String> {
        let mut sessions = lock(&self.0);
        sessions.retain(|(known, _)| known != session);
        sessions.push_back((session.to_owned(), bytes));
        let mut removed = Vec::new();
        while sessions.len() > MAX_SESSIONS
            || sessions.iter().map(|(_, bytes)| bytes).sum::<u64>() > MAX_BYTES
        {
            removed.extend(sessions.pop_front().map(|(session, _)| session));
        }
        removed
    }
}

impl SnapshotStore {
    /// Keeps the files of a session that this node has released, within bounds. They no longer count for its tenant.
    pub(crate) async fn keep_as_cache(&self, session: &str) {
        self.usage.remove(session);
        let snapshots = self.of_session(session);
        let marked = snapshots.run(|files| files.mark_as_cache().map(|()| files.on_disk()));
        let bytes = match marked.await {
            Ok(files) => files.iter().map(|file| file.bytes).sum(),
            Err(error) => {
                tracing::warn!(session.id = session, "failed to keep it as a cache: {error}");
                return self.remove(session).await;
            }
        };
        for session in self.cached.add(session, bytes) {
            let removed = self.of_session(&session).run(SnapshotFiles::remove).await;
            if let Err(error) = removed {
                tracing::warn!(session.id = session, "failed to remove its snapshots: {error}");
            }
        }
    }

    /// This node has the session again, so its files are not removed.
    pub(crate) fn take_from_cache(&self, session: &str) {
        self.cached.take(session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_removed_when_there_are_too_many_bytes() {
        let cached = Cached::default();
        assert!(cached.add("a", MAX_BYTES / 2).is_empty());
        assert!(cached.add("b", MAX_BYTES / 2).is_empty());
        assert!(cached.add("a", MAX_BYTES / 2).is_empty(), "counted once");
        assert_eq!(cached.add("c", 1), ["b"]);
        cached.take("a");
        assert_eq!(cached.add("d", MAX_BYTES + 1), ["c", "d"]);
        for number in 0..MAX_SESSIONS {
            assert!(cached.add(&number.to_string(), 0).is_empty());
        }
        assert_eq!(cached.add("e", 0), ["0"]);
    }
}
