//! Watching directories on behalf of somebody who is connected.
//!
//! The kernel remembers a bounded number of changes for us; we read them only as fast as they are
//! taken, and say so when some were lost.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use belljar_proto::guest::{Answer, ChangeKind, FileChange, FromGuest, Refusal, RefusalCode};
use belljar_sys::user_files::{self, Kind, Wanted};
use belljar_sys::watch::{Change, ChangeKind as Told, Watched, Watcher};
use tokio::io::unix::AsyncFd;

use crate::Guest;
use crate::connection::{Outbox, Reply, failed, refuse, send_frame};
use crate::files::refusal;

/// Watches at the same time.
const MAX_WATCHES: usize = 16;

/// Directories of one watch.
const MAX_DIRECTORIES: usize = 1_024;

/// What is looked at below a directory that appears with things in it.
const MAX_FOUND: u64 = 10_000;
const MAX_DEPTH: u32 = 64;

/// How many watches there are.
#[derive(Debug, Default)]
pub(crate) struct Watches(Rc<Cell<usize>>);

/// One of them, counted for as long as it lives.
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
    /// By the kernel's numbers, paths below the root.
    directories: HashMap<Watched, Vec<u8>>,
    _counted: Counted,
}

/// Begins to watch a directory; what happens there is told until the connection ends.
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
    // Links on the way are followed, as by a program.
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
            () = watch.tell(&outbox) => {}
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

    /// What is there already, below a directory of ours.
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
            directory: seen.kind == Kind::Directory,
            path: joined(seen.path),
        });
        Ok(found.collect())
    }

    /// Tells what happens, until there is nothing to watch or nobody to tell.
    async fn tell(&mut self, outbox: &Outbox) {
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
                for told in self.understand(change) {
                    if last.as_ref() == Some(&told) {
                        continue;
                    }
                    let is_over = told.change == ChangeKind::Gone;
                    last = Some(told.clone());
                    if !send_frame(outbox, &FromGuest::Changed(told), &[]).await || is_over {
                        return;
                    }
                }
            }
        }
    }

    fn understand(&mut self, change: Change) -> Vec<FileChange> {
        let Change { watched, kind, is_directory, name } = change;
        let lost = || FileChange { change: ChangeKind::Lost, path: Vec::new(), directory: false };
        if kind == Told::Lost {
            return vec![lost()];
        }
        let Some(parent) = self.directories.get(&watched).cloned() else { return Vec::new() };
        let kind = match kind {
            Told::Created => ChangeKind::Created,
            Told::Modified if name.is_empty() => return Vec::new(),
            Told::Modified => ChangeKind::Modified,
            Told::Removed => ChangeKind::Removed,
            Told::Lost => ChangeKind::Lost,
            Told::Unwatched => {
                self.directories.remove(&watched);
                // That it was removed, its parent tells.
                let gone = FileChange { change: ChangeKind::Gone, path: parent, directory: true };
                return if gone.path.is_empty() { vec![gone] } else { Vec::new() };
            }
        };
        let path = match parent.is_empty() {
            true => name,
            false => [&parent[..], b"/", &name].concat(),
        };
        let mut told =
            vec![FileChange { change: kind, path: path.clone(), directory: is_directory }];
        if self.recursive && is_directory && kind == ChangeKind::Created {
            // Watched first and looked at then, so that nothing falls between; what happens in
            // between is told twice.
            if self.add(path.clone()).is_err() {
                told.push(lost());
            }
            for found in self.below(&path).unwrap_or_default() {
                if found.directory && self.add(found.path.clone()).is_err() {
                    told.push(lost());
                }
                told.push(found);
            }
        }
        told
    }
}
