//! From a sandbox to the artifact_store.
//!
//! ```text
//!   gather ──▶ room? ──▶ copied and hashed ──▶ in place, on disk ──▶ in the catalog ──▶ told
//!                                                                        └──▶ removed inside
//! ```
//!
//! The order is what makes it safe: what is told is in the catalog, what is in the catalog has its
//! content, and what is removed is in the catalog. Killed anywhere on the way, the files are still
//! inside and are taken by whoever comes next; of those taken twice the second copy is dropped.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use belljar_proto::guest::{TreeFile, TreeLimits};
use belljar_runtime::{Sandbox, paths};

use super::blobs::{Blobs, Taken};
use super::mime::{HEAD_BYTES, mime_of};
use super::names::{harmless, shown};
use super::sandbox_files::{CHANGED, Found, SandboxFiles};
use super::store::ArtifactStore;
use super::{Artifact, Artifacts, Refused};
use crate::DEFAULT_TENANT;
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::record::Record;
use crate::store::{ArtifactRow, ArtifactTotal, Digest, Quotas};
use crate::tenant_dir::tenant_dir;

/// What is looked at after one execution; what lies beyond is looked at after the next.
const AT_ONCE: TreeLimits = TreeLimits { files: 20_000, depth: 32 };

/// Whose files they are, and where they are shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) tenant: &'a str,
    /// Of a run, the run's id.
    pub(crate) session: &'a str,
    pub(crate) exec: &'a str,
    pub(crate) place: Place,
}

/// Where artifacts appear by their names, besides the artifact_store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the directory of a session, beside its files if it is on disk.
    Session,
    /// In the directory of a run.
    Run,
    /// Among the exports, where it is put by [`ArtifactStore::export`].
    Exports,
    Nowhere,
}

impl Origin<'_> {
    /// The directory, and how code in the sandbox calls it.
    pub(super) fn directory(&self) -> (&'static str, &'static str) {
        match self.place {
            Place::Run => (paths::ARTIFACTS, paths::RUN_ARTIFACTS),
            Place::Exports => (paths::SESSION_DATA, paths::SESSION_DATA),
            Place::Session | Place::Nowhere => (paths::ARTIFACTS, paths::ARTIFACTS),
        }
    }
}

/// Where a tenant has its part of a directory that all share. The one tenant of a server without
/// keys has the directory itself.
pub(super) fn own_directory(shared: &Path, tenant: &str) -> PathBuf {
    match tenant {
        DEFAULT_TENANT => shared.into(),
        tenant => shared.join(tenant_dir(tenant)),
    }
}

/// What is known of a session's artifacts directory from the last time that it was looked at.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// What it looked like when there was nothing in it to be taken.
    nothing_at: Option<u64>,
    /// [`ArtifactStore::freed`] when there was no room for something in it.
    no_room_at: Option<u64>,
    /// What was told of then, so that it is told once.
    refused: HashSet<Refused>,
    /// Taken, and still where they were: the server is told to leave them there, or they cannot be
    /// removed. None if that is not known, as after a restart.
    kept: Option<HashMap<Vec<u8>, TreeFile>>,
}

/// What to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// All that is there now.
    IsThere,
    /// All, if nothing has changed since the end of the execution; nothing otherwise.
    WasThere,
}

/// What came of an attempt to take files.
#[derive(Default)]
pub(super) struct Taking {
    /// Those that are in the catalog.
    pub(super) taken: Vec<TreeFile>,
    pub(super) refused: Vec<Refused>,
    /// Whether there was no room for some.
    no_room: bool,
}

/// A file whose content is copied.
struct Copied {
    row: ArtifactRow,
    identity: TreeFile,
    content: Taken,
}

impl ArtifactStore {
    /// Whether a directory with this fingerprint is worth a look.
    pub(crate) fn is_news(&self, memory: &Memory, fingerprint: Option<u64>) -> bool {
        let has_room = |at| at != self.freed.load(Ordering::Relaxed);
        memory.nothing_at.is_none()
            || memory.nothing_at != fingerprint
            || memory.no_room_at.is_some_and(has_room)
    }

    /// Takes what an execution left behind. `fingerprint` is that of the directory at its end.
    pub(crate) async fn ingest(
        &self,
        sandbox: &Sandbox,
        origin: Origin<'_>,
        fingerprint: Option<u64>,
        memory: &mut Memory,
    ) -> Artifacts {
        self.ingest_what(What::IsThere, sandbox, origin, fingerprint, memory).await
    }

    async fn ingest_what(
        &self,
        what: What,
        sandbox: &Sandbox,
        origin: Origin<'_>,
        fingerprint: Option<u64>,
        memory: &mut Memory,
    ) -> Artifacts {
        let mut artifacts = Artifacts::default();
        if fingerprint.is_none() && sandbox.tells_artifacts() {
            return artifacts;
        }
        if let Err(error) =
            self.try_ingest(what, sandbox, origin, fingerprint, memory, &mut artifacts).await
        {
            // The code has run and its result is worth having, with a word on what is missing.
            tracing::warn!(
                session.id = origin.session,
                "failed to take artifacts: {}",
                in_full(&error)
            );
            artifacts.refuse(origin.directory().1.to_owned(), in_full(&error));
        }
        let now: HashSet<Refused> = artifacts.artifacts_refused.iter().cloned().collect();
        artifacts.artifacts_refused.retain(|refused| !memory.refused.contains(refused));
        memory.refused = now;
        self.metrics.refused(artifacts.artifacts_refused.len());
        artifacts
    }

    /// The same for an execution whose earlier server was killed, perhaps after it took everything
    /// and told of it: what has come since belongs to whoever comes next.
    pub(crate) async fn ingest_again(
        &self,
        sandbox: &Sandbox,
        origin: Origin<'_>,
        fingerprint: Option<u64>,
        memory: &mut Memory,
    ) -> Artifacts {
        let rows = self.catalog.of_exec(origin.session, origin.exec).await.unwrap_or_default();
        if rows.is_empty() {
            return self.ingest_what(What::WasThere, sandbox, origin, fingerprint, memory).await;
        }
        if !self.config.keep_originals {
            // What cannot be removed now is taken by the next.
            let _ = self.remove_told(sandbox, origin, &rows).await;
        }
        let mut artifacts = Artifacts::default();
        self.show_all(rows, origin, &mut artifacts).await;
        artifacts
    }

    /// Removes those files that are in the catalog as they are.
    async fn remove_told(
        &self,
        sandbox: &Sandbox,
        origin: Origin<'_>,
        rows: &[ArtifactRow],
    ) -> Result<(), EngineError> {
        let (directory, root) = origin.directory();
        let told: HashMap<&str, Digest> =
            rows.iter().map(|row| (row.path.as_str(), row.sha256)).collect();
        let mut gathering = SandboxFiles::begin(sandbox, (directory, root), AT_ONCE).await?;
        gathering.pass_over(|file| !told.contains_key(shown(root, &file.path).as_str()));
        let mut taken = Vec::new();
        while let Some(batch) = gathering.next().await {
            for (path, copied) in self.copy(origin, batch).await {
                taken.extend(
                    copied
                        .ok()
                        .filter(|file| told.get(path.as_str()) == Some(&file.row.sha256))
                        .map(|file| file.identity),
                );
            }
        }
        remove(sandbox, &taken).await;
        Ok(())
    }

    async fn try_ingest(
        &self,
        what: What,
        sandbox: &Sandbox,
        origin: Origin<'_>,
        fingerprint: Option<u64>,
        memory: &mut Memory,
        artifacts: &mut Artifacts,
    ) -> Result<(), EngineError> {
        memory.nothing_at = None;
        memory.no_room_at = None;
        let freed = self.freed.load(Ordering::Relaxed);
        let mut gathering = SandboxFiles::begin(sandbox, origin.directory(), AT_ONCE).await?;
        if what == What::WasThere {
            let now = sandbox.remove_files(paths::ARTIFACTS, &[]).await;
            if !now.is_ok_and(|now| now.artifacts == fingerprint) {
                return Ok(());
            }
            gathering.only_as_listed = true;
        }
        let told = match memory.kept {
            None if self.config.keep_originals => self.catalog.latest(origin.session).await?,
            _ => HashMap::new(),
        };
        let kept = memory.kept.take().unwrap_or_default();
        let mut kept = gathering.pass_over(|file| kept.get(&file.path) == Some(file));
        let Taking { taken, refused, no_room } =
            self.take_all(&mut gathering, origin, &told).await?;
        artifacts.artifacts_refused.extend(refused);
        if taken.is_empty() && !gathering.left_some {
            memory.nothing_at = fingerprint;
        }
        if no_room {
            memory.no_room_at = Some(freed);
        }
        if self.config.keep_originals || !remove(sandbox, &taken).await {
            kept.extend(taken);
        }
        memory.kept = Some(kept.into_iter().map(|file| (file.path.clone(), file)).collect());
        let rows = self.catalog.of_exec(origin.session, origin.exec).await?;
        self.show_all(rows, origin, artifacts).await;
        Ok(())
    }

    async fn show_all(
        &self,
        rows: Vec<ArtifactRow>,
        origin: Origin<'_>,
        artifacts: &mut Artifacts,
    ) {
        let mut taken: HashMap<PathBuf, String> = HashMap::new();
        let mut place = |row: &ArtifactRow| {
            // Names that differ only in what cannot be shown: the first of them has the place.
            self.shown_at(row, origin.place).filter(|place| {
                *taken.entry(place.clone()).or_insert_with(|| row.path.clone()) == row.path
            })
        };
        let places = rows.iter().map(&mut place).collect();
        self.show(rows, places).await.into_iter().for_each(|artifact| artifacts.add(artifact));
    }

    /// Takes everything that is gathered, but for what was `told` with the same content before.
    pub(super) async fn take_all(
        &self,
        gathering: &mut SandboxFiles<'_>,
        origin: Origin<'_>,
        told: &HashMap<String, Digest>,
    ) -> Result<Taking, EngineError> {
        let mut room = self.room(origin).await?;
        gathering.most = room.quotas.file_bytes;
        let mut taking = Taking::default();
        let mut copied = Vec::new();
        while let Some(batch) = gathering.next().await {
            let mut admitted = Vec::new();
            for found in batch {
                match room.admit(found.size) {
                    Ok(()) => admitted.push(found),
                    Err(NoRoom { reason, may_come }) => {
                        taking.no_room |= may_come;
                        taking.refused.push(Refused { path: found.path, reason });
                    }
                }
            }
            for (path, outcome) in self.copy(origin, admitted).await {
                match outcome {
                    Ok(file) if told.get(&path) == Some(&file.row.sha256) => {
                        taking.taken.push(file.identity);
                    }
                    Ok(file) => copied.push(file),
                    Err(error) => {
                        gathering.left_some = true;
                        let reason = format!("it could not be copied: {error}");
                        taking.refused.push(Refused { path, reason });
                    }
                }
            }
        }
        taking.refused.append(&mut gathering.refused);
        self.put_in_place(copied, &mut taking).await?;
        Ok(taking)
    }

    /// Copies the content of these files aside.
    async fn copy(
        &self,
        origin: Origin<'_>,
        batch: Vec<Found>,
    ) -> Vec<(String, io::Result<Copied>)> {
        let blobs = self.blobs.clone();
        let (tenant, session, exec) =
            (origin.tenant.to_owned(), origin.session.to_owned(), origin.exec.to_owned());
        let copying = tokio::task::spawn_blocking(move || {
            let copy = |found: Found| {
                let path = found.path.clone();
                (path, copy_one(&blobs, &tenant, &session, &exec, found))
            };
            batch.into_iter().map(copy).collect()
        });
        copying.await.unwrap_or_else(|panic| {
            vec![(origin.directory().1.to_owned(), Err(io::Error::other(panic)))]
        })
    }

    /// Puts content and rows in their places, in this order, for good.
    async fn put_in_place(
        &self,
        copied: Vec<Copied>,
        taking: &mut Taking,
    ) -> Result<(), EngineError> {
        if copied.is_empty() {
            return Ok(());
        }
        let (mut rows, mut files, mut contents) = (Vec::new(), Vec::new(), Vec::new());
        for Copied { row, identity, content } in copied {
            files.push((row.path.clone(), row.size, identity));
            rows.push(row);
            contents.push(content);
        }
        let mut ingest = self.blobs.ingesting();
        let placing = tokio::task::spawn_blocking(move || ingest.keep(contents).map(|()| ingest));
        let placed = placing.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        // Until the rows are there nobody but us knows that the content is wanted.
        let _wanted = placed.map_err(EngineError::KeepArtifacts)?;
        let refusals = self.catalog.add(rows, self.config.quotas).await?;
        for ((path, size, identity), refusal) in files.into_iter().zip(refusals) {
            match refusal {
                None => {
                    self.metrics.taken(size);
                    taking.taken.push(identity);
                }
                // Another session of the tenant was faster. The content goes with the next sweep.
                Some(reason) => {
                    taking.no_room = true;
                    taking.refused.push(Refused { path, reason });
                }
            }
        }
        Ok(())
    }

    /// Artifacts as their caller is told of them, each shown by its name at its place if it has one.
    pub(super) async fn show(
        &self,
        rows: Vec<ArtifactRow>,
        places: Vec<Option<PathBuf>>,
    ) -> Vec<Artifact> {
        let blob = |row: &ArtifactRow| self.blobs.path(&row.tenant, &row.sha256);
        let names: Vec<(PathBuf, Option<PathBuf>)> = rows.iter().map(blob).zip(places).collect();
        // One task for all: there may be thousands.
        let linking = tokio::task::spawn_blocking(move || {
            names.into_iter().map(|(blob, place)| show_one(blob, place)).collect()
        });
        let host_paths: Vec<PathBuf> =
            linking.await.unwrap_or_else(|_| rows.iter().map(blob).collect());
        rows.into_iter().zip(host_paths).map(|(row, host_path)| told(row, host_path)).collect()
    }

    /// Where an artifact appears by its name.
    pub(super) fn shown_at(&self, row: &ArtifactRow, place: Place) -> Option<PathBuf> {
        let (directory, root) = match place {
            Place::Session => {
                (Record::of(&self.config.sessions_root, &row.session).artifacts(), paths::ARTIFACTS)
            }
            Place::Run => {
                let outputs = own_directory(&self.config.outputs_dir, &row.tenant);
                (outputs.join(&row.session), paths::RUN_ARTIFACTS)
            }
            Place::Exports | Place::Nowhere => return None,
        };
        let relative = row.path.strip_prefix(root)?.strip_prefix('/')?;
        Some(directory.join(harmless(relative.as_bytes())?))
    }

    /// How much more this session, and its tenant, may have.
    async fn room(&self, origin: Origin<'_>) -> Result<Room<'_>, EngineError> {
        let (tenant, session) = self.catalog.totals(origin.tenant, origin.session).await?;
        Ok(Room {
            artifact_store: self,
            name: origin.tenant.to_owned(),
            quotas: self.config.quotas,
            tenant,
            session,
            reserved: ArtifactTotal::default(),
        })
    }
}

/// Removes files that were taken; false if any of them may still be as it was.
async fn remove(sandbox: &Sandbox, files: &[TreeFile]) -> bool {
    let removed = sandbox.remove_files(paths::ARTIFACTS, files).await;
    removed.is_ok_and(|removed| removed.removed == files.len() as u64)
}

/// Where the host finds it.
fn show_one(blob: PathBuf, place: Option<PathBuf>) -> PathBuf {
    let Some(place) = place else { return blob };
    match super::links::link(&blob, &place) {
        Ok(()) => place,
        Err(error) => {
            tracing::warn!("failed to link `{}`: {error}", place.display());
            blob
        }
    }
}

fn told(row: ArtifactRow, host_path: PathBuf) -> Artifact {
    Artifact {
        id: Some(row.id),
        name: row.name,
        path: row.path,
        host_path,
        size: row.size,
        mime: Some(row.mime),
        sha256: Some(row.sha256),
        url: None,
    }
}

fn copy_one(
    blobs: &Blobs,
    tenant: &str,
    session: &str,
    exec: &str,
    found: Found,
) -> io::Result<Copied> {
    let mut head = [0; HEAD_BYTES];
    let length = found.file.read_at(&mut head, 0)?;
    let name = found.name();
    let content = blobs.take(tenant, &found.file, found.size)?;
    // Half of the old and half of the new is neither. A new file of the same name does not matter.
    if !found.is_unchanged()? {
        return Err(io::Error::other(CHANGED));
    }
    let row = ArtifactRow {
        id: crate::new_id("art"),
        tenant: tenant.to_owned(),
        session: session.to_owned(),
        exec: exec.to_owned(),
        mime: mime_of(&name, &head[..length]).into(),
        name,
        path: found.path,
        size: content.size(),
        sha256: content.digest(),
        created_ms: clock::now_ms(),
    };
    Ok(Copied { row, identity: found.identity, content })
}

/// Why there is no room.
struct NoRoom {
    reason: String,
    /// Whether there may be when other artifacts are gone.
    may_come: bool,
}

/// What may still be taken, counted while it is being taken: several sessions of a tenant may be
/// at it at the same time. Only so that nothing is copied in vain; the catalog has the last word.
struct Room<'a> {
    artifact_store: &'a ArtifactStore,
    name: String,
    quotas: Quotas,
    tenant: ArtifactTotal,
    session: ArtifactTotal,
    /// Of this room, on its way to the catalog.
    reserved: ArtifactTotal,
}

impl Room<'_> {
    /// Room for one more file, or why there is none.
    fn admit(&mut self, size: u64) -> Result<(), NoRoom> {
        let quotas = self.quotas;
        if size > quotas.file_bytes {
            let most = quotas.file_bytes;
            let reason = format!("it has {size} bytes, and an artifact may have {most}");
            return Err(NoRoom { reason, may_come: false });
        }
        let mut in_flight = crate::lock(&self.artifact_store.in_flight);
        let others = in_flight.entry(self.name.clone()).or_default();
        let checks = [
            ("session", self.session + self.reserved, quotas.session),
            ("tenant", self.tenant + *others, quotas.tenant),
        ];
        for (whose, there, most) in checks {
            if let Some(reason) = most.refuses(whose, there, size) {
                return Err(NoRoom { reason, may_come: true });
            }
        }
        for total in [others, &mut self.reserved] {
            total.count += 1;
            total.bytes += size;
        }
        Ok(())
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        let mut in_flight = crate::lock(&self.artifact_store.in_flight);
        if let Some(others) = in_flight.get_mut(&self.name) {
            others.count -= self.reserved.count;
            others.bytes -= self.reserved.bytes;
            if *others == ArtifactTotal::default() {
                in_flight.remove(&self.name);
            }
        }
    }
}
