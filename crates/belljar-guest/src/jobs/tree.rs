//! Trees as sources and targets.

use std::fs::File;
use std::io::{self, Read, Write};

use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::job::{JobReport, MAX_JOB_DEPTH};
use belljar_sys::tree::{Met, MetKind, Root, set_modified};
use belljar_sys::user_files::{self, Kind};

use super::{Item, Moving, Outcome, Target};
use crate::connection::refuse;
use crate::files::refusal;

/// What is copied at once.
const PIECE: usize = 256 * 1024;

/// Moves everything below `root`.
pub(super) fn walk(root: &Root, moving: &mut Moving<'_>) -> Result<(), Refusal> {
    let mut refused = None;
    let walked = root.walk_all(MAX_JOB_DEPTH, |met| {
        moved(root, &met, moving).map_err(|refusal| {
            refused = Some(refusal);
            io::Error::from(io::ErrorKind::Interrupted)
        })
    });
    match (walked, refused) {
        (_, Some(refusal)) => Err(refusal),
        (Err(error), None) => Err(refusal("read", b".", &error)),
        (Ok(()), None) => Ok(()),
    }
}

fn moved(root: &Root, met: &Met, moving: &mut Moving<'_>) -> Result<(), Refusal> {
    let Met { path, kind, mode, modified } = met;
    let item = match kind {
        MetKind::Directory => Item::Directory,
        MetKind::Link => match root.read_link(path) {
            Ok(target) => Item::Link { target },
            Err(error) => return vanished(path, &error),
        },
        MetKind::Other => {
            moving.report.skipped += 1;
            return Ok(());
        }
        MetKind::File { size } => {
            let file = match root.read_file(path) {
                Ok(file) => File::from(file),
                Err(error) => return vanished(path, &error),
            };
            let mut content = Exactly { file: &file, left: *size };
            let item = Item::File { size: *size, content: &mut content };
            return moving.put(path, *mode, *modified, item);
        }
    };
    moving.put(path, *mode, *modified, item)
}

/// What is gone since it was met is as if it had not been met.
fn vanished(path: &[u8], error: &io::Error) -> Result<(), Refusal> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(refusal("read", path, error)),
    }
}

/// As much of a file as was announced: what it grew is left out, what it shrank is zeros.
struct Exactly<'a> {
    file: &'a File,
    left: u64,
}

impl Read for Exactly<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let read = match self.file.read(&mut buffer[..most])? {
            0 => {
                buffer[..most].fill(0);
                most
            }
            read => read,
        };
        self.left -= read as u64;
        Ok(read)
    }
}

/// A tree that items are put into.
#[derive(Debug)]
pub(super) struct Tree<'a> {
    root: &'a Root,
    buffer: Vec<u8>,
}

impl Tree<'_> {
    pub(super) fn new(root: &Root) -> Tree<'_> {
        Tree { root, buffer: vec![0; PIECE] }
    }
}

impl Target for Tree<'_> {
    fn put(&mut self, path: &[u8], mode: u32, modified: i64, item: Item<'_>) -> io::Result<()> {
        match item {
            Item::Directory => self.root.make_directory(path, mode),
            Item::Link { target } => self.root.replace_link(path, &target),
            Item::HardLink { existing } => self.root.replace_hard_link(path, &existing),
            Item::File { content, .. } => {
                let mut file = File::from(self.root.replace_file(path, mode)?);
                loop {
                    match content.read(&mut self.buffer) {
                        Ok(0) => break,
                        Ok(n) => file.write_all(&self.buffer[..n])?,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                // Not every time can be kept, and none is worth a failure.
                let _ = set_modified(&file, modified.saturating_mul(1_000_000_000));
                Ok(())
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies what stands at `from` to `to`: a file over a file, a link as a link, a directory with
/// everything in it into a directory, which is made.
pub(super) fn copy(from: &[u8], to: &[u8]) -> Outcome {
    let seen = user_files::look(from).map_err(|error| refusal("find", from, &error))?;
    let (directory, name) = split(to)?;
    let parent = Root::open_followed(directory);
    let parent = parent.map_err(|error| refusal("open", directory, &error))?;
    let cannot = |error: io::Error| refusal("copy", from, &error);
    match seen.kind {
        Kind::Other => {
            Err(refuse(RefusalCode::NotAFile, "only files and directories are copied".into()))
        }
        Kind::Directory => {
            let source = Root::open_followed(from).map_err(cannot)?;
            refuse_itself(from, directory)?;
            parent.make_directory(name, seen.mode).map_err(|error| refusal("make", to, &error))?;
            let into = Root::open_followed(to).map_err(|error| refusal("open", to, &error))?;
            let mut target = Tree::new(&into);
            let mut moving = Moving { target: &mut target, report: JobReport::default() };
            walk(&source, &mut moving)?;
            moving.finish()
        }
        Kind::File | Kind::Link => {
            let (above, own) = split(from)?;
            let source = Root::open_followed(above).map_err(cannot)?;
            let modified = seen.modified_ns / 1_000_000_000;
            // Beside its place first: half a copy is never seen there.
            let beside = format!(".{}.part", belljar_sys::process::random_name());
            let mut target = Tree::new(&parent);
            let mut moving = Moving { target: &mut target, report: JobReport::default() };
            let put = if seen.kind == Kind::Link {
                let target = source.read_link(own).map_err(cannot)?;
                moving.put(beside.as_bytes(), 0o777, modified, Item::Link { target })
            } else {
                let file = File::from(source.read_file(own).map_err(cannot)?);
                let mut content = Exactly { file: &file, left: seen.size };
                let item = Item::File { size: seen.size, content: &mut content };
                moving.put(beside.as_bytes(), seen.mode & 0o777, modified, item)
            };
            let report = moving.report;
            let placed = put.and_then(|()| {
                let placed = parent.rename(beside.as_bytes(), name);
                placed.map_err(|error| refusal("write", to, &error))
            });
            if placed.is_err() {
                let _ = parent.discard_file(beside.as_bytes(), &beside);
            }
            placed.map(|()| report)
        }
    }
}

/// A directory that is copied into itself would never end.
fn refuse_itself(from: &[u8], directory: &[u8]) -> Result<(), Refusal> {
    let real = |path: &[u8]| user_files::real(path).map_err(|error| refusal("find", path, &error));
    match real(directory)?.starts_with(real(from)?) {
        true => {
            Err(refuse(RefusalCode::Invalid, "a directory cannot be copied into itself".into()))
        }
        false => Ok(()),
    }
}

/// The directory of a path, and the name in it.
fn split(path: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let no_name = || refuse(RefusalCode::Invalid, "this is not a path to copy".into());
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let at = path.iter().rposition(|byte| *byte == b'/').ok_or_else(no_name)?;
    let (directory, name) = (&path[..at], &path[at + 1..]);
    if matches!(name, b"" | b"." | b"..") {
        return Err(no_name());
    }
    Ok((if directory.is_empty() { b"/" } else { directory }, name))
}
