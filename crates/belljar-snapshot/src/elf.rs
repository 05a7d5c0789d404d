//! Reads the head of an ELF file of this architecture. Any bytes may be read.

pub(crate) const MAGIC: &[u8] = b"\x7fELF\x02\x01";

pub(crate) const LOAD: u64 = 1;
pub(crate) const DYNAMIC: u64 = 2;
pub(crate) const NOTE: u64 = 4;

/// A program header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    pub(crate) kind: u64,
    pub(crate) offset: u64,
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) align: u64,
}

/// The program headers; none if it is another file.
pub(crate) fn parts(file: &[u8]) -> impl Iterator<Item = Part> {
    let [at, size, count] = [(32, 8), (54, 2), (56, 2)].map(|(at, len)| number(file, at, len));
    let count = if file.starts_with(MAGIC) { count.unwrap_or(0) } else { 0 };
    (0..count).filter_map(move |place| {
        let start = at?.checked_add(size? * place)?;
        let header = file.get(usize::try_from(start).ok()?..)?;
        Some(Part {
            kind: number(header, 0, 4)?,
            offset: number(header, 8, 8)?,
            address: number(header, 16, 8)?,
            len: number(header, 32, 8)?,
            align: number(header, 48, 8)?,
        })
    })
}

/// A number of up to eight bytes.
pub(crate) fn number(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?.get(..len)?;
    Some(bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)))
}
