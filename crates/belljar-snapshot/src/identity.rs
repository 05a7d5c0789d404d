//! Recognises files by their content: the same image has other file times on another machine.
//!
//! A library's build id stands for its content. Files without one are hashed. What was found is kept in the memory of the
//! process, for files that have not changed since; kernels inherit it from their zygote.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use crate::block::Plain;
use crate::elf::{self, number};
use crate::raw::{self, Result, Stat};

/// Stands for a file's content.
#[repr(transparent)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Identity([u64; 2]);

// SAFETY: words only.
unsafe impl Plain for Identity {}

impl Identity {
    /// Of no file, or of one that is too large.
    pub(crate) const UNKNOWN: Identity = Identity([0; 2]);

    pub(crate) fn is_known(self) -> bool {
        self != Identity::UNKNOWN
    }

    /// Reads the file, unless this process knows it.
    pub(crate) fn of(fd: u64, path: &[u8], stat: &Stat, buffer: &mut [u8]) -> Identity {
        let key = key(path, stat);
        if let Some(known) = recall(key) {
            return known;
        }
        let identity = read(fd, stat, buffer).unwrap_or(Identity::UNKNOWN);
        if identity.is_known() {
            remember(key, identity);
        }
        identity
    }
}

/// The size of the buffer for [`Identity::of`].
pub(crate) const BUFFER_BYTES: usize = 256 << 10;

/// Larger files without a build id are recognised by their time only.
const MAX_HASHED: u64 = 256 << 20;

/// More than the files of a process that has imported everything. If they are more, the first are forgotten.
const MAX_KNOWN: usize = 1024;

/// Key and identity. An entry without a key is free.
static KNOWN: [[AtomicU64; 3]; MAX_KNOWN] = [const { [const { AtomicU64::new(0) }; 3] }; MAX_KNOWN];
static NEXT: AtomicUsize = AtomicUsize::new(0);

fn recall(key: u64) -> Option<Identity> {
    let [_, one, other] = KNOWN.iter().find(|entry| entry[0].load(Relaxed) == key)?;
    Some(Identity([one.load(Relaxed), other.load(Relaxed)]))
}

fn remember(key: u64, identity: Identity) {
    let number = NEXT.load(Relaxed);
    let entry = &KNOWN[number % MAX_KNOWN];
    let [one, other] = identity.0;
    entry.iter().zip([key, one, other]).for_each(|(place, word)| place.store(word, Relaxed));
    NEXT.store(number.wrapping_add(1), Relaxed);
}

/// Not by device and inode, which may be others in every sandbox.
fn key(path: &[u8], stat: &Stat) -> u64 {
    let mut hash = Hash::new();
    hash.add(path);
    let [seconds, nanoseconds] = stat.modified;
    for word in [stat.size, seconds, nanoseconds] {
        hash.add(&word.to_le_bytes());
    }
    hash.finish()[0]
}

fn read(fd: u64, stat: &Stat, buffer: &mut [u8]) -> Result<Identity> {
    let mut hash = Hash::new();
    if with_build_id(fd, buffer, &mut hash)? {
        return Ok(Identity(hash.finish()));
    }
    if stat.size > MAX_HASHED {
        return Ok(Identity::UNKNOWN);
    }
    let mut hash = Hash::new();
    let mut at = 0;
    while at < stat.size {
        let got = raw::pread(fd, buffer, at)?;
        if got == 0 {
            return Ok(Identity::UNKNOWN);
        }
        hash.add(&buffer[..got]);
        at += got as u64;
    }
    Ok(Identity(hash.finish()))
}

/// Adds the build id of a library, and its first page, which says where its parts are mapped. `false` if it has none.
fn with_build_id(fd: u64, buffer: &mut [u8], hash: &mut Hash) -> Result<bool> {
    const HEAD: usize = 4096;
    const NOTES: usize = 4096;
    let (head, rest) = buffer.split_at_mut(HEAD);
    let got = raw::pread(fd, head, 0)?;
    let head = &head[..got];
    for notes in elf::parts(head).filter(|part| part.kind == elf::NOTE) {
        let room = rest.len().min(NOTES).min(notes.len as usize);
        let got = raw::pread(fd, &mut rest[..room], notes.offset)?;
        let align = if notes.align == 8 { 8 } else { 4 };
        if let Some(id) = build_id(&rest[..got], align) {
            hash.add(head);
            hash.add(id);
            return Ok(true);
        }
    }
    Ok(false)
}

fn build_id(mut notes: &[u8], align: usize) -> Option<&[u8]> {
    const BUILD_ID: u64 = 3;
    const HEAD: usize = 12;
    loop {
        let [name, id, kind] = [0, 4, 8].map(|at| number(notes, at, 4));
        let (name, id) = (usize::try_from(name?).ok()?, usize::try_from(id?).ok()?);
        let start = (HEAD + name).next_multiple_of(align);
        if kind? == BUILD_ID && notes.get(HEAD..HEAD + name)? == b"GNU\0" && id > 0 {
            return notes.get(start..start + id);
        }
        notes = notes.get((start + id).next_multiple_of(align)..)?;
    }
}

/// A fast hash; it does not protect against deliberate changes.
struct Hash {
    lanes: [u64; 4],
    len: u64,
}

impl Hash {
    fn new() -> Hash {
        const SEEDS: [u64; 4] = [
            0x9e37_79b9_7f4a_7c15,
            0xbf58_476d_1ce4_e5b9,
            0x94d0_49bb_1331_11eb,
            0x2545_f491_4f6c_dd1d,
        ];
        Hash { lanes: SEEDS, len: 0 }
    }

    fn add(&mut self, bytes: &[u8]) {
        const FACTOR: u64 = 0xd6e8_feb8_6659_fd93;
        self.len += bytes.len() as u64;
        let mut mix = |chunk: &[u8; 32]| {
            let (words, _) = chunk.as_chunks::<8>();
            for (lane, word) in self.lanes.iter_mut().zip(words) {
                *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(FACTOR).rotate_left(31);
            }
        };
        let (chunks, rest) = bytes.as_chunks::<32>();
        chunks.iter().for_each(&mut mix);
        if !rest.is_empty() {
            let mut last = [0; 32];
            last[..rest.len()].copy_from_slice(rest);
            mix(&last);
        }
    }

    /// Never zero.
    fn finish(mut self) -> [u64; 2] {
        let len = self.len.to_le_bytes();
        self.add(&len);
        let [a, b, c, d] = self.lanes;
        let spread = |one: u64, other: u64| {
            let word = (one ^ other.rotate_left(17)).wrapping_mul(0xff51_afd7_ed55_8ccd);
            word ^ word >> 33
        };
        [spread(a, c) | 1, spread(b, d)]
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::path::Path;

    use super::*;

    fn of(path: &Path) -> (Identity, Stat) {
        let file = File::open(path).expect("a file");
        let fd = u64::try_from(file.as_raw_fd()).expect("a descriptor");
        let stat = raw::fstat(fd).expect("a file");
        let name = path.as_os_str().as_encoded_bytes();
        (Identity::of(fd, name, &stat, &mut vec![0; BUFFER_BYTES]), stat)
    }

    fn written(name: &str, content: &[u8]) -> std::path::PathBuf {
        let path = std::env::temp_dir().join(format!("belljar-{}-{name}", std::process::id()));
        File::create(&path).and_then(|mut file| file.write_all(content)).expect("a file");
        path
    }

    #[test]
    fn the_same_content_at_another_time_is_the_same_file() {
        let long: Vec<u8> = (0..700_001u32).map(|n| (n * 7 % 251) as u8).collect();
        let mut changed = long.clone();
        changed[650_000] ^= 1;
        let [one, other, third] =
            [("one", &long), ("other", &long), ("third", &changed)].map(|(name, content)| {
                let path = written(name, content);
                if name == "other" {
                    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1000);
                    File::options()
                        .append(true)
                        .open(&path)
                        .and_then(|file| file.set_modified(old))
                        .expect("times");
                }
                let found = of(&path);
                std::fs::remove_file(path).expect("it is there");
                found
            });
        assert_ne!(one.1.modified, other.1.modified);
        assert!(one.0.is_known());
        assert_eq!(one.0, other.0);
        assert_ne!(one.0, third.0);
    }

    fn note(id: &[u8]) -> Vec<u8> {
        let words = [4, id.len() as u32, 3].into_iter().flat_map(u32::to_le_bytes);
        words.chain(*b"GNU\0").chain(id.iter().copied()).collect()
    }

    /// A library whose build id is far from its begin, as in wheels.
    fn library(id: &[u8]) -> Vec<u8> {
        const NOTES_AT: usize = 0x5008;
        let mut file = vec![0; 0x6000];
        let notes = note(id);
        let words = [elf::NOTE, NOTES_AT as u64, 0, 0, notes.len() as u64, 0, 4];
        let header: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        file[..6].copy_from_slice(elf::MAGIC);
        (file[32], file[54], file[56]) = (64, 56, 1);
        file[64..64 + header.len()].copy_from_slice(&header);
        file[NOTES_AT..NOTES_AT + notes.len()].copy_from_slice(&notes);
        file
    }

    #[test]
    fn a_library_is_known_by_its_build_id() {
        let of_content = |name: &str, content: &[u8]| {
            let path = written(name, content);
            let found = of(&path).0;
            std::fs::remove_file(path).expect("it is there");
            assert!(found.is_known());
            found
        };
        let first = of_content("library-1", &library(&[7; 20]));
        assert_ne!(first, of_content("library-2", &library(&[8; 20])), "another one");
        let mut same = library(&[7; 20]);
        same[0x3000] = 1;
        assert_eq!(first, of_content("library-3", &same), "its build id stands for the content");
        same[70] = 1;
        assert_ne!(first, of_content("library-4", &same), "its parts are elsewhere");
    }

    /// A file that was not changed is not read again.
    #[test]
    fn what_was_read_is_remembered() {
        let path = written("known", b"something");
        let (first, stat) = of(&path);
        let nothing = u64::MAX;
        let name = path.as_os_str().as_encoded_bytes();
        let known = |stat: &Stat| Identity::of(nothing, name, stat, &mut [0; 8192]);
        assert_eq!(known(&stat), first);
        assert_eq!(known(&Stat { size: 10, ..stat }), Identity::UNKNOWN);
        std::fs::remove_file(path).expect("it is there");
    }

    #[test]
    fn notes_that_are_cut_off_have_no_build_id() {
        let notes = note(&[7; 20]);
        assert_eq!(build_id(&notes, 4), Some(&[7; 20][..]));
        for len in 0..notes.len() {
            assert_eq!(build_id(&notes[..len], 4), None);
        }
        assert_eq!(build_id(&[0xff; 64], 8), None);
    }
}
