//! The program that a kernel begins as when the host brings the memory of a preloaded interpreter.
//!
//! ```text
//!   guest ── executes ──▶ loader ◀── line: numbers of the layers, and the files ── host
//!                            └── becomes the preloaded interpreter, in its own sandbox
//! ```
//!
//! It is small and static, so it starts in a fraction of the time that an interpreter takes, and it has the
//! rights of the sandbox it is in, as everything that is executed there.

use core::arch::{asm, naked_asm};

use crate::format::LayerFile;
use crate::raw::{self, EINVAL, Result};
use crate::thaw::{Thaw, belljar_thaw};

/// Where the guest has put what we need.
const CONTROL: u64 = 3;
const LINE: u64 = 4;

/// Where the kernel that we become looks for them; see `belljar_kernel/snapshot.py`.
const CONTROL_AT: u64 = 950;
const LINE_AT: u64 = 951;

/// As many files as one packet carries.
const MAX_FILES: usize = 64;

const EXIT_REFUSED: i32 = 70;

/// # Safety
/// Called by the system, once.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _start() -> ! {
    naked_asm!("xor ebp, ebp", "and rsp, -16", "call {main}", "ud2", main = sym main)
}

extern "C" fn main() -> ! {
    let mut problem = [0; 256];
    let error = become_kernel(&mut problem);
    refuse(error, &problem);
    raw::exit_group(EXIT_REFUSED)
}

/// Returns only if it was not possible: the number of the error.
fn become_kernel(problem: &mut [u8; 256]) -> i64 {
    let mut ids = [0u64; MAX_FILES];
    let mut fds = [0u64; MAX_FILES];
    let mut layers = [LayerFile { id: 0, fd: 0 }; MAX_FILES];
    let received = receive(&mut ids, &mut fds).and_then(|(named, files)| {
        for (number, layer) in layers.iter_mut().enumerate().take(named) {
            let fd = *fds.get(number + 1).ok_or(EINVAL)?;
            *layer = LayerFile { id: ids[number], fd };
        }
        if files == named + 1 { Ok(named) } else { Err(EINVAL) }
    });
    let moved = received.and_then(|named| {
        raw::duplicate(CONTROL, CONTROL_AT)?;
        raw::duplicate(LINE, LINE_AT)?;
        Ok(named)
    });
    let named = match moved {
        Ok(named) => named,
        Err(error) => return error,
    };
    let mut request = Thaw::new(fds[0], &layers[..named]);
    // SAFETY: this process has one thread, and the request is whole.
    let outcome = unsafe { belljar_thaw(&raw mut request) };
    *problem = *request.problem();
    -outcome
}

/// One packet: how many words it has, and how many files came with it.
fn receive(ids: &mut [u64; MAX_FILES], fds: &mut [u64; MAX_FILES]) -> Result<(usize, usize)> {
    const WORD: usize = 8;
    /// Length, and level and type in one word; then the descriptors, four bytes each.
    const HEADER_WORDS: usize = 2;
    let mut control = [0u64; HEADER_WORDS + MAX_FILES / 2];
    let range = raw::Range { start: ids.as_mut_ptr() as u64, len: size_of_val(ids) as u64 };
    let mut message = [
        0,
        0,
        &raw const range as u64,
        1,
        control.as_mut_ptr() as u64,
        size_of_val(&control) as u64,
        0,
    ];
    let got = raw::receive_message(LINE, &mut message)?;
    let bytes = control[0] as usize;
    if got == 0 || !got.is_multiple_of(WORD) || bytes < HEADER_WORDS * WORD {
        return Err(EINVAL);
    }
    let files = (bytes - HEADER_WORDS * WORD) / 4;
    for (number, fd) in fds.iter_mut().enumerate().take(files) {
        let pair = *control.get(HEADER_WORDS + number / 2).ok_or(EINVAL)?;
        *fd = pair >> (32 * (number % 2)) & u64::from(u32::MAX);
    }
    Ok((got / WORD, files))
}

/// Says why, in the form in which kernels answer: the number of the error, and the file it is about. One packet.
fn refuse(error: i64, problem: &[u8; 256]) {
    const BEGIN: &[u8] = b"{\"refused\": [\"";
    const END: &[u8] = b"\"]}";
    let mut text = [0u8; 320];
    let mut len = 0;
    let mut add = |byte: u8| {
        if let Some(place) = text.get_mut(len) {
            *place = byte;
            len += 1;
        }
    };
    // Paths are whatever they are; JSON is not.
    let plain = |byte: u8| match byte {
        b' ' | b'!' | b'#'..=b'[' | b']'..=b'~' => byte,
        _ => b'?',
    };
    let digits = [error / 100 % 10, error / 10 % 10, error % 10].map(|digit| b'0' + digit as u8);
    let path = problem.split(|&byte| byte == 0).next().unwrap_or_default();
    BEGIN.iter().chain(b"error ").chain(&digits).chain(b" ").for_each(|&byte| add(byte));
    path.iter().for_each(|&byte| add(plain(byte)));
    END.iter().for_each(|&byte| add(byte));
    let _ = raw::write_all(LINE, &text[..len]);
}

/// What the compiler calls for copies; there is no library to bring it.
///
/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe {
        asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _);
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: the caller's promise; what is read was not written before.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: the caller's promise; from the end on, for the same reason. The flag is put back.
    unsafe {
        asm!(
            "std", "rep movsb", "cld",
            inout("rcx") len => _,
            inout("rdi") to.add(len).wrapping_sub(1) => _,
            inout("rsi") from.add(len).wrapping_sub(1) => _,
        );
    }
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memset(to: *mut u8, byte: i32, len: usize) -> *mut u8 {
    // SAFETY: the caller's promise.
    unsafe { asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") byte as u8) };
    to
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, len: usize) -> i32 {
    for at in 0..len {
        // SAFETY: the caller's promise. Volatile, or the compiler would make this a call of itself.
        let (a, b) = unsafe { (one.add(at).read_volatile(), other.add(at).read_volatile()) };
        if a != b {
            return i32::from(a) - i32::from(b);
        }
    }
    0
}

/// # Safety
/// As in C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn bcmp(one: *const u8, other: *const u8, len: usize) -> i32 {
    // SAFETY: the caller's promise.
    unsafe { memcmp(one, other, len) }
}
