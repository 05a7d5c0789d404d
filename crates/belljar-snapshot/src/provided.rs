//! Gives the vDSO to a restored process, whose libraries remember the addresses of its functions.
//!
//! ```text
//! the same vDSO      Linux's own is moved to the former address
//! another one        former address: a copy of the saved one ── each function jumps ──▶ Linux's own, at a free address
//! ```
//!
//! The copy stays the only one: if such a process is saved and restored again, its functions are redirected again.

use core::slice;

use crate::block::Block;
use crate::format::{Area, Index, LayerFile, PROVIDED, PROXY, sum};
use crate::maps::{self, Mapping};
use crate::raw::{self, ESTALE, Result};
use crate::thaw::Plan;
use crate::vdso;

/// What is mapped by Linux at addresses that it has chosen. Larger ones are refused.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// The mappings that Linux provides to this process (vDSO, vvar). Their code finds the data by the distance between them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Provided<'a> {
    table: &'a [u8],
    start: u64,
    end: u64,
}

impl<'a> Provided<'a> {
    pub(crate) fn of(table: &'a [u8]) -> Result<Provided<'a>> {
        let (start, end) = of_linux(table)
            .fold((u64::MAX, 0), |(start, end), it| (it.start.min(start), it.end.max(end)));
        let start = start.min(end);
        if end - start <= MAX_BYTES { Ok(Provided { table, start, end }) } else { Err(ESTALE) }
    }

    pub(crate) fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Plans the vDSO of the restored process. `home` is a free range of the length of this, where it stays; `aside` is one in
    /// the block.
    pub(crate) fn plan(
        &self,
        plan: &mut Plan,
        index: &Index<'_>,
        layers: &[LayerFile],
        block: &mut Block,
        [home, aside]: [u64; 2],
    ) -> Result<()> {
        let mut provided = index.areas.iter().filter(|area| area.kind == PROVIDED);
        let is_redirected = index.areas.iter().any(|area| area.kind == PROXY);
        let first = match provided.next() {
            Some(first) => first.start,
            None if is_redirected => 0,
            // The process never had a vDSO.
            None => return Ok(()),
        };
        let is_sealed = of_linux(self.table).any(|it| raw::is_sealed(it.start, it.end - it.start));
        if !is_redirected && !is_sealed && self.is_same(index, first)? {
            // The former place may overlap with the present one.
            self.relocate(plan, self.start, aside)?;
            return self.relocate(plan, aside, first);
        }
        let overlaps = |area: &Area| area.start < self.end && self.start < area.end;
        if is_sealed && index.areas.iter().any(overlaps) {
            return Err(ESTALE);
        }
        let place = if is_sealed { self.start } else { home };
        if !is_sealed {
            self.relocate(plan, self.start, home)?;
        }
        let mut count = 0;
        for area in index.areas {
            let is_vdso = area.kind == PROVIDED && index.path(area)? == b"[vdso]\0";
            if area.kind == PROXY || (is_vdso && !is_redirected) {
                self.plan_copy(plan, index, area, layers, block, place)?;
                count += 1;
            }
        }
        if count == 0 { Err(ESTALE) } else { Ok(()) }
    }

    /// Whether the process had the same code at the same distances from the first of them.
    fn is_same(&self, index: &Index<'_>, first: u64) -> Result<bool> {
        let mut ours = of_linux(self.table);
        for area in index.areas.iter().filter(|area| area.kind == PROVIDED) {
            let Some(mapping) = ours.next() else { return Ok(false) };
            let name = index.path(area)?;
            let same = name[..name.len() - 1] == *mapping.name
                && area.start - first == mapping.start - self.start
                && area.end - area.start == mapping.end - mapping.start;
            if !same || (name == b"[vdso]\0" && sum(code(&mapping)) != index.header.provided) {
                return Ok(false);
            }
        }
        Ok(ours.next().is_none())
    }

    /// Moves all of it; `from` is where its begin is by then.
    fn relocate(&self, plan: &mut Plan, from: u64, to: u64) -> Result<()> {
        for it in of_linux(self.table) {
            let ahead = it.start - self.start;
            plan.relocate(from + ahead, it.end - it.start, to + ahead)?;
        }
        Ok(())
    }

    /// Makes a copy of the saved vDSO in the block, redirects it, and plans to move it to its address.
    fn plan_copy(
        &self,
        plan: &mut Plan,
        index: &Index<'_>,
        area: &Area,
        layers: &[LayerFile],
        block: &mut Block,
        place: u64,
    ) -> Result<()> {
        let ours = of_linux(self.table).find(|it| it.name == b"[vdso]").ok_or(ESTALE)?;
        let len = area.end - area.start;
        let at = block.pages(len)?;
        // SAFETY: only we use these pages of the block, from now on.
        let copy = unsafe { slice::from_raw_parts_mut(at as *mut u8, len as usize) };
        let runs = index.runs_of(area)?;
        for run in runs {
            let layer = layers.iter().find(|layer| layer.id == run.layer).ok_or(ESTALE)?;
            let start = (run.start - area.start) as usize;
            let piece = &mut copy[start..start + run.len as usize];
            if raw::pread(layer.fd, piece, run.offset)? != piece.len() {
                return Err(ESTALE);
            }
        }
        let changed = area.kind == PROVIDED && sum(copy) != index.header.provided;
        if runs.is_empty() || changed {
            // An earlier version did not save it.
            return Err(ESTALE);
        }
        vdso::redirect(copy, code(&ours), place + ours.start - self.start)?;
        plan.call(raw::MPROTECT, [at, len, area.prot, 0, 0, 0])?;
        plan.relocate(at, len, area.start)
    }
}

fn of_linux(table: &[u8]) -> impl Iterator<Item = Mapping<'_>> {
    maps::mappings(table).filter(|mapping| mapping.is_provided() && !mapping.is_fixed())
}

fn code(mapping: &Mapping<'_>) -> &'static [u8] {
    let len = (mapping.end - mapping.start) as usize;
    // SAFETY: Linux maps it readable into every process, and it stays mapped until the plan is carried out.
    unsafe { slice::from_raw_parts(mapping.start as *const u8, len) }
}
