//! Whether a sandbox is quiescent, and its files as one archive: what a snapshot needs besides the kernels' memory.

use belljar_proto::PROTOCOL_WITH_QUIESCENCE;
use belljar_proto::exec::Language;
use belljar_proto::frame::FrameError;
use belljar_proto::guest::Call;
use belljar_proto::quiescence::QuiescenceReport;
use belljar_sys::process;

use crate::snapshot::bounded;
use crate::{GuestPipe, Job, RuntimeError, Sandbox};

impl Sandbox {
    /// Which kernels, terminals, jobs and processes are alive in it.
    pub async fn quiescence(&self) -> Result<QuiescenceReport, RuntimeError> {
        self.must_support_quiescence()?;
        let reply = self.link().call(Call::Quiescence, &[]).await?;
        let parsed = serde_json::from_slice(&reply.body);
        let report: QuiescenceReport =
            parsed.map_err(|error| RuntimeError::Nonsense(FrameError::Head(error)))?;
        let (languages, reasons): (Vec<_>, Vec<_>) = report.gone.into_iter().unzip();
        let gone = languages.into_iter().zip(bounded(reasons)).collect();
        Ok(QuiescenceReport { busy: bounded(report.busy), gone, ..report })
    }

    /// Begins to pack all files of these directories (`session`, `tmp`, `shm`).
    pub async fn keep_files(&self, directories: &[&str]) -> Result<(Job, GuestPipe), RuntimeError> {
        self.must_support_quiescence()?;
        let job = process::random_name();
        let directories = directories.iter().map(|name| (*name).to_owned()).collect();
        let call = Call::KeepFiles { job: job.clone(), directories };
        let reply = self.link().call(call, &[]).await?;
        Ok((Job(job), GuestPipe::reading(self.link(), reply)?))
    }

    /// Begins to unpack what [`Sandbox::keep_files`] packed.
    pub async fn bring_files(&self) -> Result<(Job, GuestPipe), RuntimeError> {
        self.must_support_quiescence()?;
        let job = process::random_name();
        let reply = self.link().call(Call::BringFiles { job: job.clone() }, &[]).await?;
        Ok((Job(job), GuestPipe::writing(self.link(), reply)?))
    }

    /// Makes the next cell of a language report that the kernel before it was lost, and why.
    pub async fn lose_kernel(&self, language: Language, reason: &str) -> Result<(), RuntimeError> {
        self.must_support_quiescence()?;
        let call = Call::LoseKernel { language, reason: reason.to_owned() };
        self.link().call(call, &[]).await.map(drop)
    }

    /// Refuses calls that an older guest does not know: it would close the connection.
    fn must_support_quiescence(&self) -> Result<(), RuntimeError> {
        match self.link().protocol() >= PROTOCOL_WITH_QUIESCENCE {
            true => Ok(()),
            false => Err(RuntimeError::OldGuest),
        }
    }
}
