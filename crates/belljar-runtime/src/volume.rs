//! Volumes on disk: files that outlive sandboxes, and that several sandboxes can mount.
//!
//! ```text
//! <directory>/
//!     image.ext4        a separate file system, with `files/` in it              (kind `image`)
//!     files/            or a plain directory                                     (kind `directory`)
//!     mounted.<random>  where an image is mounted while a sandbox is being made
//! ```
//!
//! The files of a session with storage BIND are kept in the same two ways, in the session's directory. Its image is
//! `files.ext4` and is sparse: it uses as much of the disk as its files need. See [`VolumePlace::of_session`].
//!
//! An image enforces its size: Linux refuses more with "no space left". All its bytes are allocated when it is made, so that
//! they are available later. Code in a sandbox never writes to the image itself, so Linux parses only what Linux wrote. Images
//! need root, loop devices and `mke2fs`.
//!
//! A directory enforces nothing: its size is only measured, on request and when a session begins to use it.
//!
//! The server mounts an image only until the sandbox has its own copy of the mount. Linux unmounts the file system, and
//! removes its device, with the last sandbox, even if the server is gone.
//!
//! On disk all files belong to one id: [`USER_ID`] or, without root, the server's user. Sandboxes with their own blocks of ids
//! get an idmapped mount.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use belljar_sys::loop_device::LoopDevice;
use belljar_sys::mount::Backing;
use belljar_sys::{file, mount, privileges, process, tree};
use serde::{Deserialize, Serialize};

use crate::user::USER_ID;
use crate::{RuntimeError, lock};

/// A smaller file system would be mostly metadata, and have no journal.
pub const MIN_SIZE: u64 = 4 << 20;

/// A larger size is a mistake.
pub const MAX_SIZE: u64 = 1 << 44;

/// Entries of a directory that are counted; beyond that, the usage is marked as partial.
const MAX_COUNTED: u64 = 1_000_000;

/// How long formatting may take.
const FORMAT_TIMEOUT: Duration = Duration::from_secs(60);

/// How much of the error output of `mke2fs` is reported.
const MAX_ERROR_OUTPUT: u64 = 1000;

/// Where it is looked for: the PATH of a service may lack the directories of root.
const MKE2FS: [&str; 4] =
    ["/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs", "/usr/local/sbin/mke2fs"];

/// An explicit list, so that the host's configuration has no influence. Without resize_inode: sizes are fixed.
const FEATURES: &str = "none,has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,\
                        extra_isize,dir_index,filetype,ext_attr,sparse_super,large_file";

const JOURNAL_MIB: u64 = 4;

/// The inodes that ext4 reserves, and the directory `files`.
const OWN_INODES: u64 = 11;

/// Locked while a device is looked up or made: a file must never have two.
static OPENING: Mutex<()> = Mutex::new(());

const MOUNTING_NEEDS_ROOT: &str = "mounting file systems requires root";

/// How the files of a volume are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeKind {
    /// In a separate file system: its size is enforced.
    Image,
    /// In a directory: its size is not enforced.
    Directory,
}

impl VolumeKind {
    /// Why volumes cannot be images here; `None` if they can.
    #[must_use]
    pub fn why_no_images() -> Option<&'static str> {
        if !may_mount() {
            return Some(MOUNTING_NEEDS_ROOT);
        }
        if privileges::in_user_namespace() {
            return Some("a user namespace cannot mount file systems of disks");
        }
        if !LoopDevice::is_possible() {
            return Some("there are no loop devices (/dev/loop-control)");
        }
        if mke2fs().is_none() {
            return Some("mke2fs (e2fsprogs) is not installed");
        }
        None
    }

    /// The kind of a new volume, and why its size is not enforced. `asks` is the reason if the operator chose directories.
    #[must_use]
    pub fn of_new(
        asked: Option<VolumeKind>,
        asks: &'static str,
    ) -> (VolumeKind, Option<&'static str>) {
        match (asked, VolumeKind::why_no_images()) {
            (Some(VolumeKind::Image) | None, None) => (VolumeKind::Image, None),
            (Some(VolumeKind::Directory), _) => (VolumeKind::Directory, Some(asks)),
            // The operator requires images: making one fails with the reason.
            (Some(VolumeKind::Image), Some(why)) => (VolumeKind::Image, Some(why)),
            (None, why) => (VolumeKind::Directory, why),
        }
    }
}

/// A volume to mount at `/volumes/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub name: String,
    pub place: VolumePlace,
    pub write: bool,
}

/// Where a volume is on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumePlace {
    /// Only the server's user can read it.
    pub directory: PathBuf,
    pub kind: VolumeKind,
}

/// The usage of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeUsage {
    pub bytes: u64,
    pub files: u64,
    /// There is more than was counted.
    pub partial: bool,
}

impl VolumePlace {
    /// Makes an empty volume for `size` bytes, completely or not at all. Blocks.
    pub fn make(&self, size: u64) -> Result<(), RuntimeError> {
        let fresh = self.half_made();
        let made = fresh.make_in_place(size).and_then(|()| {
            fs::rename(&fresh.directory, &self.directory)?;
            sync_parent(&self.directory)
        });
        made.map_err(|cause| {
            let _ = fresh.remove_in_place();
            self.failed("make", cause)
        })
    }

    /// The files of a session, if they exist.
    #[must_use]
    pub fn of_session(directory: &Path) -> Option<VolumePlace> {
        let place = |kind| VolumePlace { directory: directory.to_owned(), kind };
        let image = place(VolumeKind::Image);
        if image.sparse_image().exists() {
            return Some(image);
        }
        Some(place(VolumeKind::Directory)).filter(|place| place.plain_files().is_dir())
    }

    /// Makes empty files for a session in an existing directory, completely or not at all. Blocks.
    pub fn make_for_session(&self, size: u64) -> io::Result<()> {
        // A server that was killed may have left it.
        let fresh = self.directory.join("files.new");
        match fs::symlink_metadata(&fresh) {
            Ok(left) if left.is_dir() => fs::remove_dir_all(&fresh)?,
            Ok(_) => fs::remove_file(&fresh)?,
            Err(_) => {}
        }
        let made = match self.kind {
            VolumeKind::Image => format(&fresh, size, Backing::Sparse)
                .and_then(|()| fs::rename(&fresh, self.sparse_image())),
            VolumeKind::Directory => fs::create_dir(&fresh)
                .and_then(|()| make_session_directories(&fresh))
                .and_then(|()| fs::rename(&fresh, self.plain_files())),
        };
        if made.is_err() {
            let _ = fs::remove_file(&fresh);
            let _ = fs::remove_dir_all(&fresh);
        }
        made
    }

    /// Removes everything, complete or not. A missing volume is no error. It must not be in use. Blocks.
    pub fn remove(&self) -> io::Result<()> {
        self.half_made().remove_in_place()?;
        self.remove_in_place()
    }

    /// Its temporary directory until it is complete.
    fn half_made(&self) -> VolumePlace {
        let mut name = self.directory.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        VolumePlace { directory: self.directory.with_file_name(name), kind: self.kind }
    }

    fn remove_in_place(&self) -> io::Result<()> {
        if !self.directory.exists() {
            return Ok(());
        }
        // Removing would otherwise delete the content of mounts.
        self.mount_points().iter().try_for_each(|path| mount::take_away(path))?;
        if self.plain_files().is_dir() {
            tree::clear(&self.plain_files())?;
        }
        fs::remove_dir_all(&self.directory)
    }

    /// Unmounts what an earlier server had mounted when it ended. Blocks.
    pub fn tidy(&self) {
        for path in self.mount_points() {
            if mount::take_away(&path).is_ok() {
                let _ = fs::remove_dir(&path);
            }
        }
    }

    fn mount_points(&self) -> Vec<PathBuf> {
        let Ok(entries) = fs::read_dir(&self.directory) else { return Vec::new() };
        let is_one = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(MOUNTED))
        };
        entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_one).collect()
    }

    /// Measures it. Blocks; a directory takes longer the more files it has.
    pub fn usage(&self) -> Result<VolumeUsage, RuntimeError> {
        let measured = || match self.kind {
            VolumeKind::Image => {
                let mounted = self.mounted()?;
                let room = mount::room(&mounted.0)?;
                let files = room.files.saturating_sub(OWN_INODES);
                Ok(VolumeUsage { bytes: room.used, files, partial: false })
            }
            VolumeKind::Directory => {
                let found = tree::measure(&self.plain_files(), MAX_COUNTED)?;
                let tree::Measured { bytes, files, partial } = found;
                Ok(VolumeUsage { bytes, files, partial })
            }
        };
        measured().map_err(|cause| self.failed("look at", cause))
    }

    /// Tests whether an image below `root` refuses more than its size, and removes it again. Blocks.
    pub fn try_limit(root: &Path) -> Result<bool, RuntimeError> {
        let directory = root.join(format!("trial.{}", process::random_name()));
        let trial = VolumePlace { directory, kind: VolumeKind::Image };
        trial.make(MIN_SIZE)?;
        let tried = trial.open().and_then(|open| {
            let large = File::create(open.files.join("large"));
            let mut large = large.map_err(|cause| trial.failed("write to", cause))?;
            // A little more than the size fits, but not twice as much.
            let block = vec![7; 1 << 20];
            let full = (0..2 * (MIN_SIZE >> 20)).find_map(|_| large.write_all(&block).err());
            Ok(full.is_some_and(|error| error.kind() == io::ErrorKind::StorageFull))
        });
        let removed = trial.remove().map_err(|cause| trial.failed("remove", cause));
        tried.and_then(|tried| removed.map(|()| tried))
    }

    /// Opens the directory to mount. It stays mounted while the result lives. Blocks.
    pub(crate) fn open(&self) -> Result<OpenVolume, RuntimeError> {
        match self.kind {
            VolumeKind::Image => {
                let mounted = self.mounted().map_err(|cause| self.failed("mount", cause))?;
                let files = mounted.0.join(FILES);
                // The image of a session is only formatted when it is made.
                if !files.exists() {
                    let _ = fs::remove_dir(mounted.0.join("lost+found"));
                    make_files(&files)
                        .and_then(|()| make_session_directories(&files))
                        .map_err(|cause| self.failed("prepare", cause))?;
                }
                Ok(OpenVolume { files, _mounted: Some(mounted) })
            }
            VolumeKind::Directory => Ok(OpenVolume { files: self.plain_files(), _mounted: None }),
        }
    }

    /// Refuses an image where nothing can be mounted.
    pub(crate) fn check_openable(&self) -> Result<(), RuntimeError> {
        match self.kind {
            VolumeKind::Image if !may_mount() => {
                let cause = io::Error::new(io::ErrorKind::PermissionDenied, MOUNTING_NEEDS_ROOT);
                Err(self.failed("mount", cause))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn plain_files(&self) -> PathBuf {
        self.directory.join(FILES)
    }

    fn image(&self) -> PathBuf {
        self.directory.join("image.ext4")
    }

    /// The image of a session.
    fn sparse_image(&self) -> PathBuf {
        self.directory.join("files.ext4")
    }

    fn make_in_place(&self, size: u64) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        match self.kind {
            VolumeKind::Image => {
                format(&self.image(), size, Backing::SetAside)?;
                let mounted = self.mounted()?;
                // Users do not need it.
                let _ = fs::remove_dir(mounted.0.join("lost+found"));
                make_files(&mounted.0.join(FILES))
            }
            VolumeKind::Directory => make_files(&self.plain_files()),
        }?;
        File::open(&self.directory)?.sync_all()
    }

    /// Mounts the image where only the server's user can see it.
    fn mounted(&self) -> io::Result<Mounted> {
        let options = |path: PathBuf| File::options().read(true).write(true).open(path);
        let (image, backing) = match options(self.sparse_image()) {
            Ok(image) => (image, Backing::Sparse),
            Err(_) => (options(self.image())?, Backing::SetAside),
        };
        let _one_at_a_time = lock(&OPENING);
        let device = LoopDevice::of(&image)?;
        let target = self.directory.join(format!("{MOUNTED}{}", process::random_name()));
        // Without permissions, so that nothing can be written there by mistake while it is not mounted.
        fs::DirBuilder::new().mode(0o000).create(&target)?;
        let mounted = Mounted(target);
        mount::block_device(device.path(), &mounted.0, backing)?;
        Ok(mounted)
    }

    fn failed(&self, doing: &'static str, cause: io::Error) -> RuntimeError {
        RuntimeError::Volume { doing, path: self.directory.clone(), cause }
    }
}

/// Inside an image, or beside where one would be.
const FILES: &str = "files";
const MOUNTED: &str = "mounted.";

/// A volume that can be mounted into a sandbox.
#[derive(Debug)]
pub(crate) struct OpenVolume {
    pub(crate) files: PathBuf,
    _mounted: Option<Mounted>,
}

/// Unmounted when dropped; copies of the mount stay.
#[derive(Debug)]
struct Mounted(PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = mount::take_away(&self.0) {
            tracing::warn!("failed to unmount `{}`: {error}", self.0.display());
            return;
        }
        let _ = fs::remove_dir(&self.0);
    }
}

/// Makes a file with an empty file system that has room for `size` bytes.
fn format(image: &Path, size: u64, backing: Backing) -> io::Result<()> {
    let program = mke2fs().ok_or_else(|| io::Error::other("mke2fs is not installed"))?;
    let file = File::options().write(true).create_new(true).mode(0o600).open(image)?;
    match backing {
        Backing::SetAside => file::set_aside(&file, image_size(size))?,
        Backing::Sparse => file.set_len(image_size(size))?,
    }
    run_mke2fs(program, image)?;
    match backing {
        Backing::SetAside => file.sync_all(),
        // Mounting writes to it, and syncs everything before.
        Backing::Sparse => Ok(()),
    }
}

/// Runs `mke2fs` on an image, with a time limit.
fn run_mke2fs(program: &Path, image: &Path) -> io::Result<()> {
    let journal = format!("size={JOURNAL_MIB}");
    let mut formatting = Command::new(program)
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "8192", "-m", "0"])
        .args(["-J", &journal, "-O", FEATURES])
        // Discarding would free the bytes that were just allocated. The journal of a new file need not be zeroed.
        .args(["-E", "nodiscard,lazy_itable_init=1,lazy_journal_init=1"])
        .arg(image)
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = formatting.try_wait()? {
            break status;
        }
        if begun.elapsed() > FORMAT_TIMEOUT {
            let _ = formatting.kill();
            let _ = formatting.wait();
            return Err(io::Error::other("mke2fs did not finish in time"));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    if !status.success() {
        let mut errors = String::new();
        if let Some(stderr) = formatting.stderr.take() {
            let _ = stderr.take(MAX_ERROR_OUTPUT).read_to_string(&mut errors);
        }
        let kind = match errors.contains("No space left") {
            true => io::ErrorKind::StorageFull,
            false => io::ErrorKind::Other,
        };
        return Err(io::Error::new(kind, format!("mke2fs: {}", errors.trim())));
    }
    Ok(())
}

/// The size of an image with room for `size` bytes: plus inodes (256 bytes for each 8 KiB), the reserve of ext4 (2 %, at most
/// 16 MiB), the journal, and the metadata of each block group.
fn image_size(size: u64) -> u64 {
    let kept_back = (size / 48).min(17 << 20);
    let whole = size + size / 31 + kept_back + (JOURNAL_MIB << 20) + (1 << 20);
    whole.next_multiple_of(4096)
}

fn make_files(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().mode(0o755).create(path)?;
    if privileges::is_root() {
        chown(path, Some(USER_ID), Some(USER_ID))?;
    }
    File::open(path)?.sync_all()
}

/// The directories that every session has.
fn make_session_directories(files: &Path) -> io::Result<()> {
    for name in ["artifacts", "data"] {
        let path = files.join(name);
        fs::create_dir(&path)?;
        if privileges::is_root() {
            chown(path, Some(USER_ID), Some(USER_ID))?;
        }
    }
    Ok(())
}

fn sync_parent(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

fn may_mount() -> bool {
    privileges::is_root() && privileges::may_mount()
}

fn mke2fs() -> Option<&'static Path> {
    MKE2FS.into_iter().map(Path::new).find(|path| path.exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_has_room_for_its_size_and_hardly_more() {
        if VolumeKind::why_no_images().is_some() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        for size in [MIN_SIZE, 40 << 20, 300 << 20, 1 << 30] {
            let place = VolumePlace { directory: root.path().join("vol"), kind: VolumeKind::Image };
            place.make(size).unwrap();
            let open = place.open().unwrap();
            let room = mount::room(&open.files).unwrap();
            assert!(room.free >= size, "{size}: {room:?}");
            assert!(room.free <= size + size / 200 + (1 << 20), "{size}: {room:?}");
            drop(open);
            let usage = place.usage().unwrap();
            assert!(usage.bytes < 64 << 10 && usage.files == 0 && !usage.partial, "{usage:?}");
            assert_eq!(fs::read_dir(&place.directory).unwrap().count(), 1, "nothing stays mounted");
            place.remove().unwrap();
            assert!(!place.directory.exists());
        }
    }

    #[test]
    fn a_full_image_refuses_and_is_one_file_system_wherever_it_is_open() {
        if VolumeKind::why_no_images().is_some() {
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let place = VolumePlace { directory: root.path().join("vol"), kind: VolumeKind::Image };
        place.make(MIN_SIZE).unwrap();
        let (one, other) = (place.open().unwrap(), place.open().unwrap());
        let mut large = File::create(one.files.join("large")).unwrap();
        let full = (0..16).find_map(|_| large.write_all(&[7; 1 << 20]).err());
        assert_eq!(full.map(|error| error.kind()), Some(io::ErrorKind::StorageFull));
        assert!(other.files.join("large").exists());
        assert!(place.usage().unwrap().bytes >= MIN_SIZE);
        // As if a server had ended while the image was mounted.
        std::mem::forget(one);
        drop((large, other));
        place.tidy();
        assert_eq!(fs::read_dir(&place.directory).unwrap().count(), 1);
        place.remove().unwrap();
        place.remove().unwrap();
        // Also at the same time in several threads.
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert!(VolumePlace::try_limit(root.path()).unwrap()));
            }
        });
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_directory_is_counted() {
        let root = tempfile::tempdir().unwrap();
        let place = VolumePlace { directory: root.path().join("vol"), kind: VolumeKind::Directory };
        place.make(MIN_SIZE).unwrap();
        fs::write(place.plain_files().join("large"), vec![7; 2 << 20]).unwrap();
        let usage = place.usage().unwrap();
        assert!(usage.bytes >= 2 << 20 && usage.files == 1, "{usage:?}");
        place.remove().unwrap();
        assert!(!place.directory.exists());
    }
}
