//! Datasets of sessions: staged, listed, exported.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use belljar_proto::guest::{TreeFile, TreeLimits};
use belljar_runtime::{Sandbox, UntrustedFile, paths};
use bytes::Bytes;
use tokio::sync::oneshot;

use super::{Engine, EngineState, Principal};
use crate::audit::AuditEntry;
use crate::blocking_writer::BlockingWriter;
use crate::clock;
use crate::datasets::source::{Answer, SourceError};
use crate::datasets::{
    Arriving, Content, DatasetInfo, DatasetListing, DatasetName, DatasetRow, DatasetStatus,
    Exports, Known, describe,
};
use crate::error::{EngineError, in_full};
use crate::session::Session;
use crate::spec::Datasets;
use crate::store::Digest;
use crate::uploads::UploadPermit;

/// Files that are listed, and files that are looked into.
const LISTED: TreeLimits = TreeLimits { files: 1000, depth: 16 };
const DESCRIBED: usize = 100;

/// What a source said without an ETag is believed for this long.
const FRESH_MS: i64 = 5 * 60 * 1000;

const BROKEN_OFF: &str = "the upload broke off";

/// A dataset on its way into a session. Dropped before it is finished, it has failed, and nothing
/// of it is visible inside.
#[derive(Debug)]
pub struct Upload {
    shared: Arc<EngineState>,
    session: Arc<Session>,
    name: DatasetName,
    /// What the caller says it is.
    promised: Option<Digest>,
    received: u64,
    /// Until it is finished.
    arriving: Option<BlockingWriter<Arriving>>,
    _place: UploadPermit,
}

/// Begins to write and hash what comes.
fn arrival(shared: &Arc<EngineState>) -> Result<BlockingWriter<Arriving>, EngineError> {
    let arriving = shared.datasets.begin().map_err(EngineError::KeepDataset)?;
    let limit = shared.config.dataset_bytes;
    Ok(BlockingWriter::begin(arriving, move |arriving, chunk| {
        if arriving.size() + chunk.len() as u64 > limit {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, too_large(limit)));
        }
        arriving.write(chunk)
    }))
}

fn too_large(limit: u64) -> String {
    format!("it is larger than {limit} bytes, which is the most (BELLJAR_DATASET_SIZE)")
}

impl Upload {
    /// Takes the next bytes, as fast as they can be written down.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), EngineError> {
        // Said at once: the thread that writes is only heard when more comes.
        self.received += bytes.len() as u64;
        let limit = self.shared.config.dataset_bytes;
        if self.received > limit {
            return Err(self.fail(EngineError::TooLarge(too_large(limit))).await);
        }
        let sent = match &self.arriving {
            Some(arrival) => arrival.write(bytes).await,
            None => false,
        };
        if sent {
            return Ok(());
        }
        // The thread that writes has given up, and knows why.
        let error = match self.arriving.take() {
            Some(arrival) => arrival.finish().await.err().map(EngineError::KeepDataset),
            None => None,
        };
        let error = error.unwrap_or_else(|| EngineError::Internal(BROKEN_OFF.into()));
        Err(self.fail(error).await)
    }

    /// All of it has come: makes it visible inside, even if the caller does not wait for that.
    pub async fn finish(self) -> Result<DatasetInfo, EngineError> {
        in_any_case(self.complete()).await
    }

    async fn complete(mut self) -> Result<DatasetInfo, EngineError> {
        let Some(arrival) = self.arriving.take() else {
            return Err(EngineError::Internal(BROKEN_OFF.into()));
        };
        let staged = async {
            let arrived = arrival.finish().await.map_err(EngineError::KeepDataset)?;
            let found = arrived.sha256();
            if let Some(promised) = self.promised.filter(|promised| *promised != found) {
                return Err(EngineError::OtherContent { promised, found });
            }
            let (content, cached) = self.shared.keep_dataset(&self.session.tenant, arrived).await?;
            let info = self.shared.stage(&self.session, &self.name, None, content).await?;
            Ok(DatasetInfo { cached: Some(cached), ..info })
        };
        match staged.await {
            Ok(info) => Ok(info),
            Err(error) => Err(self.fail(error).await),
        }
    }

    async fn fail(&mut self, error: EngineError) -> EngineError {
        self.arriving = None;
        self.shared.dataset_failed(&self.session, &self.name, None, &error).await;
        error
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.arriving.take().is_none() {
            return;
        }
        let (shared, session) = (Arc::clone(&self.shared), Arc::clone(&self.session));
        let name = self.name.clone();
        tokio::spawn(async move {
            let error = EngineError::Invalid(BROKEN_OFF.into());
            shared.dataset_failed(&session, &name, None, &error).await;
        });
    }
}

/// Does it to the end, also when nobody waits for that any more: a file that was begun inside is
/// finished or removed.
async fn in_any_case<T: Send + 'static>(
    doing: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, EngineError> {
    let done = tokio::spawn(doing).await;
    done.unwrap_or_else(|panic| Err(EngineError::KeepDataset(io::Error::other(panic))))
}

impl Engine {
    /// Begins to take a dataset from the caller, who may say how large it is and what its hash is.
    pub async fn upload(
        &self,
        who: &Principal,
        id: &str,
        name: DatasetName,
        declared: Option<u64>,
        promised: Option<Digest>,
    ) -> Result<Upload, EngineError> {
        let session = self.session_with_datasets(who, id).await?;
        let limit = self.shared.config.dataset_bytes;
        if declared.is_some_and(|size| size > limit) {
            return Err(EngineError::TooLarge(too_large(limit)));
        }
        let _place = self.shared.uploads.place(&who.tenant, id).await?;
        let arriving = Some(arrival(&self.shared)?);
        let shared = Arc::clone(&self.shared);
        // From here on it has failed if it is dropped.
        let upload = Upload { shared, session, name, promised, received: 0, arriving, _place };
        self.shared.dataset_pending(&upload.session, &upload.name, None).await?;
        self.note_dataset(who, id, "dataset.upload", "begun", upload.name.as_str());
        Ok(upload)
    }

    /// Stages content that some session of the tenant has had already, without a transfer; `None`
    /// if it is not known.
    pub async fn stage_known(
        &self,
        who: &Principal,
        id: &str,
        name: DatasetName,
        sha256: Digest,
    ) -> Result<Option<DatasetInfo>, EngineError> {
        let session = self.session_with_datasets(who, id).await?;
        let Some(content) = self.shared.datasets.find(&session.tenant, &sha256) else {
            return Ok(None);
        };
        let shared = Arc::clone(&self.shared);
        let staging = async move {
            match shared.stage(&session, &name, None, content).await {
                Ok(info) => Ok(Some(DatasetInfo { cached: Some(true), ..info })),
                // It is not known after all.
                Err(error) if is_damage(&error) => Ok(None),
                Err(error) => {
                    shared.dataset_failed(&session, &name, None, &error).await;
                    Err(error)
                }
            }
        };
        in_any_case(staging).await
    }

    /// Has a dataset fetched from its source, unless it is there; `begun` is told if so.
    pub async fn stage_from_source(
        &self,
        who: &Principal,
        id: &str,
        source: &str,
        refresh: bool,
        begun: oneshot::Sender<DatasetInfo>,
    ) -> Result<DatasetInfo, EngineError> {
        let session = self.session_with_datasets(who, id).await?;
        if !refresh && let Some(loaded) = self.shared.still_loaded(&session, source).await? {
            return Ok(DatasetInfo { cached: Some(true), ..loaded });
        }
        let name: DatasetName =
            source.parse().map_err(|error| EngineError::Invalid(format!("{error}")))?;
        if !self.shared.config.dataset_sources.knows(source) {
            let none = SourceError::NoSource { id: source.to_owned() };
            return Err(EngineError::Source(none));
        }
        self.shared.dataset_pending(&session, &name, Some(source)).await?;
        let pending = row(&session, &name, Some(source), DatasetStatus::Pending);
        // Most wait for the end and do not want to know.
        let _ = begun.send(info_of_row(pending));
        let fetched = self.shared.fetch(&session, &name, source, refresh).await;
        let outcome = match &fetched {
            Ok(_) => "loaded".to_owned(),
            Err(error) => {
                self.shared.dataset_failed(&session, &name, Some(source), error).await;
                in_full(error)
            }
        };
        self.note_dataset(who, id, "dataset.fetch", &outcome, source);
        fetched
    }

    /// What datasets a session has.
    pub async fn datasets(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<(Datasets, DatasetListing), EngineError> {
        let session = self.settled_session(who, id).await?;
        let access = session.spec.datasets;
        let listing = match access {
            Datasets::None => DatasetListing::default(),
            Datasets::LocalRo => list(&*session.sandbox()?, paths::DATA, &[]).await?,
            Datasets::Api => {
                let rows = self.shared.store.datasets(&session.id).await?;
                list(&*session.sandbox()?, paths::SESSION_DATA, &rows).await?
            }
        };
        Ok((access, listing))
    }

    /// Brings files from `/session/data` to the host, all of them unless some are named, and makes
    /// artifacts of them.
    pub async fn export(
        &self,
        who: &Principal,
        id: &str,
        names: Option<Vec<DatasetName>>,
    ) -> Result<Exports, EngineError> {
        let session = self.settled_session(who, id).await?;
        let sandbox = session.sandbox()?;
        let names = names.map(|names| names.iter().map(ToString::to_string).collect());
        let exports = self
            .shared
            .artifact_store
            .export(&sandbox, &session.tenant, &session.id, names)
            .await?;
        let outcome = format!("{} exported", exports.exports.len());
        self.note_dataset(who, id, "dataset.export", &outcome, "");
        Ok(exports)
    }

    /// A live session whose sandbox is there: one that is being made, or found again after a
    /// restart, is waited for.
    pub(super) async fn settled_session(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<Arc<Session>, EngineError> {
        let session = self.live_session(who, id).await?;
        session.awake(who.quota()).await?;
        Ok(session)
    }

    async fn session_with_datasets(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<Arc<Session>, EngineError> {
        let session = self.settled_session(who, id).await?;
        if session.spec.datasets != Datasets::Api {
            return Err(EngineError::NoStaging(session.id.clone()));
        }
        session.used()?;
        Ok(session)
    }

    fn note_dataset(
        &self,
        who: &Principal,
        id: &str,
        action: &'static str,
        outcome: &str,
        detail: &str,
    ) {
        let detail = Some(detail).filter(|detail| !detail.is_empty());
        self.audit.note(
            who,
            &AuditEntry { action, outcome, session: Some(id), detail, ..AuditEntry::default() },
        );
    }
}

impl EngineState {
    async fn dataset_pending(
        &self,
        session: &Session,
        name: &DatasetName,
        source: Option<&str>,
    ) -> Result<(), EngineError> {
        Ok(self.store.put_dataset(row(session, name, source, DatasetStatus::Pending)).await?)
    }

    async fn dataset_failed(
        &self,
        session: &Session,
        name: &DatasetName,
        source: Option<&str>,
        error: &EngineError,
    ) {
        let reason = Some(in_full(error));
        let row = DatasetRow { reason, ..row(session, name, source, DatasetStatus::Failed) };
        if let Err(error) = self.store.put_dataset(row).await {
            tracing::error!(session.id = session.id, "failed to write down: {}", in_full(&error));
        }
    }

    async fn keep_dataset(
        self: &Arc<Self>,
        tenant: &str,
        arrived: Arriving,
    ) -> Result<(Content, bool), EngineError> {
        let (shared, tenant) = (Arc::clone(self), tenant.to_owned());
        let keeping = tokio::task::spawn_blocking(move || shared.datasets.keep(&tenant, arrived));
        let kept = keeping.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        kept.map_err(EngineError::KeepDataset)
    }

    /// Makes content visible in a session, in one step.
    async fn stage(
        self: &Arc<Self>,
        session: &Session,
        name: &DatasetName,
        source: Option<&str>,
        content: Content,
    ) -> Result<DatasetInfo, EngineError> {
        let (sha256, size) = (content.sha256, content.size);
        let sandbox = session.sandbox()?;
        let path = name.as_str().as_bytes();
        let (file, temporary) =
            sandbox.create_file(paths::SESSION_DATA, path).await.map_err(EngineError::Stage)?;
        let copying = tokio::task::spawn_blocking(move || (content.copy_to(&file), file)).await;
        let copied = match copying {
            Ok((copied, file)) => {
                file.close().await;
                copied
            }
            Err(panic) => Err(io::Error::other(panic)),
        };
        if let Err(error) = copied {
            // If even this fails, what is left is hidden.
            let _ = sandbox.discard_file(temporary).await;
            return Err(match error.kind() {
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                    EngineError::NoRoomInside(size)
                }
                io::ErrorKind::InvalidData => {
                    self.datasets.forget(&session.tenant, &sha256);
                    EngineError::KeepDataset(error)
                }
                _ => EngineError::KeepDataset(error),
            });
        }
        let committed = match sandbox.commit_file(&temporary).await {
            Ok(committed) => committed,
            Err(error) => {
                let _ = sandbox.discard_file(temporary).await;
                return Err(EngineError::Stage(error));
            }
        };
        let row = DatasetRow {
            sha256: Some(sha256),
            size: Some(size),
            updated_ms: modified_ms(committed.modified_ns),
            ..row(session, name, source, DatasetStatus::Loaded)
        };
        self.store.put_dataset(row.clone()).await?;
        Ok(info_of_row(row))
    }

    /// Removes hidden files that an earlier server, before this time, neither finished nor removed.
    pub(super) async fn clear_half_staged(&self, session: &Session, before_ms: i64) {
        let (Datasets::Api, Ok(sandbox)) = (session.spec.datasets, session.sandbox()) else {
            return;
        };
        // Where that fails, they stay hidden.
        let Ok(tree) = sandbox.list_tree(paths::SESSION_DATA, LISTED).await else { return };
        let is_left =
            |file: &TreeFile| is_temporary(&file.path) && file.changed_ns / 1_000_000 < before_ms;
        let left: Vec<TreeFile> = tree.files.into_iter().filter(is_left).collect();
        if !left.is_empty() {
            let _ = sandbox.remove_files(paths::SESSION_DATA, &left).await;
        }
    }

    /// A dataset of this session that came from a source and is still as it came.
    async fn still_loaded(
        &self,
        session: &Session,
        source: &str,
    ) -> Result<Option<DatasetInfo>, EngineError> {
        let row = self.store.dataset_of_source(&session.id, source).await?;
        let Some(row) = row.filter(|row| row.status == DatasetStatus::Loaded) else {
            return Ok(None);
        };
        let file = TreeFile { path: row.name.clone().into(), ..TreeFile::default() };
        let there = session.sandbox()?.open_files(paths::SESSION_DATA, &[file], 0).await;
        let there = there.ok().and_then(|mut opened| opened.pop()?.ok());
        let there = there.filter(|file| is_as_it_came(&row, file.size, file.modified_ns));
        Ok(there.map(|_| info_of_row(row)))
    }

    async fn fetch(
        self: &Arc<Self>,
        session: &Session,
        name: &DatasetName,
        source: &str,
        refresh: bool,
    ) -> Result<DatasetInfo, EngineError> {
        match self.fetch_or_find(session, name, source, refresh).await {
            // What was cached is of no use, and is not there any more.
            Err(error) if is_damage(&error) => {
                self.fetch_or_find(session, name, source, refresh).await
            }
            outcome => outcome,
        }
    }

    async fn fetch_or_find(
        self: &Arc<Self>,
        session: &Session,
        name: &DatasetName,
        source: &str,
        refresh: bool,
    ) -> Result<DatasetInfo, EngineError> {
        let tenant = &session.tenant;
        let known = self.datasets.known(tenant, source);
        let known =
            known.and_then(|known| Some((self.datasets.find(tenant, &known.sha256)?, known)));
        let is_fresh = |known: &Known| {
            known.etag.is_none() && clock::now_ms() - known.fetched_ms < FRESH_MS && !refresh
        };
        let known = match known {
            Some((content, known)) if is_fresh(&known) => {
                return self.stage_as(session, name, source, &known, content, true).await;
            }
            known => known,
        };
        let _permit = self.fetching.acquire().await;
        let arrival = arrival(self)?;
        let etag = known.as_ref().and_then(|(_, known)| known.etag.as_deref());
        let answer = self.config.dataset_sources.fetch(source, etag, arrival.sender()).await;
        let arrived = arrival.finish().await.map_err(EngineError::KeepDataset);
        let fetched = match (answer, known) {
            (Ok(Answer::NotModified), Some((content, known))) => {
                return self.stage_as(session, name, source, &known, content, true).await;
            }
            (Ok(Answer::NotModified), None) => {
                return Err(EngineError::Invalid("its source has nothing new to nothing".into()));
            }
            (Ok(Answer::Fetched(fetched)), _) => fetched,
            // What could not be written down ends the transfer, and is the reason for its end.
            (Err(_), _) if arrived.is_err() => return arrived.map(|_| unreachable!("it is one")),
            (Err(error), _) => return Err(EngineError::Source(error)),
        };
        let (content, _) = self.keep_dataset(tenant, arrived?).await?;
        let known = Known {
            sha256: content.sha256,
            etag: fetched.etag,
            file_name: fetched.file_name,
            fetched_ms: clock::now_ms(),
        };
        if let Err(error) = self.datasets.remember(tenant, source, &known) {
            tracing::warn!("failed to remember where a dataset came from: {error}");
        }
        self.stage_as(session, name, source, &known, content, false).await
    }

    /// Stages under the name that the source gave, where that is better than the one asked for.
    async fn stage_as(
        self: &Arc<Self>,
        session: &Session,
        asked: &DatasetName,
        source: &str,
        known: &Known,
        content: Content,
        cached: bool,
    ) -> Result<DatasetInfo, EngineError> {
        let name = asked.with_file_name(&known.file_name).unwrap_or_else(|_| asked.clone());
        let info = self.stage(session, &name, Some(source), content).await?;
        if name != *asked {
            // It was pending under the name that it was asked for by.
            self.store.remove_dataset(&session.id, asked.as_str()).await?;
        }
        Ok(DatasetInfo { cached: Some(cached), ..info })
    }
}

fn row(
    session: &Session,
    name: &DatasetName,
    source: Option<&str>,
    status: DatasetStatus,
) -> DatasetRow {
    DatasetRow {
        session: session.id.clone(),
        name: name.as_str().to_owned(),
        status,
        reason: None,
        source: source.map(str::to_owned),
        sha256: None,
        size: None,
        updated_ms: clock::now_ms(),
    }
}

fn info_of_row(row: DatasetRow) -> DatasetInfo {
    DatasetInfo {
        path: format!("{}/{}", paths::SESSION_DATA, row.name),
        name: row.name,
        status: row.status,
        reason: row.reason,
        source: row.source,
        size: row.size,
        modified: Some(clock::rfc3339(row.updated_ms)),
        sha256: row.sha256,
        description: None,
        cached: None,
    }
}

/// What lies below `root`, and what was to come there and did not.
async fn list(
    sandbox: &Sandbox,
    root: &str,
    rows: &[DatasetRow],
) -> Result<DatasetListing, EngineError> {
    let tree = sandbox.list_tree(root, LISTED).await.map_err(EngineError::ListDatasets)?;
    let files: Vec<TreeFile> =
        tree.files.into_iter().filter(|file| !is_temporary(&file.path)).collect();
    let mut described = describe_some(sandbox, root, &files).await?;
    let mut known: HashMap<&str, &DatasetRow> =
        rows.iter().map(|row| (row.name.as_str(), row)).collect();
    let mut datasets = Vec::new();
    for file in files {
        let name = String::from_utf8_lossy(&file.path).into_owned();
        let row = known.remove(name.as_str());
        // Code may have written over it since.
        let unchanged = row.filter(|row| is_as_it_came(row, file.size, file.modified_ns));
        // Another is to replace it, or was to.
        let replacing = row.filter(|row| {
            row.status != DatasetStatus::Loaded && modified_ms(file.modified_ns) <= row.updated_ms
        });
        datasets.push(DatasetInfo {
            path: format!("{root}/{name}"),
            status: replacing.map_or(DatasetStatus::Loaded, |row| row.status),
            reason: replacing.and_then(|row| row.reason.clone()),
            source: row.and_then(|row| row.source.clone()),
            size: Some(file.size),
            modified: Some(clock::rfc3339(modified_ms(file.modified_ns))),
            sha256: unchanged.and_then(|row| row.sha256),
            description: described.remove(&file.path),
            cached: None,
            name,
        });
    }
    // A loaded one that is not there any more was removed by code.
    let absent = known.into_values().filter(|row| row.status != DatasetStatus::Loaded);
    let mut absent: Vec<&DatasetRow> = absent.collect();
    absent.sort_by_key(|row| std::cmp::Reverse(row.updated_ms));
    let room = usize::try_from(LISTED.files).unwrap_or(usize::MAX).saturating_sub(datasets.len());
    let beyond = absent.split_off(room.min(absent.len()));
    datasets.extend(absent.into_iter().map(|row| info_of_row(row.clone())));
    datasets.sort_by(|a, b| a.name.cmp(&b.name));
    let more = (tree.skipped.len() + beyond.len()) as u64 + tree.skipped_more;
    Ok(DatasetListing { datasets, more })
}

/// Whether a file is still what was staged, as far as its size and its time tell.
fn is_as_it_came(row: &DatasetRow, size: u64, modified_ns: i64) -> bool {
    row.status == DatasetStatus::Loaded
        && row.size == Some(size)
        && row.updated_ms == modified_ms(modified_ns)
}

fn modified_ms(modified_ns: i64) -> i64 {
    modified_ns / 1_000_000
}

/// Whether what was in the cache did not have the hash that it was known by.
fn is_damage(error: &EngineError) -> bool {
    matches!(error, EngineError::KeepDataset(cause) if cause.kind() == io::ErrorKind::InvalidData)
}

/// The hidden file that a dataset is written to before it appears: `.0123456789abcdef.part`.
fn is_temporary(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let random = name.strip_prefix(b".").and_then(|name| name.strip_suffix(b".part"));
    random.is_some_and(|random| random.len() == 16 && random.iter().all(u8::is_ascii_hexdigit))
}

/// To describe a dataset its beginning and its end would do. Where files must be copied to be looked
/// at, larger ones go without a description.
const MAX_FETCHED: u64 = 64 << 20;

async fn describe_some(
    sandbox: &Sandbox,
    root: &str,
    files: &[TreeFile],
) -> Result<HashMap<Vec<u8>, crate::datasets::Description>, EngineError> {
    let mut described = HashMap::new();
    let files = &files[..files.len().min(DESCRIBED)];
    for batch in files.chunks(Sandbox::MAX_OPENED) {
        let opened = sandbox.open_files(root, batch, MAX_FETCHED).await;
        let opened = opened.map_err(EngineError::ListDatasets)?;
        let opened: Vec<(Vec<u8>, UntrustedFile, u64)> = batch
            .iter()
            .zip(opened)
            .filter_map(|(file, opened)| {
                let opened = opened.ok().filter(|opened| opened.has_content)?;
                Some((file.path.clone(), opened.file, opened.size))
            })
            .collect();
        let looking = tokio::task::spawn_blocking(move || {
            let look = |(path, file, size): (Vec<u8>, UntrustedFile, u64)| {
                let description = describe(&String::from_utf8_lossy(&path), &file, size);
                (path, description)
            };
            opened.into_iter().map(look).collect::<Vec<_>>()
        });
        described.extend(looking.await.unwrap_or_default());
    }
    Ok(described)
}
