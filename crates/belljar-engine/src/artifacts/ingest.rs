//! Ingest: from a sandbox to the artifact store.
//!
//! ```text
//!   list ──▶ quota? ──▶ copy and hash ──▶ in place, on disk ──▶ in the catalog ──▶ in the result
//!                                                                     └──▶ removed in the sandbox
//! ```
//!
//! The order makes it safe: an artifact in a result is in the catalog, an artifact in the catalog has its content, and
//! a file is removed only when it is in the catalog. If the server is killed on the way, the files are still in the
//! sandbox and the next server takes them. If content is copied twice, the second copy is dropped.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use belljar_proto::guest::{TreeFile, TreeLimits};
use belljar_runtime::{Sandbox, paths};

use super::blobs::{Blobs, TakenBlob};
use super::mime::{HEAD_BYTES, mime_of};
use super::names::{harmless, shown};
use super::sandbox_files::{CHANGED, FoundFile, SandboxFiles};
use super::store::ArtifactStore;
use super::{Artifact, Artifacts, RefusedArtifact};
use crate::DEFAULT_TENANT;
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::session_directory::SessionDirectory;
use crate::store::{ArtifactQuotas, ArtifactRow, ArtifactTotal, Digest};
use crate::tenant_dir::tenant_dir;

/// How many files are listed after one execution; the others are listed after the next.
const AT_ONCE: TreeLimits = TreeLimits { files: 20_000, depth: 32 };

/// Where files come from, and where they are linked by name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArtifactOrigin<'a> {
    pub(crate) tenant: &'a str,
    /// The id of the session, or of the run.
    pub(crate) session: &'a str,
    pub(crate) exec: &'a str,
    pub(crate) place: ArtifactPlace,
}

/// Where artifacts are linked by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArtifactPlace {
    /// In the directory of the session.
    Session,
    /// In the directory of the run.
    Run,
    /// Not linked: [`ArtifactStore::export`] copies them to the exports.
    Exports,
    Nowhere,
}

impl ArtifactOrigin<'_> {
    /// The directory in the sandbox, and its path as users know it.
    pub(super) fn directory(&self) -> (&'static str, &'static str) {
        match self.place {
            ArtifactPlace::Run => (paths::ARTIFACTS, paths::RUN_ARTIFACTS),
            ArtifactPlace::Exports => (paths::SESSION_DATA, paths::SESSION_DATA),
            ArtifactPlace::Session | ArtifactPlace::Nowhere => (paths::ARTIFACTS, paths::ARTIFACTS),
        }
    }
}

/// A tenant's part of a directory that all tenants share. The default tenant uses the directory itself.
pub(super) fn own_directory(shared: &Path, tenant: &str) -> PathBuf {
    match tenant {
        DEFAULT_TENANT => shared.into(),
        tenant => shared.join(tenant_dir(tenant)),
    }
}

/// What the driver remembers of the last listing of a session's artifacts directory.
#[derive(Debug, Default)]
pub(crate) struct ArtifactMemory {
    /// The directory's fingerprint when there was nothing to take.
    nothing_at: Option<u64>,
    /// The value of [`ArtifactStore::freed`] when a quota refused a file.
    no_room_at: Option<u64>,
    /// The files that were refused, so that each is reported once.
    refused: HashSet<RefusedArtifact>,
    /// Files that were taken and are still in the sandbox, because the server keeps originals or because they could not
    /// be removed. `None` if that is unknown, for example after a restart.
    kept: Option<HashMap<Vec<u8>, TreeFile>>,
}

/// Which files to take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Selection {
    /// All files that exist now.
    IsThere,
    /// All files if nothing has changed since the end of the execution, otherwise none.
    WasThere,
}

/// The result of an attempt to take files.
#[derive(Default)]
pub(super) struct Taking {
    /// Files that are in the catalog now.
    pub(super) taken: Vec<TreeFile>,
    pub(super) refused: Vec<RefusedArtifact>,
    /// Whether a quota refused some files.
    no_room: bool,
}

/// A file whose content is copied.
struct Copied {
    row: ArtifactRow,
    identity: TreeFile,
    content: TakenBlob,
}

impl ArtifactStore {
    /// Whether a directory with this fingerprint may contain files to take.
    pub(crate) fn is_news(&self, memory: &ArtifactMemory, fingerprint: Option<u64>) -> bool {
        let has_room = |at| at != self.freed.load(Ordering::Relaxed);
        memory.nothing_at.is_none()
            || memory.nothing_at != fingerprint
            || memory.no_room_at.is_some_and(has_room)
    }

    /// Takes the files that an execution left. `fingerprint` is that of the directory at its end.
    pub(crate) async fn ingest(
        &self,
        sandbox: &Sandbox,
        origin: ArtifactOrigin<'_>,
        fingerprint: Option<u64>,
        memory: &mut ArtifactMemory,
    ) -> Artifacts {
        self.ingest_what(Selection::IsThere, sandbox, origin, fingerprint, memory).await
    }

    async fn ingest_what(
        &self,
        what: Selection,
        sandbox: &Sandbox,
        origin: ArtifactOrigin<'_>,
        fingerprint: Option<u64>,
        memory: &mut ArtifactMemory,
    ) -> Artifacts {
        let mut artifacts = Artifacts::default();
        if fingerprint.is_none() && sandbox.tells_artifacts() {
            return artifacts;
        }
        if let Err(error) =
            self.try_ingest(what, sandbox, origin, fingerprint, memory, &mut artifacts).await
        {
            // The code has run, so its result is returned, with a note about the failure.
            tracing::warn!(
                session.id = origin.session,
                "failed to take artifacts: {}",
                in_full(&error)
            );
            artifacts.refuse(origin.directory().1.to_owned(), in_full(&error));
        }
        let now: HashSet<RefusedArtifact> = artifacts.artifacts_refused.iter().cloned().collect();
        artifacts.artifacts_refused.retain(|refused| !memory.refused.contains(refused));
        memory.refused = now;
        self.metrics.refused(artifacts.artifacts_refused.len());
        artifacts
    }

    /// The same for an execution whose server was killed, perhaps after it had taken all files. Newer files belong to
    /// the next execution.
    pub(crate) async fn ingest_again(
        &self,
        sandbox: &Sandbox,
        origin: ArtifactOrigin<'_>,
        fingerprint: Option<u64>,
        memory: &mut ArtifactMemory,
    ) -> Artifacts {
        let rows = self.catalog.of_exec(origin.session, origin.exec).await.unwrap_or_default();
        if rows.is_empty() {
            return self
                .ingest_what(Selection::WasThere, sandbox, origin, fingerprint, memory)
                .await;
        }
        if !self.config.keep_originals {
            // Files that cannot be removed now are taken after the next execution.
            let _ = self.remove_known(sandbox, origin, &rows).await;
        }
        let mut artifacts = Artifacts::default();
        self.show_all(rows, origin, &mut artifacts).await;
        artifacts
    }

    /// Removes files whose present content is in the catalog.
    async fn remove_known(
        &self,
        sandbox: &Sandbox,
        origin: ArtifactOrigin<'_>,
        rows: &[ArtifactRow],
    ) -> Result<(), EngineError> {
        let (directory, root) = origin.directory();
        let known: HashMap<&str, Digest> =
            rows.iter().map(|row| (row.path.as_str(), row.sha256)).collect();
        let mut files = SandboxFiles::begin(sandbox, (directory, root), AT_ONCE).await?;
        files.pass_over(|file| !known.contains_key(shown(root, &file.path).as_str()));
        let mut taken = Vec::new();
        while let Some(batch) = files.next().await {
            for (path, copied) in self.copy(origin, batch).await {
                taken.extend(
                    copied
                        .ok()
                        .filter(|file| known.get(path.as_str()) == Some(&file.row.sha256))
                        .map(|file| file.identity),
                );
            }
        }
        remove(sandbox, &taken).await;
        Ok(())
    }

    async fn try_ingest(
        &self,
        what: Selection,
        sandbox: &Sandbox,
        origin: ArtifactOrigin<'_>,
        fingerprint: Option<u64>,
        memory: &mut ArtifactMemory,
        artifacts: &mut Artifacts,
    ) -> Result<(), EngineError> {
        memory.nothing_at = None;
        memory.no_room_at = None;
        let freed = self.freed.load(Ordering::Relaxed);
        let mut files = SandboxFiles::begin(sandbox, origin.directory(), AT_ONCE).await?;
        if what == Selection::WasThere {
            if !is_unchanged(sandbox, fingerprint).await {
                return Ok(());
            }
            files.only_as_listed = true;
        }
        let known = match memory.kept {
            None if self.config.keep_originals => self.catalog.latest(origin.session).await?,
            _ => HashMap::new(),
        };
        let kept = memory.kept.take().unwrap_or_default();
        let mut kept = files.pass_over(|file| kept.get(&file.path) == Some(file));
        let Taking { taken, refused, no_room } = self.take_all(&mut files, origin, &known).await?;
        artifacts.artifacts_refused.extend(refused);
        if taken.is_empty() && !files.left_some {
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
        origin: ArtifactOrigin<'_>,
        artifacts: &mut Artifacts,
    ) {
        let mut taken: HashMap<PathBuf, String> = HashMap::new();
        let mut place = |row: &ArtifactRow| {
            // Several names can become the same path on the host: the first one gets it.
            self.shown_at(row, origin.place).filter(|place| {
                *taken.entry(place.clone()).or_insert_with(|| row.path.clone()) == row.path
            })
        };
        let places = rows.iter().map(&mut place).collect();
        self.show(rows, places).await.into_iter().for_each(|artifact| artifacts.add(artifact));
    }

    /// Takes all files, except those that are in `known` with the same content.
    pub(super) async fn take_all(
        &self,
        files: &mut SandboxFiles<'_>,
        origin: ArtifactOrigin<'_>,
        known: &HashMap<String, Digest>,
    ) -> Result<Taking, EngineError> {
        let mut room = self.room(origin).await?;
        files.most = room.quotas.file_bytes;
        let mut taking = Taking::default();
        let mut copied = Vec::new();
        while let Some(batch) = files.next().await {
            let mut admitted = Vec::new();
            for found in batch {
                match room.admit(found.size) {
                    Ok(()) => admitted.push(found),
                    Err(NoRoom { reason, may_come }) => {
                        taking.no_room |= may_come;
                        taking.refused.push(RefusedArtifact { path: found.path, reason });
                    }
                }
            }
            for (path, outcome) in self.copy(origin, admitted).await {
                match outcome {
                    Ok(file) if known.get(&path) == Some(&file.row.sha256) => {
                        taking.taken.push(file.identity);
                    }
                    Ok(file) => copied.push(file),
                    Err(error) => {
                        files.left_some = true;
                        let reason = format!("it could not be copied: {error}");
                        taking.refused.push(RefusedArtifact { path, reason });
                    }
                }
            }
        }
        taking.refused.append(&mut files.refused);
        self.put_in_place(copied, &mut taking).await?;
        Ok(taking)
    }

    /// Copies the content of these files, without putting it in place.
    async fn copy(
        &self,
        origin: ArtifactOrigin<'_>,
        batch: Vec<FoundFile>,
    ) -> Vec<(String, io::Result<Copied>)> {
        let blobs = self.blobs.clone();
        let (tenant, session, exec) =
            (origin.tenant.to_owned(), origin.session.to_owned(), origin.exec.to_owned());
        let copying = tokio::task::spawn_blocking(move || {
            let copy = |found: FoundFile| {
                let path = found.path.clone();
                (path, copy_one(&blobs, &tenant, &session, &exec, found))
            };
            batch.into_iter().map(copy).collect()
        });
        copying.await.unwrap_or_else(|panic| {
            vec![(origin.directory().1.to_owned(), Err(io::Error::other(panic)))]
        })
    }

    /// Stores the content and then the rows, so that both survive a power cut.
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
        // Protects the content from a sweep until the rows are in the catalog.
        let _wanted = placed.map_err(EngineError::KeepArtifacts)?;
        let refusals = self.catalog.add(rows, self.config.quotas).await?;
        for ((path, size, identity), refusal) in files.into_iter().zip(refusals) {
            match refusal {
                None => {
                    self.metrics.taken(size);
                    taking.taken.push(identity);
                }
                // Another session of the tenant used up the quota. The next sweep removes the content.
                Some(reason) => {
                    taking.no_room = true;
                    taking.refused.push(RefusedArtifact { path, reason });
                }
            }
        }
        Ok(())
    }

    /// Converts rows to artifacts, and links each one that has a place.
    pub(super) async fn show(
        &self,
        rows: Vec<ArtifactRow>,
        places: Vec<Option<PathBuf>>,
    ) -> Vec<Artifact> {
        let blob = |row: &ArtifactRow| self.blobs.path(&row.tenant, &row.sha256);
        let names: Vec<(PathBuf, Option<PathBuf>)> = rows.iter().map(blob).zip(places).collect();
        // One task for all, because there may be thousands.
        let linking = tokio::task::spawn_blocking(move || {
            names.into_iter().map(|(blob, place)| show_one(blob, place)).collect()
        });
        let host_paths: Vec<PathBuf> =
            linking.await.unwrap_or_else(|_| rows.iter().map(blob).collect());
        rows.into_iter().zip(host_paths).map(|(row, host_path)| artifact(row, host_path)).collect()
    }

    /// The path at which an artifact is linked by name.
    pub(super) fn shown_at(&self, row: &ArtifactRow, place: ArtifactPlace) -> Option<PathBuf> {
        let (directory, root) = match place {
            ArtifactPlace::Session => (
                SessionDirectory::of(&self.config.sessions_root, &row.session).artifacts(),
                paths::ARTIFACTS,
            ),
            ArtifactPlace::Run => {
                let outputs = own_directory(&self.config.outputs_dir, &row.tenant);
                (outputs.join(&row.session), paths::RUN_ARTIFACTS)
            }
            ArtifactPlace::Exports | ArtifactPlace::Nowhere => return None,
        };
        let relative = row.path.strip_prefix(root)?.strip_prefix('/')?;
        Some(directory.join(harmless(relative.as_bytes())?))
    }

    /// How much more the quotas of this session and its tenant allow.
    async fn room(&self, origin: ArtifactOrigin<'_>) -> Result<QuotaRoom<'_>, EngineError> {
        let (tenant, session) = self.catalog.totals(origin.tenant, origin.session).await?;
        Ok(QuotaRoom {
            artifact_store: self,
            name: origin.tenant.to_owned(),
            quotas: self.config.quotas,
            tenant,
            session,
            reserved: ArtifactTotal::default(),
        })
    }
}

/// Whether the artifacts directory has this fingerprint now. The call that removes files returns the fingerprint, so it
/// is called with no files.
async fn is_unchanged(sandbox: &Sandbox, fingerprint: Option<u64>) -> bool {
    let now = sandbox.remove_files(paths::ARTIFACTS, &[]).await;
    now.is_ok_and(|now| now.artifacts == fingerprint)
}

/// Removes files that were taken. Returns false if one of them may still exist unchanged.
async fn remove(sandbox: &Sandbox, files: &[TreeFile]) -> bool {
    let removed = sandbox.remove_files(paths::ARTIFACTS, files).await;
    removed.is_ok_and(|removed| removed.removed == files.len() as u64)
}

/// Links a blob at its place. Returns the path of the artifact on the host.
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

fn artifact(row: ArtifactRow, host_path: PathBuf) -> Artifact {
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
    found: FoundFile,
) -> io::Result<Copied> {
    let mut head = [0; HEAD_BYTES];
    let length = found.file.read_at(&mut head, 0)?;
    let name = found.name();
    let content = blobs.take(tenant, &found.file, found.size)?;
    // A copy of a file that changed meanwhile is useless. A new file with the same name does not matter.
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

/// Why a quota refuses a file.
struct NoRoom {
    reason: String,
    /// Whether the file may fit when other artifacts are removed.
    may_come: bool,
}

/// How much more may be taken. It is counted while files are copied, because several sessions of a tenant may copy at
/// the same time. It only avoids useless copies; the catalog enforces the quotas.
struct QuotaRoom<'a> {
    artifact_store: &'a ArtifactStore,
    name: String,
    quotas: ArtifactQuotas,
    tenant: ArtifactTotal,
    session: ArtifactTotal,
    /// Files that were admitted here and are not in the catalog yet.
    reserved: ArtifactTotal,
}

impl QuotaRoom<'_> {
    /// Reserves room for one more file, or returns why there is none.
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

impl Drop for QuotaRoom<'_> {
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
