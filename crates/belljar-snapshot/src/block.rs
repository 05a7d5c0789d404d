//! The one block of memory that this code allocates. Snapshots do not include it.

use core::mem::{align_of, size_of};
use core::slice;

use crate::raw::{self, ENOMEM, PAGE, Result};

/// Allocated from the front; nothing is freed before the whole block.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) start: u64,
    pub(crate) len: u64,
    used: u64,
}

impl Block {
    /// Maps a block anywhere, or exactly at `at`.
    pub(crate) fn take(at: Option<u64>, len: u64) -> Result<Block> {
        let fixed = if at.is_some() { raw::MAP_FIXED } else { 0 };
        let prot = raw::PROT_READ | raw::PROT_WRITE;
        let flags = raw::MAP_PRIVATE | raw::MAP_ANONYMOUS | raw::MAP_NORESERVE | fixed;
        // SAFETY: at a fixed address nothing is mapped: the caller has checked it.
        let start = unsafe { raw::mmap(at.unwrap_or(0), len, prot, flags, raw::NO_FILE, 0) }?;
        Ok(Block { start, len, used: 0 })
    }

    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Allocates whole pages.
    pub(crate) fn pages(&mut self, len: u64) -> Result<u64> {
        let start = self.used.next_multiple_of(PAGE);
        let end = start + len.next_multiple_of(PAGE);
        if end > self.len {
            return Err(ENOMEM);
        }
        self.used = end;
        Ok(self.start + start)
    }

    /// Allocates a zeroed slice.
    pub(crate) fn slice<T: Plain>(&mut self, count: usize) -> Result<&'static mut [T]> {
        let align = align_of::<T>() as u64;
        let start = self.used.next_multiple_of(align);
        let end = start + (size_of::<T>() * count) as u64;
        if end > self.len {
            return Err(ENOMEM);
        }
        self.used = end;
        // SAFETY: only we use the range; it is aligned and zeroed, and any bytes are a `T`. The block is unmapped after its
        // last use.
        Ok(unsafe { slice::from_raw_parts_mut((self.start + start) as *mut T, count) })
    }

    /// Allocates a list for this many bytes of items.
    pub(crate) fn list<T: Plain>(&mut self, bytes: u64) -> Result<List<T>> {
        let count = bytes as usize / size_of::<T>();
        Ok(List { items: self.slice(count)?, len: 0 })
    }

    /// Maps a file into the block, for reading.
    pub(crate) fn map(&mut self, fd: u64, len: u64) -> Result<&'static [u8]> {
        if len == 0 {
            return Ok(&[]);
        }
        let at = self.pages(len)?;
        let flags = raw::MAP_PRIVATE | raw::MAP_FIXED;
        // SAFETY: the range is part of the block, and not used otherwise.
        unsafe { raw::mmap(at, len, raw::PROT_READ, flags, fd, 0) }?;
        // SAFETY: valid as long as the file has this length; our host writes layers once, and never shortens them.
        Ok(unsafe { slice::from_raw_parts(at as *const u8, len as usize) })
    }

    /// # Safety
    /// No part of the block may be in use.
    pub(crate) unsafe fn give_back(self) {
        // SAFETY: the caller's promise.
        unsafe { raw::munmap(self.start, self.len) };
    }
}

/// Types for which any bytes are a valid value.
///
/// # Safety
/// Any bytes, also zeroes, must be a valid value of the type.
pub(crate) unsafe trait Plain: Copy + 'static {}

// SAFETY: any bytes are a valid byte.
unsafe impl Plain for u8 {}
// SAFETY: any bytes are a valid word.
unsafe impl Plain for u64 {}
// SAFETY: two words.
unsafe impl Plain for raw::Range {}

#[derive(Debug)]
pub(crate) struct List<T: 'static> {
    items: &'static mut [T],
    len: usize,
}

impl<T: Plain> List<T> {
    pub(crate) fn push(&mut self, item: T) -> Result<()> {
        *self.items.get_mut(self.len).ok_or(ENOMEM)? = item;
        self.len += 1;
        Ok(())
    }

    pub(crate) fn last_mut(&mut self) -> Option<&mut T> {
        self.items[..self.len].last_mut()
    }

    pub(crate) fn as_slice(&self) -> &[T] {
        &self.items[..self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.items[..self.len]
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    pub(crate) fn is_full(&self) -> bool {
        self.len == self.items.len()
    }
}
