//! The loader: the program that a kernel starts as, before it becomes a preloaded interpreter.
//!
//! ```text
//!   guest ── executes ──▶ loader ◀── socket: numbers of the layers, and the files ── host
//!                            └── becomes the preloaded interpreter, in its own sandbox
//! ```
//!
//! It is small and static, so it starts much faster than an interpreter. It has the rights of its sandbox.

use core::arch::{asm, naked_asm};

use crate::format::LayerFile;
use crate::raw::{self, EINVAL, Result};
use crate::thaw::{Thaw, belljar_thaw};

/// The descriptors that the guest passes.
const CONTROL: u64 = 3;
const SNAPSHOT_SOCKET: u64 = 4;

/// The numbers at which the restored kernel expects them; see `belljar_kernel/snapshot.py`.
const CONTROL_AT: u64 = 950;
const SNAPSHOT_SOCKET_AT: u64 = 951;

/// The most files that one packet carries.
const MAX_FILES: usize = 64;

const EXIT_REFUSED: i32 = 70;

/// # Safety
/// Only Linux may call it, once.
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

/// Returns only on failure, with the errno.
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
        raw::duplicate(SNAPSHOT_SOCKET, SNAPSHOT_SOCKET_AT)?;
        Ok(named)
    });
    let named = match moved {
        Ok(named) => named,
        Err(error) => return error,
    };
    let mut request = Thaw::new(fds[0], &layers[..named]);
    // SAFETY: this process has one thread, and the request is complete.
    let outcome = unsafe { belljar_thaw(&raw mut request) };
    *problem = *request.problem();
    -outcome
}

/// Receives one packet: how many words it has, and how many files came with it.
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
    let got = raw::receive_message(SNAPSHOT_SOCKET, &mut message)?;
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

/// Sends the reason as a kernel's answer, in one packet: the errno, and the file that it is about.
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
    // Replaces bytes of a path that JSON strings do not allow.
    let plain = |byte: u8| match byte {
        b' ' | b'!' | b'#'..=b'[' | b']'..=b'~' => byte,
        _ => b'?',
    };
    let digits = [error / 100 % 10, error / 10 % 10, error % 10].map(|digit| b'0' + digit as u8);
    let path = problem.split(|&byte| byte == 0).next().unwrap_or_default();
    BEGIN.iter().chain(b"error ").chain(&digits).chain(b" ").for_each(|&byte| add(byte));
    path.iter().for_each(|&byte| add(plain(byte)));
    END.iter().for_each(|&byte| add(byte));
    let _ = raw::write_all(SNAPSHOT_SOCKET, &text[..len]);
}

/// The compiler calls it for copies; there is no library that has it.
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
        // SAFETY: the caller's promise; a forward copy overwrites no byte before it is read.
        return unsafe { memcpy(to, from, len) };
    }
    // SAFETY: the caller's promise; copies backwards, for the same reason. The direction flag is restored.
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
