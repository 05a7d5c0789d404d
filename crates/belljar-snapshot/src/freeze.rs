//! Saves a process as a snapshot.

use core::arch::naked_asm;
use core::slice;

use crate::block::{Block, List, Plain};
use crate::features::Features;
use crate::format::{
    ANONYMOUS, Area, COMMON, DROPPABLE, FILE, Header, Index, LayerFile, MAGIC, PROVIDED, PROXY,
    Run, SHARED_FILE, STACK, TAIL_MAGIC, Tail, VERSION, bytes_of, sum,
};
use crate::identity::{self, Identity};
use crate::maps::{self, Mapping};
use crate::raw::{self, Action, ENOTSUP, EPIPE, EPROTO, PAGE, Range, Result, SIGNALS, Stat};
use crate::{REQUEST_VERSION, stream, vdso};

/// The request to save this process, and the result.
///
/// `belljar_kernel/snapshot.py` has the same structure. If size or version differ, nothing is read or written.
#[repr(C)]
#[derive(Debug)]
pub struct Freeze {
    size: u64,
    version: u64,
    /// The pipe that the snapshot is written to, see [`crate::stream`]. There is never a file to write to.
    stream: u64,
    /// Only with [`SHARE`]: the file that the host writes the pages to, open for reading, and the socket on which the host
    /// confirms that all of them are written.
    pages: u64,
    socket: u64,
    /// The number of the new layer.
    layer: u64,
    /// An earlier index, or -1, and the layers that it refers to.
    before: i64,
    layers: *const LayerFile,
    layers_len: u64,
    flags: u64,
    /// The layer of the last snapshot of this process, or 0. If the earlier index is another one, all pages must be compared
    /// with it.
    last: u64,
    /// The registration for restartable sequences: offset from the thread pointer, and length.
    rseq_offset: i64,
    rseq_len: u64,
    /// The content of files below this path is saved: another version of Belljar may have different files there.
    own: *const u8,
    own_len: u64,
    /// How many bytes of pages were written.
    written: u64,
    /// The layers that the index refers to.
    used: [u64; MAX_LAYERS],
    used_len: u64,
    /// What could not be saved, if the result is such an error.
    problem: [u8; 256],
}

/// The most layers that an index may refer to.
const MAX_LAYERS: usize = 64;

/// Map large pieces that were written from the layer, in this process too: their memory is then shared with all kernels that are
/// restored from the snapshot, and need not be compared the next time.
const SHARE: u64 = 2;
/// The layer has the layout of the memory, so that all of it can be mapped.
const LAID_OUT: u64 = 4;

/// Shorter pieces are not worth a separate mapping.
const SHARE_BYTES: u64 = 1 << 20;

/// Space for the lists of areas and runs and for paths: a process has at most 65,530 mappings, and a run is at least a page.
const AREAS_BYTES: u64 = 8 << 20;
const RUNS_BYTES: u64 = 64 << 20;
const TEXT_BYTES: u64 = 4 << 20;
const IDENTITIES_BYTES: u64 = 2 << 20;
const FILES_BYTES: u64 = 6 << 20;
const OTHER_BYTES: u64 = 16 << 20;

/// Ranges of one write; Linux allows 1024.
const RANGES: u64 = 512;
const PAGEMAP_WORDS: usize = 4096;

/// Saves this process. Returns 0, a negative errno, or 1: then this is a process that was restored from the snapshot.
///
/// # Safety
/// No other thread may be running, and the request must be complete.
#[unsafe(naked)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn belljar_freeze(request: *mut Freeze) -> i64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "sub rsp, 8",
        "stmxcsr [rsp]",
        "fnstcw [rsp + 4]",
        "mov rsi, rsp",
        "lea rdx, [rip + 2f]",
        "call {freeze}",
        "jmp 3f",
        // A restored process continues here; the block that restored it is still mapped.
        "2:",
        "mov eax, {munmap}",
        "syscall",
        "call {thawed}",
        "mov eax, 1",
        "3:",
        "ldmxcsr [rsp]",
        "fldcw [rsp + 4]",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
        freeze = sym freeze,
        thawed = sym thawed,
        munmap = const raw::MUNMAP,
    )
}

extern "C" fn freeze(request: *mut Freeze, stack_pointer: u64, resume: u64) -> i64 {
    // SAFETY: the caller's promise.
    let request = unsafe { &mut *request };
    if request.size != size_of::<Freeze>() as u64 || request.version != REQUEST_VERSION {
        return -EPROTO;
    }
    match write(request, stack_pointer, resume) {
        Ok(()) => 0,
        Err(error) => -error,
    }
}

/// Updates the thread id that libc remembers.
extern "C" fn thawed() {
    if let Ok(address @ 1..) = raw::tid_address() {
        // SAFETY: libc has registered this address for that purpose.
        unsafe { (address as *mut u32).write_volatile(raw::thread_id()) };
    }
}

fn write(request: &mut Freeze, stack_pointer: u64, resume: u64) -> Result<()> {
    // SAFETY: the caller's promise; an empty list may have no address.
    let given = match request.layers_len {
        0 => &[],
        // SAFETY: the same.
        len => unsafe { slice::from_raw_parts(request.layers, len as usize) },
    };
    let before_len = match u64::try_from(request.before) {
        Ok(fd) => raw::fstat(fd)?.size,
        Err(_) => 0,
    };
    let mut sizes = 0;
    for layer in given {
        sizes += raw::fstat(layer.fd)?.size.next_multiple_of(PAGE) + PAGE;
    }
    let lists = AREAS_BYTES + IDENTITIES_BYTES + FILES_BYTES + RUNS_BYTES + TEXT_BYTES;
    let own_bytes = lists + OTHER_BYTES + (8 << 20);
    let len = (own_bytes + before_len + sizes).next_multiple_of(PAGE) + PAGE;
    let mut block = Block::take(None, len)?;
    let outcome = Writer::new(&mut block, request, given, before_len)
        .and_then(|mut writer| writer.write(request, stack_pointer, resume));
    // SAFETY: the writer is gone, and nothing refers to the block.
    unsafe { block.give_back() };
    outcome
}

struct Layer {
    id: u64,
    stat: Stat,
    bytes: &'static [u8],
}

impl Clone for Layer {
    fn clone(&self) -> Layer {
        *self
    }
}
impl Copy for Layer {}
// SAFETY: slots are written before they are read, so zeroes are never used as a layer.
unsafe impl Plain for Option<Layer> {}

struct Writer {
    block: Range,
    stream: u64,
    pages: u64,
    socket: u64,
    layer: u64,
    flags: u64,
    /// The earlier snapshot is of this process.
    known: bool,
    pagemap: u64,
    entries: &'static mut [u64],
    layers: List<Option<Layer>>,
    before: &'static [Run],
    /// The first run of the earlier snapshot that may still matter.
    next: usize,
    table: &'static [u8],
    areas: List<Area>,
    /// Of the files of the areas.
    identities: List<Identity>,
    runs: List<Run>,
    text: List<u8>,
    /// The layers that runs refer to.
    used: List<u64>,
    /// Ranges that wait to be written. The first is always the head of their record.
    ranges: List<Range>,
    head: &'static mut [u64],
    /// The begin and the end of the waiting ranges in the layer, and the position of the next page.
    ranges_at: u64,
    ranges_end: u64,
    cursor: u64,
    written: u64,
    provided: u64,
    /// The C library may have memory for the vDSO's `getrandom`.
    has_getrandom: bool,
    /// The next run begins an area, and is not joined with the one before.
    apart: bool,
    /// The files of all mappings, and the one that was examined last: a library is mapped in several pieces, one after the
    /// other.
    files: List<MappedFile>,
    file: usize,
    buffer: &'static mut [u8],
    /// The end of a piece that malloc has mapped.
    malloc_until: u64,
}

/// A file that is mapped, and can still be found by its name.
#[derive(Clone, Copy)]
struct MappedFile {
    /// Its name in the text.
    path: [u64; 2],
    inode: u64,
    size: u64,
    modified: [u64; 2],
    identity: Identity,
    /// Not 0 if another file, or none, has its name now.
    is_gone: u64,
}

// SAFETY: words only.
unsafe impl Plain for MappedFile {}

/// The content of a mapping's pages before anything is written to them.
#[derive(Clone, Copy)]
enum Nature {
    Zeroes,
    File,
    /// A layer, from this offset on.
    Layer(Layer, u64),
    /// Content that will not exist any more when the snapshot is restored: all pages are saved.
    Passing,
    /// Content that must not be saved.
    Secret,
}

impl Writer {
    fn new(
        block: &mut Block,
        request: &Freeze,
        given: &[LayerFile],
        before_len: u64,
    ) -> Result<Writer> {
        let (before, known): (&'static [Run], bool) = match u64::try_from(request.before) {
            Ok(fd) => {
                let index = Index::parse(block.map(fd, before_len)?)?;
                (index.runs, index.header.layer == request.last)
            }
            Err(_) => (&[], false),
        };
        let mut layers = block.list((given.len() * size_of::<Option<Layer>>()) as u64)?;
        for layer in given {
            let stat = raw::fstat(layer.fd)?;
            layers.push(Some(Layer {
                id: layer.id,
                stat,
                bytes: block.map(layer.fd, stat.size)?,
            }))?;
        }
        let mut writer = Writer {
            block: Range { start: block.start, len: block.len },
            stream: request.stream,
            pages: request.pages,
            socket: request.socket,
            layer: request.layer,
            flags: request.flags,
            known,
            pagemap: raw::open(b"/proc/self/pagemap\0")?,
            entries: block.slice(PAGEMAP_WORDS)?,
            layers,
            before,
            next: 0,
            table: &[],
            areas: block.list(AREAS_BYTES)?,
            identities: block.list(IDENTITIES_BYTES)?,
            runs: block.list(RUNS_BYTES)?,
            text: block.list(TEXT_BYTES)?,
            used: block.list((MAX_LAYERS * size_of::<u64>()) as u64)?,
            ranges: block.list(RANGES * size_of::<Range>() as u64)?,
            head: block.slice(stream::HEAD_WORDS)?,
            ranges_at: 0,
            ranges_end: 0,
            cursor: 0,
            written: 0,
            provided: 0,
            has_getrandom: false,
            apart: true,
            files: block.list(FILES_BYTES)?,
            file: 0,
            buffer: block.slice(identity::BUFFER_BYTES)?,
            malloc_until: 0,
        };
        let head = writer.range_of_head();
        writer.ranges.push(head)?;
        writer.table = maps::read(block)?;
        Ok(writer)
    }

    fn write(&mut self, request: &mut Freeze, stack_pointer: u64, resume: u64) -> Result<()> {
        // SAFETY: the caller's promise.
        let own = unsafe { slice::from_raw_parts(request.own, request.own_len as usize) };
        // First, because this changes memory that is saved afterwards.
        let outcome = self.examine(own);
        let outcome = outcome.and_then(|()| self.write_mappings(own, &mut request.problem));
        raw::close(self.pagemap);
        outcome?;
        self.flush()?;
        self.write_index(request, stack_pointer, resume)?;
        if self.flags & SHARE != 0 {
            self.await_reader()?;
            self.share()?;
        }
        // Not before: the request may be in memory that `share` has just remapped.
        let used = self.used.as_slice();
        request.used[..used.len()].copy_from_slice(used);
        request.used_len = used.len() as u64;
        request.written = self.written;
        Ok(())
    }

    /// Waits until the host has put everything from the stream into its files.
    fn await_reader(&self) -> Result<()> {
        let mut word = [0; 8];
        match raw::read(self.socket, &mut word)? {
            0 => Err(EPIPE),
            _ => Ok(()),
        }
    }

    /// Examines the files and the vDSO of this process.
    fn examine(&mut self, own: &[u8]) -> Result<()> {
        let table = self.table;
        for mapping in maps::mappings(table) {
            if mapping.is_file() && !self.is_layer(&mapping) && !is_own(&mapping, own) {
                self.look_at(&mapping)?;
            }
            if mapping.name == b"[vdso]" {
                let code = memory(mapping.start, mapping.end - mapping.start);
                self.provided = sum(code);
                self.has_getrandom = vdso::has_getrandom(code);
            }
        }
        Ok(())
    }

    fn is_layer(&self, mapping: &Mapping<'_>) -> bool {
        self.layers.as_slice().iter().flatten().any(|layer| layer.is_mapped_by(mapping))
    }

    fn write_mappings(&mut self, own: &[u8], problem: &mut [u8; 256]) -> Result<()> {
        let table = self.table;
        for mapping in maps::mappings(table).filter(|mapping| !mapping.is_fixed()) {
            // Our block may have been joined with a neighbour.
            let (start, end) = (self.block.start, self.block.start + self.block.len);
            let below = Mapping { end: mapping.end.min(start), ..mapping };
            let ahead = mapping.start.max(end) - mapping.start;
            let above = Mapping {
                start: mapping.start.max(end),
                offset: mapping.offset + ahead,
                ..mapping
            };
            for piece in [below, above] {
                if piece.start < piece.end {
                    self.write_mapping(&piece, own).inspect_err(|_| {
                        let len = piece.name.len().min(problem.len() - 1);
                        problem[..len].copy_from_slice(&piece.name[..len]);
                    })?;
                }
            }
        }
        Ok(())
    }

    fn write_mapping(&mut self, mapping: &Mapping<'_>, own: &[u8]) -> Result<()> {
        let mut area = Area {
            start: mapping.start,
            end: mapping.end,
            kind: ANONYMOUS,
            prot: mapping.prot,
            offset: mapping.offset,
            path: [0; 2],
            size: 0,
            modified: [0; 2],
        };
        if mapping.is_provided() {
            area.kind = PROVIDED;
            area.path = self.name(mapping.name)?;
            self.add(area, Identity::UNKNOWN)?;
            // Another machine has another one, see `vdso`.
            let saved = mapping.name == b"[vdso]";
            return if saved { self.write_pages(mapping, Nature::Passing) } else { Ok(()) };
        }
        let (nature, identity) = self.nature(mapping, own, &mut area)?;
        self.add(area, identity)?;
        if mapping.shared { Ok(()) } else { self.write_pages(mapping, nature) }
    }

    fn add(&mut self, area: Area, identity: Identity) -> Result<()> {
        self.identities.push(identity)?;
        self.areas.push(area)
    }

    /// The content of a mapping before anything was written to it, and what stands for that of a file.
    fn nature(
        &mut self,
        mapping: &Mapping<'_>,
        own: &[u8],
        area: &mut Area,
    ) -> Result<(Nature, Identity)> {
        let unknown = |nature: Nature| Ok((nature, Identity::UNKNOWN));
        if !mapping.is_file() {
            return if mapping.shared {
                Err(ENOTSUP)
            } else {
                unknown(self.of_no_file(mapping, area))
            };
        }
        if !mapping.shared {
            let layers = self.layers.as_slice().iter().flatten();
            if let Some(layer) = layers.into_iter().find(|layer| layer.is_mapped_by(mapping)) {
                return unknown(Nature::Layer(*layer, mapping.offset));
            }
            if is_own(mapping, own) {
                return unknown(Nature::Passing);
            }
        }
        let file = self.look_at(mapping)?;
        if file.is_gone != 0 {
            // A layer that was removed, or has no name here: its content is saved from memory.
            return if mapping.shared { Err(ENOTSUP) } else { unknown(Nature::Passing) };
        }
        area.kind = if mapping.shared { SHARED_FILE } else { FILE };
        (area.path, area.size, area.modified) = (file.path, file.size, file.modified);
        Ok((Nature::File, file.identity))
    }

    fn of_no_file(&self, mapping: &Mapping<'_>, area: &mut Area) -> Nature {
        let len = mapping.end - mapping.start;
        if mapping.name == b"[stack]" {
            area.kind = STACK;
        } else if mapping.prot == raw::PROT_READ | raw::PROT_EXEC
            && vdso::is_redirected(memory(mapping.start, vdso::HEAD_BYTES))
        {
            area.kind = PROXY;
        } else if self.has_getrandom && raw::is_droppable(mapping.start, len) {
            area.kind = DROPPABLE;
            return Nature::Secret;
        }
        Nature::Zeroes
    }

    /// The file of a mapping. Called twice, each time in the order of addresses.
    fn look_at(&mut self, mapping: &Mapping<'_>) -> Result<MappedFile> {
        let (text, files) = (self.text.as_slice(), self.files.as_slice());
        let is_it = |file: &MappedFile| {
            let [start, len] = file.path.map(|word| word as usize);
            text[start..start + len - 1] == *mapping.name && file.inode == mapping.inode
        };
        let later = files.get(self.file..).and_then(|files| files.iter().position(is_it));
        let found = later.map(|ahead| self.file + ahead).or_else(|| files.iter().position(is_it));
        if let Some(number) = found {
            self.file = number;
            return Ok(files[number]);
        }
        let path = self.name(mapping.name)?;
        let file = self.examined(path, mapping);
        self.file = self.files.as_slice().len();
        self.files.push(file)?;
        Ok(file)
    }

    fn examined(&mut self, path: [u64; 2], mapping: &Mapping<'_>) -> MappedFile {
        let inode = mapping.inode;
        let identity = Identity::UNKNOWN;
        let gone = MappedFile { path, inode, size: 0, modified: [0; 2], identity, is_gone: 1 };
        let name = &self.text.as_slice()[path[0] as usize..];
        let Ok(fd) = raw::open(name) else { return gone };
        let file = match raw::fstat(fd) {
            Ok(stat) if stat.inode == inode => {
                // A file that is mapped shared may change.
                let identity = match mapping.shared {
                    true => identity,
                    false => Identity::of(fd, mapping.name, &stat, self.buffer),
                };
                let Stat { size, modified, .. } = stat;
                MappedFile { path, inode, size, modified, identity, is_gone: 0 }
            }
            _ => gone,
        };
        raw::close(fd);
        file
    }

    /// Adds a name to the text; returns its position, and its length with the zero.
    fn name(&mut self, name: &[u8]) -> Result<[u64; 2]> {
        let start = self.text.as_slice().len() as u64;
        for &byte in name {
            self.text.push(byte)?;
        }
        self.text.push(0)?;
        Ok([start, name.len() as u64 + 1])
    }

    fn write_pages(&mut self, mapping: &Mapping<'_>, nature: Nature) -> Result<()> {
        // Code of a file is never written to, so it need not be saved.
        let is_code = matches!(nature, Nature::File) && mapping.prot & raw::PROT_EXEC != 0;
        if is_code || matches!(nature, Nature::Secret) {
            return Ok(());
        }
        if self.flags & LAID_OUT != 0 {
            self.flush()?;
            self.cursor = self.cursor.next_multiple_of(PAGE);
        }
        self.apart = true;
        let origin = self.cursor;
        let is_heap = mapping.name == b"[heap]";
        let mut opened = false;
        let mut at = mapping.start;
        while at < mapping.end {
            let count = ((mapping.end - at) / PAGE).min(PAGEMAP_WORDS as u64) as usize;
            self.read_pagemap(at, count)?;
            for number in 0..count {
                let (address, page) = (at + number as u64 * PAGE, Page(self.entries[number]));
                let passing = matches!(nature, Nature::Passing);
                if !page.is_own() && !passing {
                    if let Nature::Layer(layer, offset) = nature {
                        let offset = offset + address - mapping.start;
                        // Pages beyond its end cannot have been used.
                        if offset + PAGE <= layer.bytes.len() as u64 {
                            let layer = layer.id;
                            self.refer(Run {
                                start: address,
                                len: PAGE,
                                layer,
                                offset,
                                mappable: 1,
                            })?;
                        }
                    }
                    continue;
                }
                if !opened && mapping.prot & raw::PROT_READ == 0 {
                    protect(mapping, mapping.prot | raw::PROT_READ)?;
                    opened = true;
                }
                if self.flags & LAID_OUT != 0 {
                    self.cursor = origin + address - mapping.start;
                }
                let mappable = match nature {
                    Nature::Zeroes => is_heap || self.is_of_malloc(address),
                    // It is mapped from a file as it is.
                    Nature::Layer(..) | Nature::Passing => true,
                    Nature::File | Nature::Secret => false,
                };
                self.write_page(address, page, nature, u64::from(mappable))?;
            }
            at += count as u64 * PAGE;
        }
        if self.flags & LAID_OUT != 0 {
            self.flush()?;
            self.cursor = origin + mapping.end - mapping.start;
        }
        if opened {
            self.flush()?;
            protect(mapping, mapping.prot)?;
        }
        Ok(())
    }

    fn write_page(
        &mut self,
        address: u64,
        page: Page,
        nature: Nature,
        mappable: u64,
    ) -> Result<()> {
        if let Some(run) = self.earlier(address) {
            let run = Run { mappable, ..run };
            let untouched = run.layer & COMMON != 0 && self.known && !page.is_ours_alone();
            if untouched {
                return self.refer(run);
            }
            let layers = self.layers.as_slice().iter().flatten();
            let content = layers
                .into_iter()
                .find(|layer| layer.id == run.layer)
                .and_then(|layer| layer.bytes.get(run.offset as usize..))
                .and_then(|rest| rest.get(..PAGE as usize));
            if content == Some(memory(address, PAGE)) {
                return self.refer(run);
            }
        }
        if matches!(nature, Nature::Zeroes) && is_zero(memory(address, PAGE)) {
            return Ok(());
        }
        if self.ranges.is_full() || self.ranges_end != self.cursor {
            self.flush()?;
        }
        match self.ranges.last_mut() {
            Some(last) if last.start + last.len == address => last.len += PAGE,
            _ => self.ranges.push(Range { start: address, len: PAGE })?,
        }
        let run =
            Run { start: address, len: PAGE, layer: self.layer, offset: self.cursor, mappable };
        self.cursor += PAGE;
        self.ranges_end = self.cursor;
        self.written += PAGE;
        self.refer(run)
    }

    /// Whether a page belongs to a piece that glibc's malloc has mapped, which does not rely on zeroes after `MADV_DONTNEED`. Such
    /// a piece begins with a zero word, and its size with a flag. Called in the order of addresses.
    fn is_of_malloc(&mut self, address: u64) -> bool {
        const MAPPED: u64 = 2;
        const SMALLEST: u64 = 128 << 10;
        const LARGEST: u64 = 1 << 40;
        if address >= self.malloc_until {
            let (words, _) = memory(address, 16).as_chunks::<8>();
            let [before, size] = [0, 1].map(|at| u64::from_ne_bytes(words[at]));
            let len = size ^ MAPPED;
            if before != 0 || !len.is_multiple_of(PAGE) || !(SMALLEST..LARGEST).contains(&len) {
                return false;
            }
            self.malloc_until = address + len;
        }
        true
    }

    fn flush(&mut self) -> Result<()> {
        let len = self.ranges_end - self.ranges_at;
        if len > 0 {
            self.head.copy_from_slice(&[stream::PAGES, self.ranges_at, len]);
            raw::writev_all(self.stream, self.ranges.as_mut_slice())?;
            self.ranges.clear();
            let head = self.range_of_head();
            self.ranges.push(head)?;
        }
        (self.ranges_at, self.ranges_end) = (self.cursor, self.cursor);
        Ok(())
    }

    fn range_of_head(&self) -> Range {
        Range { start: self.head.as_ptr() as u64, len: size_of_val(self.head) as u64 }
    }

    /// The page of the earlier snapshot at this address. Called in the order of addresses.
    fn earlier(&mut self, address: u64) -> Option<Run> {
        while self.before.get(self.next)?.end() <= address {
            self.next += 1;
        }
        let run = self.before[self.next];
        let ahead = address.checked_sub(run.start)?;
        Some(Run { start: address, len: PAGE, offset: run.offset + ahead, ..run })
    }

    fn refer(&mut self, run: Run) -> Result<()> {
        let apart = core::mem::take(&mut self.apart);
        if let Some(last) = self.runs.last_mut()
            && !apart
            && last.end() == run.start
            && (last.layer, last.mappable) == (run.layer, run.mappable)
            && last.offset + last.len == run.offset
        {
            last.len += run.len;
            return Ok(());
        }
        self.runs.push(run)
    }

    fn read_pagemap(&mut self, address: u64, count: usize) -> Result<()> {
        let bytes = count * 8;
        // SAFETY: the same words, seen as bytes.
        let buffer =
            unsafe { slice::from_raw_parts_mut(self.entries.as_mut_ptr().cast::<u8>(), bytes) };
        let got = raw::pread(self.pagemap, buffer, address / PAGE * 8)?;
        if got == bytes { Ok(()) } else { Err(raw::EINVAL) }
    }

    /// Maps large pieces that are in the new layer from that layer.
    fn share(&mut self) -> Result<()> {
        for run in self.runs.as_slice() {
            let areas = self.areas.as_slice();
            let at = areas.partition_point(|area| area.end <= run.start);
            let Some(area) = areas.get(at) else { continue };
            let ours = run.layer == self.layer && area.kind == ANONYMOUS;
            if !ours || run.mappable == 0 || run.len < SHARE_BYTES {
                continue;
            }
            let flags = raw::MAP_PRIVATE | raw::MAP_FIXED;
            // SAFETY: the layer has just been written from these pages, by the only thread, and the host has confirmed that it
            // is complete.
            unsafe { raw::mmap(run.start, run.len, area.prot, flags, self.pages, run.offset) }?;
        }
        Ok(())
    }

    fn write_index(&mut self, request: &Freeze, stack_pointer: u64, resume: u64) -> Result<()> {
        for run in self.runs.as_slice() {
            if !self.used.as_slice().contains(&run.layer) {
                self.used.push(run.layer)?;
            }
        }
        let mut signals = [Action::default(); SIGNALS as usize];
        for (signal, action) in (1..=SIGNALS).zip(&mut signals) {
            *action = raw::action(signal)?;
        }
        let thread_pointer = raw::thread_pointer()?;
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            layer: self.layer,
            layers: self.used.as_slice().len() as u64,
            areas: self.areas.as_slice().len() as u64,
            runs: self.runs.as_slice().len() as u64,
            text: self.text.as_slice().len() as u64,
            stack_pointer,
            resume,
            thread_pointer,
            tid_address: raw::tid_address()?,
            robust_list: raw::robust_list()?,
            rseq: [thread_pointer.wrapping_add_signed(request.rseq_offset), request.rseq_len],
            alternate_stack: raw::alternate_stack()?,
            signal_mask: raw::signal_mask()?,
            layout: layout()?,
            provided: self.provided,
        };
        let identities = self.identities.as_slice();
        let features = Features::of_this_machine();
        let tail = Tail { magic: TAIL_MAGIC, features, identities: identities.len() as u64 };
        let (header, tail) = ([header], [tail]);
        let text = self.text.as_slice();
        let filled = text.len().next_multiple_of(size_of::<u64>()) - text.len();
        let parts = [
            bytes_of(&header),
            bytes_of(&signals),
            bytes_of(self.used.as_slice()),
            bytes_of(self.areas.as_slice()),
            bytes_of(self.runs.as_slice()),
            text,
            &[0; size_of::<u64>()][..filled],
            bytes_of(&tail),
            bytes_of(identities),
        ];
        let len = parts.iter().map(|part| part.len() as u64).sum();
        raw::write_all(self.stream, bytes_of(&[stream::INDEX, 0, len]))?;
        for part in parts {
            raw::write_all(self.stream, part)?;
        }
        raw::write_all(self.stream, bytes_of(&[stream::END, 0, 0]))
    }
}

impl Layer {
    /// Compares device and inode.
    fn is_mapped_by(&self, mapping: &Mapping<'_>) -> bool {
        self.stat.inode == mapping.inode && self.stat.device == mapping.device
    }
}

/// Whether a mapping is of a file of Belljar itself.
fn is_own(mapping: &Mapping<'_>, own: &[u8]) -> bool {
    !mapping.shared && !own.is_empty() && mapping.name.starts_with(own)
}

/// An entry of `/proc/self/pagemap`.
#[derive(Clone, Copy)]
struct Page(u64);

impl Page {
    /// Whether it is memory of this process and not of a file: present and not of a file, or swapped out.
    fn is_own(self) -> bool {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const OF_FILE: u64 = 1 << 61;
        self.0 & SWAPPED != 0 || self.0 & (PRESENT | OF_FILE) == PRESENT
    }

    /// Whether it is mapped by this process only.
    fn is_ours_alone(self) -> bool {
        const EXCLUSIVE: u64 = 1 << 56;
        self.0 & EXCLUSIVE != 0
    }
}

/// The memory of this process itself.
fn memory(start: u64, len: u64) -> &'static [u8] {
    // SAFETY: the table and the pagemap show that it is mapped and readable, and no other thread runs.
    unsafe { slice::from_raw_parts(start as *const u8, len as usize) }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(128).all(|chunk| chunk.iter().fold(0, |all, &byte| all | byte) == 0)
}

fn protect(mapping: &Mapping<'_>, prot: u64) -> Result<()> {
    let call = [mapping.start, mapping.end - mapping.start, prot, 0, 0, 0];
    // SAFETY: only access rights are changed, and changed back later.
    unsafe { raw::syscall(raw::MPROTECT, call) }.map(|_| ())
}

/// The arguments of `PR_SET_MM_MAP`, from `/proc/self/stat`.
fn layout() -> Result<[u64; 11]> {
    let file = raw::open(b"/proc/self/stat\0")?;
    let mut text = [0u8; 2048];
    let got = raw::read(file, &mut text);
    raw::close(file);
    let text = &text[..got?];
    let after = text.iter().rposition(|&byte| byte == b')').ok_or(raw::EINVAL)? + 2;
    // The manual counts from 1, and the field after the name is the third.
    let field = |number: usize| {
        let word = text[after..].split(|&byte| byte == b' ').nth(number - 3)?;
        maps::number(word.trim_ascii(), 10)
    };
    let [Some(start_code), Some(end_code), Some(start_data), Some(end_data), Some(start_brk)] =
        [26, 27, 45, 46, 47].map(field)
    else {
        return Err(raw::EINVAL);
    };
    let [Some(stack), Some(args), Some(args_end), Some(env), Some(env_end)] =
        [28, 48, 49, 50, 51].map(field)
    else {
        return Err(raw::EINVAL);
    };
    let brk = raw::brk();
    Ok([
        start_code, end_code, start_data, end_data, start_brk, brk, stack, args, args_end, env,
        env_end,
    ])
}
