//! From a sandbox to the shelf.
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
use std::path::PathBuf;

use belljar_proto::guest::{TreeFile, TreeLimits};
use belljar_runtime::{Sandbox, paths};

use super::blobs::{Blobs, Taken};
use super::catalog::{ArtifactRow, Total};
use super::gather::{Found, Gathering};
use super::mime::{HEAD_BYTES, mime_of};
use super::names::harmless;
use super::shelf::{Quotas, Shelf};
use super::{Artifact, Artifacts, Refused};
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::record::Record;

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

/// Where artifacts appear by their names, besides the shelf.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Beside the files of a session on disk.
    Session,
    /// In the directory of a run.
    Run,
    /// Among the exports, where it is put by [`Shelf::export`].
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

/// What is known of a session's artifacts directory from the last time that it was looked at.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// What it looked like when there was nothing in it to be taken.
    nothing_at: Option<u64>,
    /// What was told of then, so that it is told once.
    refused: HashSet<Refused>,
    /// Taken, and left where they were because the server is told to.
    kept: HashMap<Vec<u8>, TreeFile>,
}

impl Memory {
    /// Whether a directory with this fingerprint is worth a look.
    pub(crate) fn is_news(&self, fingerprint: Option<u64>) -> bool {
        self.nothing_at.is_none() || self.nothing_at != fingerprint
    }
}

/// A file whose content is copied.
struct Copied {
    row: ArtifactRow,
    identity: TreeFile,
    content: Taken,
}

impl Shelf {
    /// Takes what an execution left behind. `fingerprint` is that of the directory at its end.
    pub(crate) async fn ingest(
        &self,
        sandbox: &Sandbox,
        origin: Origin<'_>,
        fingerprint: Option<u64>,
        memory: &mut Memory,
    ) -> Artifacts {
        let mut artifacts = Artifacts::default();
        if let Err(error) =
            self.try_ingest(sandbox, origin, fingerprint, memory, &mut artifacts).await
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

    async fn try_ingest(
        &self,
        sandbox: &Sandbox,
        origin: Origin<'_>,
        fingerprint: Option<u64>,
        memory: &mut Memory,
        artifacts: &mut Artifacts,
    ) -> Result<(), EngineError> {
        memory.nothing_at = None;
        let mut gathering = Gathering::begin(sandbox, origin.directory(), AT_ONCE).await?;
        gathering.pass_over(|file| memory.kept.get(&file.path) == Some(file));
        let (identities, refused) = self.take_all(&mut gathering, origin).await?;
        artifacts.artifacts_refused.extend(refused);
        if identities.is_empty() && !gathering.left_some {
            memory.nothing_at = fingerprint;
        }
        if self.config.keep_originals {
            memory.kept.extend(identities.into_iter().map(|file| (file.path.clone(), file)));
        } else {
            // What cannot be removed now is found again, and dropped as a second copy.
            let _ = sandbox.remove_files(paths::ARTIFACTS, &identities).await;
        }
        let rows = self.catalog.of_exec(origin.session, origin.exec).await?;
        self.show(rows, origin).await.into_iter().for_each(|artifact| artifacts.add(artifact));
        Ok(())
    }

    /// Takes everything that is gathered; which files that were, and what could not be taken.
    pub(super) async fn take_all(
        &self,
        gathering: &mut Gathering<'_>,
        origin: Origin<'_>,
    ) -> Result<(Vec<TreeFile>, Vec<Refused>), EngineError> {
        let mut room = self.room(origin).await?;
        let mut refused = Vec::new();
        let mut copied = Vec::new();
        while let Some(batch) = gathering.next().await {
            let batch = batch.into_iter().filter_map(|found| match room.admit(found.size) {
                Ok(()) => Some(found),
                Err(reason) => {
                    refused.push(Refused { path: found.path, reason });
                    None
                }
            });
            for (path, outcome) in self.copy(origin, batch.collect()).await {
                match outcome {
                    Ok(file) => copied.push(file),
                    Err(error) => {
                        let reason = format!("it could not be copied: {error}");
                        refused.push(Refused { path, reason });
                    }
                }
            }
        }
        refused.append(&mut gathering.refused);
        Ok((self.put_in_place(copied).await?, refused))
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
        copying.await.unwrap_or_default()
    }

    /// Puts content and rows in their places, in this order, for good; which files that were.
    async fn put_in_place(&self, copied: Vec<Copied>) -> Result<Vec<TreeFile>, EngineError> {
        if copied.is_empty() {
            return Ok(Vec::new());
        }
        let (mut rows, mut identities, mut contents) = (Vec::new(), Vec::new(), Vec::new());
        for file in copied {
            self.metrics.taken(file.row.size);
            rows.push(file.row);
            identities.push(file.identity);
            contents.push(file.content);
        }
        let mut ingest = self.blobs.ingesting();
        let placing = tokio::task::spawn_blocking(move || ingest.keep(contents).map(|()| ingest));
        let placed = placing.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        // Until the rows are there nobody but us knows that the content is wanted.
        let _wanted = placed.map_err(EngineError::KeepArtifacts)?;
        self.catalog.add(rows).await?;
        Ok(identities)
    }

    /// Artifacts as their caller is told of them, and shown by their names where that is wanted.
    pub(super) async fn show(&self, rows: Vec<ArtifactRow>, origin: Origin<'_>) -> Vec<Artifact> {
        let blob = |row: &ArtifactRow| self.blobs.path(&row.tenant, &row.sha256);
        let names: Vec<(PathBuf, Option<PathBuf>)> =
            rows.iter().map(|row| (blob(row), self.shown_at(row, origin.place))).collect();
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
            Place::Run => (self.config.outputs_dir.join(&row.session), paths::RUN_ARTIFACTS),
            Place::Exports | Place::Nowhere => return None,
        };
        let relative = row.path.strip_prefix(root)?.strip_prefix('/')?;
        Some(directory.join(harmless(relative.as_bytes())?))
    }

    /// How much more this session, and its tenant, may have.
    async fn room(&self, origin: Origin<'_>) -> Result<Room<'_>, EngineError> {
        let (tenant, session) = self.catalog.totals(origin.tenant, origin.session).await?;
        Ok(Room {
            shelf: self,
            name: origin.tenant.to_owned(),
            quotas: self.config.quotas,
            tenant,
            session,
            reserved: Total::default(),
        })
    }
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

/// What may still be taken, counted while it is being taken: several sessions of a tenant may be
/// at it at the same time.
struct Room<'a> {
    shelf: &'a Shelf,
    name: String,
    quotas: Quotas,
    tenant: Total,
    session: Total,
    /// Of this room, on its way to the catalog.
    reserved: Total,
}

impl Room<'_> {
    /// Room for one more file, or why there is none.
    fn admit(&mut self, size: u64) -> Result<(), String> {
        let quotas = self.quotas;
        if size > quotas.file_bytes {
            let most = quotas.file_bytes;
            return Err(format!("it has {size} bytes, and an artifact may have {most}"));
        }
        let mut in_flight = crate::lock(&self.shelf.in_flight);
        let others = in_flight.entry(self.name.clone()).or_default();
        let checks = [
            ("session", self.session, self.reserved, quotas.session),
            ("tenant", self.tenant, *others, quotas.tenant),
        ];
        for (whose, there, coming, most) in checks {
            if there.count + coming.count >= most.count {
                return Err(format!(
                    "this {whose} has {} artifacts, which is the most",
                    most.count
                ));
            }
            let bytes = there.bytes.saturating_add(coming.bytes).saturating_add(size);
            if bytes > most.bytes {
                let most = most.bytes;
                return Err(format!("the artifacts of this {whose} would exceed {most} bytes"));
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
        let mut in_flight = crate::lock(&self.shelf.in_flight);
        if let Some(others) = in_flight.get_mut(&self.name) {
            others.count -= self.reserved.count;
            others.bytes -= self.reserved.bytes;
            if *others == Total::default() {
                in_flight.remove(&self.name);
            }
        }
    }
}
