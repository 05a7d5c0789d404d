//! Parses the mappings of a process (`/proc/self/maps`).

use crate::block::Block;
use crate::raw::{self, ENOMEM, Result};

/// The largest table: a line per mapping, a hundred bytes each. Linux allows 65,530 mappings.
const MAX_TABLE: usize = 8 << 20;

#[derive(Debug, Clone, Copy)]
pub(crate) struct Mapping<'a> {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) prot: u64,
    pub(crate) shared: bool,
    pub(crate) offset: u64,
    /// 0 if it is no file.
    pub(crate) inode: u64,
    /// As `fstat` has it.
    pub(crate) device: u64,
    /// A path, a name in brackets, or nothing.
    pub(crate) name: &'a [u8],
}

impl Mapping<'_> {
    /// Whether Linux provides it to every process (vDSO, vvar), at an address of its choice.
    pub(crate) fn is_provided(&self) -> bool {
        self.name.starts_with(b"[v")
    }

    pub(crate) fn is_fixed(&self) -> bool {
        self.name == b"[vsyscall]"
    }

    pub(crate) fn is_file(&self) -> bool {
        self.name.starts_with(b"/")
    }
}

/// The table as it is now.
pub(crate) fn read(block: &mut Block) -> Result<&'static [u8]> {
    let file = raw::open(b"/proc/self/maps\0")?;
    let text = block.slice::<u8>(MAX_TABLE)?;
    let mut len = 0;
    let outcome = loop {
        match raw::read(file, &mut text[len..]) {
            Ok(0) if len == text.len() => break Err(ENOMEM),
            Ok(0) => break Ok(()),
            Ok(got) => len += got,
            Err(error) => break Err(error),
        }
    };
    raw::close(file);
    outcome.map(|()| &text[..len])
}

/// The mappings of a table, in the order of their addresses.
pub(crate) fn mappings(table: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    table.split(|&byte| byte == b'\n').filter_map(parse)
}

/// `start-end rwxp offset dev inode   name`
fn parse(line: &[u8]) -> Option<Mapping<'_>> {
    let mut rest = line;
    let range = word(&mut rest)?;
    let dash = range.iter().position(|&byte| byte == b'-')?;
    let rights = word(&mut rest)?;
    let right = |at: usize, letter: u8, bit: u64| match rights.get(at) {
        Some(&found) if found == letter => bit,
        _ => 0,
    };
    let offset = number(word(&mut rest)?, 16)?;
    let device = word(&mut rest)?;
    let colon = device.iter().position(|&byte| byte == b':')?;
    let (major, minor) = (number(&device[..colon], 16)?, number(&device[colon + 1..], 16)?);
    let inode = number(word(&mut rest)?, 10)?;
    let (start, end) = (number(&range[..dash], 16)?, number(&range[dash + 1..], 16)?);
    if start >= end {
        return None;
    }
    Some(Mapping {
        start,
        end,
        prot: right(0, b'r', raw::PROT_READ)
            | right(1, b'w', raw::PROT_WRITE)
            | right(2, b'x', raw::PROT_EXEC),
        shared: rights.get(3) == Some(&b's'),
        offset,
        inode,
        device: (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12,
        name: rest.trim_ascii(),
    })
}

fn word<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let text = rest.trim_ascii_start();
    let end = text.iter().position(|&byte| byte == b' ').unwrap_or(text.len());
    let (word, after) = text.split_at(end);
    *rest = after;
    (!word.is_empty()).then_some(word)
}

pub(crate) fn number(digits: &[u8], base: u64) -> Option<u64> {
    let value = |byte: u8| match byte {
        b'0'..=b'9' => Some(u64::from(byte - b'0')),
        b'a'..=b'f' => Some(u64::from(byte - b'a') + 10),
        _ => None,
    };
    let add = |sum: u64, &byte: &u8| sum.checked_mul(base)?.checked_add(value(byte)?);
    (!digits.is_empty()).then(|| digits.iter().try_fold(0, add))?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        /// A line as Linux writes it, and its parsed form.
        fn line()(
            start in 0..u64::MAX, len in 1..u64::MAX, rights in 0..16u64, offset in any::<u64>(),
            major in 0..0x1000u64, minor in 0..0x10_0000u64, inode in any::<u64>(),
            name in "(|/[a-zé][a-z \\t]{0,20}[a-z]|\\[heap\\]|\\[vdso\\]| )",
        ) -> (String, Mapping<'static>) {
            let end = start.saturating_add(len);
            let letter = |bit: u64, letter: char| if rights & bit != 0 { letter } else { '-' };
            let shared = if rights & 8 != 0 { 's' } else { 'p' };
            let text = format!(
                "{start:x}-{end:x} {}{}{}{shared} {offset:08x} {major:02x}:{minor:02x} {inode}    {name}",
                letter(1, 'r'), letter(2, 'w'), letter(4, 'x'),
            );
            let device = (minor & 0xff) | major << 8 | (minor & !0xff) << 12;
            let name = name.trim_ascii().as_bytes().to_vec().leak();
            let (prot, shared) = (rights & 7, rights & 8 != 0);
            (text, Mapping { start, end, prot, shared, offset, inode, device, name })
        }
    }

    fn words(it: &Mapping<'_>) -> ([u64; 6], bool, Vec<u8>) {
        let words = [it.start, it.end, it.prot, it.offset, it.inode, it.device];
        (words, it.shared, it.name.to_vec())
    }

    proptest! {
        #[test]
        fn every_line_of_a_table_is_understood(lines in prop::collection::vec(line(), 0..20)) {
            let table: String = lines.iter().map(|(text, _)| format!("{text}\n")).collect();
            let found: Vec<_> = mappings(table.as_bytes()).map(|it| words(&it)).collect();
            let meant: Vec<_> = lines.iter().map(|(_, it)| words(it)).collect();
            prop_assert_eq!(found, meant);
        }

        #[test]
        fn any_text_has_only_mappings_that_can_be(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            text in "([0-9a-g -:rwxps/\n]{0,200})",
        ) {
            for table in [&bytes[..], text.as_bytes()] {
                for mapping in mappings(table) {
                    prop_assert!(mapping.start < mapping.end);
                }
            }
        }

        #[test]
        fn a_line_with_a_changed_byte_is_a_mapping_or_none(
            (text, _) in line(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let mut bytes = text.into_bytes();
            let at = at.index(bytes.len());
            bytes[at] = byte;
            for mapping in mappings(&bytes) {
                prop_assert!(mapping.start < mapping.end);
            }
        }
    }

    /// The table of this very process, read as a kernel reads it.
    #[test]
    fn the_table_of_a_process_has_what_it_uses() {
        let mut block = Block::take(None, 16 << 20).expect("memory");
        let table = read(&mut block).expect("a table");
        let lines = table.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()).count();
        assert_eq!(mappings(table).count(), lines);
        let here = &raw const lines as u64;
        let stack = mappings(table).find(|it| (it.start..it.end).contains(&here));
        let writable = raw::PROT_READ | raw::PROT_WRITE;
        assert_eq!(stack.map(|it| it.prot), Some(writable));
        let code = read as *const () as u64;
        let code = mappings(table).find(|it| (it.start..it.end).contains(&code)).expect("code");
        assert!(code.is_file() && code.prot & raw::PROT_EXEC != 0 && code.inode != 0);
    }

    #[test]
    fn lines_are_understood() {
        let table = b"7f00-8000 rw-p 00001000 08:01 123   /lib/a name with spaces\n\
            ff0000-ff1000 r-xs 00000000 00:00 0 \nnonsense\n9000-a000 r--p 00000000 00:00 0 [vdso]\n";
        let found: [Option<Mapping<'_>>; 4] = {
            let mut all = mappings(table);
            core::array::from_fn(|_| all.next())
        };
        let [Some(file), Some(plain), Some(vdso), None] = found else { panic!("{found:?}") };
        assert_eq!((file.start, file.end, file.offset, file.inode), (0x7f00, 0x8000, 0x1000, 123));
        assert_eq!(file.prot, raw::PROT_READ | raw::PROT_WRITE);
        assert!(file.is_file() && !file.shared);
        assert_eq!(file.name, b"/lib/a name with spaces");
        assert!(plain.shared && plain.name.is_empty());
        assert!(vdso.is_provided());
    }
}
