//! Loop devices: files as block devices, for the file systems of volumes.
//!
//! A device is found by its file, and never made twice for the same file: two file systems on the same bytes would destroy each
//! other. Linux removes it with its last mount.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Stat, fstat, major, minor};

/// How often to ask again for a free device, if another process was faster.
const ATTEMPTS: usize = 16;

const CONTROL: &str = "/dev/loop-control";
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
/// Linux removes the device when it is not used any more.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// Bypasses the page cache of the file below, so that nothing is cached twice. Linux ignores it where that is not possible.
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

/// A device for a file. It exists as long as this value, or a mount of it.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Whether this machine has loop devices.
    #[must_use]
    pub fn is_possible() -> bool {
        Path::new(CONTROL).exists()
    }

    /// The device of `image`: an existing one, or a new one. Two callers must not ask for the same file at the same time.
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
            // A device that is being removed, or has no node here, is not ours.
            let Ok(device) = File::options().read(true).write(true).open(&path) else { continue };
            // While it is open it cannot be reused for another file.
            if status(&device).is_some_and(|info| shows(&info, &wanted)) {
                return Ok(Some(LoopDevice { path, _open: device }));
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
                Ok(()) => return Ok(LoopDevice { path, _open: device }),
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

/// The file of the device; `None` if it is free.
fn status(device: &File) -> Option<Info> {
    // SAFETY: all-zero is a valid `loop_info64`.
    let mut info: Info = unsafe { std::mem::zeroed() };
    ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info as usize).ok()?;
    Some(info)
}

fn shows(info: &Info, file: &Stat) -> bool {
    let (major, minor) = (u64::from(major(file.st_dev)), u64::from(minor(file.st_dev)));
    // The encoding of device numbers for user space.
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
    fn a_file_has_one_device_as_long_as_it_is_open() {
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
        // A worker thread of Linux removes it.
        let gone = (0..100).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(20));
            LoopDevice::find(&again).unwrap().is_none()
        });
        assert!(gone, "it is closed");
    }
}
