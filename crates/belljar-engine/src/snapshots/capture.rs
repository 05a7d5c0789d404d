//! Takes a snapshot of a sandbox at rest, which goes on afterwards.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_proto::guest::RefusalCode;
use belljar_proto::quiescence::QuiescenceReport;
use belljar_runtime::{FreezeRequest, GuestPipe, Meter, RuntimeError, Sandbox, languages};
use bytes::BytesMut;
use tokio::io::AsyncReadExt;
use tokio::time::timeout;

use super::session_snapshots::Draft;
use super::{Manifest, SnapshotStore, Tally, too_large};
use crate::blocking_writer::BlockingWriter;
use crate::clock;
use crate::error::{EngineError, in_full};

/// What is taken from a pipe at once.
const PIECE: usize = 256 * 1024;

/// What three files may take beyond their lengths: file systems take blocks ahead.
const ROUNDING: u64 = 3 << 20;

/// How long a worker may not give anything.
const SILENCE: Duration = Duration::from_secs(60);

/// How a snapshot is to be taken.
#[derive(Debug)]
pub(crate) struct Ask<'a> {
    pub(crate) session: &'a str,
    pub(crate) tenant: &'a str,
    /// Those of the sandbox's places whose files are kept.
    pub(crate) places: &'a [&'a str],
    /// The most that it may add, in bytes.
    pub(crate) room: u64,
    /// Leave out what cannot be kept, where it would otherwise be refused.
    pub(crate) force: bool,
    /// It must survive a power cut.
    pub(crate) sync: bool,
    /// The execution that it comes after, as a checkpoint.
    pub(crate) exec: Option<&'a str>,
    /// The last snapshot of its kernel, or that which it was made of: only what changed since is
    /// written. Without one, all of it is.
    pub(crate) before: Option<u64>,
    /// A snapshot whose archive will do if the files are the same.
    pub(crate) same_files_as: Option<&'a Manifest>,
}

/// Takes it, or says what stands in the way.
pub(crate) async fn capture(
    store: &SnapshotStore,
    sandbox: &Sandbox,
    ask: Ask<'_>,
) -> Result<Manifest, EngineError> {
    let (session, tenant) = (ask.session, ask.tenant);
    let tally = match store.meter(tenant, ask.room) {
        Ok(tally) => tally,
        Err(_) => {
            // What was open when nobody needed it any more may not be by now.
            let _ = store.of_session(session).sweep();
            store.count(session, tenant);
            store.meter(tenant, ask.room)?
        }
    };
    let taken = take(store, sandbox, ask, &tally).await;
    // Whatever became of it: what is there now is counted before the tally is given back.
    store.count(session, tenant);
    taken
}

async fn take(
    store: &SnapshotStore,
    sandbox: &Sandbox,
    ask: Ask<'_>,
    tally: &Arc<Tally>,
) -> Result<Manifest, EngineError> {
    let report = sandbox.quiescence().await.map_err(|error| unable(ask.session, error))?;
    let mut gone = not_kept(&report, ask.force)
        .map_err(|reasons| EngineError::NotAtRest { session: ask.session.to_owned(), reasons })?;
    let snapshots = store.of_session(ask.session);
    let before = ask.before.and_then(|id| snapshots.get(id));
    let draft = snapshots.begin(store.next_id()).map_err(EngineError::KeepSnapshot)?;

    let same = ask.same_files_as.filter(|last| last.fingerprint == report.files);
    let same = same.and_then(|last| last.files);
    let freezing = async {
        match report.kernels.contains(&Language::Python) {
            true => freeze(store, sandbox, &draft, before.as_ref(), tally, &ask).await.map(Some),
            false => Ok(None),
        }
    };
    let packing = async {
        match same {
            Some(files) => Ok(files),
            None => pack(sandbox, &draft, ask.places, tally).await.map(|()| draft.id()),
        }
    };
    // Nothing runs that could change either meanwhile.
    let (frozen, packed) = tokio::join!(freezing, packing);
    let files = Some(packed?);
    for (language, reason) in &report.gone {
        // A fresh kernel may be there instead, which has not told its owner yet.
        if !gone.iter().any(|(known, _)| known == language) {
            gone.push((*language, reason.clone()));
        }
    }
    let mut lost = if ask.force { report.busy.clone() } else { Vec::new() };
    let mut layers = None;
    match frozen {
        Ok(None) => {}
        Ok(Some(frozen)) => {
            layers = Some(frozen.layers);
            lost.extend(frozen.lost);
        }
        // Not for want of room, and not because something was slow: then the variables could have been kept, and the
        // session goes on with them.
        Err(EngineError::NotKept { reasons, .. }) if ask.force => {
            gone.push((Language::Python, format!("could not be kept: {}", reasons.join(", "))));
        }
        Err(EngineError::Freeze(error @ RuntimeError::MemorySnapshot(_))) if ask.force => {
            gone.push((Language::Python, format!("could not be kept: {}", in_full(&error))));
        }
        Err(error) => return Err(error),
    }
    let manifest = Manifest {
        id: draft.id(),
        made_ms: clock::now_ms(),
        exec: ask.exec.map(str::to_owned),
        layers,
        files,
        fingerprint: report.files,
        gone,
        lost,
        bytes: 0,
    };
    let sync = ask.sync;
    let finishing = tokio::task::spawn_blocking(move || draft.finish(manifest, sync));
    let finished = finishing.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    let manifest = finished.map_err(EngineError::KeepSnapshot)?;
    // Blocks may be larger than what was written to them.
    if manifest.bytes > ask.room.saturating_add(ROUNDING) {
        let _ = snapshots.forget(&[manifest.id]);
        return Err(too_large(ask.room));
    }
    Ok(manifest)
}

/// What will be missing in the snapshot; or, unless that is all right, why there is none.
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

/// Writes the Python kernel down.
async fn freeze(
    store: &SnapshotStore,
    sandbox: &Sandbox,
    draft: &Draft,
    before: Option<&Manifest>,
    tally: &Arc<Tally>,
    ask: &Ask<'_>,
) -> Result<Frozen, EngineError> {
    let snapshots = store.of_session(ask.session);
    let before = before.and_then(|last| snapshots.kernel(last).ok().flatten());
    let (pages, index) = (draft.path("pages"), draft.path("index"));
    let commons = store.commons();
    let how = FreezeRequest {
        layer: draft.id(),
        pages: &pages,
        index: &index,
        before: before.as_ref(),
        commons: &commons,
        meter: Arc::clone(tally) as Arc<dyn Meter>,
        force: ask.force,
    };
    let report = sandbox.freeze(&how).await.map_err(|error| match (error, tally.refusal()) {
        (RuntimeError::NoRoom, Some(refusal)) => refusal,
        (RuntimeError::Keep(cause), _) => EngineError::KeepSnapshot(cause),
        (error, _) => unable(ask.session, error),
    })?;
    if !report.refused.is_empty() {
        let (session, reasons) = (ask.session.to_owned(), report.refused);
        return Err(match report.entirely || ask.force {
            true => EngineError::NotKept { session, reasons },
            false => EngineError::NotAtRest { session, reasons },
        });
    }
    for id in &report.layers {
        snapshots.require_layer(*id, &commons).map_err(EngineError::KeepSnapshot)?;
    }
    Ok(Frozen { layers: report.layers, lost: report.lost })
}

/// Brings the files into the draft's archive.
async fn pack(
    sandbox: &Sandbox,
    draft: &Draft,
    places: &[&str],
    tally: &Tally,
) -> Result<(), EngineError> {
    let file = draft.create("files").map_err(EngineError::KeepSnapshot)?;
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
            return Err(tally.refusal().unwrap_or(EngineError::PicturesFull));
        }
        if !incoming.write(buffer.split().freeze()).await {
            break;
        }
    }
    incoming.finish().await.map(drop).map_err(EngineError::KeepSnapshot)
}

/// Why no snapshot of this sandbox can be taken, or not now.
fn unable(session: &str, error: RuntimeError) -> EngineError {
    let not_now =
        |reason| EngineError::NotAtRest { session: session.to_owned(), reasons: vec![reason] };
    match &error {
        RuntimeError::Refused(refusal) => match refusal.code {
            // No file passes in or out, ever.
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
