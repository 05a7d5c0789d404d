//! What stands beside a session's files on disk, for a person to read.
//!
//! ```text
//! SESSIONS_ROOT/<id>/
//!     files/                  /session inside
//!     artifacts/              what was taken from /session/artifacts, by name
//!     session.log             one line of JSON per execution
//!     session_metadata.json   what it is, and how it was used
//!     python_state.json       variables and imports, as of the last execution
//! ```
//!
//! Only `files/` is visible inside; nothing here ever opens a path below it.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use serde::Serialize;

/// Stands in a directory until a session has taken it, and names the server that made it.
const UNCLAIMED: &str = "unclaimed";

#[derive(Debug, Clone)]
pub struct Record {
    directory: PathBuf,
}

impl Record {
    #[must_use]
    pub fn of(sessions_root: &Path, id: &str) -> Record {
        Record { directory: sessions_root.join(id) }
    }

    /// What is `/session` inside.
    #[must_use]
    pub fn files(&self) -> PathBuf {
        self.directory.join("files")
    }

    /// Where its artifacts appear by their names.
    #[must_use]
    pub fn artifacts(&self) -> PathBuf {
        self.directory.join("artifacts")
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Makes what is missing; what is there stays.
    pub fn prepare(&self) -> io::Result<()> {
        // People's code and output: nobody else's business.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let files = self.files();
        if !files.exists() {
            // Made aside and moved: a half-made one is never taken for a session's files.
            let fresh = self.directory.join("files.new");
            let _ = fs::remove_dir_all(&fresh);
            fs::create_dir(&fresh)?;
            fs::create_dir(fresh.join("artifacts"))?;
            fs::create_dir(fresh.join("data"))?;
            fs::rename(&fresh, &files)?;
        }
        // A link there would lead back inside.
        if self.artifacts().is_symlink() {
            fs::remove_file(self.artifacts())?;
        }
        match fs::create_dir(self.artifacts()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes everything for a sandbox that waits for a session, and says whose that is.
    pub fn prepare_unclaimed(&self, owner: &str) -> io::Result<()> {
        self.prepare()?;
        self.replace(UNCLAIMED, owner.as_bytes())
    }

    /// Whether this was made by `owner` for a session that never came, as far as the disk tells.
    #[must_use]
    pub fn is_unclaimed_by(&self, owner: &str) -> bool {
        fs::read_to_string(self.directory.join(UNCLAIMED)).is_ok_and(|name| name.trim() == owner)
    }

    /// Whether a session was ever here; otherwise something is half-made.
    #[must_use]
    pub fn was_used(&self) -> bool {
        self.directory.join("session_metadata.json").exists()
    }

    /// Removes what was made for a session that could not be.
    pub fn remove_if_unused(&self) -> io::Result<()> {
        if self.was_used() { Ok(()) } else { self.remove() }
    }

    /// Removes everything: the session never came to be.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    pub fn write_metadata(&self, metadata: &impl Serialize) -> io::Result<()> {
        self.replace("session_metadata.json", &serde_json::to_vec_pretty(metadata)?)?;
        let _ = fs::remove_file(self.directory.join(UNCLAIMED));
        Ok(())
    }

    /// `state` is JSON already.
    pub fn write_state(&self, state: &[u8]) -> io::Result<()> {
        self.replace("python_state.json", state)
    }

    /// Adds the execution with this id to the log, unless it is there: after a crash we may not
    /// know whether we did.
    pub fn append_log(&self, exec_id: &str, entry: &impl Serialize, again: bool) -> io::Result<()> {
        let path = self.directory.join("session.log");
        if again && mentions(&path, exec_id)? {
            return Ok(());
        }
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        let mut file = File::options().create(true).append(true).mode(0o600).open(path)?;
        let before = file.metadata()?.len();
        let written = file.write_all(&line);
        if written.is_err() {
            // Half a line would spoil the next one.
            let _ = file.set_len(before);
        }
        written
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let fresh = self.directory.join(format!("{name}.new"));
        let _ = fs::remove_file(&fresh);
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
        let written = file.write_all(bytes).and_then(|()| file.write_all(b"\n"));
        if let Err(error) = written {
            let _ = fs::remove_file(&fresh);
            return Err(error);
        }
        fs::rename(fresh, self.directory.join(name))
    }
}

/// Whether one of the last entries is of this execution.
fn mentions(path: &Path, exec_id: &str) -> io::Result<bool> {
    const TAIL: u64 = 8 * 1024 * 1024;
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
    let mut tail = Vec::new();
    file.read_to_end(&mut tail)?;
    let mark = format!("\"exec_id\":\"{exec_id}\"");
    Ok(tail.windows(mark.len()).any(|window| window == mark.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_record_is_made_once_and_logged_once() {
        let root = tempfile::tempdir().unwrap();
        let record = Record::of(root.path(), "ses_1");
        record.prepare().unwrap();
        fs::write(record.files().join("kept"), "x").unwrap();
        record.prepare().unwrap();
        assert_eq!(fs::read_to_string(record.files().join("kept")).unwrap(), "x");
        assert!(record.directory().join("artifacts").is_dir());
        for id in ["a", "b"] {
            record.append_log(id, &json!({"exec_id": id}), false).unwrap();
        }
        record.append_log("b", &json!({"exec_id": "b"}), true).unwrap();
        let log = fs::read_to_string(record.directory().join("session.log")).unwrap();
        assert_eq!(log.lines().count(), 2);
        record.remove().unwrap();
        record.remove().unwrap();
    }
}
