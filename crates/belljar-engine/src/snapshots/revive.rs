//! Makes a fresh sandbox into what a snapshot shows.

use std::fs::File;
use std::io::{self, Read};
use std::time::Duration;

use belljar_proto::exec::Language;
use belljar_runtime::{GuestPipe, RuntimeError, Sandbox};
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use super::{Manifest, SessionSnapshots};
use crate::error::{EngineError, in_full};

/// What is given to a pipe at once.
const PIECE: usize = 256 * 1024;

/// How long a worker may not take anything.
const SILENCE: Duration = Duration::from_secs(60);

/// Brings the files, then the kernel, which may have some of them open. A kernel that cannot be
/// brought back is an error if `strictly`; otherwise the next cell says that it is gone, and why.
pub(crate) async fn revive(
    sandbox: &Sandbox,
    snapshots: &SessionSnapshots,
    manifest: &Manifest,
    strictly: bool,
) -> Result<(), EngineError> {
    if let Some(archive) = snapshots.archive(manifest).map_err(EngineError::KeepSnapshot)? {
        let (job, pipe) = sandbox.bring_files().await.map_err(EngineError::Files)?;
        let sent = send(archive, pipe).await;
        // Whoever unpacks knows better what is wrong.
        sandbox.finish(job).await.map_err(EngineError::Files)?;
        sent?;
    }
    let mut gone = manifest.gone.clone();
    if let Some(reason) = thaw(sandbox, snapshots, manifest, strictly).await? {
        gone.push((Language::Python, reason));
    }
    for (language, reason) in &gone {
        let told = sandbox.lose_kernel(*language, reason).await;
        told.map_err(EngineError::Thaw)?;
    }
    Ok(())
}

/// Brings the kernel back; or says what became of it, with a fresh one in its place.
async fn thaw(
    sandbox: &Sandbox,
    snapshots: &SessionSnapshots,
    manifest: &Manifest,
    strictly: bool,
) -> Result<Option<String>, EngineError> {
    let snapshot = match snapshots.kernel(manifest) {
        Ok(None) => return Ok(None),
        Ok(Some(snapshot)) => Ok(snapshot),
        Err(error) => Err(EngineError::KeepSnapshot(error)),
    };
    let thawed = match snapshot {
        Ok(snapshot) => sandbox.thaw(&snapshot).await.map_err(EngineError::Thaw),
        Err(error) => Err(error),
    };
    match thawed {
        // What it lacks it was told to do without when it was written down.
        Ok(_) => Ok(None),
        Err(error @ EngineError::Thaw(RuntimeError::Gone)) => Err(error),
        Err(error) if strictly => Err(error),
        Err(error) => {
            let started = sandbox.start_kernel(Language::Python).await;
            started.map_err(EngineError::StartKernel)?;
            Ok(Some(format!("could not be woken: {}", in_full(&error))))
        }
    }
}

async fn send(mut archive: File, mut pipe: GuestPipe) -> Result<(), EngineError> {
    let mut buffer = vec![0; PIECE];
    loop {
        // From our own disk, and read ahead: not worth a thread.
        let read = match archive.read(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read.map_err(EngineError::KeepSnapshot)?,
        };
        if read == 0 {
            return Ok(());
        }
        let silent = || EngineError::Files(RuntimeError::TimedOut(SILENCE.as_secs()));
        let sent = timeout(SILENCE, pipe.write_all(&buffer[..read])).await;
        sent.map_err(|_| silent())?.map_err(EngineError::WriteInside)?;
    }
}
