//! Restores a snapshot into a fresh sandbox.

use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_runtime::{GuestPipe, RuntimeError, Sandbox};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::{SessionSnapshots, SnapshotManifest};
use crate::error::{EngineError, in_full};

/// Bytes that are written to the pipe at once.
const PIECE: usize = 256 * 1024;

/// How long the guest may read nothing from the pipe before the restore fails.
const SILENCE: Duration = Duration::from_secs(60);

/// Restores the files, then the kernel, which may have some of them open. If the kernel cannot be restored and is
/// required, that is an error. If it is not required, the next cell reports that it is gone, and why.
pub(crate) async fn revive(
    sandbox: &Sandbox,
    snapshots: &SessionSnapshots,
    manifest: &SnapshotManifest,
    kernel_required: bool,
) -> Result<(), EngineError> {
    let archive = snapshots.archive(manifest).await.map_err(EngineError::KeepSnapshot)?;
    if let Some(archive) = archive {
        let (job, pipe) = sandbox.bring_files().await.map_err(EngineError::Files)?;
        let sent = send(archive, pipe).await;
        // The guest unpacks, so its error is more useful than ours.
        sandbox.finish(job).await.map_err(EngineError::Files)?;
        sent?;
    }
    let mut gone = manifest.gone.clone();
    if let Some(reason) = thaw(sandbox, snapshots, manifest, kernel_required).await? {
        gone.push((Language::Python, reason));
    }
    for (language, reason) in &gone {
        let noted = sandbox.lose_kernel(*language, reason).await;
        noted.map_err(EngineError::Thaw)?;
    }
    Ok(())
}

/// Restores the kernel. If that fails and the kernel is not required, starts a new one and returns the reason.
async fn thaw(
    sandbox: &Sandbox,
    snapshots: &SessionSnapshots,
    manifest: &SnapshotManifest,
    kernel_required: bool,
) -> Result<Option<String>, EngineError> {
    let thawed = match snapshots.kernel(manifest).await {
        Ok(None) => return Ok(None),
        Ok(Some(kernel)) => sandbox.thaw(&kernel).await.map_err(EngineError::Thaw),
        Err(error) => Err(EngineError::KeepSnapshot(error)),
    };
    match thawed {
        // The missing parts were already left out when the snapshot was taken.
        Ok(_) => Ok(None),
        Err(error @ EngineError::Thaw(RuntimeError::Gone)) => Err(error),
        Err(error) if kernel_required => Err(error),
        Err(error) => {
            let started = sandbox.start_kernel(Language::Python).await;
            started.map_err(EngineError::StartKernel)?;
            Ok(Some(format!("could not be woken: {}", in_full(&error))))
        }
    }
}

async fn send(archive: File, mut pipe: GuestPipe) -> Result<(), EngineError> {
    let (mut archive, mut buffer) = (archive, vec![0; PIECE]);
    loop {
        let reading = tokio::task::spawn_blocking(move || {
            let read = read(&mut archive, &mut buffer);
            (archive, buffer, read)
        });
        let done =
            reading.await.map_err(|panic| EngineError::KeepSnapshot(io::Error::other(panic)));
        let read;
        (archive, buffer, read) = done?;
        let read = read.map_err(EngineError::KeepSnapshot)?;
        if read == 0 {
            return Ok(());
        }
        let silent = || EngineError::Files(RuntimeError::TimedOut(SILENCE.as_secs()));
        let sent = timeout(SILENCE, pipe.write_all(&buffer[..read])).await;
        sent.map_err(|_| silent())?.map_err(EngineError::WriteInside)?;
    }
}

fn read(archive: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match archive.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => return read,
        }
    }
}
