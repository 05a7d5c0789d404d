//! Reads and writes directory trees for jobs.

use std::fs::File;
use std::io::{self, Read, Write};

use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::job::{JobReport, MAX_JOB_DEPTH};
use belljar_sys::tree::{Met, MetKind, Root, set_modified};
use belljar_sys::user_files::{self, FileKind, Seen};

use super::{Item, Moving, Outcome, Target};
use crate::files::refusal;
use crate::reply::refuse;

/// The size of the buffer for copies.
const PIECE: usize = 256 * 1024;

/// Writes everything below `root` to the target.
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

/// A file that was removed since it was listed is left out.
fn vanished(path: &[u8], error: &io::Error) -> Result<(), Refusal> {
    match error.kind() {
        io::ErrorKind::NotFound => Ok(()),
        _ => Err(refusal("read", path, error)),
    }
}

/// Reads exactly as many bytes of a file as were announced: growth is left out, and missing bytes are zeros.
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

/// A tree that items are written to.
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
                // Not every file system stores every time; that is no failure.
                let _ = set_modified(&file, modified.saturating_mul(1_000_000_000));
                Ok(())
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Copies `from` to `to`: a file over a file, a link as a link, a directory with its content into a directory, which is
/// created.
pub(super) fn copy(from: &[u8], to: &[u8]) -> Outcome {
    let seen = user_files::look(from).map_err(|error| refusal("find", from, &error))?;
    match seen.kind {
        FileKind::Other => {
            let message = "only files, links and directories can be copied";
            Err(refuse(RefusalCode::NotAFile, message))
        }
        FileKind::Directory => copy_directory(from, to, seen.mode),
        FileKind::File | FileKind::Link => copy_file(from, to, &seen),
    }
}

fn copy_directory(from: &[u8], to: &[u8], mode: u32) -> Outcome {
    let (directory, name) = split(to)?;
    let parent = open(directory)?;
    let source = Root::open_followed(from).map_err(|error| refusal("copy", from, &error))?;
    refuse_itself(from, directory)?;
    parent.make_directory(name, mode).map_err(|error| refusal("make", to, &error))?;
    let into = open(to)?;
    let mut target = Tree::new(&into);
    let mut moving = Moving { target: &mut target, report: JobReport::default() };
    walk(&source, &mut moving)?;
    moving.finish()
}

/// Copies a file or a link. It is written under a temporary name first: half a copy is never seen at `to`.
fn copy_file(from: &[u8], to: &[u8], seen: &Seen) -> Outcome {
    let cannot = |error: io::Error| refusal("copy", from, &error);
    let (directory, name) = split(to)?;
    let parent = open(directory)?;
    let (above, own) = split(from)?;
    let source = Root::open_followed(above).map_err(cannot)?;
    let modified = seen.modified_ns / 1_000_000_000;
    let temporary = format!(".{}.part", belljar_sys::process::random_name());
    let mut target = Tree::new(&parent);
    let mut moving = Moving { target: &mut target, report: JobReport::default() };
    let put = if seen.kind == FileKind::Link {
        let target = source.read_link(own).map_err(cannot)?;
        moving.put(temporary.as_bytes(), 0o777, modified, Item::Link { target })
    } else {
        let file = File::from(source.read_file(own).map_err(cannot)?);
        let mut content = Exactly { file: &file, left: seen.size };
        let item = Item::File { size: seen.size, content: &mut content };
        moving.put(temporary.as_bytes(), seen.mode & 0o777, modified, item)
    };
    let report = moving.report;
    let renamed = put.and_then(|()| {
        let renamed = parent.rename(temporary.as_bytes(), name);
        renamed.map_err(|error| refusal("write", to, &error))
    });
    if renamed.is_err() {
        let _ = parent.discard_file(temporary.as_bytes(), &temporary);
    }
    renamed.map(|()| report)
}

fn open(path: &[u8]) -> Result<Root, Refusal> {
    Root::open_followed(path).map_err(|error| refusal("open", path, &error))
}

/// Refuses to copy a directory into itself, which would never end.
fn refuse_itself(from: &[u8], directory: &[u8]) -> Result<(), Refusal> {
    let real = |path: &[u8]| user_files::real(path).map_err(|error| refusal("find", path, &error));
    match real(directory)?.starts_with(real(from)?) {
        true => Err(refuse(RefusalCode::Invalid, "a directory cannot be copied into itself")),
        false => Ok(()),
    }
}

/// The directory of a path, and the name in it.
fn split(path: &[u8]) -> Result<(&[u8], &[u8]), Refusal> {
    let no_name = || refuse(RefusalCode::Invalid, "not a path that can be copied");
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let at = path.iter().rposition(|byte| *byte == b'/').ok_or_else(no_name)?;
    let (directory, name) = (&path[..at], &path[at + 1..]);
    if matches!(name, b"" | b"." | b"..") {
        return Err(no_name());
    }
    Ok((if directory.is_empty() { b"/" } else { directory }, name))
}
