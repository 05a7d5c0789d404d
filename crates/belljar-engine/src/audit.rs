//! The audit log: who did what, when and with which outcome. Each entry is one line of JSON in `audit.log`.
//!
//! Code is named by its hash, unless the operator wants the code itself. Secrets are never logged:
//! keys are named by their id.
//!
//! Any client can send any number of requests that are refused before authentication. They go to a separate file,
//! `refusals.log`, so that they cannot displace the actions of tenants. Repeated refusals are counted (see
//! [`refusals`]).

mod refusals;

use std::borrow::Cow;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use serde::Serialize;
use sha2::{Digest, Sha256};

use self::refusals::{Refusals, RefusedRequest, WINDOW};
use crate::clock;
use crate::principal::Principal;

/// Lines that wait to be written. When the queue is full, further lines are lost and an error is logged.
const QUEUE: usize = 8192;

/// `audit.log` is renamed to `audit.log.1` when it has grown to this size.
const MAX_BYTES: u64 = 64 * 1024 * 1024;

/// The same for `refusals.log`.
const MAX_REFUSAL_BYTES: u64 = 16 * 1024 * 1024;

/// Characters of any field except the code. Ids, names and sentences are shorter. Input of a caller is cut, so that it
/// cannot fill the log.
const MAX_FIELD: usize = 512;

/// Bytes of code in a line, if the operator wants code. The hash always covers all of the code.
const MAX_CODE: usize = 64 * 1024;

#[derive(Debug, Clone)]
pub struct Audit {
    queue: SyncSender<AuditMessage>,
    whole_code: bool,
    refusals: Arc<Mutex<Refusals>>,
}

#[derive(Debug)]
enum AuditMessage {
    Line(Vec<u8>),
    Refusal(Vec<u8>),
    /// Dropped when all lines before it are in the file.
    Flush(SyncSender<()>),
}

/// The fields of a line that the caller sets.
#[derive(Debug, Default, Serialize)]
pub struct AuditEntry<'a> {
    pub action: &'a str,
    pub outcome: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exec: Option<&'a str>,
    /// The object of the action, if it is not in the other fields.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<&'a str>,
    #[serde(skip)]
    pub code: Option<&'a [u8]>,
}

#[derive(Serialize)]
struct AuditLine<'a> {
    time: String,
    tenant: &'a str,
    key: Option<&'a str>,
    #[serde(flatten)]
    entry: &'a AuditEntry<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code_sha256: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    /// How many refusals this line counts, if more than one.
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<u64>,
}

impl Audit {
    /// Appends to `path`, and to `refusals.log` beside it, on a separate thread.
    pub fn open(path: &Path, whole_code: bool) -> std::io::Result<Audit> {
        let log =
            RotatedLog { path: path.into(), max_bytes: MAX_BYTES, file: Some(append_to(path)?) };
        let (sender, queue) = sync_channel(QUEUE);
        let refusals = Arc::new(Mutex::new(Refusals::new(Instant::now())));
        let writer = AuditWriter {
            log,
            // Opened with the first refusal.
            refusal_log: RotatedLog {
                path: path.with_file_name("refusals.log"),
                max_bytes: MAX_REFUSAL_BYTES,
                file: None,
            },
            refusals: Arc::clone(&refusals),
        };
        std::thread::Builder::new().name("audit".into()).spawn(move || writer.run(&queue))?;
        Ok(Audit { queue: sender, whole_code, refusals })
    }

    pub fn note(&self, who: &Principal, entry: &AuditEntry<'_>) {
        let code = entry
            .code
            .filter(|_| self.whole_code)
            .map(|code| String::from_utf8_lossy(&code[..code.len().min(MAX_CODE)]).into_owned());
        let outcome = clipped(entry.outcome);
        let [session, exec, detail] =
            [entry.session, entry.exec, entry.detail].map(|field| field.map(clipped));
        let bounded = AuditEntry {
            action: entry.action,
            outcome: &outcome,
            session: session.as_deref(),
            exec: exec.as_deref(),
            detail: detail.as_deref(),
            code: None,
        };
        let text = AuditLine {
            time: clock::rfc3339(clock::now_ms()),
            tenant: &who.tenant,
            key: who.key_id.as_deref(),
            code_sha256: entry.code.map(hash),
            code,
            times: None,
            entry: &bounded,
        }
        .to_bytes();
        self.send(entry.action, AuditMessage::Line(text));
    }

    /// Notes a request that was refused before it did anything. `who` is known if it had a valid key.
    pub fn refuse(&self, who: Option<&Principal>, outcome: &'static str, detail: &str) {
        let refused = RefusedRequest {
            tenant: who.map_or_else(|| "-".into(), |who| who.tenant.clone()),
            key: who.and_then(|who| who.key_id.clone()),
            outcome,
            detail: clipped(detail).into_owned(),
        };
        let due = crate::lock(&self.refusals).note(refused, Instant::now());
        for (refused, times) in due {
            self.send("deny", AuditMessage::Refusal(refused.line(times)));
        }
    }

    fn send(&self, action: &str, message: AuditMessage) {
        if let Err(TrySendError::Full(_)) = self.queue.try_send(message) {
            tracing::error!(action, "an audit line was lost: the disk is too slow");
        }
    }

    /// Returns when all lines noted so far are in the file. Call it before the process ends.
    pub fn flush(&self) {
        let (written, waiting) = sync_channel(0);
        if self.queue.send(AuditMessage::Flush(written)).is_ok() {
            // Nothing is ever sent on this channel. `recv` returns when the writer drops the other end.
            let _ = waiting.recv();
        }
    }
}

impl AuditLine<'_> {
    fn to_bytes(&self) -> Vec<u8> {
        // Strings and numbers always serialize.
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

/// The beginning of a field that is too long.
fn clipped(field: &str) -> Cow<'_, str> {
    match field.char_indices().nth(MAX_FIELD) {
        Some((end, _)) => Cow::Owned(format!("{}…", &field[..end])),
        None => Cow::Borrowed(field),
    }
}

#[must_use]
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn append_to(path: &Path) -> std::io::Result<File> {
    File::options().create(true).append(true).mode(0o600).open(path)
}

/// The state of the thread that writes.
struct AuditWriter {
    log: RotatedLog,
    refusal_log: RotatedLog,
    refusals: Arc<Mutex<Refusals>>,
}

impl AuditWriter {
    fn run(mut self, queue: &Receiver<AuditMessage>) {
        loop {
            // Counts of refusals must be written even without new messages.
            let first = match queue.recv_timeout(WINDOW) {
                Ok(message) => Some(message),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => break,
            };
            let (mut lines, mut refusals, mut waiting) = (Vec::new(), Vec::new(), Vec::new());
            for message in first.into_iter().chain(queue.try_iter().take(QUEUE)) {
                match message {
                    AuditMessage::Line(line) => lines.extend(line),
                    AuditMessage::Refusal(line) => refusals.extend(line),
                    AuditMessage::Flush(written) => waiting.push(written),
                }
            }
            // The process is about to end: the counts are written too.
            let now = Instant::now();
            let counted = match waiting.is_empty() {
                true => crate::lock(&self.refusals).due(now),
                false => crate::lock(&self.refusals).all(now),
            };
            refusals.extend(counted.into_iter().flat_map(|(refused, times)| refused.line(times)));
            self.log.append(&lines);
            self.refusal_log.append(&refusals);
            drop(waiting);
        }
    }
}

/// A file that is renamed to `.1` when it is full.
struct RotatedLog {
    path: PathBuf,
    max_bytes: u64,
    file: Option<File>,
}

impl RotatedLog {
    fn append(&mut self, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        let is_full = |file: &File| file.metadata().is_ok_and(|it| it.len() > self.max_bytes);
        if self.file.as_ref().is_none_or(is_full) {
            // Another process, such as `belljar key`, may have renamed the file already. Then the file at this path is
            // new and must not replace the full one.
            if self.file.as_ref().is_some_and(|file| is_at(file, &self.path)) {
                let _ = fs::rename(&self.path, self.path.with_extension("log.1"));
            }
            match append_to(&self.path) {
                Ok(fresh) => self.file = Some(fresh),
                Err(error) => tracing::error!("failed to open a new audit log: {error}"),
            }
        }
        let Some(file) = &mut self.file else { return };
        if let Err(error) = file.write_all(lines) {
            tracing::error!("failed to write to the audit log: {error}");
        }
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
        audit.note(&Principal::default(), &AuditEntry { action, ..AuditEntry::default() });
    }

    #[test]
    fn flushed_lines_are_in_the_file() {
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
    fn a_full_log_is_renamed_once() {
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

    #[test]
    fn no_field_fills_the_log() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let audit = Audit::open(&path, true).unwrap();
        let long = "\u{1}".repeat(1 << 20);
        let [session, exec, detail] = [Some(long.as_str()); 3];
        let code = Some(long.as_bytes());
        audit.note(
            &Principal::default(),
            &AuditEntry { action: "exec", outcome: &long, session, exec, detail, code },
        );
        audit.flush();
        let line = fs::read_to_string(&path).unwrap();
        // A control character takes six bytes in JSON.
        assert!(line.len() < 6 * (4 * (MAX_FIELD + 1) + MAX_CODE) + 1000, "{}", line.len());
        assert!(line.contains(&hash(long.as_bytes())), "the hash is that of all code");
    }

    #[test]
    fn refusals_are_counted_in_a_file_of_their_own() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let audit = Audit::open(&path, false).unwrap();
        note(&audit, "create");
        audit.flush();
        let refusals = path.with_file_name("refusals.log");
        assert!(!refusals.exists(), "made with the first");
        for number in 0..10_000 {
            audit.refuse(None, "unauthorized", "GET /v1/sessions");
            audit.refuse(None, "unauthorized", &format!("GET /{number}"));
        }
        audit.flush();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 1);
        let text = fs::read_to_string(&refusals).unwrap();
        let lines: Vec<serde_json::Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert!(lines.len() <= refusals::MAX_LINES, "{}", lines.len());
        let counted: u64 = lines.iter().map(|line| line["times"].as_u64().unwrap_or(1)).sum();
        assert_eq!(counted, 20_000, "none is lost");
    }
}
