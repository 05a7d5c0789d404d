//! The target file of a download.
//!
//! ```text
//!   ID.part, locked ── complete, and its hash matches ──▶ the file, by a rename
//!      │    ▲
//!      └────┘ interrupted: the next download of the same artifact continues it
//! ```

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use belljar_sys::file_lock::FileLock;
use sha2::{Digest as _, Sha256};

use super::Artifact;

/// How much of an existing part is read at a time.
const CHUNK: usize = 256 * 1024;

/// A writer that hashes and counts what is written.
#[derive(Debug)]
pub(super) struct Sink<W> {
    to: W,
    hash: Sha256,
    written: u64,
}

impl<W: Write> Sink<W> {
    pub(super) fn new(to: W) -> Sink<W> {
        Sink { to, hash: Sha256::new(), written: 0 }
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.to.write_all(bytes)?;
        self.hash.update(bytes);
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Fails unless the content is complete and its hash matches.
    pub(super) fn finish(mut self, artifact: &Artifact) -> Result<W> {
        self.to.flush().context("failed to write")?;
        let sha256 = belljar_engine::artifacts::Digest::from(self.hash);
        if (self.written, sha256) != (artifact.size, artifact.sha256) {
            bail!(
                "what came does not match the hash of `{}`; `belljar artifacts verify` on the \
                 server tells whether it is damaged there",
                artifact.id
            );
        }
        Ok(self.to)
    }
}

/// The target of a download, and the part file beside it.
#[derive(Debug)]
pub(super) struct Download {
    pub(super) file: PathBuf,
    pub(super) part: PathBuf,
    force: bool,
}

impl Download {
    /// The target: `output`, or else the artifact's name. Does not overwrite a file without `force`.
    pub(super) fn of(artifact: &Artifact, output: Option<&Path>, force: bool) -> Result<Download> {
        let file = match output {
            None => PathBuf::from(harmless(&artifact.name)),
            Some(directory) if directory.is_dir() => directory.join(harmless(&artifact.name)),
            Some(file) => file.to_owned(),
        };
        let download =
            Download { part: file.with_file_name(format!("{}.part", artifact.id)), file, force };
        match fs::symlink_metadata(&download.file) {
            Ok(there) if !there.is_file() && !there.is_symlink() => {
                bail!(
                    "`{}` is not a plain file; `-o - >FILE` writes to anything",
                    download.file.display()
                )
            }
            Ok(_) if !force => Err(download.in_the_way()),
            _ => Ok(download),
        }
    }

    /// Opens and locks the part file, which may have content of an earlier download.
    pub(super) fn open(&self, artifact: &Artifact) -> Result<Sink<File>> {
        let context = || format!("failed to write `{}`", self.part.display());
        let part = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&self.part)
            .with_context(context)?;
        let Some(lock) = FileLock::try_exclusive(part).with_context(context)? else {
            bail!("another download writes to `{}`; wait for it", self.part.display());
        };
        let mut part = lock.into_file();
        let mut sink = Sink::new(io::sink());
        if part.metadata().with_context(context)?.len() > artifact.size {
            part.set_len(0).with_context(context)?;
        }
        let mut bytes = vec![0; CHUNK];
        loop {
            let read = part.read(&mut bytes).with_context(context)?;
            if read == 0 {
                break;
            }
            sink.write(&bytes[..read]).with_context(context)?;
        }
        part.seek(SeekFrom::End(0)).with_context(context)?;
        Ok(Sink { to: part, hash: sink.hash, written: sink.written })
    }

    /// Renames the part file to the target.
    pub(super) fn finish(&self, part: &File) -> Result<()> {
        let context = || format!("failed to write `{}`", self.file.display());
        // After a power cut the target is complete or does not exist.
        part.sync_all().with_context(context)?;
        if self.force {
            return fs::rename(&self.part, &self.file).with_context(context);
        }
        // Unlike a rename, this fails if the target exists now.
        match fs::hard_link(&self.part, &self.file) {
            Ok(()) => fs::remove_file(&self.part).with_context(context),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(self.in_the_way()),
            // Some file systems have no hard links.
            Err(_) if self.file.symlink_metadata().is_err() => {
                fs::rename(&self.part, &self.file).with_context(context)
            }
            Err(_) => Err(self.in_the_way()),
        }
    }

    pub(super) fn discard(&self) {
        let _ = fs::remove_file(&self.part);
    }

    fn in_the_way(&self) -> anyhow::Error {
        let file = self.file.display();
        anyhow::anyhow!("`{file}` is there already; --force overwrites it, -o names another file")
    }
}

/// A file name from the artifact's name, which code in a sandbox chose: not a path, not hidden, not an option, without
/// control characters.
fn harmless(name: &str) -> String {
    let last = name.rsplit('/').next().unwrap_or_default();
    let mut harmless: String = last.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    if harmless.starts_with(['.', '-']) {
        harmless.replace_range(..1, "_");
    }
    if harmless.is_empty() { "artifact".to_owned() } else { harmless }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_harmless() {
        for (name, expected) in [
            ("plot.png", "plot.png"),
            ("plots/größe 1.png", "größe 1.png"),
            ("../../etc/passwd", "passwd"),
            ("..", "_."),
            (".bashrc", "_bashrc"),
            ("-rf", "_rf"),
            ("a\n\u{1b}[31mb", "a__[31mb"),
            ("folder/", "artifact"),
            ("", "artifact"),
        ] {
            assert_eq!(harmless(name), expected, "{name:?}");
        }
    }
}
