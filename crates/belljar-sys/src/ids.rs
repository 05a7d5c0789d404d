//! Blocks of host user ids, one per sandbox, so that no two sandboxes share a uid. Processes with the same uid share quotas
//! (inotify, keys, pending signals), and could signal and trace each other if a namespace failed.
//!
//! ```text
//! host uid   0x7000_0000 + block * 4096 + uid inside
//! ```
//!
//! The range 0x7000_0000..0x7FFE_0000 is unused by distributions and by systemd. A container in a user namespace has fewer ids,
//! such as 65,536. There, blocks have 64 ids, of which a half is for root inside and the ids after it, and a half for the
//! sandbox's user and the ids after it.
//!
//! Block 0 belongs to the spawner and the zygotes. A block is taken by locking a file. The sandbox's PID 1 gets the lock, and
//! Linux releases it when that process ends, even if the server is gone. So blocks are never leaked, and
//! servers that share a run directory, which is the default, never collide.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use crate::file_lock::FileLock;
use crate::plan::{IdMap, UserIds};

/// The host ids that sandboxes use, and how they are divided into blocks. User and group ids are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    pub first: u32,
    pub block_size: u32,
    /// Including block 0.
    pub blocks: u32,
}

/// Ids below this belong to users of the machine or container, or own the files of volumes.
const FIRST_IN_CONTAINER: u32 = 1024;

/// The overflow id, which Linux shows for ids that are not mapped.
const NOBODY: u32 = 65_534;

const SMALL_BLOCK: u32 = 64;

/// With fewer blocks of the usual size than this, blocks are small.
const FEW_BLOCKS: u32 = 1024;

/// One for the spawner, and one for a sandbox.
const FEWEST_BLOCKS: u32 = 2;

impl IdRange {
    /// Up to, and not including, the range that systemd keeps for foreign ids.
    pub const USUAL: IdRange = IdRange {
        first: 0x7000_0000,
        block_size: 4096,
        blocks: (0x7FFE_0000 - 0x7000_0000) / 4096,
    };

    /// The range that fits the user namespace of this process.
    pub fn here() -> io::Result<IdRange> {
        let read = |name| fs::read_to_string(format!("/proc/self/{name}"));
        IdRange::within(&read("uid_map")?, &read("gid_map")?)
    }

    /// The same for these contents of `uid_map` and `gid_map`.
    fn within(uid_map: &str, gid_map: &str) -> io::Result<IdRange> {
        let usual = IdRange::USUAL;
        let (uids, gids) = (extents(uid_map), extents(gid_map));
        // Linux requires that a range is mapped by one line.
        let both = uids.iter().flat_map(|&(start, end)| {
            gids.iter().map(move |&(first, last)| (start.max(first), end.min(last)))
        });
        let both: Vec<(u64, u64)> = both.filter(|(start, end)| start < end).collect();
        let is_usual = |(start, end): &(u64, u64)| {
            let first = u64::from(usual.first);
            let size = u64::from(usual.blocks) * u64::from(usual.block_size);
            *start <= first && *end >= first + size
        };
        if both.iter().any(is_usual) {
            return Ok(usual);
        }
        let usable = both.iter().flat_map(|&(start, end)| {
            let below = (start.max(FIRST_IN_CONTAINER.into()), end.min(NOBODY.into()));
            [below, (start.max(u64::from(NOBODY) + 2), end)]
        });
        let count = |(start, end): (u64, u64)| end.saturating_sub(start);
        let best = usable.max_by_key(|part| count(*part)).unwrap_or((0, 0));
        let of_size = |size: u32| u32::try_from(count(best) / u64::from(size)).unwrap_or(u32::MAX);
        let block_size = match of_size(usual.block_size) {
            FEW_BLOCKS.. => usual.block_size,
            _ => SMALL_BLOCK,
        };
        let range = IdRange {
            first: u32::try_from(best.0).unwrap_or(0),
            block_size,
            blocks: of_size(block_size).min(usual.blocks),
        };
        if range.blocks >= FEWEST_BLOCKS {
            return Ok(range);
        }
        let mapped: u64 = both.iter().map(|part| count(*part)).sum();
        Err(io::Error::other(format!(
            "this user namespace maps {mapped} user and group ids, and sandboxes need ids from {FIRST_IN_CONTAINER} to at \
             least {}; map 65536 ids, or run the server as a user other than root",
            FIRST_IN_CONTAINER + FEWEST_BLOCKS * SMALL_BLOCK
        )))
    }

    /// How many sandboxes can exist at the same time.
    #[must_use]
    pub fn sandboxes(&self) -> u32 {
        self.blocks - 1
    }

    /// The id map of the user namespace of the spawner: all blocks.
    #[must_use]
    pub fn outer_map(&self) -> IdMap {
        IdMap {
            inside: 0,
            inside_group: 0,
            outside: self.first,
            outside_group: self.first,
            count: self.blocks * self.block_size,
            user: None,
            setgroups: true,
        }
    }
}

/// The ranges of ids inside, each with its end, of a `uid_map` or `gid_map`.
fn extents(map: &str) -> Vec<(u64, u64)> {
    let extent = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (first, _, count) = (numbers.next()?, numbers.next()?, numbers.next()?);
        let first = first.ok()?;
        Some((first, first + count.ok()?))
    };
    map.lines().filter_map(extent).collect()
}

/// The ids of one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    pub number: u32,
    pub range: IdRange,
}

impl Block {
    /// Its first id, counted from the first id of all blocks: the number that the spawner has for it.
    fn offset(&self) -> u32 {
        self.number * self.range.block_size
    }

    /// Whether ids inside are mapped one after another, up to and beyond the sandbox's user.
    fn holds(&self, user: u32) -> bool {
        user < self.range.block_size
    }

    /// The spawner's number for the sandbox's user.
    #[must_use]
    pub fn user_offset(&self, user: u32) -> u32 {
        self.offset() + if self.holds(user) { user } else { self.range.block_size / 2 }
    }

    /// The host's number for the sandbox's user.
    #[must_use]
    pub fn host_id(&self, user: u32) -> u32 {
        self.range.first + self.user_offset(user)
    }

    /// The id map of the sandbox, as the spawner writes it.
    #[must_use]
    pub fn id_map(&self, user: u32) -> IdMap {
        let half = self.range.block_size / 2;
        let second = UserIds { inside: user, outside: self.user_offset(user), count: half };
        IdMap {
            inside: 0,
            inside_group: 0,
            outside: self.offset(),
            outside_group: self.offset(),
            count: if self.holds(user) { self.range.block_size } else { half },
            user: (!self.holds(user)).then_some(second),
            setgroups: true,
        }
    }
}

/// A block of ids and its lock.
#[derive(Debug)]
pub struct IdBlock {
    pub block: Block,
    pub lock: OwnedFd,
}

/// Reserves blocks, the lowest free one first.
#[derive(Debug)]
pub struct IdBlocks {
    directory: PathBuf,
    range: IdRange,
    /// Blocks that this process has reserved; it saves trying their locks.
    taken: BTreeSet<u32>,
}

impl IdBlocks {
    pub fn new(directory: PathBuf, range: IdRange) -> io::Result<Self> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(IdBlocks { directory, range, taken: BTreeSet::new() })
    }

    #[must_use]
    pub fn range(&self) -> IdRange {
        self.range
    }

    pub fn take(&mut self) -> io::Result<IdBlock> {
        for number in (1..self.range.blocks).filter(|number| !self.taken.contains(number)) {
            let file = self.open(number)?;
            if let Some(lock) = FileLock::try_exclusive(file)? {
                self.taken.insert(number);
                let block = Block { number, range: self.range };
                return Ok(IdBlock { block, lock: lock.into() });
            }
        }
        let all = self.range.sandboxes();
        Err(io::Error::other(format!("all {all} blocks of user ids are taken")))
    }

    /// Opened for reading only: the sandbox can hold the lock and do nothing else with the file.
    fn open(&self, number: u32) -> io::Result<File> {
        let path = self.directory.join(number.to_string());
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                File::create(&path)?;
                File::open(&path)
            }
            opened => opened,
        }
    }

    /// A sandbox that an earlier server made has this block, and its lock.
    pub fn remember(&mut self, number: u32) -> Block {
        self.taken.insert(number);
        Block { number, range: self.range }
    }

    /// The sandbox that had this block is gone.
    pub fn give_back(&mut self, block: Block) {
        self.taken.remove(&block.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 1000;

    #[test]
    fn more_sandboxes_than_blocks_can_live_one_after_another() {
        let dir = tempfile::tempdir().unwrap();
        let mut blocks = IdBlocks::new(dir.path().into(), IdRange::USUAL).unwrap();
        for _ in 0..70_000 {
            let taken = blocks.take().unwrap();
            assert_eq!(taken.block.number, 1);
            drop(taken.lock);
            blocks.give_back(taken.block);
        }
    }

    #[test]
    fn two_servers_never_hand_out_the_same_block() {
        let dir = tempfile::tempdir().unwrap();
        let mut ours = IdBlocks::new(dir.path().into(), IdRange::USUAL).unwrap();
        let mut theirs = IdBlocks::new(dir.path().into(), IdRange::USUAL).unwrap();
        let a = ours.take().unwrap();
        let b = theirs.take().unwrap();
        assert_ne!(a.block, b.block);
        // The sandbox of a dead server: the block was not given back.
        drop(a.lock);
        assert_eq!(theirs.take().unwrap().block, a.block);
    }

    #[test]
    fn a_range_has_an_end() {
        let dir = tempfile::tempdir().unwrap();
        let range = IdRange { first: 1024, block_size: 64, blocks: 3 };
        let mut blocks = IdBlocks::new(dir.path().into(), range).unwrap();
        let _taken = [blocks.take().unwrap(), blocks.take().unwrap()];
        let error = blocks.take().unwrap_err().to_string();
        assert_eq!(error, "all 2 blocks of user ids are taken");
    }

    fn within(map: &str) -> IdRange {
        IdRange::within(map, map).unwrap()
    }

    #[test]
    fn the_range_fits_the_map() {
        let all = "         0          0 4294967295\n";
        assert_eq!(within(all), IdRange::USUAL);
        // A pod in a user namespace of its own.
        let pod = within("0 1048576 65536\n");
        assert_eq!(pod, IdRange { first: 1024, block_size: 64, blocks: 1007 });
        assert_eq!(pod.sandboxes(), 1006);
        // A kubelet that gives each pod more.
        let wide = within("0 1048576 131072\n");
        assert_eq!(wide, IdRange { first: 65_536, block_size: 64, blocks: 1024 });
        let wider = within("0 1048576 8388608\n");
        assert_eq!((wider.first, wider.block_size, wider.blocks), (65_536, 4096, 2032));
        // Rootless podman: root is the user, the rest is from /etc/subuid.
        let rootless = within("0 1000 1\n1 100000 65536\n");
        assert_eq!((rootless.first, rootless.blocks), (1024, 1007));
        // Groups are mapped otherwise: the common part is used.
        let common = IdRange::within("0 5000 65536\n", "0 5000 10000\n").unwrap();
        assert_eq!((common.first, common.blocks), (1024, (10_000 - 1024) / 64));
    }

    #[test]
    fn a_map_that_is_too_small_is_an_error_that_says_so() {
        for map in ["0 1000 1\n", "0 1000 1024\n", "", "nonsense\n0 1\n"] {
            let error = IdRange::within(map, map).unwrap_err().to_string();
            assert!(error.contains("map 65536 ids"), "{error}");
        }
        assert!(IdRange::within("0 0 65536\n", "70000 0 10\n").is_err());
    }

    #[test]
    fn blocks_never_overlap() {
        for range in [IdRange::USUAL, within("0 1048576 65536\n")] {
            let mut ends = 0;
            for number in [0, 1, 2, range.blocks - 1] {
                let map = Block { number, range }.id_map(USER);
                assert!(map.outside >= ends, "{number}");
                ends = map.outside + map.count;
                if let Some(user) = map.user {
                    assert_eq!(user.outside, ends, "the second half follows the first");
                    ends = user.outside + user.count;
                }
                assert_eq!(ends, (number + 1) * range.block_size);
            }
            assert_eq!(ends, range.outer_map().count);
        }
    }

    #[test]
    fn the_user_has_an_id_in_blocks_of_any_size() {
        let block = Block { number: 3, range: IdRange::USUAL };
        assert_eq!(block.host_id(USER), 0x7000_0000 + 3 * 4096 + 1000);
        assert_eq!(block.id_map(USER).user, None);
        let block = Block { number: 3, range: within("0 1048576 65536\n") };
        assert_eq!(block.host_id(USER), 1024 + 3 * 64 + 32);
        let user = UserIds { inside: USER, outside: 3 * 64 + 32, count: 32 };
        assert_eq!(block.id_map(USER).user, Some(user));
    }
}
