//! Files as block devices: what holds the file system of a volume.
//!
//! A device is found by the file behind it, and never made twice for the same file: two file
//! systems on the same bytes would destroy each other. It goes by itself when the last mount of it
//! does, whoever holds that: nobody has to remember to take it apart.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Stat, fstat, major, minor};

/// How often a free device is asked for again when somebody else was quicker.
const ATTEMPTS: usize = 16;

const CONTROL: &str = "/dev/loop-control";
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
/// The device goes when nobody uses it any more.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Around the page cache of the file below, so that nothing is kept in memory twice; the kernel
/// does without where that is not possible.
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64` of the kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of the kernel.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

/// A device that shows a file, held for as long as this lives; what mounts it holds it as well.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _held: File,
}

impl LoopDevice {
    /// Whether there is anything to make devices with.
    #[must_use]
    pub fn is_possible() -> bool {
        Path::new(CONTROL).exists()
    }

    /// The device that shows `image`: the one it has, or a new one. No two callers may ask for the
    /// same file at the same time.
    pub fn of(image: &File) -> io::Result<LoopDevice> {
        match LoopDevice::find(image)? {
            Some(device) => Ok(device),
            None => LoopDevice::make(image),
        }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn find(image: &File) -> io::Result<Option<LoopDevice>> {
        let wanted = fstat(image)?;
        for entry in fs::read_dir("/sys/block")? {
            let name = entry?.file_name();
            if !name.to_string_lossy().starts_with("loop") {
                continue;
            }
            let path = Path::new("/dev").join(name);
            // One that is going away, or has no node here, is none of ours.
            let Ok(device) = File::options().read(true).write(true).open(&path) else { continue };
            // Held open, it cannot become another's between the look and its use.
            if status(&device).is_some_and(|info| shows(&info, &wanted)) {
                return Ok(Some(LoopDevice { path, _held: device }));
            }
        }
        Ok(None)
    }

    fn make(image: &File) -> io::Result<LoopDevice> {
        let control = File::options().read(true).write(true).open(CONTROL)?;
        for _ in 0..ATTEMPTS {
            let number = ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE, 0)?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = File::options().read(true).write(true).open(&path)?;
            match configure(&device, image) {
                Ok(()) => return Ok(LoopDevice { path, _held: device }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::Error::from(io::ErrorKind::ResourceBusy))
    }
}

fn configure(device: &File, image: &File) -> io::Result<()> {
    // SAFETY: all-zero is a valid `loop_config`: numbers and arrays of numbers.
    let mut config: Config = unsafe { std::mem::zeroed() };
    config.fd = u32::try_from(image.as_raw_fd()).map_err(io::Error::other)?;
    config.info.flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
    // The structure is live for the call.
    ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config as usize).map(|_| ())
}

/// What the device shows; nothing, if it is free.
fn status(device: &File) -> Option<Info> {
    // SAFETY: all-zero is a valid `loop_info64`.
    let mut info: Info = unsafe { std::mem::zeroed() };
    ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info as usize).ok()?;
    Some(info)
}

fn shows(info: &Info, file: &Stat) -> bool {
    let (major, minor) = (u64::from(major(file.st_dev)), u64::from(minor(file.st_dev)));
    // As the kernel writes a device's number to programs.
    let device = (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12);
    (info.inode, info.device) == (file.st_ino, device)
}

/// `argument` is a number, or the address of what the request reads or writes.
fn ioctl(fd: RawFd, request: libc::c_ulong, argument: usize) -> io::Result<i32> {
    // SAFETY: the callers pass what the request expects: nothing, or a structure of the kernel's
    // own layout that is live for the call.
    let result = unsafe { libc::ioctl(fd, request as _, argument) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_large_as_the_kernels() {
        assert_eq!((size_of::<Info>(), size_of::<Config>()), (232, 304));
    }

    #[test]
    fn a_file_has_one_device_for_as_long_as_anybody_holds_it() {
        if !crate::privileges::is_root() || !LoopDevice::is_possible() {
            return;
        }
        let image = tempfile::NamedTempFile::new().unwrap();
        image.as_file().set_len(1 << 20).unwrap();
        let one = LoopDevice::of(image.as_file()).unwrap();
        let again = File::open(image.path()).unwrap();
        let same = LoopDevice::of(&again).unwrap();
        assert_eq!(one.path(), same.path());
        drop(one);
        assert!(LoopDevice::find(&again).unwrap().is_some(), "the other still holds it");
        drop(same);
        // It is taken apart by a worker of the kernel.
        let gone = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            LoopDevice::find(&again).unwrap().is_none()
        });
        assert!(gone, "nobody holds it");
    }
}
