//! Work with files that takes a while: copies and archives.
//!
//! ```text
//!   connection ──▶ Jobs ──fork──▶ worker: [`tree`], [`archive`] ──▶ or ──▶ pipe that the host holds
//!                    ▲               │
//!                    └── report ◀────┘
//! ```
//!
//! A worker is a copy of the guest with nothing but its pipe. It may be slow, run out of memory or be
//! killed by somebody inside: then its job has failed, and nothing else. Whoever lets go of the
//! pipe ends it.
//!
//! Every job moves items from a source (a tree, an archive) to a [`Target`] (a tree, an archive).

mod archive;
mod kept;
mod tree;

use std::cell::RefCell;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use belljar_proto::guest::{Answer, Refusal, RefusalCode};
use belljar_proto::job::{ArchiveFormat, JobReport, MAX_JOB_ENTRIES, MAX_JOBS};
use belljar_proto::quiescence::PLACES;
use belljar_sys::process;
use belljar_sys::tree::Root;
use belljar_sys::user_files;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tokio::sync::watch;

use crate::Guest;
use crate::connection::{Reply, failed, refuse};
use crate::files::refusal;

/// How long a call for the end of a job waits for it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A report is a short piece of JSON.
const MAX_REPORT: u64 = 64 * 1024;

type Outcome = Result<JobReport, Refusal>;

/// All jobs that were not asked about yet, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Jobs(RefCell<Vec<(String, watch::Receiver<Option<Outcome>>)>>);

/// Something on its way into a tree or an archive.
enum Item<'a> {
    Directory,
    File { size: u64, content: &'a mut dyn Read },
    Link { target: Vec<u8> },
    HardLink { existing: Vec<u8> },
}

/// Where the items go.
trait Target {
    /// `path` has plain names only.
    fn put(&mut self, path: &[u8], mode: u32, modified: i64, item: Item<'_>) -> io::Result<()>;

    /// Nothing follows.
    fn finish(&mut self) -> io::Result<()>;
}

/// Counts what is moved, and says what could not be.
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
    /// How many are being done.
    pub(crate) fn going_on(&self) -> usize {
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
    // Said at once, in the words of whoever asked.
    user_files::look(&path).map_err(|error| refusal("find", &path, &error))?;
    start(guest, job, Vec::new(), move |_| tree::copy(&path, &to))?;
    Ok(Answer::Started.into())
}

/// Packs a directory into what is read from the descriptor that is answered.
pub(crate) fn pack(
    guest: &Rc<Guest>,
    job: String,
    path: Vec<u8>,
    format: ArchiveFormat,
) -> Result<Reply, Refusal> {
    let root = Root::open_followed(&path).map_err(|error| refusal("pack", &path, &error))?;
    let (reader, writer) = io::pipe().map_err(|error| failed(error.to_string()))?;
    // The root is a descriptor too, and must be kept.
    let keep = vec![writer.into(), root.into()];
    start(guest, job, keep, move |fds| {
        let [to, root] = two(fds)?;
        archive::pack(&Root::from(root), to, format)
    })?;
    Ok(Reply { answer: Answer::Stream, body: Vec::new(), fds: vec![reader.into()] })
}

/// Unpacks what is written to the descriptor that is answered, or a file.
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
    Ok(Reply { answer: Answer::Stream, body: Vec::new(), fds: vec![writer.into()] })
}

/// Packs a directory, as a worker does; also for whoever sends one into a sandbox.
pub fn pack_directory(path: &[u8], to: OwnedFd, format: ArchiveFormat) -> Outcome {
    let root = Root::open_followed(path).map_err(|error| refusal("pack", path, &error))?;
    archive::pack(&root, to, format)
}

/// Unpacks into a directory that is there, as a worker does; also for whoever gets an archive out of
/// a sandbox. Nothing in it leads out of the directory, whatever it says.
pub fn unpack_into(from: OwnedFd, path: &[u8], format: ArchiveFormat) -> Outcome {
    let root = Root::open_followed(path).map_err(|error| refusal("open", path, &error))?;
    archive::unpack(from, &root, format)
}

/// Packs all files in these places into what is read from the descriptor that is answered.
pub(crate) fn keep(guest: &Rc<Guest>, job: String, places: &[String]) -> Result<Reply, Refusal> {
    let roots = kept::open(places)?;
    let (reader, writer) = io::pipe().map_err(|error| failed(error.to_string()))?;
    let (names, roots): (Vec<_>, Vec<_>) = roots.into_iter().unzip();
    let keep = roots.into_iter().map(OwnedFd::from).chain([writer.into()]).collect();
    start(guest, job, keep, move |mut fds| {
        let to = fds.pop().ok_or_else(|| failed("a worker lost its descriptors".into()))?;
        let roots = names.into_iter().zip(fds.into_iter().map(Root::from)).collect();
        kept::pack(roots, to)
    })?;
    Ok(Reply { answer: Answer::Stream, body: Vec::new(), fds: vec![reader.into()] })
}

/// Unpacks what was packed so, from what is written to the descriptor that is answered.
pub(crate) fn bring(guest: &Rc<Guest>, job: String) -> Result<Reply, Refusal> {
    let all: Vec<String> = PLACES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let roots = kept::open(&all)?;
    let (reader, writer) = io::pipe().map_err(|error| failed(error.to_string()))?;
    let (names, roots): (Vec<_>, Vec<_>) = roots.into_iter().unzip();
    let keep = roots.into_iter().map(OwnedFd::from).chain([reader.into()]).collect();
    start(guest, job, keep, move |mut fds| {
        let from = fds.pop().ok_or_else(|| failed("a worker lost its descriptors".into()))?;
        let roots = names.into_iter().zip(fds.into_iter().map(Root::from)).collect();
        kept::unpack(from, roots)
    })?;
    Ok(Reply { answer: Answer::Stream, body: Vec::new(), fds: vec![writer.into()] })
}

fn two(fds: Vec<OwnedFd>) -> Result<[OwnedFd; 2], Refusal> {
    fds.try_into().map_err(|_| failed("a worker lost its descriptors".into()))
}

/// Has a job done by a copy of ourselves.
fn start(
    guest: &Rc<Guest>,
    job: String,
    keep: Vec<OwnedFd>,
    task: impl FnOnce(Vec<OwnedFd>) -> Outcome,
) -> Result<(), Refusal> {
    make_room(&guest.jobs, &job)?;
    let report = |fds| serde_json::to_vec(&task(fds)).unwrap_or_default();
    let cannot = |error: io::Error| failed(format!("failed to start a worker: {error}"));
    let (pid, told) = process::work(keep, report).map_err(cannot)?;
    let end = guest.reaper.watch(pid);
    let told = pipe::Receiver::from_owned_fd(told).map_err(cannot)?;
    let (sender, outcome) = watch::channel(None);
    guest.jobs.0.borrow_mut().push((job, outcome));
    tokio::task::spawn_local(async move {
        let mut said = Vec::new();
        let _ = told.take(MAX_REPORT).read_to_end(&mut said).await;
        let how = end.ended().await;
        let outcome: Outcome = serde_json::from_slice(&said).unwrap_or_else(|_| {
            let message =
                format!("the worker ended with status {} and said nothing", how.exit_code());
            Err(failed(message))
        });
        sender.send_replace(Some(outcome));
    });
    Ok(())
}

/// A place for one more: the oldest that has ended is forgotten for it.
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

/// What came of a job, once it has ended.
pub(crate) async fn finish(guest: &Guest, job: &str) -> Result<Reply, Refusal> {
    let found = guest.jobs.0.borrow().iter().find(|(known, _)| known == job).cloned();
    let Some((_, mut outcome)) = found else {
        return Err(refuse(RefusalCode::UnknownJob, format!("there is no job `{job}`")));
    };
    let ended = match tokio::time::timeout(PATIENCE, outcome.wait_for(Option::is_some)).await {
        Err(_) => return Ok(Answer::Working.into()),
        Ok(Ok(ended)) => ended.clone(),
        Ok(Err(_)) => None,
    };
    guest.jobs.0.borrow_mut().retain(|(known, _)| known != job);
    let report = ended.unwrap_or_else(|| Err(failed("the job was lost".into())))?;
    Ok(Answer::Finished(report).into())
}
