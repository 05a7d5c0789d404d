//! Lists, opens, creates and removes files for the host.
//!
//! Requests of the host itself (artifacts, datasets) name a directory and follow no links: [`tree`].
//! Requests of the sandbox's user act as a program inside would: [`user_files`]. Code in the sandbox
//! may change the files at any time.

use std::io;

use belljar_proto::exec::ARTIFACTS;
use belljar_proto::guest::{
    Answer, EntryKind, FileEntry, Listing, MAX_REMOVED, Opening, Refusal, RefusalCode, Skipped,
    Tree, TreeFile, TreeLimits,
};
use belljar_sys::glob::Glob;
use belljar_sys::tree::{self, Identity, Root};
use belljar_sys::user_files::{self, FileKind, Seen, Wanted};
use belljar_sys::{channel, descriptor};

use crate::reply::{Reply, failed, refuse};

/// The most bytes of a path in a message: no real path is longer.
const MAX_SHOWN: usize = 4096;

pub(crate) fn list_tree(root: &str, limits: TreeLimits) -> Result<Reply, Refusal> {
    let listing = tree::list(root, limits.files, limits.depth)
        .map_err(|error| failed(format!("failed to list `{root}`: {error}")))?;
    let files =
        listing.files.into_iter().map(|(path, identity)| tree_file(path, identity)).collect();
    let skipped =
        listing.skipped.into_iter().map(|(path, reason)| Skipped { path, reason }).collect();
    let tree = Tree { files, skipped, skipped_more: listing.skipped_more };
    Reply::with_json(Answer::Tree, &tree)
}

/// Opens one file, for hosts that do not know [`open_files`] and its refusals.
pub(crate) fn open_file(root: &str, path: &[u8]) -> Result<Reply, Refusal> {
    let file = Root::open(root).and_then(|root| root.open_file(path)).map_err(|error| {
        let code = match error.kind() {
            io::ErrorKind::NotFound => RefusalCode::NotFound,
            _ => RefusalCode::NotAFile,
        };
        refuse(code, format!("failed to open `{}`: {error}", shown(path)))
    })?;
    let size = descriptor::check_plain_file(&file).map_err(|e| failed(e.to_string()))?.size;
    Ok(Reply::with_fd(Answer::File { size }, file))
}

pub(crate) fn open_files(root: &str, body: &[u8]) -> Result<Reply, Refusal> {
    let wanted = named_files(body, channel::MAX_FDS)?;
    let root = open_root(root)?;
    let mut fds = Vec::new();
    let mut open = |path: &[u8]| {
        let file = root.open_file(path)?;
        let size = descriptor::check_plain_file(&file)?.size;
        let being_written = tree::is_being_written(&file);
        fds.push(file);
        Ok(Opening::Opened { size, being_written })
    };
    let openings: Vec<Opening> = wanted
        .iter()
        .map(|file| {
            open(&file.path)
                .unwrap_or_else(|error| Opening::Refused(refusal("open", &file.path, &error)))
        })
        .collect();
    let body = serde_json::to_vec(&openings).map_err(|e| failed(e.to_string()))?;
    Ok(Reply { answer: Answer::Files { descriptors: fds.len() }, body, fds })
}

pub(crate) fn remove_files(root: &str, body: &[u8]) -> Result<Reply, Refusal> {
    let files = named_files(body, MAX_REMOVED)?;
    let root = open_root(root)?;
    let remove = |file: &&TreeFile| {
        let TreeFile { ref path, size, inode, changed_ns, modified_ns } = **file;
        let as_seen = Identity { size, inode, changed_ns, modified_ns };
        // A file that is gone, has changed or may not be removed is not counted.
        root.remove_file(path, as_seen).unwrap_or(false)
    };
    let removed = files.iter().filter(remove).count() as u64;
    Ok(Answer::Removed { removed, artifacts: tree::fingerprint(ARTIFACTS) }.into())
}

pub(crate) fn create_file(root: &str, path: &[u8], mode: Option<u32>) -> Result<Reply, Refusal> {
    let created = open_root(root)?.create_file(path, mode.unwrap_or(0o644) & 0o777);
    let (file, temporary) = created.map_err(|error| refusal("create", path, &error))?;
    Ok(Reply::with_fd(Answer::Created { temporary }, file))
}

pub(crate) fn append_file(path: &[u8], mode: u32) -> Result<Reply, Refusal> {
    let file = user_files::append(path, mode & 0o777)
        .map_err(|error| refusal("append to", path, &error))?;
    Ok(Reply::with_fd(Answer::Appending, file))
}

pub(crate) fn commit_file(root: &str, path: Vec<u8>, temporary: &str) -> Result<Reply, Refusal> {
    let committed = open_root(root)?.commit_file(&path, temporary);
    let identity = committed.map_err(|error| refusal("write", &path, &error))?;
    Ok(Answer::Committed(tree_file(path, identity)).into())
}

pub(crate) fn discard_file(root: &str, path: &[u8], temporary: &str) -> Result<Reply, Refusal> {
    let discarded = open_root(root)?.discard_file(path, temporary);
    discarded.map_err(|error| refusal("discard", path, &error))?;
    Ok(Answer::Done.into())
}

pub(crate) fn look(path: Vec<u8>) -> Result<Reply, Refusal> {
    let seen = user_files::look(&path).map_err(|error| refusal("find", &path, &error))?;
    Ok(Answer::Entry(entry(seen)).into())
}

pub(crate) fn list_directory(
    path: &[u8],
    recursive: bool,
    limits: TreeLimits,
    glob: Option<&str>,
    hidden: bool,
) -> Result<Reply, Refusal> {
    let glob = glob.map(Glob::new).transpose();
    let glob = glob.map_err(|error| refuse(RefusalCode::Invalid, error.to_string()))?;
    let wanted = Wanted {
        recursive,
        max: limits.files,
        max_depth: limits.depth,
        glob: glob.as_ref(),
        hidden,
    };
    let (seen, more) =
        user_files::list(path, &wanted).map_err(|error| refusal("list", path, &error))?;
    let listing = Listing { entries: seen.into_iter().map(entry).collect(), more };
    Reply::with_json(Answer::Listing, &listing)
}

pub(crate) fn open_path(path: &[u8]) -> Result<Reply, Refusal> {
    let file = user_files::open(path).map_err(|error| refusal("open", path, &error))?;
    let size = descriptor::check_plain_file(&file).map_err(|e| failed(e.to_string()))?.size;
    Ok(Reply::with_fd(Answer::File { size }, file))
}

pub(crate) fn make_directory(path: &[u8]) -> Result<Reply, Refusal> {
    user_files::make_directory(path).map_err(|error| refusal("make", path, &error))?;
    Ok(Answer::Done.into())
}

pub(crate) fn remove_path(path: &[u8], recursive: bool) -> Result<Reply, Refusal> {
    user_files::remove(path, recursive).map_err(|error| refusal("remove", path, &error))?;
    Ok(Answer::Done.into())
}

pub(crate) fn move_path(path: &[u8], to: &[u8]) -> Result<Reply, Refusal> {
    user_files::rename(path, to).map_err(|error| refusal("move", path, &error))?;
    Ok(Answer::Done.into())
}

fn entry(seen: Seen) -> FileEntry {
    let Seen { path, kind, size, mode, modified_ns } = seen;
    let kind = match kind {
        FileKind::File => EntryKind::File,
        FileKind::Directory => EntryKind::Directory,
        FileKind::Link => EntryKind::Link,
        FileKind::Other => EntryKind::Other,
    };
    FileEntry { path, kind, size, mode, modified_ns }
}

fn open_root(root: &str) -> Result<Root, Refusal> {
    Root::open(root).map_err(|error| refusal("open", root.as_bytes(), &error))
}

fn named_files(body: &[u8], most: usize) -> Result<Vec<TreeFile>, Refusal> {
    let files: Vec<TreeFile> = serde_json::from_slice(body)
        .map_err(|error| refuse(RefusalCode::Invalid, format!("not a list of files: {error}")))?;
    if files.len() > most {
        let message = format!("{} files are more than {most}", files.len());
        return Err(refuse(RefusalCode::Invalid, message));
    }
    Ok(files)
}

fn tree_file(path: Vec<u8>, identity: Identity) -> TreeFile {
    let Identity { size, inode, changed_ns, modified_ns } = identity;
    TreeFile { path, size, inode, changed_ns, modified_ns }
}

pub(crate) fn refusal(what: &str, path: &[u8], error: &io::Error) -> Refusal {
    use io::ErrorKind as Error;
    let code = match error.kind() {
        Error::NotFound => RefusalCode::NotFound,
        Error::InvalidData => RefusalCode::NotAFile,
        Error::NotADirectory => RefusalCode::NotADirectory,
        Error::DirectoryNotEmpty => RefusalCode::NotEmpty,
        Error::AlreadyExists => RefusalCode::Exists,
        Error::IsADirectory => RefusalCode::IsADirectory,
        Error::StorageFull | Error::QuotaExceeded => RefusalCode::NoSpace,
        // A mount point is busy for as long as the sandbox exists.
        Error::PermissionDenied | Error::ReadOnlyFilesystem | Error::ResourceBusy => {
            RefusalCode::NotPermitted
        }
        Error::InvalidInput | Error::InvalidFilename => RefusalCode::Invalid,
        // Another process holds a lease on it.
        Error::WouldBlock => RefusalCode::Busy,
        _ if user_files::is_about_the_path(error) => RefusalCode::NotAFile,
        _ => RefusalCode::Failed,
    };
    refuse(code, format!("failed to {what} `{}`: {error}", shown(path)))
}

/// A path for a message, shortened: a path that fits into a request can be too long for the reply, in
/// which bytes that are not UTF-8 take more space.
fn shown(path: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(&path[..path.len().min(MAX_SHOWN)])
}
