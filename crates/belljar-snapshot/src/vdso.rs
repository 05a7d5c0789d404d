//! Redirects the functions of one vDSO to another.
//!
//! The C library remembers the addresses of the vDSO's functions. A process that was saved with another vDSO keeps a copy of
//! that one at its former address. Each exported function of the copy jumps to the function of the same name in the vDSO of
//! this machine, or makes the system call if there is none.

use crate::elf::{self, number};
use crate::raw::{ESTALE, Result};

/// The most exported functions, aliases included. Linux 6.18 has 12.
const MAX_FUNCTIONS: usize = 64;

/// In bytes of the ELF header that are not used: this copy was redirected.
const MARK: &[u8] = b"BELLJAR";
const MARK_AT: usize = 9;

/// How many bytes [`is_redirected`] needs.
pub(crate) const HEAD_BYTES: u64 = 16;

/// Whether these bytes begin a copy that [`redirect`] has changed.
pub(crate) fn is_redirected(head: &[u8]) -> bool {
    head.starts_with(elf::MAGIC) && head.get(MARK_AT..MARK_AT + MARK.len()) == Some(MARK)
}

/// Whether a vDSO has `getrandom`, for which the C library maps memory that is never saved.
pub(crate) fn has_getrandom(image: &[u8]) -> bool {
    Image::parse(image).is_some_and(|image| image.find(GETRANDOM).is_some())
}

/// Makes all functions of `old` jump to those of `new`, which will be mapped at `base`.
pub(crate) fn redirect(old: &mut [u8], new: &[u8], base: u64) -> Result<()> {
    let mut patches = [(0, Patch::NOTHING); MAX_FUNCTIONS];
    let mut count = 0;
    {
        let (old, new) = (Image::parse(old).ok_or(ESTALE)?, Image::parse(new).ok_or(ESTALE)?);
        for (name, at) in old.functions() {
            let Some(patch) = Patch::of(name, &new, base) else { continue };
            if old.room(at) < patch.bytes().len() {
                return Err(ESTALE);
            }
            *patches.get_mut(count).ok_or(ESTALE)? = (at, patch);
            count += 1;
        }
    }
    for (at, patch) in &patches[..count] {
        let code = patch.bytes();
        old[*at..at + code.len()].copy_from_slice(code);
    }
    if count == 0 {
        return Err(ESTALE);
    }
    old[MARK_AT..MARK_AT + MARK.len()].copy_from_slice(MARK);
    Ok(())
}

const GETRANDOM: &[u8] = b"getrandom";

/// The functions that read clocks and the like from pages of the kernel. Others are code only and work anywhere.
const SYSTEM_CALLS: &[(&[u8], u32)] = &[
    (b"gettimeofday", 96),
    (b"time", 201),
    (b"clock_gettime", 228),
    (b"clock_getres", 229),
    (b"getcpu", 309),
];

/// New code for the begin of a function.
#[derive(Clone, Copy)]
struct Patch {
    code: [u8; 24],
    len: usize,
}

impl Patch {
    const NOTHING: Patch = Patch { code: [0; 24], len: 0 };

    fn of(name: &[u8], new: &Image<'_>, base: u64) -> Option<Patch> {
        // The caller gives it memory that has the layout of the old vDSO's kernel, so the new one cannot be used.
        if name == GETRANDOM {
            return Some(Patch::getrandom());
        }
        if let Some(at) = new.find(name) {
            return Some(Patch::jump(base + at as u64));
        }
        let call = SYSTEM_CALLS.iter().find(|call| call.0 == name)?;
        Some(Patch::system_call(call.1))
    }

    fn jump(to: u64) -> Patch {
        // jmp [rip]: the address follows. No register is changed.
        Patch::NOTHING.then(&[0xff, 0x25, 0, 0, 0, 0]).then(&to.to_le_bytes())
    }

    fn system_call(number: u32) -> Patch {
        // mov eax, number; syscall; ret
        Patch::NOTHING.then(&[0xb8]).then(&number.to_le_bytes()).then(&[0x0f, 0x05, 0xc3])
    }

    fn getrandom() -> Patch {
        const NUMBER: u32 = 318;
        // Asked for the size of its memory (the last argument is -1), it answers ENOSYS: cmp r8, -1; jne; mov rax, -38; ret.
        let sized = [0x49, 0x83, 0xf8, 0xff, 0x75, 0x08, 0x48, 0xc7, 0xc0, 0xda, 0xff, 0xff, 0xff];
        let call = Patch::system_call(NUMBER);
        Patch::NOTHING.then(&sized).then(&[0xc3]).then(call.bytes())
    }

    fn then(mut self, code: &[u8]) -> Patch {
        self.code[self.len..self.len + code.len()].copy_from_slice(code);
        self.len += code.len();
        self
    }

    fn bytes(&self) -> &[u8] {
        &self.code[..self.len]
    }
}

/// The exported functions of a vDSO in memory. Any bytes may be parsed.
struct Image<'a> {
    bytes: &'a [u8],
    /// What addresses in the file have more than positions in the image.
    bias: u64,
    symbols: &'a [u8],
    strings: &'a [u8],
}

impl<'a> Image<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Image<'a>> {
        const STRINGS: u64 = 5;
        const SYMBOLS: u64 = 6;
        const STRINGS_SIZE: u64 = 10;
        let part = |kind: u64| elf::parts(bytes).find(|part| part.kind == kind);
        let load = part(elf::LOAD)?;
        let bias = load.address.wrapping_sub(load.offset);
        let dynamic = bytes.get(usize::try_from(part(elf::DYNAMIC)?.offset).ok()?..)?;
        let entry = |tag: u64| {
            let mut pairs =
                dynamic.chunks_exact(16).take_while(|pair| number(pair, 0, 8) != Some(0));
            pairs.find(|pair| number(pair, 0, 8) == Some(tag)).and_then(|pair| number(pair, 8, 8))
        };
        let place = |tag: u64| usize::try_from(entry(tag)?.wrapping_sub(bias)).ok();
        let (symbols, strings) = (place(SYMBOLS)?, place(STRINGS)?);
        // Linkers put the strings after the symbols, whose number is not in every vDSO.
        let symbols = bytes.get(symbols..if strings > symbols { strings } else { bytes.len() })?;
        let size = usize::try_from(entry(STRINGS_SIZE)?).ok()?;
        let strings = bytes.get(strings..)?.get(..size)?;
        Some(Image { bytes, bias, symbols, strings })
    }

    /// Names without `__vdso_`, and positions; a function may have several names.
    fn functions(&self) -> impl Iterator<Item = (&'a [u8], usize)> {
        const FUNCTION: u64 = 2;
        const SYMBOL_BYTES: usize = 24;
        let (bias, len, strings) = (self.bias, self.bytes.len(), self.strings);
        self.symbols.chunks_exact(SYMBOL_BYTES).filter_map(move |symbol| {
            let is_function = number(symbol, 4, 1)? & 15 == FUNCTION && number(symbol, 6, 2)? != 0;
            let at = usize::try_from(number(symbol, 8, 8)?.wrapping_sub(bias)).ok()?;
            let name = strings.get(usize::try_from(number(symbol, 0, 4)?).ok()?..)?;
            let name = name.split(|&byte| byte == 0).next()?;
            let name = name.strip_prefix(b"__vdso_").unwrap_or(name);
            (is_function && at < len).then_some((name, at))
        })
    }

    fn find(&self, name: &[u8]) -> Option<usize> {
        self.functions().find(|function| function.0 == name).map(|function| function.1)
    }

    /// The bytes from the begin of a function to the next one.
    fn room(&self, at: usize) -> usize {
        let next = self.functions().map(|function| function.1).filter(|&other| other > at).min();
        next.unwrap_or(self.bytes.len()) - at
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::block::Block;
    use crate::maps;
    use crate::raw::{self, PAGE};

    type Clock = unsafe extern "C" fn(u64, *mut [u64; 2]) -> i64;
    type Cpu = unsafe extern "C" fn(*mut u32, *mut u32, u64) -> i64;
    type Random = unsafe extern "C" fn(*mut u8, u64, u64, u64, u64) -> i64;

    const MONOTONIC: u64 = 1;

    /// A vDSO with these functions, each of which is one invalid instruction.
    fn made(functions: &[(&str, usize)], len: usize, bias: u64) -> Vec<u8> {
        let mut image = vec![0; len];
        let (mut symbols, mut strings) = (vec![0; 24], vec![0]);
        for (name, at) in functions {
            symbols.extend((strings.len() as u32).to_le_bytes());
            symbols.extend([0x12, 0, 1, 0]);
            symbols.extend((*at as u64 + bias).to_le_bytes());
            symbols.extend(8u64.to_le_bytes());
            strings.extend(name.bytes().chain([0]));
            image[*at..at + 2].copy_from_slice(&[0x0f, 0x0b]);
        }
        let (dynamic, at) = (0x100, 0x180);
        let words = |words: &[u64]| words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let table = [6, at + bias, 5, at + symbols.len() as u64 + bias, 10, strings.len() as u64];
        let mut put =
            |at: usize, bytes: Vec<u8>| image[at..at + bytes.len()].copy_from_slice(&bytes);
        put(0, elf::MAGIC.to_vec());
        put(32, words(&[64]));
        put(54, vec![56, 0, 2, 0]);
        put(64, words(&[elf::LOAD | 5 << 32, 0, bias, 0, len as u64, len as u64, PAGE]));
        put(120, words(&[elf::DYNAMIC | 4 << 32, dynamic, dynamic + bias, 0, 64, 64, 8]));
        put(dynamic as usize, words(&table));
        let end = at as usize + symbols.len();
        put(at as usize, symbols);
        put(end, strings);
        image
    }

    /// The vDSO of this process, and its address.
    fn ours() -> (&'static [u8], u64) {
        let mut block = Block::take(None, 16 << 20).expect("memory");
        let table = maps::read(&mut block).expect("a table");
        let found = maps::mappings(table).find(|it| it.name == b"[vdso]").expect("a vDSO");
        let len = (found.end - found.start) as usize;
        // SAFETY: it stays mapped.
        (unsafe { core::slice::from_raw_parts(found.start as *const u8, len) }, found.start)
    }

    /// Makes an image executable.
    fn mapped(image: &[u8]) -> u64 {
        let mut block = Block::take(None, image.len() as u64).expect("memory");
        let at = block.pages(image.len() as u64).expect("all of it");
        // SAFETY: the block is ours, and as long as the image.
        unsafe { core::ptr::copy_nonoverlapping(image.as_ptr(), at as *mut u8, image.len()) };
        let prot = raw::PROT_READ | raw::PROT_EXEC;
        // SAFETY: it is not written any more.
        unsafe { raw::syscall(raw::MPROTECT, [at, block.len, prot, 0, 0, 0]) }.expect("rights");
        at
    }

    fn nanoseconds(clock: Clock) -> u64 {
        let mut time = [0; 2];
        // SAFETY: it writes two words.
        assert_eq!(unsafe { clock(MONOTONIC, &raw mut time) }, 0);
        time[0] * 1_000_000_000 + time[1]
    }

    fn now() -> u64 {
        let mut time = [0u64; 2];
        let call = [MONOTONIC, &raw mut time as u64, 0, 0, 0, 0];
        // SAFETY: it writes two words.
        unsafe { raw::syscall(228, call) }.expect("a time");
        time[0] * 1_000_000_000 + time[1]
    }

    fn check_functions(at: u64, places: [u64; 3]) {
        let [clock, cpu, random] = places.map(|place| at + place);
        // SAFETY: the code is there, and has this signature.
        let clock: Clock = unsafe { core::mem::transmute(clock) };
        // SAFETY: the same.
        let cpu: Cpu = unsafe { core::mem::transmute(cpu) };
        // SAFETY: the same.
        let random: Random = unsafe { core::mem::transmute(random) };
        let early = now();
        let time = nanoseconds(clock);
        assert!(early <= time && time <= now(), "{early} {time}");
        let (mut number, mut node) = (u32::MAX, u32::MAX);
        // SAFETY: it writes two numbers.
        assert_eq!(unsafe { cpu(&raw mut number, &raw mut node, 0) }, 0);
        assert!(number < 1 << 20 && node < 1 << 20, "{number} {node}");
        let mut bytes = [0; 32];
        // SAFETY: it writes 32 bytes.
        assert_eq!(unsafe { random(bytes.as_mut_ptr(), 32, 0, 0, 0) }, 32);
        assert_ne!(bytes, [0; 32]);
        // SAFETY: it writes nothing.
        let sized = unsafe { random(core::ptr::null_mut(), 0, 0, bytes.as_ptr() as u64, u64::MAX) };
        assert_eq!(sized, -38, "it has no memory of its own");
    }

    #[test]
    fn functions_at_other_places_jump_to_those_of_this_machine() {
        let (new, base) = ours();
        for bias in [0, 0xffff_ffff_ff70_0000] {
            let functions = [
                ("__vdso_getrandom", 0xf00),
                ("clock_gettime", 0x600),
                ("__vdso_clock_gettime", 0x600),
                ("__vdso_getcpu", 0x610),
            ];
            let mut old = made(&functions, 4096, bias);
            assert!(!is_redirected(&old) && has_getrandom(&old));
            redirect(&mut old, new, base).expect("it is redirected");
            assert!(is_redirected(&old));
            assert_eq!(old[0x600..0x602], [0xff, 0x25], "a jump");
            check_functions(mapped(&old), [0x600, 0x610, 0xf00]);
            // A second time, to another one.
            redirect(&mut old, new, base).expect("it is redirected again");
            check_functions(mapped(&old), [0x600, 0x610, 0xf00]);
        }
    }

    #[test]
    fn functions_that_are_not_there_make_system_calls() {
        let functions =
            [("clock_gettime", 0x600), ("getcpu", 0x620), ("getrandom", 0x640), ("other", 0x660)];
        let mut old = made(&functions, 4096, 0);
        let new = made(&[("something", 0x700)], 4096, 0);
        redirect(&mut old, &new, 0x1234_0000).expect("it is redirected");
        assert_eq!(old[0x660..0x662], [0x0f, 0x0b], "code that needs nothing of the kernel stays");
        check_functions(mapped(&old), [0x600, 0x620, 0x640]);
    }

    /// The vDSO of this machine, redirected to itself.
    #[test]
    fn a_copy_of_our_own_works_without_its_data() {
        let (new, base) = ours();
        let mut copy = new.to_vec();
        redirect(&mut copy, new, base).expect("it is redirected");
        let image = Image::parse(&copy).expect("a vDSO");
        let places = [&b"clock_gettime"[..], b"getcpu"]
            .map(|name| image.find(name).expect("a function") as u64);
        let random = image.find(GETRANDOM).map(|at| at as u64);
        let at = mapped(&copy);
        if let Some(random) = random {
            check_functions(at, [places[0], places[1], random]);
        }
    }

    #[test]
    fn functions_without_room_are_refused() {
        let new = made(&[("time", 0x700), ("getcpu", 0x800)], 4096, 0);
        let mut tight = made(&[("time", 0x600), ("getcpu", 0x608)], 4096, 0);
        assert_eq!(redirect(&mut tight, &new, 0), Err(ESTALE));
        let mut last = made(&[("time", 4096 - 8)], 4096, 0);
        assert_eq!(redirect(&mut last, &new, 0), Err(ESTALE));
        let mut none = made(&[], 4096, 0);
        assert_eq!(redirect(&mut none, &new, 0), Err(ESTALE), "no function");
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_redirected(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
            cut in 0..4096usize,
        ) {
            let new = made(&[("time", 0x700), ("getcpu", 0x800)], 4096, 0);
            let mut old = made(&[("time", 0x600), ("getcpu", 0x640)], 4096, 0);
            for (at, byte) in changes {
                // Most of the image is empty.
                let at = at.index(0x240);
                old[at] = byte;
            }
            let _ = redirect(&mut old.clone(), &new, 0);
            let _ = redirect(&mut old[..cut], &new, 0);
            let _ = redirect(&mut made(&[("time", 0x600)], 4096, 0), &old, 0);
        }
    }
}
