//! Volumes on disk: files that outlive sandboxes and are shown to several of them.
//!
//! ```text
//! <directory>/
//!     image.ext4        a file system of the volume's own, with `files/` in it   (kind `image`)
//!     files/            or a plain directory                                     (kind `directory`)
//!     mounted.<random>  where an image is mounted while a sandbox is being made
//! ```
//!
//! The files of a session with storage BIND are kept in the same two ways, in its own directory. Its
//! image is called `files.ext4` and is sparse: it takes from the disk what is in it, so that a
//! session that holds little costs little. See [`VolumePlace::of_session`].
//!
//! An image holds what its size says and not a byte more: the kernel refuses with "no space left".
//! All its bytes are taken from the disk when it is made, so what was promised is there. Only we
//! format it and only the kernel writes to it, never code in a sandbox: what the kernel parses is
//! what the kernel wrote. It takes root, loop devices and `mke2fs`.
//!
//! A directory has no such wall: what is in it is counted when somebody asks or begins to use it.
//!
//! An image is mounted for moments only, until the sandbox has its own copy of the mount. From then
//! on the sandboxes hold the file system; with the last of them it and its device are gone, whatever
//! became of the server.
//!
//! On disk everything belongs to one id, [`USER_ID`] or, without root, ourselves; sandboxes with
//! blocks of ids of their own see it through a mount that translates.

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

/// Below this a file system is mostly its own books, and has no journal.
pub const MIN_SIZE: u64 = 4 << 20;

/// No file system of ours is larger; more is a mistake.
pub const MAX_SIZE: u64 = 1 << 44;

/// Entries of a directory that are counted; one with more is said to be larger than was seen.
const MAX_COUNTED: u64 = 1_000_000;

/// What formatting may take.
const FORMAT_PATIENCE: Duration = Duration::from_secs(60);

/// How much of what `mke2fs` complains about is told.
const MAX_COMPLAINT: u64 = 1000;

/// Where it is looked for: not every PATH of a service has the directories of root.
const MKE2FS: [&str; 4] =
    ["/usr/sbin/mke2fs", "/sbin/mke2fs", "/usr/bin/mke2fs", "/usr/local/sbin/mke2fs"];

/// Said by name, so that no configuration of the host's decides what our file systems are like.
/// Without room for growing: sizes are fixed.
const FEATURES: &str = "none,has_journal,extent,huge_file,flex_bg,metadata_csum,64bit,dir_nlink,\
                        extra_isize,dir_index,filetype,ext_attr,sparse_super,large_file";

const JOURNAL_MIB: u64 = 4;

/// Those that ext4 reserves, and the directory `files`.
const OWN_INODES: u64 = 11;

/// Held while a device is looked for or made: a file must never have two.
static OPENING: Mutex<()> = Mutex::new(());

const MOUNTING_TAKES_ROOT: &str = "mounting file systems takes root";

/// How the files of a volume are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeKind {
    /// In a file system of its own: its size is enforced.
    Image,
    /// In a directory: its size is not.
    Directory,
}

impl VolumeKind {
    /// Why volumes cannot be images here; nothing, if they can.
    #[must_use]
    pub fn why_no_images() -> Option<&'static str> {
        if !may_mount() {
            return Some(MOUNTING_TAKES_ROOT);
        }
        if !LoopDevice::is_possible() {
            return Some("there are no loop devices (/dev/loop-control)");
        }
        if mke2fs().is_none() {
            return Some("mke2fs (e2fsprogs) is not installed");
        }
        None
    }

    /// The kind of something new, and why its size is not enforced. `asks` is the reason where the operator asked for
    /// directories.
    #[must_use]
    pub fn of_new(
        asked: Option<VolumeKind>,
        asks: &'static str,
    ) -> (VolumeKind, Option<&'static str>) {
        match (asked, VolumeKind::why_no_images()) {
            (Some(VolumeKind::Image) | None, None) => (VolumeKind::Image, None),
            (Some(VolumeKind::Directory), _) => (VolumeKind::Directory, Some(asks)),
            // The operator insists: making the first one fails, and says why.
            (Some(VolumeKind::Image), Some(why)) => (VolumeKind::Image, Some(why)),
            (None, why) => (VolumeKind::Directory, why),
        }
    }
}

/// A volume that a sandbox is to see at `/volumes/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeMount {
    pub name: String,
    pub place: VolumePlace,
    pub write: bool,
}

/// Where a volume is on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumePlace {
    /// Nobody but us may look into it.
    pub directory: PathBuf,
    pub kind: VolumeKind,
}

/// What a volume holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VolumeUsage {
    pub bytes: u64,
    pub files: u64,
    /// There is more than was counted.
    pub partial: bool,
}

impl VolumePlace {
    /// Makes an empty volume for `size` bytes; it is there whole, or not at all. Blocks.
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

    /// Where the files of a session are, if there are any yet.
    #[must_use]
    pub fn of_session(directory: &Path) -> Option<VolumePlace> {
        let place = |kind| VolumePlace { directory: directory.to_owned(), kind };
        let image = place(VolumeKind::Image);
        if image.sparse_image().exists() {
            return Some(image);
        }
        Some(place(VolumeKind::Directory)).filter(|place| place.plain_files().is_dir())
    }

    /// Makes an empty place for the files of a session, in a directory that is there; it is there
    /// whole, or not at all. Blocks.
    pub fn make_for_session(&self, size: u64) -> io::Result<()> {
        // What a server left that was killed meanwhile.
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

    /// Removes everything, half-made or whole; what is not there is no error. Nobody may be using
    /// it. Blocks.
    pub fn remove(&self) -> io::Result<()> {
        self.half_made().remove_in_place()?;
        self.remove_in_place()
    }

    /// Where it is until it is whole.
    fn half_made(&self) -> VolumePlace {
        let mut name = self.directory.file_name().unwrap_or_default().to_owned();
        name.push(".new");
        VolumePlace { directory: self.directory.with_file_name(name), kind: self.kind }
    }

    fn remove_in_place(&self) -> io::Result<()> {
        if !self.directory.exists() {
            return Ok(());
        }
        // What is mounted would be emptied, and not removed.
        self.mount_points().iter().try_for_each(|path| mount::take_away(path))?;
        if self.plain_files().is_dir() {
            tree::clear(&self.plain_files())?;
        }
        fs::remove_dir_all(&self.directory)
    }

    /// Takes away what an earlier server had mounted when it ended. Blocks.
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

    /// What is in it. Blocks, for longer the more there is in one that is a directory.
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

    /// Whether an image made below `root` refuses more than its size: tried, not believed. Nothing
    /// of it stays. Blocks.
    pub fn try_limit(root: &Path) -> Result<bool, RuntimeError> {
        let directory = root.join(format!("trial.{}", process::random_name()));
        let trial = VolumePlace { directory, kind: VolumeKind::Image };
        trial.make(MIN_SIZE)?;
        let tried = trial.open().and_then(|open| {
            let large = File::create(open.files.join("large"));
            let mut large = large.map_err(|cause| trial.failed("write to", cause))?;
            // A little more fits than was promised, and not twice as much.
            let block = vec![7; 1 << 20];
            let full = (0..2 * (MIN_SIZE >> 20)).find_map(|_| large.write_all(&block).err());
            Ok(full.is_some_and(|error| error.kind() == io::ErrorKind::StorageFull))
        });
        let removed = trial.remove().map_err(|cause| trial.failed("remove", cause));
        tried.and_then(|tried| removed.map(|()| tried))
    }

    /// The directory to show; it is there for as long as the answer lives. Blocks.
    pub(crate) fn open(&self) -> Result<OpenVolume, RuntimeError> {
        match self.kind {
            VolumeKind::Image => {
                let mounted = self.mounted().map_err(|cause| self.failed("mount", cause))?;
                let files = mounted.0.join(FILES);
                // That of a session is only formatted when it is made.
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
                let cause = io::Error::new(io::ErrorKind::PermissionDenied, MOUNTING_TAKES_ROOT);
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

    /// Where that of a session is.
    fn sparse_image(&self) -> PathBuf {
        self.directory.join("files.ext4")
    }

    fn make_in_place(&self, size: u64) -> io::Result<()> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        match self.kind {
            VolumeKind::Image => {
                format(&self.image(), size, Backing::SetAside)?;
                let mounted = self.mounted()?;
                // Of no use to anybody, and a file that nobody wrote.
                let _ = fs::remove_dir(mounted.0.join("lost+found"));
                make_files(&mounted.0.join(FILES))
            }
            VolumeKind::Directory => make_files(&self.plain_files()),
        }?;
        File::open(&self.directory)?.sync_all()
    }

    /// Mounts the image where only we can see it.
    fn mounted(&self) -> io::Result<Mounted> {
        let options = |path: PathBuf| File::options().read(true).write(true).open(path);
        let (image, backing) = match options(self.sparse_image()) {
            Ok(image) => (image, Backing::Sparse),
            Err(_) => (options(self.image())?, Backing::SetAside),
        };
        let _one_at_a_time = lock(&OPENING);
        let device = LoopDevice::of(&image)?;
        let target = self.directory.join(format!("{MOUNTED}{}", process::random_name()));
        // Should it ever be looked at without the mount, nobody can write there by mistake.
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

/// A volume that can be shown to a sandbox right now.
#[derive(Debug)]
pub(crate) struct OpenVolume {
    pub(crate) files: PathBuf,
    _mounted: Option<Mounted>,
}

/// Taken away when dropped; copies of the mount stay.
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

/// Makes a file with an empty file system in it that has room for `size` bytes.
fn format(image: &Path, size: u64, backing: Backing) -> io::Result<()> {
    let program = mke2fs().ok_or_else(|| io::Error::other("mke2fs is not installed"))?;
    let file = File::options().write(true).create_new(true).mode(0o600).open(image)?;
    match backing {
        Backing::SetAside => file::set_aside(&file, image_size(size))?,
        Backing::Sparse => file.set_len(image_size(size))?,
    }
    let journal = format!("size={JOURNAL_MIB}");
    let mut formatting = Command::new(program)
        .args(["-q", "-F", "-t", "ext4", "-b", "4096", "-I", "256", "-i", "8192", "-m", "0"])
        .args(["-J", &journal, "-O", FEATURES])
        // Discarding would give the disk back what was just set aside. The journal of a new file
        // needs no zeroes: it has no other bytes yet.
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
        if begun.elapsed() > FORMAT_PATIENCE {
            let _ = formatting.kill();
            let _ = formatting.wait();
            return Err(io::Error::other("mke2fs did not end in time"));
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    if !status.success() {
        let mut said = String::new();
        if let Some(stderr) = formatting.stderr.take() {
            let _ = stderr.take(MAX_COMPLAINT).read_to_string(&mut said);
        }
        let kind = match said.contains("No space left") {
            true => io::ErrorKind::StorageFull,
            false => io::ErrorKind::Other,
        };
        return Err(io::Error::new(kind, format!("mke2fs: {}", said.trim())));
    }
    match backing {
        Backing::SetAside => file.sync_all(),
        // Mounting it writes to it, and waits until that and everything before is on the disk.
        Backing::Sparse => Ok(()),
    }
}

/// How large a file must be for a file system in it to have room for `size` bytes: inodes (256 bytes
/// for each 8 KiB), what ext4 keeps back for itself (2 %, 16 MiB at most), the journal, and the
/// books of each group of blocks.
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

/// What code in a session finds in its directory.
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
        // An earlier server that ended at the wrong moment.
        std::mem::forget(one);
        drop((large, other));
        place.tidy();
        assert_eq!(fs::read_dir(&place.directory).unwrap().count(), 1);
        place.remove().unwrap();
        place.remove().unwrap();
        // Also while somebody else does the same.
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
