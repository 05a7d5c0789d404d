//! The format of an index.
//!
//! ```text
//! Header | signals: 64 Actions | layers: ids | areas | runs | text: paths, each ending with a zero
//!     at the next whole word: Tail | identities: one for each area
//! ```
//!
//! An area is a range of addresses with its original content: zeroes, or a file. Runs are the pages that differ from it, in the
//! order of their addresses. Newer versions read the indexes of older ones, which may have no tail.

use core::mem::size_of;

use crate::block::Plain;
use crate::features::Features;
use crate::identity::Identity;
use crate::raw::{Action, EINVAL, PAGE, Result, SIGNALS};

pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"BELLJAR\x01");
/// The version of the format.
pub const VERSION: u64 = 1;

/// A file of pages and its number.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct LayerFile {
    pub id: u64,
    pub fd: u64,
}

/// Set in the numbers of layers that many kernels share: the memory of their zygote. `belljar-runtime` has the same constant
/// (`snapshot.rs`).
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
    /// Where to continue: the stack, and the code after the call.
    pub(crate) stack_pointer: u64,
    pub(crate) resume: u64,
    pub(crate) thread_pointer: u64,
    pub(crate) tid_address: u64,
    pub(crate) robust_list: [u64; 2],
    /// Address and length; length 0 if there is none.
    pub(crate) rseq: [u64; 2],
    pub(crate) alternate_stack: [u64; 3],
    pub(crate) signal_mask: u64,
    /// The arguments of `PR_SET_MM_MAP`: code, data, heap, stack, arguments, environment.
    pub(crate) layout: [u64; 11],
    /// A checksum of the code that Linux provides (vDSO), whose addresses libraries remember.
    pub(crate) provided: u64,
}

/// Zeroes at first.
pub(crate) const ANONYMOUS: u64 = 0;
/// A file that is mapped privately.
pub(crate) const FILE: u64 = 1;
/// A file that is mapped shared.
pub(crate) const SHARED_FILE: u64 = 2;
/// Like anonymous, and grows downwards.
pub(crate) const STACK: u64 = 3;
/// Provided by Linux (vDSO): moved to its former address.
pub(crate) const PROVIDED: u64 = 4;
/// A copy of another machine's vDSO, which jumps to this machine's, see [`crate::vdso`].
pub(crate) const PROXY: u64 = 5;
/// Memory of the vDSO's `getrandom`, which is never saved: two kernels must not have the same random numbers.
pub(crate) const DROPPABLE: u64 = 6;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) kind: u64,
    pub(crate) prot: u64,
    pub(crate) offset: u64,
    /// Its path in the text: position, and length with the zero.
    pub(crate) path: [u64; 2],
    /// The size and time of the file.
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
    /// Not 0 if it may be mapped from its layer. After `MADV_DONTNEED` a mapped page has the content of the layer and not zeroes,
    /// which some allocators rely on.
    pub(crate) mappable: u64,
}

impl Run {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Whether its offset is possible in a layer.
    fn has_valid_offset(&self) -> bool {
        self.offset.is_multiple_of(PAGE) && self.offset.checked_add(self.len).is_some()
    }
}

/// What was added to the format later.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tail {
    pub(crate) magic: u64,
    /// The processor that the process ran on.
    pub(crate) features: Features,
    /// The number of identities.
    pub(crate) identities: u64,
}

pub(crate) const TAIL_MAGIC: u64 = u64::from_le_bytes(*b"BELLJAR\x02");

// SAFETY: words only.
unsafe impl Plain for LayerFile {}
// SAFETY: words only.
unsafe impl Plain for Tail {}
// SAFETY: words only.
unsafe impl Plain for Header {}
// SAFETY: words only.
unsafe impl Plain for Area {}
// SAFETY: words only.
unsafe impl Plain for Run {}
// SAFETY: words only.
unsafe impl Plain for Action {}

/// A parsed index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Index<'a> {
    pub(crate) header: &'a Header,
    pub(crate) signals: &'a [Action],
    pub(crate) areas: &'a [Area],
    pub(crate) runs: &'a [Run],
    pub(crate) text: &'a [u8],
    /// Empty if it has no tail.
    pub(crate) features: Features,
    /// One for each area, or none.
    pub(crate) identities: &'a [Identity],
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
        let good = in_order(areas.iter().map(|area| (area.start, Some(area.end))))
            && in_order(runs.iter().map(|run| (run.start, run.start.checked_add(run.len))))
            && runs.iter().all(|run| run.has_valid_offset());
        let (features, identities) = tail(text.len(), bytes)?;
        if !good || !(identities.is_empty() || identities.len() == areas.len()) {
            return Err(EINVAL);
        }
        Ok(Index { header, signals, areas, runs, text, features, identities })
    }

    /// Stands for the content of the file of an area, if that is known.
    pub(crate) fn identity(&self, number: usize) -> Identity {
        self.identities.get(number).copied().unwrap_or_default()
    }

    /// The runs of an area.
    pub(crate) fn runs_of(&self, area: &Area) -> Result<&'a [Run]> {
        let first = self.runs.partition_point(|run| run.start < area.start);
        let last = self.runs.partition_point(|run| run.start < area.end);
        let runs = &self.runs[first..last];
        // A run must not span two areas: freezing never joins runs across areas.
        if runs.last().is_some_and(|run| run.end() > area.end) { Err(EINVAL) } else { Ok(runs) }
    }

    /// The path of an area, with the zero at its end.
    pub(crate) fn path(&self, area: &Area) -> Result<&'a [u8]> {
        let [start, len] = area.path.map(|word| word as usize);
        let path = self.text.get(start..).and_then(|rest| rest.get(..len)).ok_or(EINVAL)?;
        if path.ends_with(b"\0") { Ok(path) } else { Err(EINVAL) }
    }
}

/// Reads what follows a text of this length.
fn tail(text: usize, bytes: &[u8]) -> Result<(Features, &[Identity])> {
    let tail_of = |mut bytes| -> Result<_> { Ok((cut::<Tail>(&mut bytes, 1)?[0], bytes)) };
    let filled = text.next_multiple_of(size_of::<u64>()) - text;
    match bytes.get(filled..).map(tail_of) {
        Some(Ok((tail, mut rest))) if tail.magic == TAIL_MAGIC => {
            Ok((tail.features, cut(&mut rest, tail.identities)?))
        }
        _ => Ok((Features::default(), &[])),
    }
}

/// Whether these are whole pages, one after the other, none of them empty.
fn in_order(mut ranges: impl Iterator<Item = (u64, Option<u64>)>) -> bool {
    let mut before = 0;
    ranges.all(|(start, end)| {
        let Some(end) = end else { return false };
        let good = before <= start && start < end;
        before = end;
        good && start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE)
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

/// A checksum; it does not protect against deliberate changes.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The words of an index, as a file has them: the text is filled up to whole words.
    pub(crate) fn written(header: Header, areas: &[Area], runs: &[Run], text: &[u8]) -> Vec<u64> {
        let mut text = text.to_vec();
        text.resize(text.len().next_multiple_of(8), 0);
        let header = Header {
            layers: 1,
            areas: areas.len() as u64,
            runs: runs.len() as u64,
            text: text.len() as u64,
            ..header
        };
        let signals = [Action::default(); SIGNALS as usize];
        let (header, layers) = ([header], [header.layer]);
        let parts = [
            bytes_of(&header),
            bytes_of(&signals),
            bytes_of(&layers),
            bytes_of(areas),
            bytes_of(runs),
            &text,
        ];
        let bytes = parts.concat();
        let (words, rest) = bytes.as_chunks::<8>();
        assert!(rest.is_empty());
        words.iter().map(|word| u64::from_ne_bytes(*word)).collect()
    }

    /// A valid header of an index without content.
    pub(crate) fn header() -> Header {
        Header {
            magic: MAGIC,
            version: VERSION,
            layer: 7,
            layers: 0,
            areas: 0,
            runs: 0,
            text: 0,
            stack_pointer: 0,
            resume: 0,
            thread_pointer: 0,
            tid_address: 0,
            robust_list: [0; 2],
            rseq: [0; 2],
            alternate_stack: [0; 3],
            signal_mask: 0,
            layout: [0; 11],
            provided: 0,
        }
    }

    /// The same index with a tail.
    pub(crate) fn with_tail(
        mut words: Vec<u64>,
        features: Features,
        identities: &[[u64; 2]],
    ) -> Vec<u64> {
        let tail = [Tail { magic: TAIL_MAGIC, features, identities: identities.len() as u64 }];
        let (tail, _) = bytes_of(&tail).as_chunks::<8>();
        words.extend(tail.iter().map(|word| u64::from_ne_bytes(*word)));
        words.extend(identities.as_flattened());
        words
    }

    #[test]
    fn what_was_added_later_is_read_if_it_is_there() {
        let areas = [area((0, PAGE), FILE, [0, 2]), area((PAGE, 2 * PAGE), FILE, [0, 2])];
        let features = Features::of_this_machine();
        let older = written(header(), &areas, &[], b"a\0");
        let index = Index::parse(bytes_of(&older)).expect("one of an earlier version");
        assert_eq!((index.features, index.identities.len()), (Features::default(), 0));
        assert!(!index.identity(0).is_known());
        let words = with_tail(older.clone(), features, &[[1, 2], [3, 4]]);
        let index = Index::parse(bytes_of(&words)).expect("an index");
        assert_eq!((index.features, index.identities.len()), (features, 2));
        assert!(index.identity(1).is_known() && !index.identity(2).is_known());
        let fewer = with_tail(older.clone(), features, &[[1, 2]]);
        assert!(Index::parse(bytes_of(&fewer)).is_err(), "an area has none");
        assert!(Index::parse(bytes_of(&words[..words.len() - 1])).is_err(), "it is cut off");
        let mut many = words;
        let at = older.len() + size_of::<Tail>() / 8 - 1;
        many[at] = u64::MAX;
        assert!(Index::parse(bytes_of(&many)).is_err(), "it ends before");
    }

    fn area((start, end): (u64, u64), kind: u64, path: [u64; 2]) -> Area {
        Area { start, end, kind, prot: 3, offset: 0, path, size: 0, modified: [0; 2] }
    }

    prop_compose! {
        /// Whole pages, one after the other.
        fn places()(gaps in prop::collection::vec((0..5u64, 1..5u64), 0..20)) -> Vec<(u64, u64)> {
            let mut at = 0;
            gaps.into_iter().map(|(gap, len)| {
                let start = at + gap * PAGE;
                at = start + len * PAGE;
                (start, at)
            }).collect()
        }
    }

    /// For any bytes: an index that was parsed is consistent.
    fn is_sound(index: &Index<'_>) {
        let mut before = 0;
        for area in index.areas {
            assert!(before <= area.start && area.start < area.end);
            before = area.end;
            let _ = index.path(area);
        }
        let mut before = 0;
        for run in index.runs {
            assert!(before <= run.start && run.start < run.end());
            assert!(run.offset.checked_add(run.len).is_some());
            before = run.end();
        }
        assert_eq!(index.signals.len() as u64, SIGNALS);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(
            areas in places(), runs in places(), text in prop::collection::vec(any::<u8>(), 0..50),
            layer in any::<u64>(), kind in 0..5u64, offset in 0..1000u64,
        ) {
            let areas: Vec<Area> = areas.into_iter().map(|it| area(it, kind, [0; 2])).collect();
            let runs: Vec<Run> = runs.into_iter().map(|(start, end)| {
                Run { start, len: end - start, layer, offset: offset * PAGE, mappable: 1 }
            }).collect();
            let words = written(Header { layer, ..header() }, &areas, &runs, &text);
            let index = Index::parse(bytes_of(&words)).expect("it is ours");
            prop_assert_eq!(index.header.layer, layer);
            prop_assert_eq!(index.runs, &runs);
            let places = |areas: &[Area]| -> Vec<_> {
                areas.iter().map(|it| (it.start, it.end, it.kind)).collect()
            };
            prop_assert_eq!(places(index.areas), places(&areas));
            prop_assert_eq!(&index.text[..text.len()], &text[..]);
            is_sound(&index);
        }

        #[test]
        fn any_words_are_refused_or_sound(
            mut words in prop::collection::vec(any::<u64>(), 0..600),
            small in prop::collection::vec(0..4u64, 5),
            ours in any::<bool>(),
        ) {
            // Otherwise parsing would always stop at the first word.
            if ours && words.len() > 7 {
                (words[0], words[1]) = (MAGIC, VERSION);
                words[3..7].copy_from_slice(&small[..4]);
            }
            if let Ok(index) = Index::parse(bytes_of(&words)) {
                is_sound(&index);
            }
        }

        #[test]
        fn a_changed_byte_is_refused_or_sound(
            areas in places(), runs in places(), at in any::<prop::sample::Index>(), flip in 1..=255u8,
        ) {
            let areas: Vec<Area> = areas.into_iter().map(|it| area(it, FILE, [2, 3])).collect();
            let runs: Vec<Run> = runs.into_iter().map(|(start, end)| {
                Run { start, len: end - start, layer: 7, offset: 0, mappable: 0 }
            }).collect();
            let mut words = written(header(), &areas, &runs, b"a\0bc\0");
            let at = at.index(words.len() * 8);
            words[at / 8] ^= u64::from(flip) << (at % 8 * 8);
            if let Ok(index) = Index::parse(bytes_of(&words)) {
                is_sound(&index);
            }
        }
    }

    #[test]
    fn one_that_is_cut_off_is_refused() {
        let areas = [area((0, PAGE), FILE, [0, 2])];
        let words = written(header(), &areas, &[], b"a\0");
        assert!(Index::parse(bytes_of(&words)).is_ok());
        for len in 0..words.len() {
            assert!(Index::parse(bytes_of(&words[..len])).is_err(), "{len} words");
        }
    }

    #[test]
    fn a_path_ends_within_the_text() {
        let paths = [([0, 2], true), ([0, 3], false), ([1, 2], false), ([7, 2], false)];
        for (path, good) in paths.into_iter().chain([([u64::MAX, 2], false), ([0, 0], false)]) {
            let areas = [area((0, PAGE), FILE, path)];
            let words = written(header(), &areas, &[], b"a\0bcdefg");
            let index = Index::parse(bytes_of(&words)).expect("an index");
            assert_eq!(index.path(&areas[0]).is_ok(), good, "{path:?}");
        }
    }
}
