//! Blocks of host user ids, one per sandbox, so that no two sandboxes share a uid. Processes with the same uid share quotas
//! (inotify, keys, pending signals), and could signal and trace each other if a namespace failed.
//!
//! ```text
//! host uid   0x7000_0000 + block * 4096 + uid inside
//! ```
//!
//! The range 0x7000_0000..0x7FFE_0000 is unused by distributions and by systemd. Block 0 belongs to
//! the spawner and the zygotes. A block is taken by locking a file. The sandbox's PID 1 gets the lock, and
//! Linux releases it when that process ends, even if the server is gone. So blocks are never leaked, and
//! servers that share a run directory, which is the default, never collide.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use crate::file_lock::FileLock;

pub const FIRST_HOST_ID: u32 = 0x7000_0000;
pub const BLOCK_SIZE: u32 = 4096;
/// Up to, and not including, the range that systemd keeps for foreign ids.
pub const BLOCKS: u32 = (0x7FFE_0000 - FIRST_HOST_ID) / BLOCK_SIZE;

/// A block of ids and its lock.
#[derive(Debug)]
pub struct IdBlock {
    pub block: u32,
    pub lock: OwnedFd,
}

/// Reserves blocks, the lowest free one first.
#[derive(Debug)]
pub struct IdBlocks {
    directory: PathBuf,
    /// Blocks that this process has reserved; it saves trying their locks.
    taken: BTreeSet<u32>,
}

impl IdBlocks {
    pub fn new(directory: PathBuf) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(IdBlocks { directory, taken: BTreeSet::new() })
    }

    pub fn take(&mut self) -> io::Result<IdBlock> {
        for block in (1..BLOCKS).filter(|block| !self.taken.contains(block)) {
            let file = self.open(block)?;
            if let Some(lock) = FileLock::try_exclusive(file)? {
                self.taken.insert(block);
                return Ok(IdBlock { block, lock: lock.into() });
            }
        }
        Err(io::Error::other("all blocks of user ids are taken"))
    }

    /// Opened for reading only: the sandbox can hold the lock and do nothing else with the file.
    fn open(&self, block: u32) -> io::Result<File> {
        let path = self.directory.join(block.to_string());
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                File::create(&path)?;
                File::open(&path)
            }
            opened => opened,
        }
    }

    /// A sandbox that an earlier server made has this block, and its lock.
    pub fn remember(&mut self, block: u32) {
        self.taken.insert(block);
    }

    /// The sandbox that had this block is gone.
    pub fn give_back(&mut self, block: u32) {
        self.taken.remove(&block);
    }
}

/// The host's number for an id inside the sandbox that has this block.
#[must_use]
pub fn host_id(block: u32, inside: u32) -> u32 {
    FIRST_HOST_ID + offset(block) + inside
}

/// The first id of a block, counted from the first id of all blocks.
#[must_use]
pub fn offset(block: u32) -> u32 {
    block * BLOCK_SIZE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_sandboxes_than_blocks_can_live_one_after_another() {
        let dir = tempfile::tempdir().unwrap();
        let mut blocks = IdBlocks::new(dir.path().into()).unwrap();
        for _ in 0..70_000 {
            let taken = blocks.take().unwrap();
            assert_eq!(taken.block, 1);
            drop(taken.lock);
            blocks.give_back(1);
        }
    }

    #[test]
    fn two_servers_never_hand_out_the_same_block() {
        let dir = tempfile::tempdir().unwrap();
        let mut ours = IdBlocks::new(dir.path().into()).unwrap();
        let mut theirs = IdBlocks::new(dir.path().into()).unwrap();
        let a = ours.take().unwrap();
        let b = theirs.take().unwrap();
        assert_ne!(a.block, b.block);
        // The sandbox of a dead server: the block was not given back.
        drop(a.lock);
        assert_eq!(theirs.take().unwrap().block, a.block);
    }
}
