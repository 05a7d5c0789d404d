//! Takes over the sessions and files of an earlier server.

use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::Semaphore;

use super::registry::Registry;
use super::{Engine, EngineState};
use crate::clock;
use crate::error::in_full;
use crate::rules::Phase;
use crate::session::{DriverStart, Origin, Session};
use crate::session_directory::SessionDirectory;
use crate::spec::SessionSpec;
use crate::store::SessionRow;

/// How many sandboxes of an earlier server are taken over at the same time.
const ADOPTING_AT_ONCE: usize = 64;

/// A session found after a restart lives at least this long, even if the clock says that it has expired: the time of
/// day may have jumped, and its client may be about to come back.
const GRACE_AFTER_RESTART_MS: i64 = 60_000;

const SERVER_ENDED: &str = "the server ended while it was being staged";

impl Engine {
    /// Whether everything that an earlier server left has been taken over or cleaned up.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        *self.recovered.borrow()
    }

    /// Waits for the sessions that are being taken over, and removes what belongs to no session.
    pub(super) async fn recover(&self, left: LeftBehind, adopted: Vec<Arc<Session>>) {
        let reaping = tokio::spawn(Arc::clone(&self.state.runtime).reap(left.sandboxes));
        self.state.remove_unclaimed(left.directories).await;
        for session in adopted {
            session.settled().await;
            self.state.clear_half_staged(&session, left.found_ms).await;
        }
        let _ = reaping.await;
        self.recovered.send_replace(true);
    }
}

impl Registry {
    /// Registers the sessions of an earlier server and starts their drivers, which look for the sandboxes.
    pub(super) fn take_over(self: &Arc<Self>, left: Vec<SessionRow>) -> Vec<Arc<Session>> {
        let permits = Arc::new(Semaphore::new(ADOPTING_AT_ONCE));
        left.into_iter().map(|row| self.adopt(row, &permits)).collect()
    }

    /// Registers a session that this node owns and has no driver for.
    pub(super) fn adopt_own(self: &Arc<Self>, row: SessionRow) {
        self.adopt(row, &Arc::new(Semaphore::new(1)));
    }

    /// Registers a session that this node has just claimed. Another node had its sandbox, if any.
    pub(super) fn adopt_claimed(self: &Arc<Self>, row: SessionRow) {
        let max_ttl_s = self.state.config.max_ttl_s;
        let expires_ms = sane_expiry(row.expires_ms, clock::now_ms(), &row.spec, max_ttl_s);
        let row = SessionRow { expires_ms, phase: Phase::Creating, handle: None, ..row };
        let (session, owner) = self.register(row);
        let start = DriverStart { reservation: None, origin: Origin::Claimed, permit: None };
        self.drive(session, owner, async { start });
    }

    fn adopt(self: &Arc<Self>, mut row: SessionRow, permits: &Arc<Semaphore>) -> Arc<Session> {
        let config = &self.state.config;
        row.expires_ms = sane_expiry(row.expires_ms, clock::now_ms(), &row.spec, config.max_ttl_s);
        let was_stopping = row.phase == Phase::Stopping;
        let was_asleep = row.phase.is_asleep();
        row.phase = Phase::Creating;
        // A hibernated session reserves no capacity of a sandbox.
        let reservation =
            (!was_asleep).then(|| self.state.admission.admit(&row.tenant, &row.spec.limits));
        let origin = match row.handle.take().map(Box::new) {
            left if was_asleep => Origin::Hibernated(left),
            Some(handle) => Origin::Adopted(handle),
            // The session was not completely created: there is no handle, so there is no sandbox to find.
            None => Origin::Lost,
        };
        let (session, owner) = self.register(row);
        if was_stopping {
            session.stop("it was being stopped when the server ended");
        }
        let permits = Arc::clone(permits);
        self.drive(Arc::clone(&session), owner, async move {
            // The semaphore is never closed.
            let permit = permits.acquire_owned().await.ok();
            DriverStart { reservation, origin, permit }
        });
        session
    }
}

impl EngineState {
    /// Marks datasets that an earlier server was about to stage as failed. Call it before clients can request new ones.
    pub(super) async fn give_up_pending_datasets(&self) {
        if let Err(error) =
            self.store.fail_pending_datasets(SERVER_ENDED, crate::clock::now_ms()).await
        {
            tracing::warn!("failed to clean up datasets: {}", in_full(&error));
        }
    }

    /// Finds what an earlier server left. Call it before the pool of this server creates directories.
    pub(super) async fn find_left(&self, rows: &[SessionRow]) -> LeftBehind {
        // A sandbox of a hibernated session is not kept: the session is restored from its snapshot.
        let awake = rows.iter().filter(|row| !row.phase.is_asleep());
        let sandboxes = awake.filter_map(|row| Some(row.handle.as_ref()?.name.clone())).collect();
        LeftBehind {
            sandboxes,
            directories: self.unclaimed_directories().await,
            found_ms: clock::now_ms(),
        }
    }

    /// Directories that an earlier server with the same database made for sandboxes of its pool.
    async fn unclaimed_directories(&self) -> Vec<String> {
        let owner = self.store.owner().to_owned();
        let root = self.config.sessions_root.clone();
        let finding = tokio::task::spawn_blocking(move || {
            let Ok(entries) = std::fs::read_dir(&root) else { return Vec::new() };
            let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
            names.filter(|name| SessionDirectory::of(&root, name).is_unclaimed_by(&owner)).collect()
        });
        finding.await.unwrap_or_default()
    }

    /// Unmounts what a killed server had mounted temporarily in the directories of sessions. Call it before anything is
    /// mounted again.
    pub(super) async fn tidy_session_mounts(&self) {
        let root = self.config.sessions_root.clone();
        let mounted = tokio::task::spawn_blocking(move || mounted_below(&root)).await;
        for name in mounted.unwrap_or_default() {
            // Another server may use the same directory.
            if let Ok(Some(_)) = self.store.session(&name).await {
                let record = SessionDirectory::of(&self.config.sessions_root, &name);
                let tidy = move || record.place().inspect(belljar_runtime::VolumePlace::tidy);
                let _ = tokio::task::spawn_blocking(tidy).await;
            }
        }
    }

    /// Removes the directories that belong to no session.
    async fn remove_unclaimed(&self, directories: Vec<String>) {
        for name in directories {
            if let Ok(None) = self.store.session(&name).await {
                let record = SessionDirectory::of(&self.config.sessions_root, &name);
                let _ = tokio::task::spawn_blocking(move || record.remove()).await;
            }
        }
    }
}

/// The names of directories in `root` in which something is mounted.
fn mounted_below(root: &std::path::Path) -> HashSet<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let target = |line: &str| Some(line.split(' ').nth(4)?.replace("\\040", " "));
    let name = |path: String| {
        let below = std::path::Path::new(&path).strip_prefix(root).ok()?;
        below.iter().next()?.to_str().map(str::to_owned)
    };
    mounts.lines().filter_map(target).filter_map(name).collect()
}

/// What an earlier server left, besides its sessions.
#[derive(Debug)]
pub(super) struct LeftBehind {
    /// Sandboxes that belong to sessions; others are reaped.
    pub(super) sandboxes: HashSet<String>,
    /// Directories that may belong to no session.
    pub(super) directories: Vec<String>,
    /// The time of the search: newer directories belong to this server.
    pub(super) found_ms: i64,
}

/// When a session found after a restart expires: as stored, unless the time of day has jumped since.
fn sane_expiry(written_ms: i64, now: i64, spec: &SessionSpec, max_ttl_s: u64) -> i64 {
    let least = GRACE_AFTER_RESTART_MS.min(clock::seconds_to_ms(spec.ttl_s));
    let most = clock::seconds_to_ms(max_ttl_s.max(spec.ttl_s)).max(least);
    written_ms.clamp(now.saturating_add(least), now.saturating_add(most))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::spec::{Datasets, Storage};

    #[test]
    fn a_clock_that_jumped_neither_ends_sessions_nor_keeps_them_for_ever() {
        let spec = SessionSpec {
            image: "host".into(),
            storage: Storage::Tmpfs,
            datasets: Datasets::None,
            limits: belljar_runtime::Limits::default(),
            network: crate::network::Policy::default(),
            volumes: crate::volumes::AskedVolumes::new(),
            workspace: None,
            env: BTreeMap::new(),
            ttl_s: 3600,
            idle_s: None,
            spill_s: None,
            checkpoints: None,
            metadata: serde_json::Map::new(),
        };
        let now = 1_000_000_000;
        let expiry = |written| sane_expiry(written, now, &spec, 86_400) - now;
        assert_eq!(expiry(now + 1_800_000), 1_800_000, "as it was written");
        assert_eq!(expiry(now + 7_200_000), 7_200_000, "prolonged by a call");
        assert_eq!(expiry(now - 10 * 86_400_000), 60_000, "the clock went ahead");
        assert_eq!(expiry(now + 3000 * 86_400_000), 86_400_000, "the clock went back");
        assert_eq!(expiry(i64::MIN), 60_000);
        assert_eq!(expiry(i64::MAX), 86_400_000);
    }
}
