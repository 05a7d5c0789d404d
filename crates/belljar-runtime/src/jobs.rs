//! Copies and archives, which a worker of the guest makes. Archives travel through pipes of the guest; the host never parses
//! them.

use belljar_proto::PROTOCOL_WITH_TERMINALS;
use belljar_proto::guest::{Answer, Call};
use belljar_proto::job::{ArchiveFormat, JobReport};
use belljar_sys::process;

use crate::guest_pipe::GuestPipe;
use crate::link::Reply;
use crate::{RuntimeError, Sandbox, Temporary};

/// A job that runs in a sandbox.
#[derive(Debug)]
#[must_use = "the result is known only after `finish`"]
pub struct Job(pub(crate) String);

impl Sandbox {
    /// Begins to copy a file, or a directory with everything in it.
    pub async fn copy_path(&self, path: &[u8], to: &[u8]) -> Result<Job, RuntimeError> {
        let job = process::random_name();
        let call = Call::CopyPath { job: job.clone(), path: path.to_vec(), to: to.to_vec() };
        self.begin(call).await.map(|_| Job(job))
    }

    /// Begins to pack a directory; the archive is read from the pipe.
    pub async fn pack(
        &self,
        path: &[u8],
        format: ArchiveFormat,
    ) -> Result<(Job, GuestPipe), RuntimeError> {
        let job = process::random_name();
        let reply =
            self.begin(Call::Pack { job: job.clone(), path: path.to_vec(), format }).await?;
        Ok((Job(job), GuestPipe::reading(self.link(), reply)?))
    }

    /// Begins to unpack, into a directory, what is written to the pipe.
    pub async fn unpack(
        &self,
        path: &[u8],
        format: ArchiveFormat,
    ) -> Result<(Job, GuestPipe), RuntimeError> {
        let job = process::random_name();
        let (path, archive) = (path.to_vec(), None);
        let reply = self.begin(Call::Unpack { job: job.clone(), path, format, archive }).await?;
        Ok((Job(job), GuestPipe::writing(self.link(), reply)?))
    }

    /// Begins to unpack, into a directory, a file that was created in it.
    pub async fn unpack_file(
        &self,
        path: &[u8],
        format: ArchiveFormat,
        archive: &Temporary,
    ) -> Result<Job, RuntimeError> {
        let job = process::random_name();
        archive.send(self.link()).await?;
        let (path, archive) = (path.to_vec(), Some(archive.name.clone()));
        self.begin(Call::Unpack { job: job.clone(), path, format, archive }).await?;
        Ok(Job(job))
    }

    /// Waits for the end of a job, and returns its result.
    pub async fn finish(&self, job: Job) -> Result<JobReport, RuntimeError> {
        loop {
            let call = Call::FinishJob { job: job.0.clone() };
            match self.link().call(call, &[]).await?.answer {
                Answer::Finished(report) => return Ok(report),
                Answer::Working => {}
                _ => return Err(RuntimeError::UnexpectedAnswer),
            }
        }
    }

    async fn begin(&self, call: Call) -> Result<Reply, RuntimeError> {
        self.must_know_jobs()?;
        self.link().call(call, &[]).await
    }

    /// Refuses calls that an older guest does not know: it would close the connection.
    pub(crate) fn must_know_jobs(&self) -> Result<(), RuntimeError> {
        match self.link().protocol() >= PROTOCOL_WITH_TERMINALS {
            true => Ok(()),
            false => Err(RuntimeError::OldGuest),
        }
    }
}
