//! Turns this process into the one of a snapshot.
//!
//! All memory of this process is replaced, including this code. So a plan is made first: a list of system calls, in a block at an
//! address that neither process uses. A few instructions in the block carry out the list and jump to where the other process
//! was.

use core::arch::naked_asm;
use core::slice;

use crate::REQUEST_VERSION;
use crate::block::{Block, List, Plain};
use crate::features::Features;
use crate::format::{
    ANONYMOUS, Area, COMMON, DROPPABLE, FILE, Index, LayerFile, PROVIDED, PROXY, Run, SHARED_FILE,
    STACK,
};
use crate::identity::{self, Identity};
use crate::maps;
use crate::provided::{self, Provided};
use crate::raw::{self, EINVAL, ENOEXEC, ENOMEM, EPROTO, ESTALE, PAGE, Result};

/// The request to restore a snapshot, and the problem if it fails. Python mirrors it, see [`crate::Freeze`].
#[repr(C)]
#[derive(Debug)]
pub struct Thaw {
    size: u64,
    version: u64,
    index: u64,
    layers: *const LayerFile,
    layers_len: u64,
    /// The registration of this process for restartable sequences.
    rseq_offset: i64,
    rseq_len: u64,
    /// A file that has changed or cannot be read, or what the processor lacks.
    problem: [u8; 256],
}

#[cfg(feature = "loader")]
impl Thaw {
    /// For a process without libraries: nothing is registered.
    pub(crate) fn new(index: u64, layers: &[LayerFile]) -> Thaw {
        let (layers, layers_len) = (layers.as_ptr(), layers.len() as u64);
        let (size, version) = (size_of::<Thaw>() as u64, REQUEST_VERSION);
        let problem = [0; 256];
        Thaw { size, version, index, layers, layers_len, rseq_offset: 0, rseq_len: 0, problem }
    }

    pub(crate) fn problem(&self) -> &[u8; 256] {
        &self.problem
    }
}

/// Shorter pieces of a layer are copied, because a mapping costs more.
const MAP_BYTES: u64 = 64 << 10;
/// How many pieces of other layers a mapping may span.
const INTERRUPTIONS: usize = 4096;

/// Steps, and what they refer to; twice the largest list of runs, at most.
const STEPS_BYTES: u64 = 192 << 20;
const OTHER_BYTES: u64 = 48 << 20;
/// The loop needs no stack, but a signal handler would; all signals are blocked.
const STACK_BYTES: u64 = 16 << 10;
/// The vDSO is moved here first: its old and its new address may overlap.
const ASIDE_BYTES: u64 = provided::MAX_BYTES;

/// Where to look for free addresses: far from the usual mappings, and low enough for every processor.
const FIRST_PLACE: u64 = 1 << 36;
const LAST_PLACE: u64 = 1 << 46;

const RSEQ_SIGNATURE: u64 = 0x5305_3053;
/// The length that every version of Linux accepts.
const RSEQ_BYTES: u64 = 32;

/// The exit status if a step fails after this process was partly replaced.
const EXIT_LOST: u64 = 71;

/// Turns this process into the one of a snapshot. Returns only if nothing was changed.
///
/// # Safety
/// No other thread may be running, and the request must be complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn belljar_thaw(request: *mut Thaw) -> i64 {
    // SAFETY: the caller's promise.
    let request = unsafe { &mut *request };
    if request.size != size_of::<Thaw>() as u64 || request.version != REQUEST_VERSION {
        return -EPROTO;
    }
    match plan(request) {
        Ok(never) => match never {},
        Err(error) => -error,
    }
}

enum Never {}

/// A system call, and its expected result.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
struct Step {
    number: u64,
    arguments: [u64; 6],
    /// [`GOOD`], [`ANY`], or the exact result that is required.
    answer: u64,
}

/// Any result except an error.
const GOOD: u64 = 0;
/// Any result.
const ANY: u64 = u64::MAX;

// SAFETY: words only.
unsafe impl Plain for Step {}

/// Carries out the steps, and then jumps to the other process. Position-independent, because it is copied.
#[unsafe(naked)]
unsafe extern "C" fn go(
    steps: *const Step,
    count: u64,
    stack_pointer: u64,
    resume: u64,
    block: u64,
    block_len: u64,
) -> ! {
    naked_asm!(
        "mov rbx, rdi",
        "mov r12, rsi",
        "mov r13, rdx",
        "mov r14, rcx",
        "mov r15, r8",
        "mov rbp, r9",
        "2:",
        "test r12, r12",
        "jz 4f",
        "mov rax, [rbx]",
        "mov rdi, [rbx + 8]",
        "mov rsi, [rbx + 16]",
        "mov rdx, [rbx + 24]",
        "mov r10, [rbx + 32]",
        "mov r8, [rbx + 40]",
        "mov r9, [rbx + 48]",
        "syscall",
        "mov rcx, [rbx + 56]",
        "cmp rcx, {any}",
        "je 6f",
        "test rcx, rcx",
        "jz 3f",
        "cmp rax, rcx",
        "jne 5f",
        "3:",
        "cmp rax, -4096",
        "ja 5f",
        "6:",
        "add rbx, 64",
        "dec r12",
        "jmp 2b",
        "4:",
        "mov rsp, r13",
        "mov rdi, r15",
        "mov rsi, rbp",
        "jmp r14",
        "5:",
        "mov edi, {lost}",
        "mov eax, 231",
        "syscall",
        "ud2",
        lost = const EXIT_LOST,
        any = const ANY.cast_signed(),
    )
}

/// An upper bound of its length. What is copied beyond its end is never executed.
const GO_BYTES: usize = 256;

pub(crate) struct Plan {
    steps: List<Step>,
    opened: List<u64>,
    /// The path, in the text, of the file that was opened last.
    last_path: [u64; 2],
    buffer: &'static mut [u8],
}

impl Plan {
    pub(crate) fn call(&mut self, number: u64, arguments: [u64; 6]) -> Result<()> {
        self.expect(number, arguments, GOOD)
    }

    fn expect(&mut self, number: u64, arguments: [u64; 6], answer: u64) -> Result<()> {
        self.steps.push(Step { number, arguments, answer })
    }

    /// Moves a mapping.
    pub(crate) fn relocate(&mut self, from: u64, len: u64, to: u64) -> Result<()> {
        const MAYMOVE_FIXED: u64 = 3;
        self.expect(raw::MREMAP, [from, len, len, MAYMOVE_FIXED, to, 0], to)
    }

    fn map(&mut self, range: (u64, u64), prot: u64, flags: u64, fd: u64, at: u64) -> Result<()> {
        let (start, end) = range;
        let call = [start, end - start, prot, flags | raw::MAP_FIXED, fd, at];
        self.expect(raw::MMAP, call, start)
    }
}

fn plan(request: &mut Thaw) -> Result<Never> {
    // SAFETY: the caller's promise; an empty list may have no address.
    let layers = match request.layers_len {
        0 => &[],
        // SAFETY: the same.
        len => unsafe { slice::from_raw_parts(request.layers, len as usize) },
    };
    let len = raw::fstat(request.index)?.size;
    let mut reading = Block::take(None, len.next_multiple_of(PAGE) + OTHER_BYTES)?;
    let index = Index::parse(reading.map(request.index, len)?)?;
    check_processor(&index, &mut request.problem)?;
    let block_len = (STEPS_BYTES + OTHER_BYTES).next_multiple_of(PAGE);
    let table = maps::read(&mut reading)?;
    let provided = Provided::of(table)?;
    let place = find_place(table, &index, block_len + provided.len())?;
    // The vDSO stays after the block is gone.
    let home = place + block_len;
    let mut block = Block::take(Some(place), block_len)?;
    let aside = block.pages(ASIDE_BYTES)?;
    let stack = block.pages(STACK_BYTES)? + STACK_BYTES;
    let code = block.pages(GO_BYTES as u64)?;
    let structures = block.slice::<u64>(1024)?;
    let opened = block.list(64 << 10)?;
    let buffer = reading.slice(identity::BUFFER_BYTES)?;
    let mut plan = Plan { steps: block.list(STEPS_BYTES)?, opened, last_path: [0; 2], buffer };
    let thought_out = (|| {
        clear(&mut plan, table, &block)?;
        let places = [home, aside];
        provided
            .plan(&mut plan, &index, layers, &mut block, places)
            .inspect_err(|_| explain(&mut request.problem, b"the vDSO"))?;
        for number in 0..index.areas.len() {
            fill(&mut plan, &index, number, layers, &mut request.problem)?;
        }
        attributes(&mut plan, &index, structures)
    })();
    let thought_out = thought_out.and_then(|()| install(code));
    if let Err(error) = thought_out.and_then(|()| forget_rseq(request)) {
        plan.opened.as_slice().iter().for_each(|&fd| raw::close(fd));
        // SAFETY: nothing of them is used from here on.
        unsafe {
            block.give_back();
            reading.give_back();
        }
        return Err(error);
    }
    let (steps, count) =
        (plan.steps.as_slice().as_ptr() as u64, plan.steps.as_slice().len() as u64);
    let (stack_pointer, resume) = (index.header.stack_pointer, index.header.resume);
    // SAFETY: nothing else will be mapped at the block; the code in it does not return.
    unsafe {
        core::arch::asm!(
            "mov rsp, {stack}",
            "jmp {code}",
            stack = in(reg) stack,
            code = in(reg) code,
            in("rdi") steps,
            in("rsi") count,
            in("rdx") stack_pointer,
            in("rcx") resume,
            in("r8") block.start,
            in("r9") block.len,
            options(noreturn),
        )
    }
}

/// An address for the block that neither process uses.
fn find_place(table: &[u8], index: &Index<'_>, len: u64) -> Result<u64> {
    let is_free = |start: u64| {
        let apart = |from: u64, to: u64| to <= start || start + len <= from;
        maps::mappings(table).all(|mapping| apart(mapping.start, mapping.end))
            && index.areas.iter().all(|area| apart(area.start, area.end))
    };
    let mut place = FIRST_PLACE;
    while place < LAST_PLACE {
        if is_free(place) {
            return Ok(place);
        }
        place += len;
    }
    Err(ENOMEM)
}

/// Unmaps everything except the block and the vDSO.
fn clear(plan: &mut Plan, table: &[u8], block: &Block) -> Result<()> {
    for mapping in maps::mappings(table).filter(|mapping| !mapping.is_provided()) {
        let kept = mapping.start >= block.start && mapping.end <= block.end();
        if !kept {
            plan.call(raw::MUNMAP, [mapping.start, mapping.end - mapping.start, 0, 0, 0, 0])?;
        }
    }
    Ok(())
}

/// Libraries have chosen code for the processor that they began on.
///
/// Not in the loader: a zygote is made for the machines that use it, and asking the processor takes 0.2 ms in a virtual machine.
fn check_processor(index: &Index<'_>, problem: &mut [u8; 256]) -> Result<()> {
    if cfg!(feature = "loader") || index.features == Features::default() {
        return Ok(());
    }
    let mut list = [0; 256];
    let mut len = 0;
    for name in index.features.missing_in(Features::of_this_machine()) {
        let parts = [if len == 0 { "" } else { ", " }, name];
        for byte in parts.iter().flat_map(|part| part.bytes()) {
            if let Some(place) = list.get_mut(len) {
                *place = byte;
                len += 1;
            }
        }
    }
    explain(problem, &list[..len]);
    if len == 0 { Ok(()) } else { Err(ENOEXEC) }
}

fn explain(problem: &mut [u8; 256], text: &[u8]) {
    // The last byte stays zero.
    let len = text.len().min(problem.len() - 1);
    problem[..len].copy_from_slice(&text[..len]);
}

/// Maps the original content of an area, and the saved pages over it.
fn fill(
    plan: &mut Plan,
    index: &Index<'_>,
    number: usize,
    layers: &[LayerFile],
    problem: &mut [u8; 256],
) -> Result<()> {
    let area = &index.areas[number];
    let runs = index.runs_of(area)?;
    let writable = if runs.is_empty() { area.prot } else { area.prot | raw::PROT_WRITE };
    let range = (area.start, area.end);
    match area.kind {
        PROVIDED | PROXY => return Ok(()),
        DROPPABLE => {
            let flags = if raw::has_droppable() { raw::MAP_DROPPABLE } else { raw::MAP_PRIVATE };
            return plan.map(range, area.prot, flags | raw::MAP_ANONYMOUS, raw::NO_FILE, 0);
        }
        ANONYMOUS => {
            plan.map(range, writable, raw::MAP_PRIVATE | raw::MAP_ANONYMOUS, raw::NO_FILE, 0)?;
        }
        STACK => {
            let flags = raw::MAP_PRIVATE | raw::MAP_ANONYMOUS | raw::MAP_GROWSDOWN;
            plan.map(range, writable, flags, raw::NO_FILE, 0)?;
        }
        FILE | SHARED_FILE => {
            let path = index.path(area)?;
            let fd = open(plan, path, area, index.identity(number))
                .inspect_err(|_| explain(problem, path))?;
            let flags = if area.kind == FILE { raw::MAP_PRIVATE } else { raw::MAP_SHARED };
            plan.map(range, writable, flags, fd, area.offset)?;
        }
        _ => return Err(EINVAL),
    }
    let mut rest = runs;
    while let [run, ..] = rest {
        let fd = |run: &Run| {
            let found = layers.iter().find(|layer| layer.id == run.layer);
            found.map(|layer| layer.fd).ok_or(ESTALE)
        };
        let count = if is_mapped(run) { reach(rest) } else { 1 };
        let (these, others) = rest.split_at(count);
        rest = others;
        if is_mapped(run) {
            let end = these[count - 1].end();
            plan.map((run.start, end), writable, raw::MAP_PRIVATE, fd(run)?, run.offset)?;
        }
        for piece in these {
            if !is_mapped(run) || !continues(run, piece) {
                let call = [fd(piece)?, piece.start, piece.len, piece.offset, 0, 0];
                plan.expect(raw::PREAD, call, piece.len)?;
            }
        }
    }
    if writable != area.prot {
        plan.call(raw::MPROTECT, [area.start, area.end - area.start, area.prot, 0, 0, 0])?;
    }
    Ok(())
}

/// Whether a run is mapped from its layer, and not copied.
fn is_mapped(run: &Run) -> bool {
    run.layer & COMMON != 0 || (run.mappable != 0 && run.len >= MAP_BYTES)
}

/// Whether one mapping serves both.
fn continues(run: &Run, other: &Run) -> bool {
    run.layer == other.layer
        && run.offset.wrapping_sub(run.start) == other.offset.wrapping_sub(other.start)
}

/// How many runs one mapping of the first run's layer covers: up to the last that continues it, without a hole in between.
fn reach(runs: &[Run]) -> usize {
    let mut count = 1;
    let mut end = runs[0].end();
    for (number, run) in runs.iter().enumerate().skip(1) {
        if run.start != end || number > count + INTERRUPTIONS {
            break;
        }
        end = run.end();
        if continues(&runs[0], run) {
            count = number + 1;
        }
    }
    count
}

fn open(plan: &mut Plan, path: &[u8], area: &Area, identity: Identity) -> Result<u64> {
    if let Some(&fd) = plan.opened.as_slice().last()
        && plan.last_path == area.path
    {
        return Ok(fd);
    }
    let fd = raw::open(path)?;
    plan.opened.push(fd)?;
    plan.last_path = area.path;
    let stat = raw::fstat(fd)?;
    // Shared files may have changed.
    if area.kind == SHARED_FILE || (stat.size == area.size && stat.modified == area.modified) {
        return Ok(fd);
    }
    let name = path.strip_suffix(b"\0").unwrap_or(path);
    let same = stat.size == area.size
        && identity.is_known()
        && Identity::of(fd, name, &stat, plan.buffer) == identity;
    if same { Ok(fd) } else { Err(ESTALE) }
}

/// Restores what Linux keeps of a process besides memory.
fn attributes(plan: &mut Plan, index: &Index<'_>, structures: &mut [u64]) -> Result<()> {
    const ARCH_SET_FS: u64 = 0x1002;
    const PR_SET_MM: u64 = 35;
    const PR_SET_MM_MAP: u64 = 14;
    const MM_MAP_WORDS: usize = 14;
    const MM_MAP_BYTES: u64 = 104;
    const SIGKILL: u64 = 9;
    const SIGSTOP: u64 = 19;
    const SIG_SETMASK: u64 = 2;

    let header = index.header;
    let mut rest = structures;
    let mut keep = |words: &[u64]| -> Result<u64> {
        let (place, after) =
            core::mem::take(&mut rest).split_at_mut_checked(words.len()).ok_or(ENOMEM)?;
        place.copy_from_slice(words);
        rest = after;
        Ok(place.as_ptr() as u64)
    };
    // The last two: no new auxiliary vector, and no new executable (a 32-bit -1).
    let mut mm_map = [0; MM_MAP_WORDS];
    mm_map[..11].copy_from_slice(&header.layout);
    mm_map[12] = u64::from(u32::MAX) << 32;
    let mm_map = keep(&mm_map)?;
    plan.call(raw::PRCTL, [PR_SET_MM, PR_SET_MM_MAP, mm_map, MM_MAP_BYTES, 0, 0])?;
    plan.call(raw::ARCH_PRCTL, [ARCH_SET_FS, header.thread_pointer, 0, 0, 0, 0])?;
    plan.call(raw::SET_TID_ADDRESS, [header.tid_address, 0, 0, 0, 0, 0])?;
    let [robust, robust_len] = header.robust_list;
    if robust != 0 {
        plan.call(raw::SET_ROBUST_LIST, [robust, robust_len, 0, 0, 0, 0])?;
    }
    let [rseq, rseq_len] = header.rseq;
    if rseq_len == RSEQ_BYTES {
        plan.call(raw::RSEQ, [rseq, rseq_len, 0, RSEQ_SIGNATURE, 0, 0])?;
    } else if rseq_len != 0 {
        // An older Linux refuses the longer structure. After a success the second is refused.
        plan.expect(raw::RSEQ, [rseq, rseq_len, 0, RSEQ_SIGNATURE, 0, 0], ANY)?;
        plan.expect(raw::RSEQ, [rseq, RSEQ_BYTES, 0, RSEQ_SIGNATURE, 0, 0], ANY)?;
    }
    for (signal, action) in (1..).zip(index.signals) {
        if signal != SIGKILL && signal != SIGSTOP {
            let action = keep(action)?;
            plan.call(raw::RT_SIGACTION, [signal, action, 0, raw::SIGNAL_SET_BYTES, 0, 0])?;
        }
    }
    let stack = keep(&header.alternate_stack)?;
    plan.call(raw::SIGALTSTACK, [stack, 0, 0, 0, 0, 0])?;
    for number in 0..plan.opened.as_slice().len() {
        let fd = plan.opened.as_slice()[number];
        plan.call(raw::CLOSE, [fd, 0, 0, 0, 0, 0])?;
    }
    let mask = keep(&[header.signal_mask])?;
    plan.call(raw::RT_SIGPROCMASK, [SIG_SETMASK, mask, 0, raw::SIGNAL_SET_BYTES, 0, 0])
}

/// Copies the loop into the block, and makes it executable.
fn install(code: u64) -> Result<()> {
    // SAFETY: the page is ours; after the function comes more code of ours, or padding.
    unsafe { core::ptr::copy_nonoverlapping(go as *const u8, code as *mut u8, GO_BYTES) };
    let prot = raw::PROT_READ | raw::PROT_EXEC;
    // SAFETY: a page of the block, which is not written any more.
    unsafe { raw::syscall(raw::MPROTECT, [code, PAGE, prot, 0, 0, 0]) }.map(|_| ())
}

/// Linux may write to the registered address at any time, so it must be unregistered before the memory is unmapped.
fn forget_rseq(request: &Thaw) -> Result<()> {
    const UNREGISTER: u64 = 1;
    raw::block_signals()?;
    if request.rseq_len == 0 {
        return Ok(());
    }
    let place = raw::thread_pointer()?.wrapping_add_signed(request.rseq_offset);
    let call = [place, request.rseq_len, UNREGISTER, RSEQ_SIGNATURE, 0, 0];
    // SAFETY: libraries work without the registration: they check for it each time.
    unsafe { raw::syscall(raw::RSEQ, call) }.map(|_| ())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::format::bytes_of;
    use crate::format::tests::{header, written};

    /// The mappings of a process that is about to be replaced.
    const TABLE: &[u8] = b"10000-12000 r-xp 00000000 08:01 11 /bin/old\n\
        50000-58000 rw-p 00000000 00:00 0 [heap]\n\
        7f0000000000-7f0000002000 r--p 00000000 00:00 0 [vvar]\n\
        7f0000100000-7f0000101000 rw-p 00000000 00:00 0 \n\
        ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";

    /// Where the vDSO of this machine would be.
    const HOME: u64 = 0x30_0000_0000;
    const COMMON_LAYER: u64 = COMMON | 5;
    const LAYERS: [LayerFile; 2] =
        [LayerFile { id: COMMON_LAYER, fd: 100 }, LayerFile { id: 7, fd: 101 }];

    fn area(start: u64, end: u64, kind: u64, prot: u64, path: [u64; 2]) -> Area {
        Area { start, end, kind, prot, offset: 0x3000, path, size: 0, modified: [0; 2] }
    }

    fn run(start: u64, len: u64, layer: u64, offset: u64, mappable: u64) -> Run {
        Run { start, len, layer, offset, mappable }
    }

    /// Every step that makes one process into another, as text.
    fn shown(areas: &[Area], runs: &[Run], text: &[u8]) -> Result<String> {
        let head = crate::format::Header {
            thread_pointer: 0x7000,
            tid_address: 0x7010,
            robust_list: [0x7020, 24],
            rseq: [0x7040, 32],
            ..header()
        };
        let words = written(head, areas, runs, text);
        let index = Index::parse(bytes_of(&words))?;
        let mut block = Block::take(None, 4 << 20)?;
        let aside = block.pages(ASIDE_BYTES)?;
        let structures = block.slice::<u64>(1024)?;
        let opened = block.list(4 << 10)?;
        let (steps, buffer) = (block.list(1 << 20)?, block.slice(8 << 10)?);
        let mut plan = Plan { steps, opened, last_path: [0; 2], buffer };
        clear(&mut plan, TABLE, &block)?;
        let provided = Provided::of(TABLE)?;
        provided.plan(&mut plan, &index, &LAYERS, &mut block, [HOME, aside])?;
        for number in 0..index.areas.len() {
            fill(&mut plan, &index, number, &LAYERS, &mut [0; 256])?;
        }
        attributes(&mut plan, &index, structures)?;
        let mut lines = String::new();
        let names = Names { opened: plan.opened.as_slice(), aside, block: &block };
        let mut signals = 0;
        for step in plan.steps.as_slice() {
            match step.number {
                raw::RT_SIGACTION => signals += 1,
                _ => writeln!(lines, "{}", names.of(step)).expect("memory"),
            }
        }
        writeln!(lines, "and how {signals} signals are treated").expect("memory");
        Ok(lines)
    }

    /// Names for addresses and descriptors, which differ each time.
    struct Names<'a> {
        opened: &'a [u64],
        aside: u64,
        block: &'a Block,
    }

    impl Names<'_> {
        fn of(&self, step: &Step) -> String {
            let [a, b, c, d, e, f] = step.arguments;
            let range = |start: u64, len: u64| format!("{start:x}-{:x}", start + len);
            match step.number {
                raw::MUNMAP => format!("unmap {}", range(a, b)),
                raw::MMAP => {
                    assert_eq!((step.answer, d & raw::MAP_FIXED), (a, raw::MAP_FIXED));
                    let how = if d & raw::MAP_SHARED != 0 { "shared" } else { "private" };
                    let what = match d & raw::MAP_ANONYMOUS {
                        0 => format!("{} from {f:x}", self.file(e)),
                        _ if d & raw::MAP_GROWSDOWN != 0 => "zeroes that grow downwards".into(),
                        _ => "zeroes".into(),
                    };
                    format!("map {} {} {how}: {what}", range(a, b), rights(c))
                }
                raw::PREAD => {
                    assert_eq!(step.answer, c);
                    format!("read {} from {} at {d:x}", range(b, c), self.file(a))
                }
                raw::MPROTECT => format!("allow {} {}", range(a, b), rights(c)),
                raw::MREMAP => {
                    assert_eq!((step.answer, b), (e, c));
                    format!("move {} bytes from {} to {}", b, self.place(a), self.place(e))
                }
                raw::CLOSE => format!("close {}", self.file(a)),
                raw::PRCTL => "prctl: code, data, heap, stack, arguments".into(),
                raw::ARCH_PRCTL => format!("thread pointer {b:x}"),
                raw::SET_TID_ADDRESS => format!("thread number at {a:x}"),
                raw::SET_ROBUST_LIST => format!("robust list at {a:x}, {b} bytes"),
                raw::RSEQ => format!("restartable sequences at {a:x}, {b} bytes"),
                raw::SIGALTSTACK => "stack of signal handlers".into(),
                raw::RT_SIGPROCMASK => "signals that are blocked".into(),
                number => panic!("system call {number} is in no plan"),
            }
        }

        fn file(&self, fd: u64) -> String {
            match self.opened.iter().position(|&opened| opened == fd) {
                Some(number) => format!("file {number}"),
                None => format!("layer {fd}"),
            }
        }

        fn place(&self, at: u64) -> String {
            match (self.block.start..self.block.end()).contains(&at) {
                true => format!("aside+{:x}", at - self.aside),
                false => format!("{at:x}"),
            }
        }
    }

    fn rights(prot: u64) -> String {
        let bits = [(raw::PROT_READ, 'r'), (raw::PROT_WRITE, 'w'), (raw::PROT_EXEC, 'x')];
        bits.map(|(bit, letter)| if prot & bit != 0 { letter } else { '-' }).iter().collect()
    }

    #[test]
    fn a_process_becomes_another_in_these_steps() {
        let text = b"/dev/null\0[vvar]\0";
        let (rw, rx) = (raw::PROT_READ | raw::PROT_WRITE, raw::PROT_READ | raw::PROT_EXEC);
        let areas = [
            area(0x2_0000, 0x2_4000, SHARED_FILE, rx, [0, 10]),
            area(0x2_4000, 0x2_8000, SHARED_FILE, raw::PROT_READ, [0, 10]),
            area(0x10_0000, 0x30_0000, ANONYMOUS, rw, [0; 2]),
            area(0x40_0000, 0x40_2000, ANONYMOUS, raw::PROT_READ, [0; 2]),
            area(0x7e00_0000, 0x7e02_0000, STACK, rw, [0; 2]),
            area(0x7f00_0000, 0x7f00_2000, PROVIDED, raw::PROT_READ, [10, 7]),
        ];
        let runs = [
            // The common layer is mapped, and the kernel's own pages are over it.
            run(0x10_0000, 0x4000, COMMON_LAYER, 0x8000, 0),
            run(0x10_4000, 0x1000, 7, 0, 0),
            run(0x10_5000, 0x3000, COMMON_LAYER, 0xd000, 0),
            // Large enough to be mapped, if it may.
            run(0x12_0000, MAP_BYTES, 7, 0x1000, 1),
            run(0x14_0000, MAP_BYTES, 7, 0x1_1000, 0),
            // Written first, although the area is read-only afterwards.
            run(0x40_1000, 0x1000, 7, 0x2_1000, 0),
        ];
        insta::assert_snapshot!(shown(&areas, &runs, text).expect("a plan"));
    }

    #[test]
    fn a_plan_is_made_only_of_what_is_there() {
        let rw = raw::PROT_READ | raw::PROT_WRITE;
        let anonymous = [area(0x10_0000, 0x20_0000, ANONYMOUS, rw, [0; 2])];
        let refused = |areas: &[Area], runs: &[Run], text: &[u8]| shown(areas, runs, text).err();
        assert_eq!(refused(&anonymous, &[run(0x10_0000, PAGE, 8, 0, 0)], b""), Some(ESTALE));
        let beyond = run(0x1f_f000, 2 * PAGE, 7, 0, 0);
        assert_eq!(refused(&anonymous, &[beyond], b""), Some(EINVAL), "it ends in no area");
        let kind = [area(0x10_0000, 0x20_0000, 9, rw, [0; 2])];
        assert_eq!(refused(&kind, &[], b""), Some(EINVAL), "an area of no kind");
        let other = [area(0x10_0000, 0x20_0000, PROVIDED, rw, [0, 7])];
        assert_eq!(refused(&other, &[], b"[vvar]\0"), Some(ESTALE), "another length");
        assert_eq!(refused(&other, &[], b"[vnew]\0"), Some(ESTALE), "another system");
        let file = [area(0x10_0000, 0x20_0000, FILE, rw, [0, 10])];
        assert_eq!(refused(&file, &[], b"/dev/null\0"), Some(ESTALE), "another file");
    }
}
