//! Who did what, when, and how it went: one line of JSON each, in a file of its own.
//!
//! Code is named by its hash unless the operator asked for the code itself. Secrets have no place
//! here: keys are named by their id.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
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
    lines: SyncSender<Vec<u8>>,
    whole_code: bool,
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
        let (lines, queue) = sync_channel(QUEUE);
        let path = path.to_owned();
        std::thread::Builder::new()
            .name("audit".into())
            .spawn(move || write(file, &path, &queue))?;
        Ok(Audit { lines, whole_code })
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
        if let Err(TrySendError::Full(_)) = self.lines.try_send(text) {
            tracing::error!(action = entry.action, "an audit line was lost: the disk is too slow");
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

fn write(mut file: File, path: &PathBuf, queue: &Receiver<Vec<u8>>) {
    while let Ok(mut lines) = queue.recv() {
        lines.extend(queue.try_iter().take(QUEUE).flatten());
        if file.metadata().is_ok_and(|metadata| metadata.len() > MAX_BYTES) {
            let _ = fs::rename(path, path.with_extension("log.1"));
            match append_to(path) {
                Ok(fresh) => file = fresh,
                Err(error) => tracing::error!("failed to begin a new audit log: {error}"),
            }
        }
        if let Err(error) = file.write_all(&lines) {
            tracing::error!("failed to write to the audit log: {error}");
        }
    }
}
