//! Directories of a session as archives. The guest packs and unpacks them; the host only forwards bytes.

use std::io::Write;
use std::time::Duration;

use belljar_proto::job::{ArchiveFormat, JobReport};
use belljar_runtime::{GuestPipe, Job, RuntimeError, Temporary, UntrustedFile};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use super::files::{broken_off, inside, not_written};
use super::{Engine, Principal};
use crate::blocking_writer::BlockingWriter;
use crate::error::EngineError;
use crate::session::SandboxLease;
use crate::uploads::UploadPermit;

/// Bytes that are read from a pipe at once.
const PIECE: usize = 256 * 1024;

/// How long the guest may neither read nor write before the transfer fails.
const SILENCE: Duration = Duration::from_secs(60);

/// A download of an archive. If it is dropped before its end, the guest stops packing.
#[derive(Debug)]
pub struct ArchiveDownload {
    sandbox: SandboxLease,
    job: Option<Job>,
    pipe: GuestPipe,
    buffer: BytesMut,
}

impl ArchiveDownload {
    /// The next bytes; `None` after the last, if there was no error.
    pub async fn next(&mut self) -> Result<Option<Bytes>, EngineError> {
        self.buffer.reserve(PIECE);
        let read = timeout(SILENCE, self.pipe.read_buf(&mut self.buffer)).await;
        match read.map_err(|_| too_slow())?.map_err(EngineError::ReadInside)? {
            0 => match self.job.take() {
                Some(job) => {
                    self.sandbox.finish(job).await.map(|_| None).map_err(EngineError::Files)
                }
                None => Ok(None),
            },
            _ => Ok(Some(self.buffer.split().freeze())),
        }
    }
}

/// An upload of an archive.
#[derive(Debug)]
pub struct ArchiveUpload {
    sandbox: SandboxLease,
    directory: Vec<u8>,
    format: ArchiveFormat,
    state: Option<UnpackState>,
    _permit: UploadPermit,
}

#[derive(Debug)]
enum UnpackState {
    /// Unpacked while it arrives.
    Pipe(Job, GuestPipe),
    /// Stored in the directory first, because this format is read from its end.
    File(Temporary, BlockingWriter<UntrustedFile>),
    /// The archive has ended; further bytes are only padding of its last block.
    Unpacked(JobReport),
}

impl ArchiveUpload {
    /// Takes the next bytes, at the speed of the unpacking.
    pub async fn write(&mut self, bytes: Bytes) -> Result<(), EngineError> {
        let taken = match &mut self.state {
            Some(UnpackState::Pipe(_, pipe)) => {
                let written = timeout(SILENCE, pipe.write_all(&bytes)).await;
                written.map_err(|_| too_slow())?.is_ok()
            }
            Some(UnpackState::File(_, incoming)) => incoming.write(bytes).await,
            Some(UnpackState::Unpacked(_)) => true,
            None => false,
        };
        if taken {
            return Ok(());
        }
        // The guest reads no more: the archive has ended, or there is an error.
        let state = self.state.take().ok_or_else(broken_off)?;
        self.state = Some(UnpackState::Unpacked(self.settle(state).await?));
        Ok(())
    }

    /// Ends the upload and waits until everything is unpacked.
    pub async fn finish(mut self) -> Result<JobReport, EngineError> {
        let state = self.state.take().ok_or_else(broken_off)?;
        self.settle(state).await
    }

    async fn settle(&self, state: UnpackState) -> Result<JobReport, EngineError> {
        match state {
            UnpackState::Pipe(job, mut pipe) => {
                // If this fails, the guest returns the reason.
                let _ = timeout(SILENCE, pipe.shutdown()).await;
                drop(pipe);
                self.sandbox.finish(job).await.map_err(EngineError::Files)
            }
            UnpackState::Unpacked(report) => Ok(report),
            UnpackState::File(temporary, incoming) => {
                let unpacked = match incoming.finish().await.map_err(not_written) {
                    Ok(file) => {
                        file.close().await;
                        self.unpack(&temporary).await.map_err(EngineError::Files)
                    }
                    Err(error) => Err(error),
                };
                // If this fails too, a hidden file remains.
                let _ = self.sandbox.discard_file(temporary).await;
                unpacked
            }
        }
    }

    async fn unpack(&self, archive: &Temporary) -> Result<JobReport, RuntimeError> {
        let job = self.sandbox.unpack_file(&self.directory, self.format, archive).await?;
        self.sandbox.finish(job).await
    }
}

impl Drop for ArchiveUpload {
    fn drop(&mut self) {
        if let Some(UnpackState::File(temporary, incoming)) = self.state.take() {
            let sandbox = self.sandbox.clone();
            tokio::spawn(async move {
                let _ = incoming.finish().await;
                let _ = sandbox.discard_file(temporary).await;
            });
        }
    }
}

fn too_slow() -> EngineError {
    EngineError::Files(RuntimeError::TimedOut(SILENCE.as_secs()))
}

impl Engine {
    /// Begins to pack a directory.
    pub async fn download_archive(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
        format: ArchiveFormat,
    ) -> Result<ArchiveDownload, EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        let packing = sandbox.pack(&inside(path)?, format).await;
        let (job, pipe) = packing.map_err(EngineError::Files)?;
        Ok(ArchiveDownload { sandbox, job: Some(job), pipe, buffer: BytesMut::new() })
    }

    /// Begins to unpack into a directory, which is created.
    pub async fn upload_archive(
        &self,
        who: &Principal,
        id: &str,
        path: &str,
        format: ArchiveFormat,
    ) -> Result<ArchiveUpload, EngineError> {
        let sandbox = self.used_sandbox(who, id).await?;
        let directory = inside(path)?;
        let permit = self.state.uploads.permit(&who.tenant, id).await?;
        let state = match format {
            ArchiveFormat::Tar | ArchiveFormat::TarGz => {
                let unpacking = sandbox.unpack(&directory, format).await;
                let (job, pipe) = unpacking.map_err(EngineError::Files)?;
                UnpackState::Pipe(job, pipe)
            }
            ArchiveFormat::Zip => {
                sandbox.make_directory(&directory).await.map_err(EngineError::Files)?;
                let root = String::from_utf8_lossy(&directory).into_owned() + "/.";
                let created = sandbox.create_file(&root, b"archive").await;
                let (file, temporary) = created.map_err(EngineError::Files)?;
                UnpackState::File(
                    temporary,
                    BlockingWriter::begin(file, |file, chunk| file.write_all(chunk)),
                )
            }
        };
        Ok(ArchiveUpload { sandbox, directory, format, state: Some(state), _permit: permit })
    }
}
