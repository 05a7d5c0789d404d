//! Contents in a directory.
//!
//! ```text
//! BLOBSTORE_DIR/incoming/<random>                   copies; removed when a server starts
//! BLOBSTORE_DIR/t<tenant>/<first 2 digits>/<sha256> complete, on the disk, never written again
//! ```

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use belljar_sys::file::{begin_writeback, sync_file_system};
use sha2::{Digest as _, Sha256};

use super::store::{BlobName, BlobReader, BlobRemoval, BlobStore, StagedBlob, fill};
use super::{CHUNK, unless_gone};
use crate::store::Digest;
use crate::tenant_dir::TenantDir;

/// After this many copied bytes, the kernel is asked to begin writing to the disk.
const WRITEBACK_STEP: u64 = 16 * 1024 * 1024;

/// Up to this many files are synced one by one. For more files, syncing the whole file system is faster, although it
/// also waits for the writes of other processes. Directories are always synced one by one: the first sync writes the
/// journal to the disk, and the others find their changes there.
pub(super) const FEW: usize = 16;

#[derive(Debug)]
pub(super) struct DirectoryStore {
    root: PathBuf,
    incoming: PathBuf,
    /// The root, opened before anything was written. The kernel reports a failed write only to descriptors that were
    /// open at that time, and only once to each. Locked while the file system is synced, so that a failure is counted
    /// before another caller sees success.
    disk: Mutex<File>,
    /// How often syncing the file system has failed. The kernel does not report which write failed,
    /// so a failure counts for all copies that had begun by then.
    pub(super) failures: AtomicU64,
    /// Directories whose own entries are known to be on the disk.
    durable: Mutex<HashSet<PathBuf>>,
}

/// Creates the directory of a store durably, if it is missing. Returns its absolute path.
pub(in crate::artifacts) fn make_root(directory: &Path) -> io::Result<PathBuf> {
    let root = std::path::absolute(directory)?;
    let missing = root.ancestors().take_while(|directory| !directory.exists()).count();
    DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
    for above in root.ancestors().skip(1).take(missing) {
        File::open(above)?.sync_all()?;
    }
    Ok(root)
}

/// Creates the directory of copies that are not in place yet, and removes those that a killed server left.
pub(super) fn make_incoming(root: &Path) -> io::Result<PathBuf> {
    let incoming = root.join("incoming");
    DirBuilder::new().recursive(true).mode(0o700).create(&incoming)?;
    for entry in fs::read_dir(&incoming)? {
        let entry = entry?;
        if !entry.file_type()?.is_dir() {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(incoming)
}

impl DirectoryStore {
    /// Opens the store in `directory`, which is created if it is missing, and removes copies that a killed server left.
    /// Only one server may have it open.
    pub(super) fn open(directory: &Path) -> io::Result<DirectoryStore> {
        let root = make_root(directory)?;
        make_incoming(&root)?;
        DirectoryStore::look_at(&root)
    }

    /// Opens the store in `directory` read-only: a server may have it open.
    pub(super) fn look_at(directory: &Path) -> io::Result<DirectoryStore> {
        let root = std::path::absolute(directory)?;
        Ok(DirectoryStore {
            disk: Mutex::new(File::open(&root)?),
            incoming: root.join("incoming"),
            root,
            failures: AtomicU64::new(0),
            durable: Mutex::default(),
        })
    }
}

impl BlobStore for DirectoryStore {
    fn stage(
        &self,
        tenant: TenantDir,
        from: &File,
        size: u64,
        pin: &mut dyn FnMut(BlobName),
    ) -> io::Result<StagedBlob> {
        let failures_before = self.failures.load(Ordering::SeqCst);
        let mut chunk = vec![0; chunk_size(size)];
        let length = read_chunk(from, 0, size, &mut chunk)?;
        if length as u64 == size || length < chunk.len() {
            return self.stage_small(tenant, &chunk[..length], failures_before, pin);
        }
        let (file, mut to) = IncomingFile::create(&self.incoming)?;
        let (digest, size) = copy(from, size, &mut chunk, &mut to)?;
        let name = BlobName { tenant, digest };
        pin(name);
        Ok(StagedBlob { name, size, copy: Some(Box::new(DirectoryCopy { file, failures_before })) })
    }

    fn commit(&self, staged: Vec<StagedBlob>) -> io::Result<()> {
        let mut directories = BTreeSet::new();
        let mut fresh = Vec::new();
        let mut seen = HashSet::new();
        for StagedBlob { name, size, copy } in staged {
            if !seen.insert(name) {
                continue;
            }
            let bucket = self.bucket(name);
            if !directories.contains(&bucket) {
                self.make_bucket(name.tenant, &bucket)?;
                directories.insert(bucket);
            }
            let place = self.path(name);
            match copy {
                Some(copy) if !is_complete(&place, size)? => {
                    let copy = copy.downcast::<DirectoryCopy>().map_err(|_| foreign_copy())?;
                    fresh.push((*copy, place));
                }
                _ => {}
            }
        }
        self.sync_contents(&fresh)?;
        for (copy, place) in fresh {
            copy.file.move_to(&place)?;
        }
        // Directories without new content are synced too: the server that put the content there may have been killed
        // before its sync.
        self.sync_directories(directories)
    }

    fn open(&self, name: BlobName) -> io::Result<BlobReader> {
        Ok(Box::new(File::open(self.path(name))?))
    }

    fn size(&self, name: BlobName) -> io::Result<Option<u64>> {
        let metadata = unless_gone(fs::symlink_metadata(self.path(name)))?;
        Ok(metadata.map(|metadata| metadata.len()))
    }

    fn path(&self, name: BlobName) -> PathBuf {
        self.bucket(name).join(name.digest.to_string())
    }

    /// Moves the blob to `incoming`. If the server crashes before the removal, the next start removes it from there.
    fn remove(&self, name: BlobName) -> io::Result<BlobRemoval> {
        let away = IncomingFile::new(&self.incoming);
        fs::rename(self.path(name), &away.0)?;
        Ok(Box::new(move || Ok(fs::symlink_metadata(&away.0)?.len())))
    }

    /// Ignores files whose names are not blob names: they are not ours.
    fn list(&self, visit: &mut dyn FnMut(BlobName) -> io::Result<()>) -> io::Result<()> {
        for tenant in named(&self.root)? {
            let (tenant_path, tenant) = tenant?;
            let Ok(tenant) = tenant.parse::<TenantDir>() else { continue };
            if !tenant_path.is_dir() {
                continue;
            }
            for bucket in named(&tenant_path)? {
                let (bucket_path, bucket) = bucket?;
                if bucket.len() != 2 || !bucket_path.is_dir() {
                    continue;
                }
                for blob in named(&bucket_path)? {
                    let (_, blob) = blob?;
                    match blob.parse() {
                        Ok(digest) if blob.starts_with(&bucket) => {
                            visit(BlobName { tenant, digest })?;
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

impl DirectoryStore {
    /// Stages content that fits into one chunk. It is hashed before anything is written, so that no file is created for
    /// content that the store has already. This matters because ext4 becomes very slow when thousands of files are
    /// created soon after thousands were removed, which happens when code leaves the same files again and again.
    fn stage_small(
        &self,
        tenant: TenantDir,
        content: &[u8],
        failures_before: u64,
        pin: &mut dyn FnMut(BlobName),
    ) -> io::Result<StagedBlob> {
        let name = BlobName { tenant, digest: Digest::of(content) };
        let size = content.len() as u64;
        pin(name);
        if is_complete(&self.path(name), size)? {
            return Ok(StagedBlob { name, size, copy: None });
        }
        let (file, mut to) = IncomingFile::create(&self.incoming)?;
        to.write_all(content)?;
        Ok(StagedBlob { name, size, copy: Some(Box::new(DirectoryCopy { file, failures_before })) })
    }

    fn bucket(&self, name: BlobName) -> PathBuf {
        self.root.join(name.tenant.to_string()).join(format!("{:02x}", name.digest.0[0]))
    }

    fn make_bucket(&self, tenant: TenantDir, bucket: &Path) -> io::Result<()> {
        match DirBuilder::new().mode(0o700).create(bucket) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = self.root.join(tenant.to_string());
                DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
                DirBuilder::new().recursive(true).mode(0o700).create(bucket)
            }
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            made => made,
        }
    }

    fn sync_contents(&self, fresh: &[(DirectoryCopy, PathBuf)]) -> io::Result<()> {
        if fresh.len() <= FEW {
            let open = |(copy, _): &(DirectoryCopy, PathBuf)| File::open(&copy.file.0);
            let files = fresh.iter().map(open).collect::<io::Result<Vec<File>>>()?;
            // Writeback of all files begins before the first one is waited for.
            for file in &files {
                let _ = begin_writeback(file, 0, 0);
            }
            return files.iter().try_for_each(File::sync_all);
        }
        let failures = self.sync_everything()?;
        if fresh.iter().any(|(copy, _)| copy.failures_before != failures) {
            return Err(io::Error::other("the disk failed to write while this was copied"));
        }
        Ok(())
    }

    /// Syncs the directories. The first time that a directory is seen, its parents are synced too.
    fn sync_directories(&self, mut directories: BTreeSet<PathBuf>) -> io::Result<()> {
        let buckets: Vec<PathBuf> = directories.iter().cloned().collect();
        {
            let durable = crate::lock(&self.durable);
            for bucket in buckets.iter().filter(|bucket| !durable.contains(*bucket)) {
                let above =
                    bucket.ancestors().skip(1).take_while(|dir| dir.starts_with(&self.root));
                directories.extend(above.map(Path::to_owned));
            }
        }
        for directory in &directories {
            File::open(directory)?.sync_all()?;
        }
        crate::lock(&self.durable).extend(buckets);
        Ok(())
    }

    /// Syncs the file system and returns how often that has failed before.
    fn sync_everything(&self) -> io::Result<u64> {
        let disk = crate::lock(&self.disk);
        sync_file_system(&*disk).inspect_err(|_| {
            self.failures.fetch_add(1, Ordering::SeqCst);
        })?;
        Ok(self.failures.load(Ordering::SeqCst))
    }
}

/// A copy that is not in place yet.
#[derive(Debug)]
struct DirectoryCopy {
    file: IncomingFile,
    /// The value of [`DirectoryStore::failures`] when the copying began.
    failures_before: u64,
}

pub(super) fn foreign_copy() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the copy was staged in another store")
}

/// A file in `incoming`, which is removed unless it is moved to its place.
#[derive(Debug)]
pub(super) struct IncomingFile(pub(super) PathBuf);

impl IncomingFile {
    fn new(directory: &Path) -> IncomingFile {
        IncomingFile(directory.join(belljar_sys::process::random_name()))
    }

    pub(super) fn create(directory: &Path) -> io::Result<(IncomingFile, File)> {
        let incoming = IncomingFile::new(directory);
        // The file is read-only from the beginning, except through this one descriptor.
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o444);
        let file = options.open(&incoming.0)?;
        Ok((incoming, file))
    }

    pub(super) fn move_to(mut self, place: &Path) -> io::Result<()> {
        fs::rename(&self.0, place)?;
        self.0 = PathBuf::new();
        Ok(())
    }
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // A failure cannot be reported here, and the next start tries again.
            let _ = fs::remove_file(&self.0);
        }
    }
}

pub(super) fn copy(
    from: &File,
    size: u64,
    chunk: &mut [u8],
    to: &mut File,
) -> io::Result<(Digest, u64)> {
    let mut hasher = Sha256::new();
    let (mut done, mut begun) = (0, 0);
    loop {
        let length = read_chunk(from, done, size, chunk)?;
        if length == 0 {
            return Ok((hasher.into(), done));
        }
        hasher.update(&chunk[..length]);
        to.write_all(&chunk[..length])?;
        done += length as u64;
        if done - begun >= WRITEBACK_STEP {
            // This only makes it faster. If it fails, the file is still synced later.
            let _ = begin_writeback(&*to, begun, done - begun);
            begun = done;
        }
    }
}

/// No larger than the file, because most files are small.
pub(super) fn chunk_size(size: u64) -> usize {
    usize::try_from(size).map_or(CHUNK, |size| size.clamp(1, CHUNK))
}

/// Fills `chunk` with the bytes at offset `done`, but none beyond `size`. Returns fewer bytes, or 0, only at the end of
/// the file.
pub(super) fn read_chunk(from: &File, done: u64, size: u64, chunk: &mut [u8]) -> io::Result<usize> {
    let left = usize::try_from(size - done).unwrap_or(usize::MAX).min(chunk.len());
    fill(from, &mut chunk[..left], done)
}

/// Whether there is a complete copy at `place`. A copy of another length was damaged by another program and is replaced
/// by the new one.
fn is_complete(place: &Path, size: u64) -> io::Result<bool> {
    let metadata = unless_gone(fs::symlink_metadata(place))?;
    Ok(metadata.is_some_and(|metadata| metadata.is_file() && metadata.len() == size))
}

/// Path and name of everything in a directory whose name is valid UTF-8.
fn named(
    directory: &Path,
) -> io::Result<impl Iterator<Item = io::Result<(PathBuf, String)>> + use<>> {
    Ok(fs::read_dir(directory)?.filter_map(|entry| match entry {
        Ok(entry) => entry.file_name().into_string().ok().map(|name| Ok((entry.path(), name))),
        Err(error) => Some(Err(error)),
    }))
}
