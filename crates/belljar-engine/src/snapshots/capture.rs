//! Takes a snapshot of a sandbox in which nothing runs. The sandbox continues afterwards.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_proto::guest::RefusalCode;
use belljar_proto::quiescence::QuiescenceReport;
use belljar_runtime::{
    FreezeReport, FreezeRequest, GuestPipe, Meter, RuntimeError, Sandbox, languages,
};
use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::files::{self, Draft};
use super::{SnapshotFiles, SnapshotManifest, SnapshotStore, Tally, too_large};
use crate::blocking_writer::BlockingWriter;
use crate::clock;
use crate::error::{EngineError, in_full};

/// Bytes that are read from the pipe at once.
const PIECE: usize = 256 * 1024;

/// How many bytes three files may take beyond their lengths, because file systems allocate blocks ahead.
const ROUNDING: u64 = 3 << 20;

/// How long the guest may write nothing to the pipe before the snapshot fails.
const SILENCE: Duration = Duration::from_secs(60);

/// How a snapshot is to be taken.
#[derive(Debug)]
pub(crate) struct CaptureRequest<'a> {
    pub(crate) session: &'a str,
    pub(crate) tenant: &'a str,
    /// The directories of the sandbox whose files are kept.
    pub(crate) places: &'a [&'a str],
    /// The most bytes that the snapshot may add.
    pub(crate) room: u64,
    /// Leave out what cannot be kept, instead of refusing the snapshot.
    pub(crate) force: bool,
    /// The snapshot must survive a power cut.
    pub(crate) sync: bool,
    /// The execution, if the snapshot is its checkpoint.
    pub(crate) exec: Option<&'a str>,
    /// The last snapshot of the kernel, or the one that it was restored from: only changes since then are written.
    /// Without one, all memory of the kernel is written.
    pub(crate) before: Option<u64>,
    /// A snapshot whose archive is reused if the files are the same.
    pub(crate) same_files_as: Option<&'a SnapshotManifest>,
}

/// Takes a snapshot, or returns the reason why it cannot.
pub(crate) async fn capture(
    store: &SnapshotStore,
    sandbox: &Sandbox,
    request: CaptureRequest<'_>,
) -> Result<SnapshotManifest, EngineError> {
    let (session, tenant) = (request.session, request.tenant);
    let tally = match store.meter(tenant, request.room) {
        Ok(tally) => tally,
        Err(_) => {
            // Unneeded files are kept while they are open. They may be closed by now.
            let _ = store.of_session(session).run(SnapshotFiles::sweep).await;
            store.count(session, tenant).await;
            store.meter(tenant, request.room)?
        }
    };
    let taken = take(store, sandbox, &request, &tally).await;
    // In any case, the existing files are counted before the tally is released.
    store.count(session, tenant).await;
    taken
}

async fn take(
    store: &SnapshotStore,
    sandbox: &Sandbox,
    request: &CaptureRequest<'_>,
    tally: &Arc<Tally>,
) -> Result<SnapshotManifest, EngineError> {
    let report = sandbox.quiescence().await.map_err(|error| unable(request.session, error))?;
    let gone = not_kept(&report, request.force).map_err(|reasons| EngineError::NotAtRest {
        session: request.session.to_owned(),
        reasons,
    })?;
    let snapshots = store.of_session(request.session);
    let draft = snapshots.begin(store.next_id()).await.map_err(EngineError::KeepSnapshot)?;
    let filled = fill(store, sandbox, request, tally, &draft, &report).await;
    let manifest = filled.and_then(|filled| filled.manifest(request, &report, gone, draft.id()));
    let sync = request.sync;
    let finishing = tokio::task::spawn_blocking(move || match manifest {
        Ok(manifest) => draft.finish(manifest, sync).map_err(EngineError::KeepSnapshot),
        Err(error) => {
            draft.discard();
            Err(error)
        }
    });
    let panicked = |panic| Err(EngineError::KeepSnapshot(io::Error::other(panic)));
    let manifest = finishing.await.unwrap_or_else(panicked)?;
    // Blocks may be larger than what was written to them.
    if manifest.bytes > request.room.saturating_add(ROUNDING) {
        let id = manifest.id;
        let _ = snapshots.run(move |files| files.forget(&[id])).await;
        return Err(too_large(request.room));
    }
    Ok(manifest)
}

/// What was written to a draft.
struct Filled {
    /// The kernel, if there was one and it could be kept.
    frozen: Result<Option<Frozen>, EngineError>,
    /// The number of the archive.
    files: u64,
}

async fn fill(
    store: &SnapshotStore,
    sandbox: &Sandbox,
    request: &CaptureRequest<'_>,
    tally: &Arc<Tally>,
    draft: &Draft,
    report: &QuiescenceReport,
) -> Result<Filled, EngineError> {
    let same = request.same_files_as.filter(|last| last.fingerprint == report.files);
    let same = same.and_then(|last| last.files);
    let freezing = async {
        match report.kernels.contains(&Language::Python) {
            true => freeze(store, sandbox, draft, tally, request).await.map(Some),
            false => Ok(None),
        }
    };
    let packing = async {
        match same {
            Some(files) => Ok(files),
            None => pack(sandbox, draft, request.places, tally).await.map(|()| draft.id()),
        }
    };
    // Nothing runs in the sandbox, so neither can change meanwhile.
    let (frozen, packed) = tokio::join!(freezing, packing);
    Ok(Filled { frozen, files: packed? })
}

impl Filled {
    fn manifest(
        self,
        request: &CaptureRequest<'_>,
        report: &QuiescenceReport,
        mut gone: Vec<(Language, String)>,
        id: u64,
    ) -> Result<SnapshotManifest, EngineError> {
        for (language, reason) in &report.gone {
            // There may be a new kernel of this language, which has not reported the loss yet.
            if !gone.iter().any(|(known, _)| known == language) {
                gone.push((*language, reason.clone()));
            }
        }
        let mut lost = if request.force { report.busy.clone() } else { Vec::new() };
        let mut layers = None;
        match self.frozen {
            Ok(None) => {}
            Ok(Some(frozen)) => {
                layers = Some(frozen.layers);
                lost.extend(frozen.lost);
            }
            // With `force`, only a kernel that can never be written is given up. If there was no room, or something was
            // slow, the session continues with its variables.
            Err(EngineError::NotKept { reasons, .. }) if request.force => {
                gone.push((Language::Python, format!("could not be kept: {}", reasons.join(", "))));
            }
            Err(EngineError::Freeze(error @ RuntimeError::MemorySnapshot(_))) if request.force => {
                gone.push((Language::Python, format!("could not be kept: {}", in_full(&error))));
            }
            Err(error) => return Err(error),
        }
        Ok(SnapshotManifest {
            id,
            made_ms: clock::now_ms(),
            exec: request.exec.map(str::to_owned),
            layers,
            files: Some(self.files),
            fingerprint: report.files,
            gone,
            lost,
            bytes: 0,
        })
    }
}

/// The kernels that will be missing in the snapshot. Without `force`, the snapshot fails with the reasons instead.
fn not_kept(
    report: &QuiescenceReport,
    force: bool,
) -> Result<Vec<(Language, String)>, Vec<String>> {
    let others: Vec<Language> =
        report.kernels.iter().copied().filter(|language| *language != Language::Python).collect();
    if !force {
        let kernels = others.iter().map(|language| {
            let name = languages::name(*language);
            format!("a {name} kernel is alive, which cannot be kept")
        });
        let reasons: Vec<String> = report.busy.iter().cloned().chain(kernels).collect();
        if !reasons.is_empty() {
            return Err(reasons);
        }
    }
    let gone = |language| (language, "was left behind, as was asked for".to_owned());
    Ok(others.into_iter().map(gone).collect())
}

struct Frozen {
    layers: Vec<u64>,
    lost: Vec<String>,
}

/// Writes the Python kernel to the draft.
async fn freeze(
    store: &SnapshotStore,
    sandbox: &Sandbox,
    draft: &Draft,
    tally: &Arc<Tally>,
    request: &CaptureRequest<'_>,
) -> Result<Frozen, EngineError> {
    let snapshots = store.of_session(request.session);
    let last = request.before;
    let open_last = move |files: &SnapshotFiles| {
        let last = last.and_then(|id| files.get(id));
        Ok(last.and_then(|last| files.kernel(&last).ok().flatten()))
    };
    let before = snapshots.run(open_last).await.map_err(EngineError::KeepSnapshot)?;
    let (pages, index) = (draft.path("pages"), draft.path("index"));
    let commons = store.commons();
    let how = FreezeRequest {
        layer: draft.id(),
        pages: &pages,
        index: &index,
        before: before.as_ref(),
        commons: &commons,
        meter: Arc::clone(tally) as Arc<dyn Meter>,
        force: request.force,
    };
    let report = sandbox.freeze(&how).await.map_err(|error| match (error, tally.refusal()) {
        (RuntimeError::NoRoom, Some(refusal)) => refusal,
        (RuntimeError::Keep(cause), _) => EngineError::KeepSnapshot(cause),
        (error, _) => unable(request.session, error),
    })?;
    let report = frozen_or_refused(report, request)?;
    let layers = report.layers.clone();
    let require = move |files: &SnapshotFiles| {
        layers.iter().try_for_each(|id| files.require_layer(*id, &commons))
    };
    snapshots.run(require).await.map_err(EngineError::KeepSnapshot)?;
    Ok(Frozen { layers: report.layers, lost: report.lost })
}

fn frozen_or_refused(
    report: FreezeReport,
    request: &CaptureRequest<'_>,
) -> Result<FreezeReport, EngineError> {
    if report.refused.is_empty() {
        return Ok(report);
    }
    let (session, reasons) = (request.session.to_owned(), report.refused);
    Err(match report.entirely || request.force {
        true => EngineError::NotKept { session, reasons },
        false => EngineError::NotAtRest { session, reasons },
    })
}

/// Writes the files to the draft's archive.
async fn pack(
    sandbox: &Sandbox,
    draft: &Draft,
    places: &[&str],
    tally: &Tally,
) -> Result<(), EngineError> {
    let path = draft.path("files");
    let creating = tokio::task::spawn_blocking(move || files::create(&path));
    let created = creating.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    let file = created.map_err(EngineError::KeepSnapshot)?;
    let (job, pipe) = sandbox.keep_files(places).await.map_err(EngineError::Files)?;
    let written = receive(pipe, file, tally).await;
    let packed = sandbox.finish(job).await.map_err(EngineError::Files);
    written?;
    packed.map(drop)
}

async fn receive(mut pipe: GuestPipe, file: File, tally: &Tally) -> Result<(), EngineError> {
    let incoming = BlockingWriter::begin(file, |file, chunk| file.write_all(chunk));
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(PIECE);
        let read = timeout(SILENCE, pipe.read_buf(&mut buffer)).await;
        let silent = || EngineError::Files(RuntimeError::TimedOut(SILENCE.as_secs()));
        let read = read.map_err(|_| silent())?.map_err(EngineError::ReadInside)?;
        if read == 0 {
            break;
        }
        if !tally.take(read as u64) {
            return Err(tally.refusal().unwrap_or(EngineError::SnapshotsFull));
        }
        if !incoming.write(buffer.split().freeze()).await {
            break;
        }
    }
    incoming.finish().await.map(drop).map_err(EngineError::KeepSnapshot)
}

/// The error for a guest that refuses a snapshot.
fn unable(session: &str, error: RuntimeError) -> EngineError {
    let not_now =
        |reason| EngineError::NotAtRest { session: session.to_owned(), reasons: vec![reason] };
    match &error {
        RuntimeError::Refused(refusal) => match refusal.code {
            // Files can never be passed to or from this sandbox.
            RefusalCode::NoDescriptors => EngineError::Files(error),
            RefusalCode::Busy | RefusalCode::NoKernel | RefusalCode::Invalid => {
                not_now(refusal.message.clone())
            }
            _ => EngineError::Freeze(error),
        },
        RuntimeError::OldGuest => not_now(in_full(&error)),
        _ => EngineError::Freeze(error),
    }
}
