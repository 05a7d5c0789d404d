//! Files kept by their content: one copy of what is identical, found by its SHA-256.
//!
//! ```text
//! BLOBSTORE_DIR/incoming/<random>                   being copied, gone after a crash
//! BLOBSTORE_DIR/t<tenant>/<first 2 digits>/<sha256> complete, on the disk, never written again
//! ```
//!
//! Tenants share nothing, or one could find out by the time an upload takes what another has.
//!
//! A blob's life: [`Blobs::take`] copies and hashes a file into `incoming`; [`Ingest::keep`] puts a
//! batch of those into place and onto the disk; the caller writes down who uses them, and only then
//! lets go of the [`Ingest`]; [`Blobs::sweep`] removes what nobody uses. What is killed half-way
//! leaves a file in `incoming`, which [`Blobs::open`] clears, or a blob that nobody uses, which the
//! next sweep finds.
//!
//! All of this waits for the disk: call it where waiting is allowed.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use belljar_sys::file::{begin_writeback, sync_file_system};
use sha2::{Digest as _, Sha256};

use super::pins::Pins;
use crate::store::Digest;

/// Bytes that are read, hashed and written at a time. Larger ones fall out of the cache between the
/// hash and the write; smaller ones cost more calls. A second thread that writes while this one
/// hashes was measured and brings nothing: the disk's own work overlaps as it is.
const CHUNK: usize = 256 * 1024;

/// The disk is asked to begin with what was written so far each time so much has come together.
const WRITEBACK_STEP: u64 = 16 * 1024 * 1024;

/// Up to so many files are synced one by one; for more, syncing the whole file system is faster,
/// although it also waits for what others wrote. Directories are always synced one by one: the
/// first brings the journal to the disk, and the others find theirs there.
const FEW: usize = 16;

/// Blobs that a sweep asks about at a time.
const SWEEP_BATCH: usize = 128;

/// The store. Clones are the same store.
#[derive(Debug, Clone)]
pub(super) struct Blobs(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    root: PathBuf,
    incoming: PathBuf,
    pins: Pins<Name>,
    /// Held by the one sweep that may be under way.
    sweeping: Mutex<()>,
    /// The root, opened before anything was written: the kernel reports a failed write to those
    /// descriptors that were open then, and to each only once. Locked while the file system is
    /// synced, so that a failure is counted before anybody else is told that all is well.
    disk: Mutex<File>,
    /// How often syncing the file system has failed. The kernel does not say whose write it was, so
    /// it counts for all whose copying had begun by then.
    failures: AtomicU64,
    /// Directories whose own names are known to be on the disk.
    durable: Mutex<HashSet<PathBuf>>,
}

/// A copy of a file that is not in place yet. Dropped, it is removed.
#[derive(Debug)]
#[must_use = "dropping it removes the copy"]
pub(super) struct Taken {
    pinned: Pinned,
    size: u64,
    /// Nothing where the same content was found in place, which then stays there: it is pinned.
    incoming: Option<IncomingFile>,
    /// [`Inner::failures`] when the copying began.
    failures_before: u64,
}

impl Taken {
    #[must_use]
    pub(super) fn digest(&self) -> Digest {
        self.pinned.name.digest
    }

    /// Bytes that were there to copy.
    #[must_use]
    pub(super) fn size(&self) -> u64 {
        self.size
    }
}

/// As long as this lives, no sweep removes what was kept with it, as none removes what was taken and
/// not yet kept. Let go of it when the references
/// to all of that are committed, and not before. It may be sent between threads and held across an
/// `await`, and does not keep others from ingesting.
#[derive(Debug)]
#[must_use = "what is kept is safe only while this lives"]
pub(super) struct Ingest {
    blobs: Blobs,
    pinned: Vec<Pinned>,
}

/// What a sweep has removed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Swept {
    pub(super) blobs: u64,
    pub(super) bytes: u64,
}

/// A blob as it lies on the disk.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    /// As [`tenant_dir`] gives it; who that is cannot be told from it.
    pub(super) tenant_dir: String,
    pub(super) digest: Digest,
    pub(super) size: u64,
    pub(super) path: PathBuf,
}

impl Stored {
    /// Whether its content is still what its name says.
    pub(super) fn is_intact(&self) -> io::Result<bool> {
        Ok(hash(&File::open(&self.path)?)? == self.digest)
    }
}

/// The name of the directory that a tenant's blobs are in.
#[must_use]
pub(crate) fn tenant_dir(tenant: &str) -> String {
    TenantDir::of(tenant).to_string()
}

/// Makes the directory of a store, for good, if it is missing; its absolute path.
pub(super) fn make_root(directory: &Path) -> io::Result<PathBuf> {
    let root = std::path::absolute(directory)?;
    let missing = root.ancestors().take_while(|directory| !directory.exists()).count();
    DirBuilder::new().recursive(true).mode(0o700).create(&root)?;
    for above in root.ancestors().skip(1).take(missing) {
        File::open(above)?.sync_all()?;
    }
    Ok(root)
}

impl Blobs {
    /// Opens the store in `directory`, which is made if it is missing, and clears what a killed
    /// server left half copied. Only one server may have it open.
    pub(super) fn open(directory: &Path) -> io::Result<Blobs> {
        let root = make_root(directory)?;
        let incoming = root.join("incoming");
        DirBuilder::new().recursive(true).mode(0o700).create(&incoming)?;
        for entry in fs::read_dir(&incoming)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                fs::remove_file(entry.path())?;
            }
        }
        Blobs::look_at(&root)
    }

    /// The store in `directory`, to be looked at and not changed: a server may have it open.
    pub(super) fn look_at(directory: &Path) -> io::Result<Blobs> {
        let root = std::path::absolute(directory)?;
        Ok(Blobs(Arc::new(Inner {
            disk: Mutex::new(File::open(&root)?),
            incoming: root.join("incoming"),
            root,
            pins: Pins::new(),
            sweeping: Mutex::default(),
            failures: AtomicU64::new(0),
            durable: Mutex::default(),
        })))
    }

    /// Copies and hashes `from`, from its beginning. A file that has grown beyond `size` is cut
    /// there; one that has become shorter is taken as it is.
    pub(super) fn take(&self, tenant: &str, from: &File, size: u64) -> io::Result<Taken> {
        let failures_before = self.0.failures.load(Ordering::SeqCst);
        let mut chunk = vec![0; chunk_size(size)];
        let length = read_chunk(from, 0, size, &mut chunk)?;
        if length as u64 == size || length < chunk.len() {
            return self.take_small(tenant, &chunk[..length], failures_before);
        }
        let (incoming, mut to) = IncomingFile::create(&self.0.incoming)?;
        let (digest, size) = copy(from, size, &mut chunk, &mut to)?;
        let pinned = Pinned::new(self, Name { tenant: TenantDir::of(tenant), digest });
        Ok(Taken { pinned, size, incoming: Some(incoming), failures_before })
    }

    /// Takes what fits into one chunk. It is hashed before anything is written, so that content
    /// that is there already costs no file: ext4 slows down to a crawl where thousands of files are
    /// made soon after thousands were removed, as code that leaves the same files again and again
    /// would have us do.
    fn take_small(&self, tenant: &str, content: &[u8], failures_before: u64) -> io::Result<Taken> {
        let digest = Digest(Sha256::digest(content).into());
        let pinned = Pinned::new(self, Name { tenant: TenantDir::of(tenant), digest });
        let size = content.len() as u64;
        if is_complete(&self.0.place(pinned.name), size)? {
            return Ok(Taken { pinned, size, incoming: None, failures_before });
        }
        let (incoming, mut to) = IncomingFile::create(&self.0.incoming)?;
        to.write_all(content)?;
        Ok(Taken { pinned, size, incoming: Some(incoming), failures_before })
    }

    /// Begins an ingest, see [`Ingest::keep`]. Does not wait.
    pub(super) fn ingesting(&self) -> Ingest {
        Ingest { blobs: self.clone(), pinned: Vec::new() }
    }

    /// Removes the blobs that nobody uses. `is_referenced` is asked about a few at a time, of one
    /// tenant each time, and answers for each in the same order. It must look at what is committed
    /// by then and not at an older view.
    pub(super) fn sweep(
        &self,
        mut is_referenced: impl FnMut(&str, &[Digest]) -> io::Result<Vec<bool>>,
    ) -> io::Result<Swept> {
        let _only_one = crate::lock(&self.0.sweeping);
        let mut swept = Swept::default();
        let mut batch: Vec<Name> = Vec::with_capacity(SWEEP_BATCH);
        self.each(|name, _| {
            let other_tenant = batch.first().is_some_and(|first| first.tenant != name.tenant);
            if other_tenant || batch.len() == SWEEP_BATCH {
                self.sweep_batch(&batch, &mut is_referenced, &mut swept)?;
                batch.clear();
            }
            batch.push(name);
            Ok(())
        })?;
        self.sweep_batch(&batch, &mut is_referenced, &mut swept)?;
        Ok(swept)
    }

    fn sweep_batch(
        &self,
        batch: &[Name],
        is_referenced: &mut impl FnMut(&str, &[Digest]) -> io::Result<Vec<bool>>,
        swept: &mut Swept,
    ) -> io::Result<()> {
        let mut chosen = self.0.pins.choose(batch);
        let Some(first) = chosen.first() else { return Ok(()) };
        let digests: Vec<Digest> = chosen.iter().map(|name| name.digest).collect();
        let referenced = is_referenced(&first.tenant.to_string(), &digests)?;
        if referenced.len() != digests.len() {
            let message = "a sweep was not told about every blob it asked for";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let mut referenced = referenced.into_iter();
        chosen.retain(|_| referenced.next() == Some(false));
        // Moved away while nobody can pin it, and removed after that, which takes long for a large
        // file. A crash in between leaves it where the next start removes it.
        let mut removed: Vec<io::Result<IncomingFile>> = Vec::new();
        self.0.pins.remove_chosen(&chosen, |name| {
            let away = IncomingFile::new(&self.0.incoming);
            removed.push(fs::rename(self.0.place(name), &away.0).map(|()| away));
        });
        for away in removed {
            let length = away.and_then(|away| Ok(fs::symlink_metadata(&away.0)?.len()));
            let Some(length) = unless_gone(length)? else { continue };
            swept.blobs += 1;
            swept.bytes += length;
        }
        Ok(())
    }

    /// Where the content is, if it was kept.
    #[must_use]
    pub(super) fn path(&self, tenant: &str, digest: &Digest) -> PathBuf {
        self.0.place(Name { tenant: TenantDir::of(tenant), digest: *digest })
    }

    pub(super) fn open_blob(&self, tenant: &str, digest: &Digest) -> io::Result<File> {
        File::open(self.path(tenant, digest))
    }

    /// Shows every blob of every tenant to `visit`, in no order, until it fails.
    pub(super) fn walk(&self, mut visit: impl FnMut(Stored) -> io::Result<()>) -> io::Result<()> {
        self.each(|name, path| {
            // One that a sweep has just removed is not there to be shown.
            let Some(metadata) = unless_gone(fs::symlink_metadata(&path))? else { return Ok(()) };
            let Name { tenant, digest } = name;
            visit(Stored { tenant_dir: tenant.to_string(), digest, size: metadata.len(), path })
        })
    }

    /// All blobs, tenant by tenant. What is not named as we name things is not ours.
    fn each(&self, mut visit: impl FnMut(Name, PathBuf) -> io::Result<()>) -> io::Result<()> {
        for tenant in named(&self.0.root)? {
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
                    let (path, blob) = blob?;
                    match blob.parse() {
                        Ok(digest) if blob.starts_with(&bucket) => {
                            visit(Name { tenant, digest }, path)?;
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(())
    }
}

impl Ingest {
    /// Puts copies into place. When this returns they survive a power cut. Content that is there
    /// already stays, and the new copy of it is dropped.
    ///
    /// If it fails, some of them may be in place; the next sweep finds those.
    pub(super) fn keep(&mut self, taken: Vec<Taken>) -> io::Result<()> {
        let Blobs(store) = &self.blobs;
        let mut directories = BTreeSet::new();
        let mut fresh = Vec::new();
        let mut seen = HashSet::new();
        for Taken { pinned, size, incoming, failures_before } in taken {
            let name = pinned.name;
            // Held from here on, whatever fails below.
            self.pinned.push(pinned);
            if !seen.insert(name) {
                continue;
            }
            let bucket = store.bucket(name);
            if !directories.contains(&bucket) {
                store.make_bucket(name.tenant, &bucket)?;
                directories.insert(bucket);
            }
            let place = store.place(name);
            match incoming {
                Some(incoming) if !is_complete(&place, size)? => {
                    fresh.push(Fresh { incoming, place, failures_before });
                }
                _ => {}
            }
        }
        store.sync_contents(&fresh)?;
        for Fresh { incoming, place, .. } in fresh {
            incoming.move_to(&place)?;
        }
        // Also those in which all was there: whoever put it there may not have got this far.
        store.sync_directories(directories)
    }
}

/// A copy on its way to its place.
struct Fresh {
    incoming: IncomingFile,
    place: PathBuf,
    failures_before: u64,
}

/// Keeps sweeps away from a name, whether or not there is a blob of that name yet.
#[derive(Debug)]
struct Pinned {
    blobs: Blobs,
    name: Name,
}

impl Pinned {
    fn new(blobs: &Blobs, name: Name) -> Pinned {
        blobs.0.pins.pin(name);
        Pinned { blobs: blobs.clone(), name }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.blobs.0.pins.unpin(self.name);
    }
}

impl Inner {
    fn bucket(&self, name: Name) -> PathBuf {
        self.root.join(name.tenant.to_string()).join(format!("{:02x}", name.digest.0[0]))
    }

    fn place(&self, name: Name) -> PathBuf {
        self.bucket(name).join(name.digest.to_string())
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

    fn sync_contents(&self, fresh: &[Fresh]) -> io::Result<()> {
        if fresh.len() <= FEW {
            let open = |fresh: &Fresh| File::open(&fresh.incoming.0);
            let files = fresh.iter().map(open).collect::<io::Result<Vec<File>>>()?;
            // All begin before the first is waited for.
            for file in &files {
                let _ = begin_writeback(file, 0, 0);
            }
            return files.iter().try_for_each(File::sync_all);
        }
        let failures = self.sync_everything()?;
        if fresh.iter().any(|fresh| fresh.failures_before != failures) {
            return Err(io::Error::other("the disk failed to write while this was copied"));
        }
        Ok(())
    }

    /// Syncs the directories, and, the first time that each is seen, those that they are in.
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

    /// Syncs the file system and says how often that has failed before.
    fn sync_everything(&self) -> io::Result<u64> {
        let disk = crate::lock(&self.disk);
        sync_file_system(&*disk).inspect_err(|_| {
            self.failures.fetch_add(1, Ordering::SeqCst);
        })?;
        Ok(self.failures.load(Ordering::SeqCst))
    }
}

/// Whose blob, and which.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Name {
    tenant: TenantDir,
    digest: Digest,
}

/// The directory of a tenant, named by a hash: tenants may be called anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct TenantDir(u64);

impl TenantDir {
    fn of(tenant: &str) -> TenantDir {
        let hash: [u8; 32] = Sha256::digest(tenant).into();
        let [a, b, c, d, e, f, g, h, ..] = hash;
        TenantDir(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

impl fmt::Display for TenantDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{:016x}", self.0)
    }
}

impl FromStr for TenantDir {
    type Err = ();

    fn from_str(text: &str) -> Result<TenantDir, ()> {
        let hex = text.strip_prefix('t').ok_or(())?;
        let tenant = TenantDir(u64::from_str_radix(hex, 16).map_err(|_| ())?);
        if tenant.to_string() == text { Ok(tenant) } else { Err(()) }
    }
}

/// A file in `incoming`, which is removed unless it is moved to its place.
#[derive(Debug)]
struct IncomingFile(PathBuf);

impl IncomingFile {
    fn new(directory: &Path) -> IncomingFile {
        IncomingFile(directory.join(belljar_sys::process::random_name()))
    }

    fn create(directory: &Path) -> io::Result<(IncomingFile, File)> {
        let incoming = IncomingFile::new(directory);
        // Read-only for all but this one descriptor, from the beginning.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o444).open(&incoming.0)?;
        Ok((incoming, file))
    }

    fn move_to(mut self, place: &Path) -> io::Result<()> {
        fs::rename(&self.0, place)?;
        self.0 = PathBuf::new();
        Ok(())
    }
}

impl Drop for IncomingFile {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // Nobody is left to tell, and the next start tries again.
            let _ = fs::remove_file(&self.0);
        }
    }
}

fn copy(from: &File, size: u64, chunk: &mut [u8], to: &mut File) -> io::Result<(Digest, u64)> {
    let mut hasher = Sha256::new();
    let (mut done, mut begun) = (0, 0);
    loop {
        let length = read_chunk(from, done, size, chunk)?;
        if length == 0 {
            return Ok((Digest(hasher.finalize().into()), done));
        }
        hasher.update(&chunk[..length]);
        to.write_all(&chunk[..length])?;
        done += length as u64;
        if done - begun >= WRITEBACK_STEP {
            // Only to be quicker; where it cannot be done, the file is synced all the same.
            let _ = begin_writeback(&*to, begun, done - begun);
            begun = done;
        }
    }
}

fn hash(file: &File) -> io::Result<Digest> {
    let mut hasher = Sha256::new();
    let size = file.metadata()?.len();
    let mut chunk = vec![0; chunk_size(size)];
    let mut done = 0;
    loop {
        match read_chunk(file, done, u64::MAX, &mut chunk)? {
            0 => return Ok(Digest(hasher.finalize().into())),
            length => {
                hasher.update(&chunk[..length]);
                done += length as u64;
            }
        }
    }
}

/// No more than the file needs: most are small.
fn chunk_size(size: u64) -> usize {
    usize::try_from(size).map_or(CHUNK, |size| size.clamp(1, CHUNK))
}

/// Fills `chunk` with what is at `done`, but with nothing beyond `size`. Less than that, or 0, only
/// at the end of the file.
fn read_chunk(from: &File, done: u64, size: u64, chunk: &mut [u8]) -> io::Result<usize> {
    let left = usize::try_from(size - done).unwrap_or(usize::MAX).min(chunk.len());
    let mut filled = 0;
    while filled < left {
        match from.read_at(&mut chunk[filled..left], done + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

/// Whether there is a whole copy at `place`. One of another length was damaged from outside and is
/// replaced by the new one.
fn is_complete(place: &Path, size: u64) -> io::Result<bool> {
    let metadata = unless_gone(fs::symlink_metadata(place))?;
    Ok(metadata.is_some_and(|metadata| metadata.is_file() && metadata.len() == size))
}

fn unless_gone<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        result => result.map(Some),
    }
}

/// What is in a directory: path and name, without what is no text.
fn named(
    directory: &Path,
) -> io::Result<impl Iterator<Item = io::Result<(PathBuf, String)>> + use<>> {
    Ok(fs::read_dir(directory)?.filter_map(|entry| match entry {
        Ok(entry) => entry.file_name().into_string().ok().map(|name| Ok((entry.path(), name))),
        Err(error) => Some(Err(error)),
    }))
}

#[cfg(test)]
mod tests {
    use std::io::{Seek, SeekFrom};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    struct Fixture {
        directory: tempfile::TempDir,
        blobs: Blobs,
    }

    impl Fixture {
        fn new() -> Fixture {
            let directory = tempfile::tempdir().unwrap();
            let blobs = Blobs::open(&directory.path().join("blobs")).unwrap();
            Fixture { directory, blobs }
        }

        fn take(&self, tenant: &str, content: &[u8]) -> Taken {
            let size = content.len() as u64;
            self.blobs.take(tenant, &file_with(content), size).unwrap()
        }

        fn keep(&self, tenant: &str, content: &[u8]) -> Digest {
            let taken = self.take(tenant, content);
            let digest = taken.digest();
            self.blobs.ingesting().keep(vec![taken]).unwrap();
            digest
        }

        fn incoming(&self) -> usize {
            fs::read_dir(self.directory.path().join("blobs/incoming")).unwrap().count()
        }

        fn count(&self) -> usize {
            let mut count = 0;
            let count_one = |_| {
                count += 1;
                Ok(())
            };
            self.blobs.walk(count_one).unwrap();
            count
        }
    }

    fn file_with(content: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(content).unwrap();
        file
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    fn nobody_uses_any(_: &str, digests: &[Digest]) -> io::Result<Vec<bool>> {
        Ok(vec![false; digests.len()])
    }

    fn verify(blobs: &Blobs, tenant: &str, digest: &Digest) -> io::Result<bool> {
        Ok(hash(&blobs.open_blob(tenant, digest)?)? == *digest)
    }

    #[test]
    fn what_is_kept_is_found_by_its_content() {
        let fixture = Fixture::new();
        let digest = fixture.keep("acme", b"abc");
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(digest.to_string(), hex);
        let path = fixture.blobs.path("acme", &digest);
        let expected = format!("blobs/{}/ba/{hex}", tenant_dir("acme"));
        assert_eq!(path, fixture.directory.path().join(expected));
        assert_eq!(fs::read(&path).unwrap(), b"abc");
        assert_eq!(mode(&path), 0o444);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        assert_eq!(mode(path.parent().unwrap().parent().unwrap()), 0o700);
        assert_eq!(mode(&fixture.directory.path().join("blobs/incoming")), 0o700);
        assert_eq!(
            io::read_to_string(fixture.blobs.open_blob("acme", &digest).unwrap()).unwrap(),
            "abc"
        );
        assert_eq!(fixture.incoming(), 0);
    }

    #[test]
    fn the_same_content_is_kept_once_for_each_tenant() {
        let fixture = Fixture::new();
        let digest = fixture.keep("a", b"same");
        let before = fixture.blobs.open_blob("a", &digest).unwrap().metadata().unwrap();
        let twice = vec![fixture.take("a", b"same"), fixture.take("a", b"same")];
        fixture.blobs.ingesting().keep(twice).unwrap();
        let after = fixture.blobs.open_blob("a", &digest).unwrap().metadata().unwrap();
        assert_eq!(before.ino(), after.ino(), "the old copy stays");
        assert_eq!(fixture.incoming(), 0, "the new copies are gone");
        let missing = fixture.blobs.open_blob("b", &digest).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound, "tenants share nothing");
        fixture.keep("b", b"same");
        assert_eq!(fixture.count(), 2);
    }

    #[test]
    fn a_file_is_taken_from_its_beginning_and_to_its_size() {
        let fixture = Fixture::new();
        let mut file = file_with(b"0123456789");
        file.seek(SeekFrom::Start(7)).unwrap();
        let of = |content: &[u8]| Digest(Sha256::digest(content).into());
        let grown = fixture.blobs.take("a", &file, 4).unwrap();
        assert_eq!((grown.digest(), grown.size()), (of(b"0123"), 4));
        let shorter = fixture.blobs.take("a", &file, 1 << 40).unwrap();
        assert_eq!((shorter.digest(), shorter.size()), (of(b"0123456789"), 10));
        let empty = fixture.blobs.take("a", &file, 0).unwrap();
        assert_eq!((empty.digest(), empty.size()), (of(b""), 0));
        let empty = fixture.blobs.take("a", &file_with(b""), 100).unwrap();
        assert_eq!((empty.digest(), empty.size()), (of(b""), 0));
        fixture.blobs.ingesting().keep(vec![grown, shorter, empty]).unwrap();
        assert_eq!(fixture.count(), 3);
    }

    #[test]
    fn large_files_are_taken_whole() {
        let fixture = Fixture::new();
        let content: Vec<u8> = (0..=250).cycle().take(4 * CHUNK + 123).collect();
        let digest = fixture.keep("a", &content);
        assert_eq!(digest, Digest(Sha256::digest(&content).into()));
        assert!(verify(&fixture.blobs, "a", &digest).unwrap());
        assert_eq!(fixture.keep("a", &content), digest);
        assert_eq!((fixture.count(), fixture.incoming()), (1, 0));
        // Exactly one chunk, and cut to one chunk.
        let file = file_with(&content);
        let one = fixture.blobs.take("a", &file, CHUNK as u64).unwrap();
        assert_eq!(one.digest(), Digest(Sha256::digest(&content[..CHUNK]).into()));
        let more = fixture.blobs.take("a", &file, CHUNK as u64 + 1).unwrap();
        assert_eq!(more.digest(), Digest(Sha256::digest(&content[..=CHUNK]).into()));
    }

    #[test]
    fn many_are_kept_together() {
        let fixture = Fixture::new();
        let many = 3 * FEW;
        let taken = (0..many).map(|n| fixture.take("a", &n.to_le_bytes())).collect();
        fixture.blobs.ingesting().keep(taken).unwrap();
        assert_eq!(fixture.count(), many);
        assert_eq!(fixture.incoming(), 0);
        // Those whose copying began before the disk failed are not believed to be on it.
        let taken = (0..many).map(|n| fixture.take("b", &n.to_le_bytes())).collect();
        fixture.blobs.0.failures.fetch_add(1, Ordering::SeqCst);
        assert!(fixture.blobs.ingesting().keep(taken).is_err());
        assert_eq!((fixture.count(), fixture.incoming()), (many, 0));
    }

    #[test]
    fn what_is_not_kept_leaves_nothing() {
        let fixture = Fixture::new();
        let taken = fixture.take("a", b"x");
        assert_eq!(fixture.incoming(), 1);
        drop(taken);
        assert_eq!(fixture.incoming(), 0);
        let unreadable = File::open(fixture.directory.path()).unwrap();
        assert!(fixture.blobs.take("a", &unreadable, 100).is_err());
        assert_eq!(fixture.incoming(), 0);
        // As if killed.
        std::mem::forget(fixture.take("a", b"x"));
        let digest = fixture.keep("a", b"y");
        assert_eq!(fixture.incoming(), 1);
        let again = Blobs::open(&fixture.directory.path().join("blobs")).unwrap();
        assert_eq!(fixture.incoming(), 0);
        assert!(verify(&again, "a", &digest).unwrap());
    }

    #[test]
    fn damage_is_noticed_and_a_torn_copy_replaced() {
        let fixture = Fixture::new();
        let digest = fixture.keep("a", b"good");
        let path = fixture.blobs.path("a", &digest);
        assert!(verify(&fixture.blobs, "a", &digest).unwrap());
        for (damage, healed) in [(&b"evil"[..], false), (b"goo", true)] {
            fs::remove_file(&path).unwrap();
            fs::write(&path, damage).unwrap();
            assert!(!verify(&fixture.blobs, "a", &digest).unwrap());
            let mut intact = Vec::new();
            let look = |stored: Stored| {
                intact.push(stored.is_intact()?);
                Ok(())
            };
            fixture.blobs.walk(look).unwrap();
            assert_eq!(intact, [false]);
            fixture.keep("a", b"good");
            assert_eq!(verify(&fixture.blobs, "a", &digest).unwrap(), healed);
        }
        let missing = Digest([0; 32]);
        assert!(verify(&fixture.blobs, "a", &missing).is_err());
    }

    #[test]
    fn a_sweep_removes_what_nobody_uses() {
        let fixture = Fixture::new();
        let used = fixture.keep("a", b"used");
        fixture.keep("a", b"unused");
        fixture.keep("b", b"used");
        let root = fixture.directory.path().join("blobs");
        let strangers = [
            root.join("notes.txt"),
            root.join("t0123456789abcdef"),
            root.join(tenant_dir("a")).join("README"),
            fixture.blobs.path("a", &used).with_file_name("lost+found"),
        ];
        strangers.iter().for_each(|path| fs::write(path, b"mine").unwrap());
        let mut asked = Vec::new();
        let swept = fixture.blobs.sweep(|tenant, digests| {
            asked.push((tenant.to_owned(), digests.len()));
            Ok(digests.iter().map(|digest| tenant == tenant_dir("a") && *digest == used).collect())
        });
        assert_eq!(swept.unwrap(), Swept { blobs: 2, bytes: 10 });
        asked.sort();
        let mut expected = [(tenant_dir("a"), 2), (tenant_dir("b"), 1)];
        expected.sort();
        assert_eq!(asked, expected);
        assert!(verify(&fixture.blobs, "a", &used).unwrap());
        assert_eq!((fixture.count(), fixture.incoming()), (1, 0));
        assert!(strangers.iter().all(|path| path.exists()));
    }

    #[test]
    fn a_sweep_that_gets_no_answer_removes_nothing() {
        let fixture = Fixture::new();
        fixture.keep("a", b"x");
        assert!(fixture.blobs.sweep(|_, _| Err(io::Error::other("no catalog"))).is_err());
        assert!(fixture.blobs.sweep(|_, _| Ok(vec![])).is_err());
        assert_eq!(fixture.count(), 1);
        assert_eq!(fixture.blobs.sweep(nobody_uses_any).unwrap().blobs, 1);
    }

    #[test]
    fn many_blobs_are_swept_in_batches() {
        let fixture = Fixture::new();
        let many = SWEEP_BATCH * 2 + 1;
        let taken = (0..many).map(|n| fixture.take("a", &n.to_le_bytes())).collect();
        fixture.blobs.ingesting().keep(taken).unwrap();
        let mut asked = Vec::new();
        let swept = fixture.blobs.sweep(|_, digests| {
            asked.push(digests.len());
            nobody_uses_any("", digests)
        });
        assert_eq!(swept.unwrap().blobs, many as u64);
        assert_eq!(asked, [SWEEP_BATCH, SWEEP_BATCH, 1]);
        assert_eq!((fixture.count(), fixture.incoming()), (0, 0));
    }

    #[test]
    fn small_content_that_is_there_is_not_written_again_and_stays() {
        let fixture = Fixture::new();
        let digest = fixture.keep("a", b"old");
        let taken = fixture.take("a", b"old");
        assert_eq!(fixture.incoming(), 0, "nothing was written");
        assert_eq!(fixture.blobs.sweep(nobody_uses_any).unwrap(), Swept::default());
        let mut ingest = fixture.blobs.ingesting();
        ingest.keep(vec![taken]).unwrap();
        assert_eq!(fixture.blobs.sweep(nobody_uses_any).unwrap(), Swept::default());
        assert!(verify(&fixture.blobs, "a", &digest).unwrap());
        drop(ingest);
        drop(fixture.take("a", b"old"));
        assert_eq!(fixture.blobs.sweep(nobody_uses_any).unwrap().blobs, 1);
    }

    #[test]
    fn what_an_ingest_holds_is_not_swept() {
        let fixture = Fixture::new();
        let digest = fixture.keep("a", b"old");
        let mut ingest = fixture.blobs.ingesting();
        ingest.keep(vec![fixture.take("a", b"old")]).unwrap();
        assert_eq!(fixture.blobs.sweep(nobody_uses_any).unwrap(), Swept::default());
        assert!(verify(&fixture.blobs, "a", &digest).unwrap());
        drop(ingest);
        assert_eq!(fixture.blobs.sweep(nobody_uses_any).unwrap().blobs, 1);
    }

    #[test]
    fn what_an_ingest_decides_to_use_during_a_sweep_is_not_swept() {
        let fixture = Fixture::new();
        let digest = fixture.keep("a", b"old");
        let swept = fixture.blobs.sweep(|_, digests| {
            // The catalog was read; now somebody uses it, writes that down and lets go.
            fixture.keep("a", b"old");
            nobody_uses_any("", digests)
        });
        assert_eq!(swept.unwrap(), Swept::default());
        assert!(verify(&fixture.blobs, "a", &digest).unwrap());
    }

    /// Ingests and sweeps as fast as they can, with a catalog of their own. Nothing that the
    /// catalog has is ever missing.
    #[test]
    fn sweeps_and_ingests_get_along() {
        let fixture = Fixture::new();
        let catalog = Mutex::new(HashSet::new());
        let done = AtomicU64::new(0);
        let ingesters = 2;
        std::thread::scope(|scope| {
            for _ in 0..ingesters {
                scope.spawn(|| {
                    for round in 0..60u8 {
                        let taken = fixture.take("a", &[round % 3]);
                        let digest = taken.digest();
                        let mut ingest = fixture.blobs.ingesting();
                        ingest.keep(vec![taken]).unwrap();
                        let mut catalog = crate::lock(&catalog);
                        catalog.insert(digest);
                        drop(ingest);
                        assert!(verify(&fixture.blobs, "a", &digest).unwrap());
                        // Nobody uses it any more: sweeps have something to do.
                        catalog.remove(&digest);
                    }
                    done.fetch_add(1, Ordering::SeqCst);
                });
            }
            while done.load(Ordering::SeqCst) < ingesters {
                let asked = |_: &str, digests: &[Digest]| {
                    let catalog = crate::lock(&catalog);
                    Ok(digests.iter().map(|digest| catalog.contains(digest)).collect())
                };
                fixture.blobs.sweep(asked).unwrap();
            }
        });
    }

    #[test]
    fn an_ingest_can_be_held_across_threads() {
        fn sendable<T: Send + Sync + 'static>() {}
        sendable::<(Blobs, Ingest, Taken)>();
    }
}
