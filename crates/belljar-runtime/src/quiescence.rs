//! Whether a sandbox rests, and all its files as one archive: what it takes to put it aside and to
//! make another that goes on where it was.

use belljar_proto::PROTOCOL_WITH_REST;
use belljar_proto::exec::Language;
use belljar_proto::frame::FrameError;
use belljar_proto::guest::Call;
use belljar_proto::quiescence::QuiescenceReport;
use belljar_sys::process;

use crate::snapshot::words;
use crate::{GuestPipe, Job, RuntimeError, Sandbox};

impl Sandbox {
    /// What goes on in it besides what was asked for.
    pub async fn quiescence(&self) -> Result<QuiescenceReport, RuntimeError> {
        self.must_support_quiescence()?;
        let reply = self.link().call(Call::Rest, &[]).await?;
        let understood = serde_json::from_slice(&reply.body);
        let report: QuiescenceReport =
            understood.map_err(|error| RuntimeError::Nonsense(FrameError::Head(error)))?;
        let (languages, reasons): (Vec<_>, Vec<_>) = report.gone.into_iter().unzip();
        let gone = languages.into_iter().zip(words(reasons)).collect();
        Ok(QuiescenceReport { busy: words(report.busy), gone, ..report })
    }

    /// Begins to pack all files in these places (`session`, `tmp`, `shm`).
    pub async fn keep_files(&self, places: &[&str]) -> Result<(Job, GuestPipe), RuntimeError> {
        self.must_support_quiescence()?;
        let job = process::random_name();
        let places = places.iter().map(|place| (*place).to_owned()).collect();
        let reply = self.link().call(Call::KeepFiles { job: job.clone(), places }, &[]).await?;
        Ok((Job(job), GuestPipe::reading(self.link(), reply)?))
    }

    /// Begins to unpack what was packed so.
    pub async fn bring_files(&self) -> Result<(Job, GuestPipe), RuntimeError> {
        self.must_support_quiescence()?;
        let job = process::random_name();
        let reply = self.link().call(Call::BringFiles { job: job.clone() }, &[]).await?;
        Ok((Job(job), GuestPipe::writing(self.link(), reply)?))
    }

    /// Has the next cell of a language say that the kernel before it `reason`.
    pub async fn lose_kernel(&self, language: Language, reason: &str) -> Result<(), RuntimeError> {
        self.must_support_quiescence()?;
        let call = Call::LoseKernel { language, reason: reason.to_owned() };
        self.link().call(call, &[]).await.map(drop)
    }

    /// An older guest hangs up when it hears what it does not know.
    fn must_support_quiescence(&self) -> Result<(), RuntimeError> {
        match self.link().protocol() >= PROTOCOL_WITH_REST {
            true => Ok(()),
            false => Err(RuntimeError::OldGuest),
        }
    }
}
