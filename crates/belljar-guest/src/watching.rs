//! Watches directories for a connected host.
//!
//! Linux queues a bounded number of changes. The guest reads them only as fast as the host takes them,
//! and reports when some were lost.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use belljar_proto::guest::{Answer, ChangeKind, FileChange, FromGuest, Refusal, RefusalCode};
use belljar_sys::user_files::{self, FileKind, Wanted};
use belljar_sys::watch::{Change, ChangeKind as Observed, WatchId, Watcher};
use tokio::io::unix::AsyncFd;

use crate::Guest;
use crate::files::refusal;
use crate::outbox::Outbox;
use crate::reply::{Reply, failed, refuse};

/// The most watches at the same time.
const MAX_WATCHES: usize = 16;

/// The most directories of one watch.
const MAX_DIRECTORIES: usize = 1_024;

/// Limits for listing a new directory that already has content.
const MAX_FOUND: u64 = 10_000;
const MAX_DEPTH: u32 = 64;

/// How many watches there are.
#[derive(Debug, Default)]
pub(crate) struct Watches(Rc<Cell<usize>>);

/// Counts one watch until it is dropped.
struct Counted(Rc<Cell<usize>>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

struct Watch {
    watcher: AsyncFd<Watcher>,
    root: Vec<u8>,
    recursive: bool,
    /// Paths below the root by the numbers that Linux gave their watches.
    directories: HashMap<WatchId, Vec<u8>>,
    _counted: Counted,
}

/// Begins to watch a directory. Changes are sent until the connection ends.
pub(crate) fn start(
    guest: &Guest,
    path: &[u8],
    recursive: bool,
    outbox: Outbox,
) -> Result<Reply, Refusal> {
    let count = &guest.watches.0;
    if count.get() >= MAX_WATCHES {
        let message = format!("{MAX_WATCHES} directories are watched already");
        return Err(refuse(RefusalCode::TooMany, message));
    }
    count.set(count.get() + 1);
    let counted = Counted(Rc::clone(count));
    let cannot = |error: io::Error| failed(format!("failed to watch: {error}"));
    // The dot makes Linux follow a link at the end of the path, as programs do.
    let root = [path, b"/."].concat();
    let watcher = Watcher::new().and_then(Watcher::watched).map_err(cannot)?;
    let mut watch =
        Watch { watcher, root, recursive, directories: HashMap::new(), _counted: counted };
    watch.add(Vec::new()).map_err(|error| refusal("watch", path, &error))?;
    if recursive {
        let below = watch.below(b"").map_err(|error| refusal("list", path, &error))?;
        for directory in below.into_iter().filter(|found| found.directory) {
            let added = watch.add(directory.path);
            added.map_err(|error| refusal("watch", path, &error))?;
        }
    }
    tokio::task::spawn_local(async move {
        tokio::select! {
            () = watch.report(&outbox) => {}
            () = outbox.closed() => {}
        }
    });
    Ok(Answer::Started.into())
}

impl Watch {
    fn add(&mut self, path: Vec<u8>) -> io::Result<()> {
        if self.directories.len() >= MAX_DIRECTORIES {
            let why = format!("there are more than {MAX_DIRECTORIES} directories to watch");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let full = [&self.root[..], b"/", &path].concat();
        let number = self.watcher.get_ref().watch(&full)?;
        self.directories.insert(number, path);
        Ok(())
    }

    /// Files that already exist below a watched directory.
    fn below(&self, path: &[u8]) -> io::Result<Vec<FileChange>> {
        let wanted = Wanted {
            recursive: true,
            max: MAX_FOUND,
            max_depth: MAX_DEPTH,
            glob: None,
            hidden: true,
        };
        let (found, _) = user_files::list(&[&self.root[..], b"/", path].concat(), &wanted)?;
        let joined = |name: Vec<u8>| match path.is_empty() {
            true => name,
            false => [path, b"/", &name].concat(),
        };
        let change = ChangeKind::Created;
        let found = found.into_iter().map(|seen| FileChange {
            change,
            directory: seen.kind == FileKind::Directory,
            path: joined(seen.path),
        });
        Ok(found.collect())
    }

    /// Sends changes until the root is gone or the connection ends.
    async fn report(&mut self, outbox: &Outbox) {
        loop {
            let changes = {
                let Ok(mut ready) = self.watcher.readable().await else { return };
                match ready.get_inner().read() {
                    Ok(changes) if changes.is_empty() => {
                        ready.clear_ready();
                        continue;
                    }
                    Ok(changes) => changes,
                    Err(_) => return,
                }
            };
            let mut last = None;
            for change in changes {
                for seen in self.changes_of(change) {
                    if last.as_ref() == Some(&seen) {
                        continue;
                    }
                    let is_over = seen.change == ChangeKind::Gone;
                    last = Some(seen.clone());
                    if !outbox.send(&FromGuest::Changed(seen), &[]).await || is_over {
                        return;
                    }
                }
            }
        }
    }

    /// Translates a change, and adds watches for new directories.
    fn changes_of(&mut self, change: Change) -> Vec<FileChange> {
        let Change { watched, kind, is_directory, name } = change;
        let lost = || FileChange { change: ChangeKind::Lost, path: Vec::new(), directory: false };
        if kind == Observed::Lost {
            return vec![lost()];
        }
        let Some(parent) = self.directories.get(&watched).cloned() else { return Vec::new() };
        let kind = match kind {
            Observed::Created => ChangeKind::Created,
            Observed::Modified if name.is_empty() => return Vec::new(),
            Observed::Modified => ChangeKind::Modified,
            Observed::Removed => ChangeKind::Removed,
            Observed::Lost => ChangeKind::Lost,
            Observed::Unwatched => {
                self.directories.remove(&watched);
                // The parent's watch reports that it was removed.
                let gone = FileChange { change: ChangeKind::Gone, path: parent, directory: true };
                return if gone.path.is_empty() { vec![gone] } else { Vec::new() };
            }
        };
        let path = match parent.is_empty() {
            true => name,
            false => [&parent[..], b"/", &name].concat(),
        };
        let mut changes =
            vec![FileChange { change: kind, path: path.clone(), directory: is_directory }];
        if self.recursive && is_directory && kind == ChangeKind::Created {
            // The watch comes before the listing, so that no file is missed. A file that appears between
            // the two is reported twice.
            if self.add(path.clone()).is_err() {
                changes.push(lost());
            }
            for found in self.below(&path).unwrap_or_default() {
                if found.directory && self.add(found.path.clone()).is_err() {
                    changes.push(lost());
                }
                changes.push(found);
            }
        }
        changes
    }
}
