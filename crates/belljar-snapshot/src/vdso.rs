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
