//! What is in an index.
//!
//! ```text
//! Header | signals: 64 Actions | layers: ids | areas | runs | text: paths, each ending with a zero
//! ```
//!
//! An area is a range of addresses and what is there by itself: zeroes, or a file. Runs are the
//! pages that differ from that, in the order of their addresses. A version of ours reads what
//! earlier ones wrote.

use core::mem::size_of;

use crate::block::Plain;
use crate::raw::{Action, EINVAL, Result, SIGNALS};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"BELLJAR\x01");
pub(crate) const VERSION: u64 = 1;

/// A file of pages and its number.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LayerFile {
    pub id: u64,
    pub fd: u64,
}

/// Numbers with this bit are of layers that many kernels have in common: what they forked from.
pub(crate) const COMMON: u64 = 1 << 62;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Header {
    pub(crate) magic: u64,
    pub(crate) version: u64,
    /// The layer that was written with it.
    pub(crate) layer: u64,
    pub(crate) layers: u64,
    pub(crate) areas: u64,
    pub(crate) runs: u64,
    pub(crate) text: u64,
    /// Where to go on: the stack, and the code behind the call.
    pub(crate) stack_pointer: u64,
    pub(crate) resume: u64,
    pub(crate) thread_pointer: u64,
    pub(crate) tid_address: u64,
    pub(crate) robust_list: [u64; 2],
    /// Address and length; no length where there is none.
    pub(crate) rseq: [u64; 2],
    pub(crate) alternate_stack: [u64; 3],
    pub(crate) signal_mask: u64,
    /// What `PR_SET_MM_MAP` takes: code, data, heap, stack, arguments, environment.
    pub(crate) layout: [u64; 11],
    /// A sum over the code that the system provides, whose addresses libraries remember.
    pub(crate) provided: u64,
}

/// Zeroes by themselves.
pub(crate) const ANONYMOUS: u64 = 0;
/// A file, of which we see changes that others do not.
pub(crate) const FILE: u64 = 1;
/// A file that is shared.
pub(crate) const SHARED_FILE: u64 = 2;
/// As anonymous, and grows downwards.
pub(crate) const STACK: u64 = 3;
/// What the system provides: moved to where it was.
pub(crate) const PROVIDED: u64 = 4;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: u64,
    pub(crate) prot: u64,
    pub(crate) offset: u64,
    /// Its path in the text: where, and how long with its zero.
    pub(crate) path: [u64; 2],
    /// What the file was like.
    pub(crate) size: u64,
    pub(crate) modified: [u64; 2],
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) len: u64,
    pub(crate) layer: u64,
    pub(crate) offset: u64,
    /// Not 0 if it may be mapped from its layer. After `MADV_DONTNEED` a mapped page has what is in the layer,
    /// and not zeroes: there are allocators that count on zeroes.
    pub(crate) mappable: u64,
}

impl Run {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }
}

// SAFETY: words only.
unsafe impl Plain for LayerFile {}
// SAFETY: words only.
unsafe impl Plain for Header {}
// SAFETY: words only.
unsafe impl Plain for Area {}
// SAFETY: words only.
unsafe impl Plain for Run {}
// SAFETY: words only.
unsafe impl Plain for Action {}

/// An index as it lies in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Index<'a> {
    pub(crate) header: &'a Header,
    pub(crate) signals: &'a [Action],
    pub(crate) areas: &'a [Area],
    pub(crate) runs: &'a [Run],
    pub(crate) text: &'a [u8],
}

impl<'a> Index<'a> {
    pub(crate) fn parse(mut bytes: &'a [u8]) -> Result<Index<'a>> {
        let header = &cut::<Header>(&mut bytes, 1)?[0];
        if header.magic != MAGIC || header.version != VERSION {
            return Err(EINVAL);
        }
        let signals = cut(&mut bytes, SIGNALS)?;
        let _layers = cut::<u64>(&mut bytes, header.layers)?;
        let areas = cut::<Area>(&mut bytes, header.areas)?;
        let runs = cut::<Run>(&mut bytes, header.runs)?;
        let text = cut::<u8>(&mut bytes, header.text)?;
        let good = in_order(areas.iter().map(|area| (area.start, area.end)))
            && in_order(runs.iter().map(|run| (run.start, run.start.saturating_add(run.len))));
        if good { Ok(Index { header, signals, areas, runs, text }) } else { Err(EINVAL) }
    }

    /// The path of an area, with the zero at its end.
    pub(crate) fn path(&self, area: &Area) -> Result<&'a [u8]> {
        let [start, len] = area.path.map(|word| word as usize);
        let path = self.text.get(start..).and_then(|rest| rest.get(..len)).ok_or(EINVAL)?;
        if path.ends_with(b"\0") { Ok(path) } else { Err(EINVAL) }
    }
}

fn in_order(mut ranges: impl Iterator<Item = (u64, u64)>) -> bool {
    let mut before = 0;
    ranges.all(|(start, end)| {
        let good = before <= start && start < end;
        before = end;
        good
    })
}

fn cut<'a, T: Plain>(bytes: &mut &'a [u8], count: u64) -> Result<&'a [T]> {
    let len = usize::try_from(count).ok().and_then(|count| count.checked_mul(size_of::<T>()));
    let len = len.filter(|&len| len <= bytes.len()).ok_or(EINVAL)?;
    let (taken, rest) = bytes.split_at(len);
    *bytes = rest;
    // SAFETY: any bytes are a `T`; everything before has a length in whole words, so it is aligned if
    // the index is, which begins with a page.
    Ok(unsafe { core::slice::from_raw_parts(taken.as_ptr().cast(), len / size_of::<T>()) })
}

/// The bytes of a structure of plain words.
pub(crate) fn bytes_of<T: Plain>(items: &[T]) -> &[u8] {
    // SAFETY: they have no padding, being words only.
    unsafe { core::slice::from_raw_parts(items.as_ptr().cast(), size_of_val(items)) }
}

/// A sum that differs if anything does, by accident.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
