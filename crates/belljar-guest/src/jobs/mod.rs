//! Jobs: copies and archives of files, made by worker processes.
//!
//! ```text
//!   connection ──▶ Jobs ──fork──▶ worker: [`tree`], [`archive`] ──▶ files, or a pipe to the host
//!                    ▲               │
//!                    └── report ◀────┘
//! ```
//!
//! A worker is a fork of the guest that keeps only its own descriptors. It may be slow, run out of
//! memory or be killed by code inside: then only its job has failed. A job ends when the other end of
//! its pipe is closed.
//!
//! Every job moves items from a source (a tree, an archive) to a [`Target`] (a tree, an archive).

mod archive;
mod kept_directories;
mod tree;

use std::cell::RefCell;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::guest::{Answer, Refusal, RefusalCode};
use belljar_proto::job::{ArchiveFormat, JobReport, MAX_JOB_ENTRIES, MAX_JOBS};
use belljar_proto::quiescence::KEPT_DIRECTORIES;
use belljar_sys::process;
use belljar_sys::tree::Root;
use belljar_sys::user_files;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::Guest;
use crate::files::refusal;
use crate::reply::{Reply, failed, refuse};

/// How long one request waits for the end of a job.
const FINISH_TIMEOUT: Duration = Duration::from_secs(20);

/// The most bytes of a report, which is a short piece of JSON.
const MAX_REPORT: u64 = 64 * 1024;

type Outcome = Result<JobReport, Refusal>;

/// Jobs that run, or whose result was not fetched yet, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Jobs(RefCell<Vec<(String, watch::Receiver<Option<Outcome>>)>>);

/// Something to be written to a tree or an archive.
enum Item<'a> {
    Directory,
    File { size: u64, content: &'a mut dyn Read },
    Link { target: Vec<u8> },
    HardLink { existing: Vec<u8> },
}

/// A tree or an archive that is written.
trait Target {
    /// Writes one item. `path` has no `.`, `..` or empty parts.
    fn put(&mut self, path: &[u8], mode: u32, modified: i64, item: Item<'_>) -> io::Result<()>;

    /// Completes it after the last item.
    fn finish(&mut self) -> io::Result<()>;
}

/// Writes items to a target, counts them and checks their number.
struct Moving<'a> {
    target: &'a mut dyn Target,
    report: JobReport,
}

impl Moving<'_> {
    fn put(
        &mut self,
        path: &[u8],
        mode: u32,
        modified: i64,
        item: Item<'_>,
    ) -> Result<(), Refusal> {
        if self.report.entries >= MAX_JOB_ENTRIES {
            let message = format!("there are more than {MAX_JOB_ENTRIES} entries");
            return Err(refuse(RefusalCode::Invalid, message));
        }
        let bytes = if let Item::File { size, .. } = &item { *size } else { 0 };
        let put = self.target.put(path, mode, modified, item);
        put.map_err(|error| refusal("write", path, &error))?;
        self.report.entries += 1;
        self.report.bytes = self.report.bytes.saturating_add(bytes);
        Ok(())
    }

    fn finish(self) -> Outcome {
        self.target.finish().map_err(|error| refusal("end", b"archive", &error))?;
        Ok(self.report)
    }
}

impl Jobs {
    /// How many jobs are running.
    pub(crate) fn running(&self) -> usize {
        self.0.borrow().iter().filter(|(_, outcome)| outcome.borrow().is_none()).count()
    }
}

/// Copies a file, or a directory with everything in it.
pub(crate) fn copy(
    guest: &Rc<Guest>,
    job: String,
    path: Vec<u8>,
    to: Vec<u8>,
) -> Result<Reply, Refusal> {
    // Fail early, with the path as the caller gave it.
    user_files::look(&path).map_err(|error| refusal("find", &path, &error))?;
    start(guest, job, Vec::new(), move |_| tree::copy(&path, &to))?;
    Ok(Answer::Started.into())
}

/// Packs a directory. The reply has the pipe from which the archive is read.
pub(crate) fn pack(
    guest: &Rc<Guest>,
    job: String,
    path: Vec<u8>,
    format: ArchiveFormat,
) -> Result<Reply, Refusal> {
    let root = Root::open_followed(&path).map_err(|error| refusal("pack", &path, &error))?;
    let (reader, writer) = io::pipe().map_err(|error| failed(error.to_string()))?;
    let keep = vec![writer.into(), root.into()];
    start(guest, job, keep, move |fds| {
        let [to, root] = two(fds)?;
        archive::pack(&Root::from(root), to, format)
    })?;
    Ok(Reply::with_fd(Answer::Stream, reader))
}

/// Unpacks a file, or what is written to the pipe in the reply.
pub(crate) fn unpack(
    guest: &Rc<Guest>,
    job: String,
    path: Vec<u8>,
    format: ArchiveFormat,
    archive: Option<String>,
) -> Result<Reply, Refusal> {
    user_files::make_directory(&path).map_err(|error| refusal("make", &path, &error))?;
    let root = Root::open_followed(&path).map_err(|error| refusal("open", &path, &error))?;
    if let Some(name) = archive {
        let file = root.read_file(name.as_bytes());
        let file = file.map_err(|error| refusal("open", name.as_bytes(), &error))?;
        start(guest, job, vec![file, root.into()], move |fds| {
            let [from, root] = two(fds)?;
            archive::unpack(from, &Root::from(root), format)
        })?;
        return Ok(Answer::Started.into());
    }
    let (reader, writer) = io::pipe().map_err(|error| failed(error.to_string()))?;
    start(guest, job, vec![reader.into(), root.into()], move |fds| {
        let [from, root] = two(fds)?;
        archive::unpack(from, &Root::from(root), format)
    })?;
    Ok(Reply::with_fd(Answer::Stream, writer))
}

/// Packs a directory, as a worker does. Also used outside of sandboxes, to send a directory into one.
pub fn pack_directory(path: &[u8], to: OwnedFd, format: ArchiveFormat) -> Outcome {
    let root = Root::open_followed(path).map_err(|error| refusal("pack", path, &error))?;
    archive::pack(&root, to, format)
}

/// Unpacks into an existing directory, as a worker does. Also used outside of sandboxes, for archives
/// that come from one: no name in an archive can lead out of the directory.
pub fn unpack_into(from: OwnedFd, path: &[u8], format: ArchiveFormat) -> Outcome {
    let root = Root::open_followed(path).map_err(|error| refusal("open", path, &error))?;
    archive::unpack(from, &root, format)
}

/// Packs all files of these directories. The reply has the pipe from which the archive is read.
pub(crate) fn keep(
    guest: &Rc<Guest>,
    job: String,
    directories: &[String],
) -> Result<Reply, Refusal> {
    let roots = kept_directories::open(directories)?;
    let (reader, writer) = io::pipe().map_err(|error| failed(error.to_string()))?;
    let (names, roots): (Vec<_>, Vec<_>) = roots.into_iter().unzip();
    let keep = roots.into_iter().map(OwnedFd::from).chain([writer.into()]).collect();
    start(guest, job, keep, move |mut fds| {
        let to = fds.pop().ok_or_else(|| failed("a worker lost its descriptors"))?;
        let roots = names.into_iter().zip(fds.into_iter().map(Root::from)).collect();
        kept_directories::pack(roots, to)
    })?;
    Ok(Reply::with_fd(Answer::Stream, reader))
}

/// Unpacks what [`keep`] packed. The reply has the pipe to which the archive is written.
pub(crate) fn bring(guest: &Rc<Guest>, job: String) -> Result<Reply, Refusal> {
    let all: Vec<String> = KEPT_DIRECTORIES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let roots = kept_directories::open(&all)?;
    let (reader, writer) = io::pipe().map_err(|error| failed(error.to_string()))?;
    let (names, roots): (Vec<_>, Vec<_>) = roots.into_iter().unzip();
    let keep = roots.into_iter().map(OwnedFd::from).chain([reader.into()]).collect();
    start(guest, job, keep, move |mut fds| {
        let from = fds.pop().ok_or_else(|| failed("a worker lost its descriptors"))?;
        let roots = names.into_iter().zip(fds.into_iter().map(Root::from)).collect();
        kept_directories::unpack(from, roots)
    })?;
    Ok(Reply::with_fd(Answer::Stream, writer))
}

fn two(fds: Vec<OwnedFd>) -> Result<[OwnedFd; 2], Refusal> {
    fds.try_into().map_err(|_| failed("a worker lost its descriptors"))
}

/// Runs a job in a fork of the guest.
fn start(
    guest: &Rc<Guest>,
    job: String,
    keep: Vec<OwnedFd>,
    task: impl FnOnce(Vec<OwnedFd>) -> Outcome,
) -> Result<(), Refusal> {
    make_room(&guest.jobs, &job)?;
    let work = |fds| serde_json::to_vec(&task(fds)).unwrap_or_default();
    let cannot = |error: io::Error| failed(format!("failed to start a worker: {error}"));
    let (pid, report) = process::work(keep, work).map_err(cannot)?;
    let end = guest.reaper.watch(pid);
    let report = pipe::Receiver::from_owned_fd(report).map_err(cannot)?;
    let (sender, outcome) = watch::channel(None);
    guest.jobs.0.borrow_mut().push((job, outcome));
    tokio::task::spawn_local(async move {
        let mut json = Vec::new();
        let _ = report.take(MAX_REPORT).read_to_end(&mut json).await;
        let how = end.ended().await;
        let outcome: Outcome = serde_json::from_slice(&json).unwrap_or_else(|_| {
            let message = format!("the worker ended with status {} and no result", how.exit_code());
            Err(failed(message))
        });
        sender.send_replace(Some(outcome));
    });
    Ok(())
}

/// Makes room for one more: the oldest job that has ended is forgotten.
fn make_room(jobs: &Jobs, job: &str) -> Result<(), Refusal> {
    let mut all = jobs.0.borrow_mut();
    if all.iter().any(|(known, _)| known == job) {
        return Err(refuse(RefusalCode::Invalid, format!("job `{job}` exists already")));
    }
    if all.len() >= MAX_JOBS {
        let Some(over) = all.iter().position(|(_, outcome)| outcome.borrow().is_some()) else {
            let message = format!("{MAX_JOBS} copies or archives are being made already");
            return Err(refuse(RefusalCode::Busy, message));
        };
        all.remove(over);
    }
    Ok(())
}

/// The result of a job, once it has ended.
pub(crate) async fn finish(guest: Rc<Guest>, job: String) -> Result<Reply, Refusal> {
    let found = guest.jobs.0.borrow().iter().find(|(known, _)| *known == job).cloned();
    let Some((_, mut outcome)) = found else {
        return Err(refuse(RefusalCode::UnknownJob, format!("there is no job `{job}`")));
    };
    let ended = match tokio::time::timeout(FINISH_TIMEOUT, outcome.wait_for(Option::is_some)).await
    {
        Err(_) => return Ok(Answer::Working.into()),
        Ok(Ok(ended)) => ended.clone(),
        Ok(Err(_)) => None,
    };
    guest.jobs.0.borrow_mut().retain(|(known, _)| *known != job);
    let report = ended.unwrap_or_else(|| Err(failed("the job was lost")))?;
    Ok(Answer::Finished(report).into())
}
