//! Measures the peak memory of a piece of code.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes that this thread has allocated and not freed, and the peak of that number. A thread may
    /// free memory of another thread, so the first can be negative.
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// The system's allocator, counting for each thread. To be the `#[global_allocator]` of a test program.
#[derive(Debug)]
pub struct Counting;

/// Runs the work; returns its result and the peak of bytes that this thread allocated for it. Other threads are not
/// counted.
pub fn peak_of<T>(work: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    let outer = PEAK.replace(before);
    let result = work();
    let peak = PEAK.get();
    PEAK.set(peak.max(outer));
    (result, usize::try_from(peak - before).unwrap_or(0))
}

fn count(change: isize) {
    // A thread that ends may allocate after its thread-local variables are destroyed.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}

fn size(layout: Layout) -> isize {
    // No layout is larger.
    isize::try_from(layout.size()).unwrap_or(isize::MAX)
}

#[expect(
    unsafe_code,
    reason = "an allocator is unsafe by its nature; this one passes everything on"
)]
// SAFETY: every call goes to the system's allocator with the arguments it came with, and counting
// neither allocates nor panics: the variables are plain numbers that need no initialization.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller keeps the promises of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(size(layout));
        // SAFETY: the caller keeps the promises of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-size(layout));
        // SAFETY: the caller keeps the promises of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // The old and the new memory may exist at the same time.
        count(isize::try_from(new_size).unwrap_or(isize::MAX));
        count(-size(layout));
        // SAFETY: the caller keeps the promises of `realloc`.
        unsafe { System.realloc(memory, layout, new_size) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_the_most_that_was_held_at_a_time() {
        let ((), peak) = peak_of(|| {
            for _ in 0..100 {
                drop(std::hint::black_box(vec![1_u8; 10_000]));
            }
        });
        assert!((10_000..20_000).contains(&peak), "{peak}");
        let (kept, peak) = peak_of(|| vec![vec![1_u8; 10_000]; 10]);
        assert!(peak >= 100_000, "{peak}");
        drop(kept);
        let ((), outer) = peak_of(|| {
            let ((), inner) = peak_of(|| drop(std::hint::black_box(vec![1_u8; 50_000])));
            assert!(inner >= 50_000);
        });
        assert!(outer >= 50_000, "{outer}");
    }
}
