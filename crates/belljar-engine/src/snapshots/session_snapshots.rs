//! The snapshots of one session.

use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use belljar_proto::exec::Language;
use belljar_runtime::{Layer, MemorySnapshot, common_layer, languages};
use belljar_sys::tree;
use serde::{Deserialize, Serialize};

use super::disk_usage::Kept;

/// What a snapshot shows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Later ones have higher numbers.
    pub(crate) id: u64,
    pub(crate) made_ms: i64,
    /// The execution after which it was taken, where it is a checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exec: Option<String>,
    /// Numbers of the layers that the index of its Python kernel speaks of and that are ours; none
    /// if there was no kernel, or it could not be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) layers: Option<Vec<u64>>,
    /// Number of the archive of its files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) files: Option<u64>,
    /// What the guest said of all files then, in one number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) fingerprint: Option<u64>,
    /// Kernels that could not be kept, and what became of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) gone: Vec<(Language, String)>,
    /// What else was left out because it was told to go on without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<String>,
    /// Bytes that this one added.
    pub(crate) bytes: u64,
}

impl Manifest {
    /// What is missing in it of what the session was, each in words.
    pub(crate) fn left_out(&self) -> Vec<String> {
        let kernels = self.gone.iter().map(|(language, reason)| {
            let name = languages::name(*language);
            format!("the variables of the {name} kernel: it {reason}")
        });
        kernels.chain(self.lost.iter().cloned()).collect()
    }

    /// The files that it is made of, each by a number and a kind.
    fn parts(&self) -> impl Iterator<Item = (u64, &'static str)> {
        let layers = self.layers.iter().flatten().map(|id| (*id, "pages"));
        let index = self.layers.as_ref().map(|_| (self.id, "index"));
        layers.chain(index).chain(self.files.map(|id| (id, "files")))
    }
}

/// A directory with snapshots; it need not be there.
#[derive(Debug, Clone)]
pub(crate) struct SessionSnapshots {
    directory: PathBuf,
}

/// A snapshot that is being taken; removed if it does not come to its end.
#[derive(Debug)]
pub(crate) struct Draft {
    snapshots: SessionSnapshots,
    id: u64,
    finished: bool,
}

/// A snapshot on its own, for as long as somebody makes sessions of it.
#[derive(Debug)]
pub(crate) struct ForkSource {
    pub(crate) snapshots: SessionSnapshots,
    pub(crate) manifest: Manifest,
}

/// Only the server's user may look: memory and files of others are in there.
pub(super) fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

impl SessionSnapshots {
    pub(super) fn new(directory: PathBuf) -> SessionSnapshots {
        SessionSnapshots { directory }
    }

    /// All snapshots, the oldest first.
    pub(crate) fn list(&self) -> Vec<Manifest> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let mut snapshots: Vec<Manifest> = entries
            .flatten()
            .filter(|entry| entry.path().extension().is_some_and(|end| end == "json"))
            .filter_map(|entry| serde_json::from_slice(&fs::read(entry.path()).ok()?).ok())
            .collect();
        snapshots.sort_by_key(|manifest| manifest.id);
        snapshots
    }

    /// The last that is no checkpoint.
    pub(crate) fn last(&self) -> Option<Manifest> {
        self.list().into_iter().rfind(|manifest| manifest.exec.is_none())
    }

    pub(crate) fn get(&self, id: u64) -> Option<Manifest> {
        serde_json::from_slice(&fs::read(self.path(id, "json")).ok()?).ok()
    }

    /// That which was taken after an execution.
    pub(crate) fn checkpoint(&self, exec: &str) -> Option<Manifest> {
        let is_it = |manifest: &Manifest| manifest.exec.as_deref() == Some(exec);
        self.list().into_iter().rfind(is_it)
    }

    pub(crate) fn begin(&self, id: u64) -> io::Result<Draft> {
        make_directory(&self.directory)?;
        Ok(Draft { snapshots: self.clone(), id, finished: false })
    }

    /// The Python kernel of a snapshot, as the runtime wants it.
    pub(crate) fn kernel(&self, manifest: &Manifest) -> io::Result<Option<MemorySnapshot>> {
        let Some(layers) = &manifest.layers else { return Ok(None) };
        let open = |id: &u64| Ok(Layer { id: *id, pages: File::open(self.path(*id, "pages"))? });
        let layers = layers.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Some(MemorySnapshot { index: File::open(self.path(manifest.id, "index"))?, layers }))
    }

    /// The archive of a snapshot.
    pub(crate) fn archive(&self, manifest: &Manifest) -> io::Result<Option<File>> {
        manifest.files.map(|id| File::open(self.path(id, "files"))).transpose()
    }

    /// Makes sure that a layer is there that a kernel says it needs: one that many share is shared with
    /// this snapshots too.
    pub(super) fn require_layer(&self, id: u64, commons: &Path) -> io::Result<()> {
        let own = self.path(id, "pages");
        match common_layer(commons, id) {
            Some(common) if !own.exists() => fs::hard_link(common, own),
            _ => fs::metadata(own).map(drop),
        }
    }

    /// Removes snapshots, and what only they needed.
    pub(crate) fn forget(&self, ids: &[u64]) -> io::Result<()> {
        for id in ids {
            remove_file(&self.path(*id, "json"))?;
        }
        self.sweep()
    }

    /// Removes files that no snapshot speaks of, but for those that somebody has open: they would take room on the disk
    /// without being seen.
    pub(crate) fn sweep(&self) -> io::Result<()> {
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

    /// Shares a snapshot with another snapshots.
    pub(crate) fn share(&self, manifest: &Manifest, with: &SessionSnapshots) -> io::Result<()> {
        make_directory(&with.directory)?;
        for (id, kind) in manifest.parts() {
            match fs::hard_link(self.path(id, kind), with.path(id, kind)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        // In the other it is where it begins, and no checkpoint.
        with.write(&Manifest { exec: None, ..manifest.clone() }, false)
    }

    /// The same snapshot once more, with another number, and no checkpoint.
    pub(crate) fn repeat(&self, manifest: &Manifest, id: u64) -> io::Result<Manifest> {
        if manifest.layers.is_some() {
            fs::hard_link(self.path(manifest.id, "index"), self.path(id, "index"))?;
        }
        let again = Manifest { id, exec: None, bytes: 0, ..manifest.clone() };
        self.write(&again, true)?;
        Ok(again)
    }

    /// Everything in it, as the disk has it.
    pub(super) fn files(&self) -> Vec<Kept> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let kept = |entry: fs::DirEntry| {
            let metadata = entry.metadata().ok()?;
            let name = entry.file_name();
            let common =
                name.to_str().and_then(|name| name.split_once('.')).is_some_and(|(id, _)| {
                    id.parse().is_ok_and(|id| common_layer(&self.directory, id).is_some())
                });
            Some(Kept { inode: metadata.ino(), bytes: on_disk(&metadata), common })
        };
        entries.flatten().filter_map(kept).collect()
    }

    /// Bytes on the disk of what these snapshots need of their own.
    pub(crate) fn bytes_of(&self, snapshots: &[Manifest]) -> u64 {
        let parts = snapshots.iter().flat_map(Manifest::parts);
        let own = parts.filter(|(id, _)| common_layer(&self.directory, *id).is_none());
        let needed: HashSet<PathBuf> = own.map(|(id, kind)| self.path(id, kind)).collect();
        needed.iter().filter_map(|path| Some(on_disk(&fs::metadata(path).ok()?))).sum()
    }

    /// Removes all of it. No sandbox that it is of is alive, so whoever still has a file open that no other snapshots has
    /// gets nothing more of it, and the disk is free at once.
    pub(crate) fn remove(&self) -> io::Result<()> {
        let entries = match fs::read_dir(&self.directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let path = entry?.path();
            let file = File::options().write(true).open(&path);
            // Afterwards, so that one of two who remove links at the same time finds that none is left.
            remove_file(&path)?;
            if let Ok(file) = file
                && file.metadata()?.nlink() == 0
            {
                file.set_len(0)?;
            }
        }
        fs::remove_dir_all(&self.directory)
    }

    fn path(&self, id: u64, kind: &str) -> PathBuf {
        self.directory.join(format!("{id}.{kind}"))
    }

    fn create(&self, id: u64, kind: &str) -> io::Result<File> {
        let path = self.path(id, kind);
        File::options().read(true).write(true).create_new(true).mode(0o600).open(path)
    }

    /// Makes a snapshot known; with `sync` it is on disk then.
    fn write(&self, manifest: &Manifest, sync: bool) -> io::Result<()> {
        let fresh = self.path(manifest.id, "new");
        remove_file(&fresh)?;
        let mut file = self.create(manifest.id, "new")?;
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

    /// Where a file of a kind (`pages`, `index`, `files`) goes.
    pub(super) fn path(&self, kind: &str) -> PathBuf {
        self.snapshots.path(self.id, kind)
    }

    /// That file, empty.
    pub(super) fn create(&self, kind: &str) -> io::Result<File> {
        self.snapshots.create(self.id, kind)
    }

    /// All of it is there.
    pub(super) fn finish(mut self, mut manifest: Manifest, sync: bool) -> io::Result<Manifest> {
        manifest.bytes = 0;
        for kind in ["pages", "index", "files"] {
            let path = self.path(kind);
            let Ok(file) = File::open(&path) else { continue };
            manifest.bytes += on_disk(&file.metadata()?);
            if sync {
                file.sync_all()?;
            }
        }
        self.snapshots.write(&manifest, sync)?;
        self.finished = true;
        Ok(manifest)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        for kind in ["pages", "index", "files", "new"] {
            let _ = remove_unless_open(&self.path(kind));
        }
    }
}

impl ForkSource {
    pub(super) fn of(
        own: SessionSnapshots,
        snapshots: &SessionSnapshots,
        manifest: &Manifest,
    ) -> io::Result<ForkSource> {
        let branch = ForkSource { snapshots: own, manifest: manifest.clone() };
        snapshots.share(manifest, &branch.snapshots)?;
        Ok(branch)
    }
}

impl Drop for ForkSource {
    fn drop(&mut self) {
        if let Err(error) = self.snapshots.remove() {
            tracing::warn!("failed to remove the snapshot of a branch: {error}");
        }
    }
}

/// What a file takes of the disk.
fn on_disk(metadata: &fs::Metadata) -> u64 {
    const BLOCK: u64 = 512;
    metadata.blocks() * BLOCK
}

/// Removes a file that nobody needs, unless somebody has it open: a kernel that goes on using a layer, or code that
/// does not let go of one. As long as it is there it is counted.
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

    fn manifest(id: u64, layers: &[u64]) -> Manifest {
        Manifest {
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

    fn take(snapshots: &SessionSnapshots, id: u64, layers: &[u64]) -> Manifest {
        let draft = snapshots.begin(id).unwrap();
        for kind in ["pages", "index", "files"] {
            draft.create(kind).unwrap().write_all(b"1234").unwrap();
        }
        draft.finish(manifest(id, layers), true).unwrap()
    }

    /// What a few bytes take.
    const BLOCKS: u64 = 4096;

    fn names(snapshots: &SessionSnapshots) -> Vec<String> {
        let entries = fs::read_dir(&snapshots.directory).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_picture_is_there_or_it_is_not() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = SessionSnapshots::new(root.path().join("ses_1"));
        assert_eq!(snapshots.last(), None);
        let draft = snapshots.begin(1).unwrap();
        draft.create("pages").unwrap();
        drop(draft);
        assert!(names(&snapshots).is_empty(), "what was begun is gone");
        let first = take(&snapshots, 2, &[2]);
        assert_eq!((snapshots.last(), first.bytes), (Some(first.clone()), 3 * BLOCKS));
        // As a server leaves it that is killed before the end.
        let draft = snapshots.begin(3).unwrap();
        draft.create("pages").unwrap();
        std::mem::forget(draft);
        fs::write(snapshots.path(3, "new"), "{").unwrap();
        snapshots.sweep().unwrap();
        assert_eq!(names(&snapshots), ["2.files", "2.index", "2.json", "2.pages"]);
        assert_eq!(snapshots.kernel(&first).unwrap().unwrap().layers.len(), 1);
    }

    #[test]
    fn a_layer_stays_for_as_long_as_a_picture_needs_it() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = SessionSnapshots::new(root.path().join("ses_1"));
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
        let snapshots = SessionSnapshots::new(root.path().join("ses_1"));
        take(&snapshots, 1, &[1]);
        take(&snapshots, 2, &[2]);
        let held = File::open(snapshots.path(1, "pages")).unwrap();
        snapshots.forget(&[1]).unwrap();
        assert_eq!(names(&snapshots), ["1.pages", "2.files", "2.index", "2.json", "2.pages"]);
        assert_eq!(snapshots.files().iter().map(|file| file.bytes).sum::<u64>(), 5 * BLOCKS);
        // As long as another has it, it stays whole; then it is empty, whoever holds it.
        let other = SessionSnapshots::new(root.path().join("ses_2"));
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
    fn a_draft_that_is_held_stays_until_it_is_not() {
        let root = tempfile::tempdir().unwrap();
        let snapshots = SessionSnapshots::new(root.path().join("ses_1"));
        let draft = snapshots.begin(1).unwrap();
        draft.create("pages").unwrap().write_all(b"1234").unwrap();
        draft.create("index").unwrap();
        let held = File::open(draft.path("pages")).unwrap();
        drop(draft);
        assert_eq!(names(&snapshots), ["1.pages"]);
        drop(held);
        snapshots.sweep().unwrap();
        assert!(names(&snapshots).is_empty());
    }

    #[test]
    fn what_is_shared_outlives_either() {
        let root = tempfile::tempdir().unwrap();
        let (one, other) = (
            SessionSnapshots::new(root.path().join("a")),
            SessionSnapshots::new(root.path().join("b")),
        );
        let shown = take(&one, 1, &[1]);
        one.share(&shown, &other).unwrap();
        one.remove().unwrap();
        assert_eq!(other.last(), Some(shown.clone()));
        assert!(
            other.kernel(&shown).unwrap().is_some() && other.archive(&shown).unwrap().is_some()
        );
    }
}
