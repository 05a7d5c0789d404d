//! The files of one session's snapshots. Everything here blocks; async code uses
//! [`SessionSnapshots`](super::SessionSnapshots).

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar_proto::exec::Language;
use belljar_runtime::{MemoryLayer, MemorySnapshot, common_layer, languages};
use belljar_sys::tree;
use serde::{Deserialize, Serialize};

use super::disk_usage::KeptFile;

/// A file in a directory of snapshots that is only a cache.
const CACHE_MARK: &str = "cache";

/// The description of a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotManifest {
    /// Later snapshots have higher numbers.
    pub(crate) id: u64,
    pub(crate) made_ms: i64,
    /// The execution after which it was taken, if it is a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exec: Option<String>,
    /// Numbers of the memory layers that the index of its Python kernel refers to; `None` if there was no kernel, or it
    /// could not be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layers: Option<Vec<u64>>,
    /// Number of the archive of its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<u64>,
    /// The guest's fingerprint of all files when the snapshot was taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fingerprint: Option<u64>,
    /// Kernels that could not be kept, and the reasons.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gone: Vec<(Language, String)>,
    /// What else was left out because the caller forced the snapshot.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<String>,
    /// Bytes that this snapshot added.
    pub(crate) bytes: u64,
}

impl SnapshotManifest {
    /// A description of each part of the session that is missing in it.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let kernels = self.gone.iter().map(|(language, reason)| {
            let name = languages::name(*language);
            format!("the variables of the {name} kernel: it {reason}")
        });
        kernels.chain(self.lost.iter().cloned()).collect()
    }

    /// The files that it consists of, each by a number and a kind.
    pub(super) fn parts(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let layers = self.layers.iter().flatten().map(|id| (*id, "pages"));
        let index = self.layers.as_ref().map(|_| (self.id, "index"));
        layers.chain(index).chain(self.files.map(|id| (id, "files")))
    }
}

/// The directory with the snapshots of one session; it need not exist.
#[derive(Debug, Clone)]
pub(crate) struct SnapshotFiles {
    directory: PathBuf,
}

/// A snapshot that is being taken: to be finished, or discarded.
#[derive(Debug)]
pub(super) struct Draft {
    files: SnapshotFiles,
    id: u64,
    finished: bool,
}

/// Only the server's user may read it, because it has memory and files of users.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl SnapshotFiles {
    pub(super) fn new(directory: PathBuf) -> SnapshotFiles {
        SnapshotFiles { directory }
    }

    /// All snapshots, the oldest first.
    pub(crate) fn list(&self) -> Vec<SnapshotManifest> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let mut snapshots: Vec<SnapshotManifest> = entries
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|end| end == "json"))
            .filter_map(|entry| serde_json::from_slice(&fs::read(entry.path()).ok()?).ok())
            .collect();
        snapshots.sort_by_key(|manifest| manifest.id);
        snapshots
    }

    /// The last snapshot that is not a checkpoint.
    pub(super) fn last(&self) -> Option<SnapshotManifest> {
        self.list().into_iter().rfind(|manifest| manifest.exec.is_none())
    }

    pub(super) fn get(&self, id: u64) -> Option<SnapshotManifest> {
        serde_json::from_slice(&fs::read(self.path(id, "json")).ok()?).ok()
    }

    /// The checkpoint of an execution.
    pub(super) fn checkpoint(&self, exec: &str) -> Option<SnapshotManifest> {
        let is_it = |manifest: &SnapshotManifest| manifest.exec.as_deref() == Some(exec);
        self.list().into_iter().rfind(is_it)
    }

    /// Makes the directory.
    pub(super) fn make(&self) -> io::Result<()> {
        make_directory(&self.directory)
    }

    /// Makes a snapshot visible whose files are in place, as the last one of the session. It need not survive a power
    /// cut.
    ///
    /// Snapshots that another owner of the session never had are removed: newer ones, and all if this one is not here
    /// yet.
    pub(super) fn publish(&self, manifest: &SnapshotManifest) -> io::Result<()> {
        let was_here = self.get(manifest.id).as_ref() == Some(manifest);
        if !was_here {
            self.write(manifest, false)?;
        }
        let is_other = |id: &u64| if was_here { *id > manifest.id } else { *id != manifest.id };
        let ids = self.list().into_iter().map(|other| other.id);
        self.forget(&ids.filter(is_other).collect::<Vec<u64>>())
    }

    /// Makes a checkpoint visible whose files are in place. It need not survive a power cut.
    pub(super) fn add_checkpoint(&self, manifest: &SnapshotManifest) -> io::Result<()> {
        self.write(manifest, false)
    }

    pub(super) fn begin(&self, id: u64) -> io::Result<Draft> {
        make_directory(&self.directory)?;
        Ok(Draft { files: self.clone(), id, finished: false })
    }

    /// The Python kernel of a snapshot.
    pub(super) fn kernel(&self, manifest: &SnapshotManifest) -> io::Result<Option<MemorySnapshot>> {
        let Some(layers) = &manifest.layers else { return Ok(None) };
        let open =
            |id: &u64| Ok(MemoryLayer { id: *id, pages: File::open(self.path(*id, "pages"))? });
        let layers = layers.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Some(MemorySnapshot { index: File::open(self.path(manifest.id, "index"))?, layers }))
    }

    /// The archive of a snapshot.
    pub(super) fn archive(&self, manifest: &SnapshotManifest) -> io::Result<Option<File>> {
        manifest.files.map(|id| File::open(self.path(id, "files"))).transpose()
    }

    /// Makes sure that a layer exists to which a kernel refers. A layer that sessions share is linked into this
    /// directory.
    pub(super) fn require_layer(&self, id: u64, commons: &Path) -> io::Result<()> {
        let own = self.path(id, "pages");
        match common_layer(commons, id) {
            Some(common) if !own.exists() => fs::hard_link(common, own),
            _ => fs::metadata(own).map(drop),
        }
    }

    /// Removes snapshots, and files that only they needed.
    pub(crate) fn forget(&self, ids: &[u64]) -> io::Result<()> {
        for id in ids {
            remove_file(&self.path(*id, "json"))?;
        }
        self.sweep()
    }

    /// Removes snapshots older than this one that are not checkpoints.
    pub(crate) fn forget_before(&self, newest: u64) -> io::Result<()> {
        let snapshots = self.list().into_iter();
        let earlier = snapshots.filter(|other| other.exec.is_none() && other.id < newest);
        let earlier: Vec<u64> = earlier.map(|other| other.id).collect();
        self.forget(&earlier)
    }

    /// Marks the directory as a cache: another node may have the session, so its snapshots here may be old. The next
    /// [`publish`](Self::publish) removes the mark.
    pub(super) fn mark_as_cache(&self) -> io::Result<()> {
        match File::create(self.directory.join(CACHE_MARK)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            marked => marked.map(drop),
        }
    }

    pub(super) fn is_cache(&self) -> bool {
        self.directory.join(CACHE_MARK).exists()
    }

    /// Removes files to which no snapshot refers, except open ones: if removed, they would take disk space without
    /// being counted.
    pub(super) fn sweep(&self) -> io::Result<()> {
        let mut needed = HashSet::new();
        for manifest in self.list() {
            needed.insert(self.path(manifest.id, "json"));
            needed.extend(manifest.parts().map(|(id, kind)| self.path(id, kind)));
        }
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            if !needed.contains(&path) {
                remove_unless_open(&path)?;
            }
        }
        Ok(())
    }

    /// Links a snapshot into another directory.
    pub(super) fn share(
        &self,
        manifest: &SnapshotManifest,
        with: &SnapshotFiles,
    ) -> io::Result<()> {
        make_directory(&with.directory)?;
        for (id, kind) in manifest.parts() {
            match fs::hard_link(self.path(id, kind), with.path(id, kind)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        // In the other session, which begins with it, the snapshot is not a checkpoint.
        with.write(&SnapshotManifest { exec: None, ..manifest.clone() }, false)
    }

    /// A second snapshot with the same content, which is not a checkpoint.
    pub(crate) fn repeat(
        &self,
        manifest: &SnapshotManifest,
        id: u64,
    ) -> io::Result<SnapshotManifest> {
        if manifest.layers.is_some() {
            fs::hard_link(self.path(manifest.id, "index"), self.path(id, "index"))?;
        }
        let again = SnapshotManifest { id, exec: None, bytes: 0, ..manifest.clone() };
        self.write(&again, true)?;
        Ok(again)
    }

    /// Every file, with its size on the disk.
    pub(super) fn on_disk(&self) -> Vec<KeptFile> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let kept = |entry: fs::DirEntry| {
            let metadata = entry.metadata().ok()?;
            let name = entry.file_name();
            let common =
                name.to_str().and_then(|name| name.split_once('.')).is_some_and(|(id, _)| {
                    id.parse().is_ok_and(|id| common_layer(&self.directory, id).is_some())
                });
            Some(KeptFile { inode: metadata.ino(), bytes: on_disk(&metadata), common })
        };
        entries.flatten().filter_map(kept).collect()
    }

    /// Bytes on the disk of the files that these snapshots need, without layers that sessions share.
    pub(crate) fn bytes_of(&self, snapshots: &[SnapshotManifest]) -> u64 {
        let parts = snapshots.iter().flat_map(SnapshotManifest::parts);
        let own = parts.filter(|(id, _)| common_layer(&self.directory, *id).is_none());
        let needed: HashSet<PathBuf> = own.map(|(id, kind)| self.path(id, kind)).collect();
        needed.iter().filter_map(|path| Some(on_disk(&fs::metadata(path).ok()?))).sum()
    }

    /// Removes everything. Files that no other session needs are emptied, so that their disk space is free at once even
    /// if a process has them open. The session's sandbox is gone, so no process needs their content.
    pub(super) fn remove(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            let file = File::options().write(true).open(&path);
            // The links are counted after the removal: if two sessions remove theirs at the same time, one of them sees
            // that none is left.
            remove_file(&path)?;
            if let Ok(file) = file
                && file.metadata()?.nlink() == 0
            {
                file.set_len(0)?;
            }
        }
        fs::remove_dir_all(&self.directory)
    }

    fn finish_draft(&self, manifest: &mut SnapshotManifest, sync: bool) -> io::Result<()> {
        manifest.bytes = 0;
        for kind in ["pages", "index", "files"] {
            let Ok(file) = File::open(self.path(manifest.id, kind)) else { continue };
            manifest.bytes += on_disk(&file.metadata()?);
            if sync {
                file.sync_all()?;
            }
        }
        self.write(manifest, sync)
    }

    fn remove_draft(&self, id: u64) {
        for kind in ["pages", "index", "files", "new"] {
            let _ = remove_unless_open(&self.path(id, kind));
        }
    }

    pub(super) fn path(&self, id: u64, kind: &str) -> PathBuf {
        self.directory.join(format!("{id}.{kind}"))
    }

    /// Writes the manifest, which makes the snapshot visible. With `sync` it survives a power cut.
    fn write(&self, manifest: &SnapshotManifest, sync: bool) -> io::Result<()> {
        let fresh = self.path(manifest.id, "new");
        remove_file(&fresh)?;
        let mut file = create(&fresh)?;
        file.write_all(&serde_json::to_vec(manifest)?)?;
        if sync {
            file.sync_all()?;
        }
        fs::rename(fresh, self.path(manifest.id, "json"))?;
        if sync {
            File::open(&self.directory)?.sync_all()?;
            if let Some(above) = self.directory.parent() {
                File::open(above)?.sync_all()?;
            }
        }
        Ok(())
    }
}

impl Draft {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// The path of its file of a kind (`pages`, `index`, `files`).
    pub(super) fn path(&self, kind: &str) -> PathBuf {
        self.files.path(self.id, kind)
    }

    /// Removes what was written.
    pub(super) fn discard(mut self) {
        self.finished = true;
        self.files.remove_draft(self.id);
    }

    /// Makes the snapshot visible. All its files must be complete.
    pub(super) fn finish(
        mut self,
        mut manifest: SnapshotManifest,
        sync: bool,
    ) -> io::Result<SnapshotManifest> {
        self.finished = true;
        let finished = self.files.finish_draft(&mut manifest, sync);
        if finished.is_err() {
            self.files.remove_draft(self.id);
        }
        finished.map(|()| manifest)
    }
}

impl Drop for Draft {
    /// An unfinished draft is normally discarded explicitly. This is for a task that is aborted half-way.
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let (files, id) = (self.files.clone(), self.id);
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(move || files.remove_draft(id))),
            Err(_) => files.remove_draft(id),
        }
    }
}

/// Creates a file of a snapshot, which must not exist.
pub(super) fn create(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
}

/// The size of a file on the disk.
fn on_disk(metadata: &fs::Metadata) -> u64 {
    const BLOCK: u64 = 512;
    metadata.blocks() * BLOCK
}

/// Removes a file, unless it is open elsewhere: in a kernel that uses a layer, or in code that holds its descriptor.
/// While it exists it is counted.
fn remove_unless_open(path: &Path) -> io::Result<()> {
    match File::open(path) {
        Ok(file) if tree::is_open_elsewhere(&file) => Ok(()),
        _ => remove_file(path),
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(id: u64, layers: &[u64]) -> SnapshotManifest {
        SnapshotManifest {
            id,
            made_ms: 0,
            exec: None,
            layers: Some(layers.to_vec()),
            files: Some(id),
            fingerprint: None,
            gone: Vec::new(),
            lost: Vec::new(),
            bytes: 0,
        }
    }

    fn take(snapshots: &SnapshotFiles, id: u64, layers: &[u64]) -> SnapshotManifest {
        let draft = snapshots.begin(id).unwrap();
        for kind in ["pages", "index", "files"] {
            create(&draft.path(kind)).unwrap().write_all(b"1234").unwrap();
        }
        draft.finish(manifest(id, layers), true).unwrap()
    }

    /// The disk space of a file with a few bytes.
    const BLOCKS: u64 = 4096;

    fn names(snapshots: &SnapshotFiles) -> Vec<String> {
        let entries = fs::read_dir(&snapshots.directory).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_snapshot_exists_completely_or_not_at_all() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = SnapshotFiles::new(root.path().join("ses_1"));
        assert_eq!(snapshots.last(), None);
        let draft = snapshots.begin(1).unwrap();
        create(&draft.path("pages")).unwrap();
        drop(draft);
        assert!(names(&snapshots).is_empty(), "the unfinished snapshot is gone");
        let first = take(&snapshots, 2, &[2]);
        assert_eq!((snapshots.last(), first.bytes), (Some(first.clone()), 3 * BLOCKS));
        // Simulates a server that was killed half-way.
        let draft = snapshots.begin(3).unwrap();
        create(&draft.path("pages")).unwrap();
        std::mem::forget(draft);
        fs::write(snapshots.path(3, "new"), "{").unwrap();
        snapshots.sweep().unwrap();
        assert_eq!(names(&snapshots), ["2.files", "2.index", "2.json", "2.pages"]);
        assert_eq!(snapshots.kernel(&first).unwrap().unwrap().layers.len(), 1);
    }

    #[test]
    fn a_layer_stays_as_long_as_a_snapshot_needs_it() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = SnapshotFiles::new(root.path().join("ses_1"));
        take(&snapshots, 1, &[1]);
        take(&snapshots, 2, &[1, 2]);
        snapshots.forget(&[1]).unwrap();
        assert_eq!(names(&snapshots), ["1.pages", "2.files", "2.index", "2.json", "2.pages"]);
        take(&snapshots, 3, &[3]);
        snapshots.forget(&[2]).unwrap();
        assert_eq!(names(&snapshots), ["3.files", "3.index", "3.json", "3.pages"]);
    }

    #[test]
    fn a_layer_that_is_open_is_kept_and_counted() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = SnapshotFiles::new(root.path().join("ses_1"));
        take(&snapshots, 1, &[1]);
        take(&snapshots, 2, &[2]);
        let held = File::open(snapshots.path(1, "pages")).unwrap();
        snapshots.forget(&[1]).unwrap();
        assert_eq!(names(&snapshots), ["1.pages", "2.files", "2.index", "2.json", "2.pages"]);
        assert_eq!(snapshots.on_disk().iter().map(|file| file.bytes).sum::<u64>(), 5 * BLOCKS);
        // While another session has the file, it stays complete. After that it is empty for processes that have it
        // open.
        let other = SnapshotFiles::new(root.path().join("ses_2"));
        make_directory(&other.directory).unwrap();
        fs::hard_link(snapshots.path(1, "pages"), other.path(1, "pages")).unwrap();
        snapshots.remove().unwrap();
        assert_eq!(held.metadata().unwrap().len(), 4);
        other.sweep().unwrap();
        assert_eq!(names(&other), ["1.pages"]);
        other.remove().unwrap();
        assert_eq!((held.metadata().unwrap().len(), on_disk(&held.metadata().unwrap())), (0, 0));
        assert!(!other.directory.exists() && !snapshots.directory.exists());
    }

    #[test]
    fn a_draft_that_is_open_stays_until_it_is_closed() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = SnapshotFiles::new(root.path().join("ses_1"));
        let draft = snapshots.begin(1).unwrap();
        create(&draft.path("pages")).unwrap().write_all(b"1234").unwrap();
        create(&draft.path("index")).unwrap();
        let held = File::open(draft.path("pages")).unwrap();
        drop(draft);
        assert_eq!(names(&snapshots), ["1.pages"]);
        drop(held);
        snapshots.sweep().unwrap();
        assert!(names(&snapshots).is_empty());
    }

    #[test]
    fn a_cache_is_no_longer_one_when_a_snapshot_is_published() {
        let directory = tempfile::tempdir().unwrap();
        let snapshots = SnapshotFiles::new(directory.path().join("s"));
        snapshots.mark_as_cache().unwrap();
        assert!(!snapshots.is_cache(), "nothing is there");
        let old = take(&snapshots, 1, &[]);
        snapshots.mark_as_cache().unwrap();
        assert!(snapshots.is_cache());
        snapshots.publish(&old).unwrap();
        assert!(!snapshots.is_cache());
    }

    #[test]
    fn a_shared_snapshot_outlives_either_session() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) =
            (SnapshotFiles::new(root.path().join("a")), SnapshotFiles::new(root.path().join("b")));
        let taken = take(&one, 1, &[1]);
        one.share(&taken, &other).unwrap();
        one.remove().unwrap();
        assert_eq!(other.last(), Some(taken.clone()));
        assert!(
            other.kernel(&taken).unwrap().is_some() && other.archive(&taken).unwrap().is_some()
        );
    }
}
