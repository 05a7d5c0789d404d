//! `belljar session cp`
//!
//! A file is sent unchanged. A directory is sent as a tar archive that one side packs while the other side unpacks. An
//! archive from a sandbox is untrusted: it is unpacked by the same code as inside sandboxes, which follows no links and
//! never leaves the target directory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::thread;

use anyhow::{Context, Result, anyhow, bail};
use belljar_guest::{pack_directory, unpack_into};
use belljar_proto::guest::Refusal;
use belljar_proto::job::{ArchiveFormat, JobReport};
use belljar_sys::process;
use clap::Args;
use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::find_id;
use super::upload::{Failure, PIECES, read_aside};
use crate::client::{Client, Upload, escape};
use crate::commands::output::{self, plain};
use crate::commands::progress::Progress;

#[derive(Debug, Args)]
#[command(after_help = "\
One side is in a session: its id or key, a colon and a path, which is relative to /session unless it
begins with a slash. Directories are copied with their content. If the target is a directory, the source
is copied into it under its own name. Existing files are replaced.
  belljar session cp notes.txt thread-42:
  belljar session cp thread-42:results ./results
  belljar session cp thread-42:/tmp/log -
  make data | belljar session cp - thread-42:data.csv
With - for standard output, a directory is a tar archive.")]
pub(crate) struct SessionCpArgs {
    /// What to copy: PATH, SESSION:PATH, or - for standard input
    #[arg(value_name = "SOURCE")]
    pub(crate) source: String,
    /// The target: PATH, SESSION:PATH, or - for standard output
    #[arg(value_name = "TARGET")]
    pub(crate) target: String,
}

/// The directory that paths in a session are relative to.
const HOME: &str = "/session";

/// The exit status after Ctrl-C.
const EXIT_INTERRUPTED: u8 = 130;

pub(super) async fn cp(client: &Client, args: &SessionCpArgs) -> Result<ExitCode> {
    let mut ctrl_c = signal(SignalKind::interrupt()).context("failed to listen for signals")?;
    tokio::select! {
        copied = copy(client, args) => copied.map(|()| ExitCode::SUCCESS),
        // This also removes an incomplete file.
        _ = ctrl_c.recv() => Ok(ExitCode::from(EXIT_INTERRUPTED)),
    }
}

async fn copy(client: &Client, args: &SessionCpArgs) -> Result<()> {
    match (Side::of(&args.source), Side::of(&args.target)) {
        (Side::Session { .. }, Side::Session { .. }) => bail!(
            "both sides are in sessions; copy through a directory here, or with `session exec`"
        ),
        (Side::Session { name, path }, to) => {
            Place::find(client, name, path).await?.bring_out(client, to).await?;
        }
        (from, Side::Session { name, path }) => {
            Place::find(client, name, path).await?.bring_in(client, from).await?;
        }
        _ => bail!(
            "neither `{}` nor `{}` is in a session; write SESSION:PATH for one of them",
            args.source,
            args.target
        ),
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum Side<'a> {
    /// Standard input or standard output.
    Stream,
    Here(&'a Path),
    Session {
        name: &'a str,
        path: &'a str,
    },
}

impl Side<'_> {
    /// Splits `SESSION:PATH` at the first colon before any slash, or at the colon right before the first slash, because
    /// names of sessions may contain colons. `./a:b` is a local file.
    fn of(text: &str) -> Side<'_> {
        if text == "-" {
            return Side::Stream;
        }
        let before_slash = &text[..text.find('/').unwrap_or(text.len())];
        let colon = match before_slash.strip_suffix(':') {
            Some(name) => Some(name.len()),
            None => before_slash.find(':'),
        };
        match colon {
            Some(at) if at > 0 => Side::Session { name: &text[..at], path: &text[at + 1..] },
            _ => Side::Here(Path::new(text)),
        }
    }
}

/// A path in a session.
struct Place {
    session: String,
    path: String,
}

impl Place {
    async fn find(client: &Client, name: &str, path: &str) -> Result<Place> {
        let path = match path {
            "" => HOME.to_owned(),
            // A URL cannot end with these names.
            "." | ".." => format!("{HOME}/{path}"),
            path => path.to_owned(),
        };
        Ok(Place { session: find_id(client, name).await?, path })
    }

    fn url(&self, path: &str, query: &str) -> String {
        format!("/v1/sessions/{}/files/{}{query}", self.session, escape(path))
    }

    /// Follows links.
    async fn is_directory(&self, client: &Client) -> Result<bool> {
        match client.get(&self.url(&format!("{}/.", self.path), "?stat")).await {
            Ok(_) => Ok(true),
            Err(error) if error.is("file_not_found") || error.is("not_a_directory") => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn name(&self) -> &str {
        self.path.trim_end_matches('/').rsplit('/').next().unwrap_or_default()
    }

    async fn bring_out(&self, client: &Client, to: Side<'_>) -> Result<()> {
        let is_directory = self.is_directory(client).await?;
        match to {
            Side::Here(to) => {
                let to = match to.is_dir() {
                    true => to.join(harmless(self.name())?),
                    false => to.to_owned(),
                };
                if is_directory {
                    self.directory_out(client, &to).await
                } else {
                    self.file_out(client, &to).await
                }
            }
            _ => {
                let query = if is_directory { "?archive=tar" } else { "" };
                let mut stdout = io::stdout().lock();
                let printed = self.receive(client, query, None, &mut stdout).await;
                match printed {
                    // The reader closed the pipe: it wanted only the beginning.
                    Err(error) if is_broken_pipe(&error) => Ok(()),
                    printed => printed,
                }
            }
        }
    }

    async fn file_out(&self, client: &Client, to: &Path) -> Result<()> {
        // Follows links, as `cp` does.
        let about = client.get(&self.url(&self.path, "?stat")).await?;
        let size = about["size"].as_u64().filter(|_| about["kind"] == "file");
        let mode = about["mode"].as_str().and_then(|mode| u32::from_str_radix(mode, 8).ok());
        let mode = mode.filter(|_| about["kind"] == "file").unwrap_or(0o644) & 0o777;
        let part = Part::beside(to)?;
        let mut file = part.create(mode)?;
        self.receive(client, "", size, &mut file).await?;
        file.flush().with_context(|| format!("failed to write `{}`", to.display()))?;
        part.place(to)
    }

    async fn directory_out(&self, client: &Client, to: &Path) -> Result<()> {
        let cannot = || format!("failed to make `{}`", to.display());
        fs::create_dir_all(to).with_context(cannot)?;
        let (reader, writer) = io::pipe().context("failed to make a pipe")?;
        let target = to.as_os_str().as_bytes().to_vec();
        let unpacking =
            thread::spawn(move || unpack_into(OwnedFd::from(reader), &target, ArchiveFormat::Tar));
        let mut pipe =
            pipe::Sender::from_owned_fd(writer.into()).context("failed to make a pipe")?;
        let mut progress = Progress::of_bytes(plain(self.name()), None);
        let mut content = client.content(&self.url(&self.path, "?archive=tar"), 0, "").await?;
        let (mut come, mut lost) = (0, None);
        loop {
            match content.next().await {
                Ok(None) => break,
                Ok(Some(bytes)) => {
                    come += bytes.len() as u64;
                    progress.set(come);
                    // The unpacking thread has failed; its result says why.
                    if pipe.write_all(&bytes).await.is_err() {
                        break;
                    }
                }
                Err(error) => {
                    lost = Some(error);
                    break;
                }
            }
        }
        drop(pipe);
        let unpacked = joined(unpacking);
        if lost.is_none() && unpacked.is_ok() {
            progress.done(&format!("{} -> {}", plain(&self.path), to.display()), come);
        }
        if let Some(error) = lost {
            return Err(anyhow!(error).context(format!(
                "only some of `{}` is in `{}`",
                plain(&self.path),
                to.display()
            )));
        }
        say_skipped(unpacked.with_context(|| format!("failed to unpack into `{}`", to.display()))?);
        Ok(())
    }

    async fn receive(
        &self,
        client: &Client,
        query: &str,
        size: Option<u64>,
        to: &mut impl Write,
    ) -> Result<()> {
        let mut progress = Progress::of_bytes(plain(self.name()), size);
        let mut content = client.content(&self.url(&self.path, query), 0, "").await?;
        let mut come = 0;
        while let Some(bytes) = content.next().await? {
            to.write_all(&bytes).context("failed to write the content")?;
            come += bytes.len() as u64;
            progress.set(come);
        }
        progress.done(&plain(&self.path), come);
        Ok(())
    }

    async fn bring_in(&self, client: &Client, from: Side<'_>) -> Result<()> {
        let Side::Here(from) = from else {
            if self.path.ends_with('/') || self.is_directory(client).await? {
                bail!(
                    "`{}` is a directory; what comes from standard input needs a name",
                    self.path
                );
            }
            let stdin = io::stdin().lock();
            let fd = std::os::fd::AsFd::as_fd(&stdin).try_clone_to_owned();
            let file = File::from(fd.context("failed to read standard input")?);
            let to = self.url(&self.path, "");
            return self.send(client, &to, "standard input", file, None, None).await.map(drop);
        };
        let cannot = || format!("failed to read `{}`", from.display());
        let metadata = fs::metadata(from).with_context(cannot)?;
        let into = self.path.ends_with('/') || self.is_directory(client).await?;
        let path = match into {
            true => format!("{}/{}", self.path.trim_end_matches('/'), own_name(from)?),
            false => self.path.clone(),
        };
        if !metadata.is_dir() {
            let file = File::open(from).with_context(cannot)?;
            let size = Some(metadata.len()).filter(|size| metadata.is_file() && *size > 0);
            let mode = metadata.permissions().mode() & 0o777;
            let to = self.url(&path, &format!("?mode={mode:o}"));
            let what = from.display().to_string();
            return self.send(client, &to, &what, file, size, size).await.map(drop);
        }
        let (reader, writer) = io::pipe().context("failed to make a pipe")?;
        let source = from.as_os_str().as_bytes().to_vec();
        let packing =
            thread::spawn(move || pack_directory(&source, writer.into(), ArchiveFormat::Tar));
        let to = self.url(&path, "?archive=tar");
        let archive = File::from(OwnedFd::from(reader));
        // The headers of the archive are not counted: this is precise enough for a progress bar.
        let total = bytes_below(from, &mut { MOST_COUNTED });
        let sent = self.send(client, &to, &from.display().to_string(), archive, None, total).await;
        // If the server refused it, packing fails as well; the refusal is the error to report.
        let said = sent?;
        let packed = joined(packing).with_context(cannot)?;
        let skipped = packed.skipped + said["skipped"].as_u64().unwrap_or(0);
        say_skipped(JobReport { skipped, ..packed });
        Ok(())
    }

    async fn send(
        &self,
        client: &Client,
        to: &str,
        what: &str,
        file: File,
        size: Option<u64>,
        shown_total: Option<u64>,
    ) -> Result<Value> {
        let mut progress = Progress::of_bytes(plain(what), shown_total);
        let (sender, pieces) = mpsc::channel(PIECES);
        let failure = Failure::default();
        // The thread ends when the upload is dropped.
        let _ = read_aside(file, size, sender, Failure::clone(&failure));
        let pieces = Upload::new(pieces, size);
        let gone = pieces.sent();
        let sent = client.put(to, pieces, |gone| progress.set(gone)).await;
        if let Some(error) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error).with_context(|| format!("failed to read `{what}`"));
        }
        let sent = sent?;
        progress.done(&plain(what), gone.load(Ordering::Relaxed));
        Ok(sent)
    }
}

/// A temporary file beside the target, until the content is complete.
struct Part(PathBuf);

impl Part {
    fn beside(to: &Path) -> Result<Part> {
        let name = to.file_name().with_context(|| format!("`{}` has no name", to.display()))?;
        let name = format!(".{}.{}.part", name.to_string_lossy(), &process::random_name()[..8]);
        Ok(Part(to.with_file_name(name)))
    }

    fn create(&self, mode: u32) -> Result<File> {
        let file = File::options().write(true).create_new(true).mode(mode).open(&self.0);
        file.with_context(|| format!("failed to write `{}`", self.0.display()))
    }

    fn place(self, to: &Path) -> Result<()> {
        fs::rename(&self.0, to).with_context(|| format!("failed to write `{}`", to.display()))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // After the rename, no file with this name exists.
        let _ = fs::remove_file(&self.0);
    }
}

/// How many files and directories are counted for a progress bar.
const MOST_COUNTED: u32 = 100_000;

/// The total size of plain files below a directory; `None` if there are more than `left` of them.
fn bytes_below(directory: &Path, left: &mut u32) -> Option<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(directory).ok()?.flatten() {
        *left = left.checked_sub(1)?;
        let Ok(metadata) = entry.metadata() else { continue };
        bytes += match metadata.is_dir() {
            true => bytes_below(&entry.path(), left)?,
            false => {
                if metadata.is_file() {
                    metadata.len()
                } else {
                    0
                }
            }
        };
    }
    Some(bytes)
}

/// The name that a copy gets in a directory.
fn own_name(path: &Path) -> Result<String> {
    let whole =
        path.canonicalize().with_context(|| format!("failed to read `{}`", path.display()))?;
    let path = if path.file_name().is_some() { path } else { &whole };
    let name = path.file_name().and_then(|name| name.to_str());
    let none = || {
        format!("`{}` has a name that is not UTF-8; name the copy in the target", path.display())
    };
    name.map(str::to_owned).with_context(none)
}

/// The same for a path in a session; `..` is refused.
fn harmless(name: &str) -> Result<&str> {
    match name {
        "" | "." | ".." => bail!("name the copy in the target"),
        name => Ok(name),
    }
}

fn joined(work: thread::JoinHandle<Result<JobReport, Refusal>>) -> Result<JobReport> {
    match work.join() {
        Ok(report) => report.map_err(Into::into),
        Err(_) => bail!("the thread that packs or unpacks the archive panicked"),
    }
}

fn say_skipped(report: JobReport) {
    if report.skipped > 0 {
        output::say(&format!("{} pipes, sockets or devices were left out", report.skipped));
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<io::Error>();
    cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_told_apart() {
        let session = |name, path| Side::Session { name, path };
        assert_eq!(Side::of("-"), Side::Stream);
        assert_eq!(Side::of("demo:notes.txt"), session("demo", "notes.txt"));
        assert_eq!(Side::of("demo:"), session("demo", ""));
        assert_eq!(Side::of("demo:/tmp/x:y"), session("demo", "/tmp/x:y"));
        assert_eq!(Side::of("thread:7:/tmp/x"), session("thread:7", "/tmp/x"));
        for here in ["notes.txt", "./a:b", "/a:/b", ":x", "..", "a/b:c"] {
            assert_eq!(Side::of(here), Side::Here(Path::new(here)), "{here}");
        }
    }
}
