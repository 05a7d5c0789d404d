//! System calls without a library.

use core::arch::asm;

pub(crate) const PAGE: u64 = 4096;

pub(crate) const READ: u64 = 0;
pub(crate) const CLOSE: u64 = 3;
pub(crate) const MMAP: u64 = 9;
pub(crate) const MPROTECT: u64 = 10;
pub(crate) const MUNMAP: u64 = 11;
pub(crate) const RT_SIGACTION: u64 = 13;
pub(crate) const RT_SIGPROCMASK: u64 = 14;
pub(crate) const PREAD: u64 = 17;
pub(crate) const MREMAP: u64 = 25;
const MADVISE: u64 = 28;
pub(crate) const SIGALTSTACK: u64 = 131;
pub(crate) const PRCTL: u64 = 157;
pub(crate) const ARCH_PRCTL: u64 = 158;
pub(crate) const SET_TID_ADDRESS: u64 = 218;
pub(crate) const SET_ROBUST_LIST: u64 = 273;
pub(crate) const RSEQ: u64 = 334;

const WRITE: u64 = 1;
const WRITEV: u64 = 20;
const FSTAT: u64 = 5;
const BRK: u64 = 12;
const GETTID: u64 = 186;
const EXIT_GROUP: u64 = 231;
const OPENAT: u64 = 257;
const GET_ROBUST_LIST: u64 = 274;

pub(crate) const PROT_READ: u64 = 1;
pub(crate) const PROT_WRITE: u64 = 2;
pub(crate) const PROT_EXEC: u64 = 4;
pub(crate) const MAP_SHARED: u64 = 1;
pub(crate) const MAP_PRIVATE: u64 = 2;
/// Private, never swapped, and empty after a fork; since Linux 6.11.
pub(crate) const MAP_DROPPABLE: u64 = 8;
pub(crate) const MAP_FIXED: u64 = 0x10;
pub(crate) const MAP_ANONYMOUS: u64 = 0x20;
pub(crate) const MAP_GROWSDOWN: u64 = 0x100;
pub(crate) const MAP_NORESERVE: u64 = 0x4000;
pub(crate) const NO_FILE: u64 = u64::MAX;

const EPERM: i64 = 1;
const EINTR: i64 = 4;
pub(crate) const ENOEXEC: i64 = 8;
pub(crate) const ENOMEM: i64 = 12;
pub(crate) const EINVAL: i64 = 22;
pub(crate) const ENOSPC: i64 = 28;
pub(crate) const EPIPE: i64 = 32;
pub(crate) const EPROTO: i64 = 71;
pub(crate) const ENOTSUP: i64 = 95;
pub(crate) const ESTALE: i64 = 116;

/// The error is an errno.
pub(crate) type Result<T> = core::result::Result<T, i64>;

/// # Safety
/// As safe as the call that is made.
pub(crate) unsafe fn syscall(number: u64, arguments: [u64; 6]) -> Result<u64> {
    let answer: i64;
    // SAFETY: the registers are those of the system call convention; what the call does is the caller's.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as i64 => answer,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if (-4095..0).contains(&answer) { Err(-answer) } else { Ok(answer.cast_unsigned()) }
}

/// The fields of `fstat` that are needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) modified: [u64; 2],
}

pub(crate) fn fstat(fd: u64) -> Result<Stat> {
    let mut raw = [0u64; 18];
    // SAFETY: the structure has 144 bytes on this architecture.
    unsafe { syscall(FSTAT, [fd, raw.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(Stat { device: raw[0], inode: raw[1], size: raw[6], modified: [raw[11], raw[12]] })
}

/// Opens for reading; the path ends with a zero.
pub(crate) fn open(path: &[u8]) -> Result<u64> {
    const AT_FDCWD: u64 = (-100i64).cast_unsigned();
    const O_CLOEXEC: u64 = 0o2_000_000;
    debug_assert!(path.ends_with(b"\0"));
    // SAFETY: the path is terminated, and only read.
    unsafe { syscall(OPENAT, [AT_FDCWD, path.as_ptr() as u64, O_CLOEXEC, 0, 0, 0]) }
}

pub(crate) fn close(fd: u64) {
    // SAFETY: only descriptors that we opened ourselves are closed.
    let _ = unsafe { syscall(CLOSE, [fd, 0, 0, 0, 0, 0]) };
}

pub(crate) fn read(fd: u64, buffer: &mut [u8]) -> Result<usize> {
    let (to, room) = (buffer.as_mut_ptr() as u64, buffer.len() as u64);
    // SAFETY: the buffer is ours, and as long as we say.
    again(|| unsafe { syscall(READ, [fd, to, room, 0, 0, 0]) }).map(|got| got as usize)
}

pub(crate) fn pread(fd: u64, buffer: &mut [u8], at: u64) -> Result<usize> {
    let (to, room) = (buffer.as_mut_ptr() as u64, buffer.len() as u64);
    // SAFETY: the buffer is ours, and as long as we say.
    unsafe { syscall(PREAD, [fd, to, room, at, 0, 0]) }.map(|got| got as usize)
}

/// Repeats a call that a signal interrupted.
fn again(mut call: impl FnMut() -> Result<u64>) -> Result<u64> {
    loop {
        match call() {
            Err(EINTR) => {}
            answer => return answer,
        }
    }
}

pub(crate) fn write_all(fd: u64, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        let call = [fd, bytes.as_ptr() as u64, bytes.len() as u64, 0, 0, 0];
        // SAFETY: the bytes are only read.
        let written = again(|| unsafe { syscall(WRITE, call) })?;
        if written == 0 {
            return Err(ENOSPC);
        }
        bytes = &bytes[written as usize..];
    }
    Ok(())
}

/// A range of memory, as `struct iovec`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// Writes whole ranges, one after the other; the ranges are used up.
pub(crate) fn writev_all(fd: u64, mut ranges: &mut [Range]) -> Result<()> {
    loop {
        while let [first, ..] = ranges
            && first.len == 0
        {
            ranges = &mut ranges[1..];
        }
        if ranges.is_empty() {
            return Ok(());
        }
        let call = [fd, ranges.as_ptr() as u64, ranges.len() as u64, 0, 0, 0];
        // SAFETY: Linux reads what is mapped, and returns an error where nothing is.
        let mut written = again(|| unsafe { syscall(WRITEV, call) })?;
        if written == 0 {
            return Err(ENOSPC);
        }
        for range in ranges.iter_mut() {
            let taken = written.min(range.len);
            range.start += taken;
            range.len -= taken;
            written -= taken;
        }
    }
}

/// # Safety
/// With `MAP_FIXED`, what was mapped there is unmapped.
pub(crate) unsafe fn mmap(
    at: u64,
    len: u64,
    prot: u64,
    flags: u64,
    fd: u64,
    offset: u64,
) -> Result<u64> {
    // SAFETY: the caller's promise.
    unsafe { syscall(MMAP, [at, len, prot, flags, fd, offset]) }
}

/// # Safety
/// The range must not be used any more.
pub(crate) unsafe fn munmap(start: u64, len: u64) {
    // SAFETY: the caller's promise.
    let _ = unsafe { syscall(MUNMAP, [start, len, 0, 0, 0, 0]) };
}

/// Whether Linux forbids to move a mapping (`mseal`).
pub(crate) fn is_sealed(start: u64, len: u64) -> bool {
    // SAFETY: without flags, and of the same length, it stays what it is.
    let outcome = unsafe { syscall(MREMAP, [start, len, len, 0, 0, 0]) };
    outcome == Err(EPERM)
}

/// Whether memory was mapped with [`MAP_DROPPABLE`]: Linux refuses to include it in core dumps, and to keep it in forks.
pub(crate) fn is_droppable(start: u64, len: u64) -> bool {
    const DODUMP: u64 = 17;
    const KEEPONFORK: u64 = 19;
    let refuses = |advice| {
        // SAFETY: no content is changed.
        let outcome = unsafe { syscall(MADVISE, [start, len, advice, 0, 0, 0]) };
        outcome == Err(EINVAL)
    };
    // The second is not tried on other memory, where it would have an effect.
    refuses(DODUMP) && refuses(KEEPONFORK)
}

pub(crate) fn has_droppable() -> bool {
    let flags = MAP_DROPPABLE | MAP_ANONYMOUS;
    // SAFETY: a new mapping, anywhere.
    let found = unsafe { mmap(0, PAGE, PROT_READ, flags, NO_FILE, 0) };
    // SAFETY: it was just made, and is not used.
    found.map(|at| unsafe { munmap(at, PAGE) }).is_ok()
}

pub(crate) fn brk() -> u64 {
    // SAFETY: an argument of 0 changes nothing.
    unsafe { syscall(BRK, [0; 6]) }.unwrap_or(0)
}

pub(crate) fn thread_id() -> u32 {
    // SAFETY: it only returns a number. Thread ids have 22 bits.
    unsafe { syscall(GETTID, [0; 6]) }.map_or(0, |id| id as u32)
}

/// How a signal is treated: handler, flags, restorer, mask.
pub(crate) type Action = [u64; 4];

pub(crate) const SIGNALS: u64 = 64;
pub(crate) const SIGNAL_SET_BYTES: u64 = 8;

pub(crate) fn action(signal: u64) -> Result<Action> {
    let mut action = [0u64; 4];
    let call = [signal, 0, action.as_mut_ptr() as u64, SIGNAL_SET_BYTES, 0, 0];
    // SAFETY: the system writes one structure of four words.
    unsafe { syscall(RT_SIGACTION, call) }?;
    Ok(action)
}

pub(crate) fn signal_mask() -> Result<u64> {
    let mut mask = 0u64;
    let call = [0, 0, &raw mut mask as u64, SIGNAL_SET_BYTES, 0, 0];
    // SAFETY: the system writes one word.
    unsafe { syscall(RT_SIGPROCMASK, call) }?;
    Ok(mask)
}

pub(crate) fn block_signals() -> Result<()> {
    const SIG_SETMASK: u64 = 2;
    let all = u64::MAX;
    let call = [SIG_SETMASK, &raw const all as u64, 0, SIGNAL_SET_BYTES, 0, 0];
    // SAFETY: the system reads one word.
    unsafe { syscall(RT_SIGPROCMASK, call) }.map(|_| ())
}

pub(crate) fn alternate_stack() -> Result<[u64; 3]> {
    let mut stack = [0u64; 3];
    // SAFETY: the system writes one structure of three words.
    unsafe { syscall(SIGALTSTACK, [0, stack.as_mut_ptr() as u64, 0, 0, 0, 0]) }?;
    Ok(stack)
}

pub(crate) fn robust_list() -> Result<[u64; 2]> {
    let mut list = [0u64; 2];
    let call = [0, &raw mut list[0] as u64, &raw mut list[1] as u64, 0, 0, 0];
    // SAFETY: the system writes two words.
    unsafe { syscall(GET_ROBUST_LIST, call) }?;
    Ok(list)
}

/// Where the thread's own variables are.
pub(crate) fn thread_pointer() -> Result<u64> {
    const ARCH_GET_FS: u64 = 0x1003;
    let mut base = 0u64;
    // SAFETY: the system writes one word.
    unsafe { syscall(ARCH_PRCTL, [ARCH_GET_FS, &raw mut base as u64, 0, 0, 0, 0]) }?;
    Ok(base)
}

/// The address at which Linux clears the thread id when the thread ends.
pub(crate) fn tid_address() -> Result<u64> {
    const PR_GET_TID_ADDRESS: u64 = 40;
    let mut address = 0u64;
    let call = [PR_GET_TID_ADDRESS, &raw mut address as u64, 0, 0, 0, 0];
    // SAFETY: the system writes one word.
    unsafe { syscall(PRCTL, call) }?;
    Ok(address)
}

/// Receives one message: `struct msghdr`, as seven words.
#[cfg(feature = "loader")]
pub(crate) fn receive_message(socket: u64, message: &mut [u64; 7]) -> Result<usize> {
    const RECVMSG: u64 = 47;
    const MSG_CMSG_CLOEXEC: u64 = 0x4000_0000;
    let call = [socket, message.as_mut_ptr() as u64, MSG_CMSG_CLOEXEC, 0, 0, 0];
    // SAFETY: the structure names buffers of the caller's, with their lengths.
    unsafe { syscall(RECVMSG, call) }.map(|got| got as usize)
}

/// Duplicates a descriptor to another number.
#[cfg(feature = "loader")]
pub(crate) fn duplicate(fd: u64, number: u64) -> Result<()> {
    const DUP3: u64 = 292;
    const O_CLOEXEC: u64 = 0o2_000_000;
    // SAFETY: it takes numbers only.
    unsafe { syscall(DUP3, [fd, number, O_CLOEXEC, 0, 0, 0]) }.map(|_| ())
}

#[cfg_attr(
    not(any(feature = "shared-object", feature = "loader")),
    expect(dead_code, reason = "only a whole program ends its process")
)]
pub(crate) fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: it does not return.
        let _ = unsafe { syscall(EXIT_GROUP, [u64::from(status.cast_unsigned()), 0, 0, 0, 0, 0]) };
    }
}
