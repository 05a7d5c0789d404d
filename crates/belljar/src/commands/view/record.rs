//! Reads the directory of a session, while a server may write to it.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Value, json};

/// The largest file that is read; the server writes far smaller ones.
const MAX_JSON: u64 = 64 << 20;

/// How many artifacts are listed.
const MAX_ARTIFACTS: usize = 1_000;

/// How much is read at a time while searching for the last lines.
const BLOCK: u64 = 64 * 1024;

#[derive(Debug)]
pub(super) struct Record {
    directory: PathBuf,
}

#[derive(Debug, Serialize)]
pub(super) struct RecordedArtifact {
    pub(super) name: String,
    pub(super) bytes: u64,
}

impl Record {
    /// Opens a directory that contains the metadata or the log of a session.
    pub(super) fn open(directory: &Path) -> Result<Record> {
        let shown = directory.display();
        if !directory.is_dir() {
            bail!("`{shown}` is no directory");
        }
        let record = Record { directory: directory.to_owned() };
        if !record.path(METADATA).exists() && !record.path(LOG).exists() {
            bail!(
                "`{shown}` is not the directory of a session: neither {METADATA} nor {LOG} is there. \
                 Sessions with storage BIND have one each, below SESSIONS_ROOT"
            );
        }
        Ok(record)
    }

    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(super) fn metadata(&self) -> Result<Option<Value>> {
        self.json(METADATA)
    }

    /// The variables after the last execution.
    pub(super) fn state(&self) -> Result<Option<Value>> {
        self.json(STATE)
    }

    /// The artifacts of the session, by name. Links are followed only for their size.
    pub(super) fn artifacts(&self) -> Result<Vec<RecordedArtifact>> {
        let mut found = Vec::new();
        let mut folders = vec![self.path(ARTIFACTS)];
        while let Some(folder) = folders.pop() {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => {
                    return Err(error)
                        .with_context(|| format!("failed to list {}", folder.display()));
                }
            };
            for entry in entries.flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    folders.push(entry.path());
                } else if found.len() < MAX_ARTIFACTS {
                    let path = entry.path();
                    let name = path.strip_prefix(self.path(ARTIFACTS)).unwrap_or(&path);
                    let bytes = fs::metadata(&path).map_or(0, |metadata| metadata.len());
                    found.push(RecordedArtifact {
                        name: name.to_string_lossy().into_owned(),
                        bytes,
                    });
                }
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }

    pub(super) fn has_ended(&self) -> bool {
        let metadata = self.metadata().ok().flatten();
        metadata.is_some_and(|metadata| metadata["ended"].is_string())
    }

    pub(super) fn log(&self) -> Log {
        Log { path: self.path(LOG), read: 0 }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Reads a file that is replaced atomically when it changes.
    fn json(&self, name: &str) -> Result<Option<Value>> {
        let path = self.path(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(error).with_context(|| format!("failed to open {}", path.display()));
            }
        };
        let value = serde_json::from_reader(BufReader::new(file.take(MAX_JSON)));
        value.map(Some).with_context(|| format!("{} is not what a server writes", path.display()))
    }
}

const METADATA: &str = "session_metadata.json";
const STATE: &str = "python_state.json";
const LOG: &str = "session.log";
const ARTIFACTS: &str = "artifacts";

/// The log: one execution per line.
#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// How many bytes were read; these are always whole lines.
    read: u64,
}

impl Log {
    /// The last executions, or all if `limit` is 0, and the number of earlier ones.
    pub(super) fn last(&mut self, limit: usize) -> Result<(Vec<Value>, u64)> {
        let Some(mut file) = self.open()? else { return Ok((Vec::new(), 0)) };
        if limit > 0 {
            self.read = start_of_last(&mut file, limit).with_context(|| self.failure())?;
        }
        let execs = self.read_on(file)?;
        let first = execs.first().and_then(|exec| exec["number"].as_u64());
        Ok((execs, first.map_or(0, |number| number.saturating_sub(1))))
    }

    /// The executions that were added since the last read.
    pub(super) fn more(&mut self) -> Result<Vec<Value>> {
        match self.open()? {
            Some(file) => self.read_on(file),
            None => Ok(Vec::new()),
        }
    }

    fn open(&self) -> Result<Option<File>> {
        match File::open(&self.path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| self.failure()),
        }
    }

    fn read_on(&mut self, mut file: File) -> Result<Vec<Value>> {
        file.seek(SeekFrom::Start(self.read)).with_context(|| self.failure())?;
        let mut lines = BufReader::new(file);
        let mut execs = Vec::new();
        let mut line = Vec::new();
        loop {
            line.clear();
            let size = lines.read_until(b'\n', &mut line).with_context(|| self.failure())?;
            // An incomplete line is still being written. It is read later.
            if !line.ends_with(b"\n") {
                return Ok(execs);
            }
            self.read += size as u64;
            let unreadable = || json!({ "unreadable": String::from_utf8_lossy(&line) });
            execs.push(serde_json::from_slice(&line).unwrap_or_else(|_| unreadable()));
        }
    }

    fn failure(&self) -> String {
        format!("failed to read {}", self.path.display())
    }
}

/// The offset of the last `limit` lines.
fn start_of_last(file: &mut File, limit: usize) -> io::Result<u64> {
    let mut at = file.metadata()?.len();
    let mut wanted = limit + 1;
    let mut block = Vec::new();
    while at > 0 {
        let from = at.saturating_sub(BLOCK);
        file.seek(SeekFrom::Start(from))?;
        block.clear();
        file.take(at - from).read_to_end(&mut block)?;
        for (index, _) in block.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
            wanted -= 1;
            if wanted == 0 {
                return Ok(from + index as u64 + 1);
            }
        }
        at = from;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(execs: &[Value]) -> Vec<u64> {
        execs.iter().filter_map(|exec| exec["number"].as_u64()).collect()
    }

    #[test]
    fn the_last_lines_are_found_however_long_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let long = "x".repeat(100_000);
        let line = |n: u64| {
            json!({"number": n, "stdout": if n.is_multiple_of(3) { &long } else { "" }}).to_string()
        };
        let text: String = (1..=20).map(|n| line(n) + "\n").collect();
        fs::write(directory.path().join(LOG), &text).unwrap();
        let record = Record::open(directory.path()).unwrap();
        for limit in [1, 2, 3, 7, 19, 20, 21, 0] {
            let (execs, earlier) = record.log().last(limit).unwrap();
            let count = if limit == 0 { 20 } else { limit.min(20) as u64 };
            assert_eq!(numbers(&execs), (21 - count..=20).collect::<Vec<_>>(), "{limit}");
            assert_eq!(earlier, 20 - count);
        }
    }

    #[test]
    fn half_a_line_is_read_when_it_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join(LOG);
        fs::write(&path, "{\"number\":1}\n{\"num").unwrap();
        let record = Record::open(directory.path()).unwrap();
        let mut log = record.log();
        assert_eq!(numbers(&log.last(5).unwrap().0), [1]);
        assert_eq!(log.more().unwrap(), [] as [Value; 0]);
        fs::write(&path, "{\"number\":1}\n{\"number\":2}\nnonsense\n").unwrap();
        assert_eq!(
            log.more().unwrap(),
            [json!({"number": 2}), json!({"unreadable": "nonsense\n"})]
        );
    }
}
