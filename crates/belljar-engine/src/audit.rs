//! Who did what, when, and how it went: one line of JSON each, in a file of its own.
//!
//! Code is named by its hash unless the operator asked for the code itself. Secrets have no place
//! here: keys are named by their id.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::Principal;
use crate::clock;

/// Lines that wait to be written. Beyond that they are counted and said to be missing.
const QUEUE: usize = 8192;

/// The file is renamed to `audit.log.1` when it has grown to this size.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

#[derive(Debug, Clone)]
pub struct Audit {
    queue: SyncSender<Message>,
    whole_code: bool,
}

#[derive(Debug)]
enum Message {
    Line(Vec<u8>),
    /// Dropped when everything before it has been written.
    Flush(SyncSender<()>),
}

/// One line, as far as the caller knows it.
#[derive(Debug, Default, Serialize)]
pub struct Entry<'a> {
    pub action: &'a str,
    pub outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<&'a str>,
    /// Of a denial: what was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'a str>,
    #[serde(skip)]
    pub code: Option<&'a [u8]>,
}

#[derive(Serialize)]
struct Line<'a> {
    time: String,
    tenant: &'a str,
    key: Option<&'a str>,
    #[serde(flatten)]
    entry: &'a Entry<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
}

impl Audit {
    /// Appends to `path` from a thread of its own.
    pub fn open(path: &Path, whole_code: bool) -> std::io::Result<Audit> {
        let file = append_to(path)?;
        let (sender, queue) = sync_channel(QUEUE);
        let path = path.to_owned();
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write(file, &path, &queue))?;
        Ok(Audit { queue: sender, whole_code })
    }

    pub fn note(&self, who: &Principal, entry: &Entry<'_>) {
        let line = Line {
            time: clock::rfc3339(clock::now_ms()),
            tenant: &who.tenant,
            key: who.key_id.as_deref(),
            code_sha256: entry.code.map(hash),
            code: entry
                .code
                .filter(|_| self.whole_code)
                .map(|code| String::from_utf8_lossy(code).into_owned()),
            entry,
        };
        let Ok(mut text) = serde_json::to_vec(&line) else { return };
        text.push(b'\n');
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Message::Line(text)) {
            tracing::error!(action = entry.action, "an audit line was lost: the disk is too slow");
        }
    }

    /// Returns when every line noted so far is in the file: for whoever is about to end.
    pub fn flush(&self) {
        let (written, waiting) = sync_channel(0);
        if self.queue.send(Message::Flush(written)).is_ok() {
            // Nothing is ever sent; the other end is dropped.
            let _ = waiting.recv();
        }
    }
}

#[must_use]
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn append_to(path: &Path) -> std::io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

fn write(mut file: File, path: &Path, queue: &Receiver<Message>) {
    while let Ok(first) = queue.recv() {
        let (mut lines, mut waiting) = (Vec::new(), Vec::new());
        for message in std::iter::once(first).chain(queue.try_iter().take(QUEUE)) {
            match message {
                Message::Line(line) => lines.extend(line),
                Message::Flush(written) => waiting.push(written),
            }
        }
        if file.metadata().is_ok_and(|metadata| metadata.len() > MAX_BYTES) {
            // Unless another process, such as `belljar key`, has just done it: then what stands
            // there is fresh, and must not replace the full one.
            if is_at(&file, path) {
                let _ = fs::rename(path, path.with_extension("log.1"));
            }
            match append_to(path) {
                Ok(fresh) => file = fresh,
                Err(error) => tracing::error!("failed to begin a new audit log: {error}"),
            }
        }
        if let Err(error) = file.write_all(&lines) {
            tracing::error!("failed to write to the audit log: {error}");
        }
        drop(waiting);
    }
}

fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().ok().map(identity) == fs::metadata(path).ok().map(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(audit: &Audit, action: &str) {
        audit.note(&Principal::default(), &Entry { action, ..Entry::default() });
    }

    #[test]
    fn what_was_flushed_is_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let audit = Audit::open(&path, false).unwrap();
        for count in 1..=100 {
            note(&audit, "count");
            audit.flush();
            assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), count);
        }
    }

    #[test]
    fn a_full_log_is_put_aside_once_by_whoever_notices_first() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let (first, second) =
            (Audit::open(&path, false).unwrap(), Audit::open(&path, false).unwrap());
        File::options().write(true).open(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        for audit in [&first, &second, &first] {
            note(audit, "x");
            audit.flush();
        }
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3);
        let aside = fs::metadata(directory.path().join("audit.log.1")).unwrap();
        assert_eq!(aside.len(), MAX_BYTES + 1);
    }
}
