//! Taking over what an earlier server left.

use std::collections::HashSet;
use std::sync::Arc;

use belljar_runtime::{Handle, Sandbox};
use tokio::sync::Semaphore;

use super::{Engine, EngineState};
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::record::Record;
use crate::session::rules::Phase;
use crate::session::{Origin, Session, drive};
use crate::spec::SessionSpec;
use crate::store::SessionRow;

/// Sandboxes of an earlier server taken over at the same time.
const ADOPTING_AT_ONCE: usize = 64;

/// A session found after a restart lives at least this long, whatever the clock says: the time of
/// day may have jumped, and its owner may just be coming back.
const GRACE_AFTER_RESTART_MS: i64 = 60_000;

const SERVER_ENDED: &str = "the server ended while it was being staged";

impl Engine {
    /// Whether everything an earlier server left has been dealt with.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        *self.recovered.borrow()
    }

    /// Waits for the sessions that are being taken over, and removes what belongs to none.
    pub(super) async fn recover(&self, left: Left, adopted: Vec<Arc<Session>>) {
        let reaping = tokio::spawn(Arc::clone(&self.shared.runtime).reap(left.sandboxes));
        self.shared.remove_unclaimed(left.directories).await;
        for session in adopted {
            session.settled().await;
            self.shared.clear_half_staged(&session, left.found_ms).await;
        }
        let _ = reaping.await;
        self.recovered.send_replace(true);
    }
}

impl EngineState {
    /// What an earlier server was about to stage never comes. To be called before anybody can ask
    /// for more.
    pub(super) async fn give_up_pending_datasets(&self) {
        if let Err(error) =
            self.store.fail_pending_datasets(SERVER_ENDED, crate::clock::now_ms()).await
        {
            tracing::warn!("failed to clean up datasets: {}", in_full(&error));
        }
    }

    /// Makes the sessions of an earlier server known, and begins to look for their sandboxes.
    pub(super) fn take_over(self: &Arc<Self>, left: Vec<SessionRow>) -> Vec<Arc<Session>> {
        let patience = Arc::new(Semaphore::new(ADOPTING_AT_ONCE));
        let now = clock::now_ms();
        let mut adopted = Vec::new();
        for mut row in left {
            row.expires_ms = sane_expiry(row.expires_ms, now, &row.spec, self.config.max_ttl_s);
            let was_stopping = row.phase == Phase::Stopping;
            let was_asleep = row.phase.is_asleep();
            row.phase = Phase::Creating;
            // What sleeps takes no room.
            let reservation =
                (!was_asleep).then(|| self.admission.admit(&row.tenant, &row.spec.limits));
            let origin = match row.handle.take().map(Box::new) {
                left if was_asleep => Origin::Asleep(left),
                Some(handle) => Origin::Adopted(handle),
                // Half-made: there is no handle, so there is nothing to find.
                None => Origin::Lost,
            };
            let (session, inbox) = self.register(row);
            if was_stopping {
                session.stop("it was being stopped when the server ended");
            }
            let (shared, driven) = (Arc::clone(self), Arc::clone(&session));
            let patience = Arc::clone(&patience);
            let driving = async move {
                // Never closed.
                let permit = patience.acquire_owned().await.ok();
                drive(shared, driven, inbox, reservation, origin, permit).await;
            };
            tokio::spawn(Arc::clone(self).watch_over(Arc::clone(&session), driving));
            adopted.push(session);
        }
        adopted
    }

    /// Finds the sandbox of a session again, or makes sure that nothing of it is left.
    pub(crate) async fn adopt(
        &self,
        session: &Session,
        handle: Handle,
    ) -> Result<Sandbox, EngineError> {
        let spec = self.sandbox_spec(&session.spec, &session.id)?;
        match Arc::clone(&self.runtime).adopt(handle.clone(), spec).await {
            Ok(sandbox) => {
                self.usage.open(&session.id, &sandbox);
                self.metrics.adopted("adopted");
                Ok(sandbox)
            }
            Err(error) => {
                self.metrics.adopted("lost");
                Arc::clone(&self.runtime).discard(&handle).await;
                Err(EngineError::Adopt(error))
            }
        }
    }

    /// Directories that an earlier server of this owner made for sandboxes of its pool. To be looked
    /// for before our own pool makes such.
    pub(super) fn unclaimed_directories(&self) -> Vec<String> {
        let owner = self.store.owner();
        let Ok(entries) = std::fs::read_dir(&self.config.sessions_root) else { return Vec::new() };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        names
            .filter(|name| Record::of(&self.config.sessions_root, name).is_unclaimed_by(owner))
            .collect()
    }

    /// Takes away what an earlier server had mounted for moments in the directories of sessions when
    /// it was killed. To be called before anything is mounted again.
    pub(super) async fn tidy_session_mounts(&self) {
        for name in mounted_below(&self.config.sessions_root) {
            // Others may keep theirs in the same place.
            if let Ok(Some(_)) = self.store.session(&name).await {
                let record = Record::of(&self.config.sessions_root, &name);
                let tidy = move || record.place().inspect(belljar_runtime::VolumePlace::tidy);
                let _ = tokio::task::spawn_blocking(tidy).await;
            }
        }
    }

    /// Removes those of them that are no session's, whatever the disk says.
    async fn remove_unclaimed(&self, directories: Vec<String>) {
        for name in directories {
            if let Ok(None) = self.store.session(&name).await {
                let record = Record::of(&self.config.sessions_root, &name);
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
pub(super) struct Left {
    /// Sandboxes that belong to sessions; others are reaped.
    pub(super) sandboxes: HashSet<String>,
    /// Directories that may belong to nobody.
    pub(super) directories: Vec<String>,
    /// When that was found out: what is younger is ours.
    pub(super) found_ms: i64,
}

/// When a session found after a restart is to expire: as it was written down, unless the time of
/// day has jumped since.
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
