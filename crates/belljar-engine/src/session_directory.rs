//! The directory of a session on disk, with files that people can read.
//!
//! ```text
//! SESSIONS_ROOT/<id>/
//!     files/                  /session in the sandbox, as plain files,
//!     files.ext4              or as a file system image, whose size is enforced
//!     artifacts/              artifacts from /session/artifacts, by name
//!     session.log             one line of JSON per execution
//!     session_metadata.json   how the session was created and used
//!     python_state.json       variables and imports after the last execution
//! SESSIONS_ROOT/by-key/<key>  a link to the directory of the session that has this key
//! ```
//!
//! Only `files/` is visible in the sandbox, and nothing here opens a path below it.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use belljar_runtime::{VolumeKind, VolumePlace};
use belljar_sys::mount;
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::DEFAULT_TENANT;
use crate::tenant_dir::tenant_dir;

/// A file in directories that no session uses yet. It contains the name of the server that made them.
const UNCLAIMED: &str = "unclaimed";

const METADATA: &str = "session_metadata.json";

/// The directory with links by session key.
const BY_KEY: &str = "by-key";

/// The longest name of such a link; file systems allow 255 bytes.
const MAX_KEY_NAME: usize = 200;
/// A file in directories that are being removed. It contains the name of the server that does it.
const REMOVED: &str = "removed";

/// A directory gets this suffix before it is removed, so that late writers do not find it.
const REMOVED_SUFFIX: &str = ".removed";

/// Free bytes on the host that a session with a file system image needs to start: the image grows.
const LEAST_ROOM: u64 = 16 << 20;

/// Settings of the files of sessions with storage BIND.
#[derive(Debug, Clone)]
pub struct DiskConfig {
    /// For new sessions. `None` means with an enforced size if that is possible.
    pub kind: Option<VolumeKind>,
    /// Bytes that the files of one session may take.
    pub size: u64,
    /// Seconds from the end of a session until it is removed with its files; `None` means never.
    pub retention_s: Option<u64>,
    /// Refuses sessions whose size is not enforced.
    pub strict: bool,
}

impl DiskConfig {
    /// The kind for a new session, and the reason if its size is not enforced.
    #[must_use]
    pub fn new_kind(&self) -> (VolumeKind, Option<&'static str>) {
        VolumeKind::of_new(self.kind, "BELLJAR_SESSION_FILES=directory is set")
    }

    /// Why the size of files that are kept in a directory is not enforced.
    #[must_use]
    pub fn why_not_enforced(&self) -> String {
        let why = self.new_kind().1.unwrap_or(
            "they are in a plain directory: the session is older than enforced sizes, or was made \
             with BELLJAR_SESSION_FILES=directory",
        );
        format!("the size of the session's files on disk is not enforced: {why}")
    }
}

#[derive(Debug, Clone)]
pub struct SessionDirectory {
    directory: PathBuf,
}

impl SessionDirectory {
    #[must_use]
    pub fn of(sessions_root: &Path, id: &str) -> SessionDirectory {
        SessionDirectory { directory: sessions_root.join(id) }
    }

    /// Where the files of `/session` are, if they were ever made.
    #[must_use]
    pub fn place(&self) -> Option<VolumePlace> {
        VolumePlace::of_session(&self.directory)
    }

    /// The directory with its artifacts by name.
    #[must_use]
    pub fn artifacts(&self) -> PathBuf {
        self.directory.join("artifacts")
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Creates all missing files and directories.
    pub fn prepare(&self, disk: &DiskConfig) -> io::Result<()> {
        // It holds code and output of users, so other users of the host must not read it.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        let found = self.place();
        let place = found.clone().unwrap_or_else(|| VolumePlace {
            directory: self.directory.clone(),
            kind: disk.new_kind().0,
        });
        if place.kind == VolumeKind::Image && mount::room(&self.directory)?.free < LEAST_ROOM {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        match found {
            None => place.make_for_session(disk.size)?,
            // A killed server may have left it mounted.
            Some(place) => place.tidy(),
        }
        // A link there could lead into the files of the sandbox.
        if self.artifacts().is_symlink() {
            fs::remove_file(self.artifacts())?;
        }
        match fs::create_dir(self.artifacts()) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Ok(()),
        }
    }

    /// Makes everything for a sandbox of the pool of server `owner`.
    pub fn prepare_unclaimed(&self, disk: &DiskConfig, owner: &str) -> io::Result<()> {
        self.prepare(disk)?;
        self.replace(UNCLAIMED, owner.as_bytes())
    }

    /// Whether, according to the files in it, `owner` made this directory for its pool and no session took it, or
    /// `owner` began to remove it.
    #[must_use]
    pub fn is_unclaimed_by(&self, owner: &str) -> bool {
        if self.is_aside() {
            // Only a directory without a session gets this name. Its marker file may be gone already.
            return true;
        }
        let names = |file| fs::read_to_string(self.directory.join(file));
        [UNCLAIMED, REMOVED].iter().any(|file| names(file).is_ok_and(|name| name.trim() == owner))
    }

    /// Whether a killed server was removing this directory.
    fn is_aside(&self) -> bool {
        self.directory.to_string_lossy().ends_with(REMOVED_SUFFIX)
    }

    /// Marks the directory as about to be removed. If `owner` is killed before the removal, its next start removes the
    /// directory, provided that no session has it.
    pub fn mark_removed(&self, owner: &str) -> io::Result<()> {
        match self.replace(REMOVED, owner.as_bytes()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            marked => marked,
        }
    }

    /// Removes the mark: the session stays.
    pub fn unmark_removed(&self) {
        let _ = fs::remove_file(self.directory.join(REMOVED));
    }

    /// Whether a session ever used this directory. An unused directory may be incomplete.
    #[must_use]
    pub fn was_used(&self) -> bool {
        self.directory.join(METADATA).exists()
    }

    /// Removes the directory of a session that could not be created.
    pub fn remove_if_unused(&self) -> io::Result<()> {
        if self.was_used() { Ok(()) } else { self.remove() }
    }

    /// Removes the directory and everything in it. It must not be in use.
    pub fn remove(&self) -> io::Result<()> {
        self.hide_key();
        let mut name = self.directory.file_name().unwrap_or_default().to_owned();
        name.push(REMOVED_SUFFIX);
        let aside = self.directory.with_file_name(name);
        let is_aside = self.is_aside();
        let directory = if is_aside { &self.directory } else { &aside };
        if !is_aside {
            match fs::rename(&self.directory, &aside) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                renamed => renamed?,
            }
        }
        // Plain directories may be nested deeper than the longest path.
        let place = VolumePlace::of_session(directory);
        let kind = place.map_or(VolumeKind::Image, |place| place.kind);
        VolumePlace { directory: directory.clone(), kind }.remove()
    }

    pub fn write_metadata(&self, metadata: &impl Serialize) -> io::Result<()> {
        self.replace(METADATA, &serde_json::to_vec_pretty(metadata)?)?;
        let _ = fs::remove_file(self.directory.join(UNCLAIMED));
        Ok(())
    }

    /// Links the directory by the session's key. Replaces the link of an earlier session with this key.
    pub fn show_by_key(&self, tenant: &str, key: &str) -> io::Result<()> {
        let (Some(link), Some(target)) = (self.key_link(tenant, key), self.key_target(tenant))
        else {
            return Ok(());
        };
        if fs::read_link(&link).is_ok_and(|found| found == target) {
            return Ok(());
        }
        let parent = link.parent().ok_or(io::ErrorKind::InvalidInput)?;
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        let fresh = parent.join(format!(".{}", belljar_sys::process::random_name()));
        symlink(target, &fresh)?;
        let moved = fs::rename(&fresh, link);
        if moved.is_err() {
            let _ = fs::remove_file(&fresh);
        }
        moved
    }

    /// Removes the link by key, if it points here. The key is read from the metadata.
    fn hide_key(&self) {
        let text = fs::read(self.directory.join(METADATA)).unwrap_or_default();
        let metadata: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
        let (Some(tenant), Some(key)) = (metadata["tenant"].as_str(), metadata["key"].as_str())
        else {
            return;
        };
        if let Some(link) = self.key_link(tenant, key)
            && fs::read_link(&link).ok() == self.key_target(tenant)
        {
            let _ = fs::remove_file(link);
        }
    }

    /// The default tenant uses `by-key` itself; every other tenant has a directory in it.
    fn key_link(&self, tenant: &str, key: &str) -> Option<PathBuf> {
        let by_key = self.directory.parent()?.join(BY_KEY);
        let own = match tenant {
            DEFAULT_TENANT => by_key,
            // Names of keys do not contain `@`.
            tenant => by_key.join(format!("@{}", tenant_dir(tenant))),
        };
        Some(own.join(key_name(key)))
    }

    fn key_target(&self, tenant: &str) -> Option<PathBuf> {
        let up = if tenant == DEFAULT_TENANT { ".." } else { "../.." };
        Some(Path::new(up).join(self.directory.file_name()?))
    }

    /// Replaces the file with the state of the Python kernel. `state` is JSON.
    pub fn write_state(&self, state: &[u8]) -> io::Result<()> {
        self.replace("python_state.json", state)
    }

    /// Adds an execution to the log. With `again`, only if the log does not have it: after a crash it may be there
    /// already.
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
            // Half a line would make the next one unreadable.
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

/// A key as a file name. All characters except letters, digits and `-_.` are written as `%XX`.
fn key_name(key: &str) -> String {
    let mut name = String::new();
    for (at, byte) in key.bytes().enumerate() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        if is_plain || (byte == b'.' && at > 0) {
            name.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    if name.len() > MAX_KEY_NAME {
        // The name is ASCII, so it can be cut at any byte.
        name.truncate(MAX_KEY_NAME - 17);
        name.push('-');
        for byte in &Sha256::digest(key.as_bytes())[..8] {
            let _ = write!(name, "{byte:02x}");
        }
    }
    name
}

/// Whether one of the last lines is about this execution.
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
    fn keys_become_names_in_the_same_directory() {
        for (key, name) in [
            ("conv", "conv"),
            ("app::thread-7", "app%3A%3Athread-7"),
            ("../x", "%2E.%2Fx"),
            (".", "%2E"),
            ("a.b", "a.b"),
            ("\u{fc}\n@", "%C3%BC%0A%40"),
        ] {
            assert_eq!(key_name(key), name);
        }
        let (one, two) = (key_name(&"/".repeat(500)), key_name(&"/".repeat(501)));
        assert!(one.len() == MAX_KEY_NAME && two.len() == MAX_KEY_NAME && one != two, "{one}");
    }

    #[test]
    fn the_last_session_of_a_key_is_found_by_it() {
        let root = tempfile::tempdir().unwrap();
        let kind = Some(VolumeKind::Directory);
        let plain = DiskConfig { kind, size: 16 << 20, retention_s: None, strict: false };
        let record = |id: &str, tenant: &str| {
            let record = SessionDirectory::of(root.path(), id);
            record.prepare(&plain).unwrap();
            record.write_metadata(&json!({"tenant": tenant, "key": "k/1"})).unwrap();
            record.show_by_key(tenant, "k/1").unwrap();
            record
        };
        let leads_to = |link: &Path| fs::canonicalize(link).unwrap();
        let link = root.path().join("by-key/k%2F1");
        let first = record("ses_1", DEFAULT_TENANT);
        assert_eq!(leads_to(&link), leads_to(first.directory()));
        let second = record("ses_2", DEFAULT_TENANT);
        second.show_by_key(DEFAULT_TENANT, "k/1").unwrap();
        assert_eq!(leads_to(&link), leads_to(second.directory()));
        let other = record("ses_3", "acme");
        assert_eq!(
            leads_to(&link),
            leads_to(second.directory()),
            "another tenant has its own links"
        );
        let others = other.key_link("acme", "k/1").unwrap();
        assert_eq!(leads_to(&others), leads_to(other.directory()));
        first.remove().unwrap();
        assert!(link.exists(), "the link belongs to the second session");
        second.remove().unwrap();
        assert!(link.symlink_metadata().is_err() && others.exists());
        // Only links and their directories are left.
        let parent = link.parent().unwrap();
        assert_eq!(fs::read_dir(parent).unwrap().count(), 1);
    }

    #[test]
    fn a_record_is_made_once_and_logged_once() {
        let root = tempfile::tempdir().unwrap();
        let record = SessionDirectory::of(root.path(), "ses_1");
        let disk = |kind| DiskConfig { kind, size: 16 << 20, retention_s: None, strict: false };
        let plain = disk(Some(VolumeKind::Directory));
        record.prepare(&plain).unwrap();
        let files = record.directory().join("files");
        fs::write(files.join("kept"), "x").unwrap();
        // Existing files keep their kind, whatever the kind for new sessions is.
        record.prepare(&disk(None)).unwrap();
        assert_eq!(record.place().map(|place| place.kind), Some(VolumeKind::Directory));
        assert_eq!(fs::read_to_string(files.join("kept")).unwrap(), "x");
        assert!(record.directory().join("artifacts").is_dir());
        for id in ["a", "b"] {
            record.append_log(id, &json!({"exec_id": id}), false).unwrap();
        }
        record.append_log("b", &json!({"exec_id": "b"}), true).unwrap();
        let log = fs::read_to_string(record.directory().join("session.log")).unwrap();
        assert_eq!(log.lines().count(), 2);
        record.mark_removed("one").unwrap();
        assert!(record.is_unclaimed_by("one") && !record.is_unclaimed_by("another"));
        record.remove().unwrap();
        record.remove().unwrap();
        record.mark_removed("one").unwrap();
        let half = SessionDirectory::of(root.path(), "ses_2.removed");
        fs::create_dir_all(half.directory().join("files/left")).unwrap();
        assert!(half.is_unclaimed_by("one"), "also without its mark");
        half.remove().unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
