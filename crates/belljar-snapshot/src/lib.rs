//! Saves the memory of a running process as a snapshot, and turns another process into it.
//!
//! ```text
//!   kernel A: belljar_freeze ──▶ index + layer of pages ──▶ belljar_thaw: kernel B
//!       │ returns 0, goes on                                     │ its memory is replaced
//!       ▼                                                        ▼ belljar_freeze returns 1, in B
//! ```
//!
//! An interpreter loads it as a shared object. It runs on the interpreter's stack, in the memory that it saves, and must not
//! change it: it allocates only one block ([`block`]), and calls no library except `memcpy` and the like.
//!
//! A snapshot is an index ([`format`](mod@format)) and layers: files of pages, which later snapshots may refer to. Everything happens
//! with the rights of the process itself, so a forged snapshot gains nothing: a process may map its own memory as it likes.
//!
//! Threads and descriptors are not saved: the caller restores them, or refuses.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(feature = "loader", no_main)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(clippy::cast_possible_truncation, reason = "a word is an address on this processor")]

mod block;
mod elf;
mod features;
mod format;
mod freeze;
mod identity;
#[cfg(feature = "loader")]
mod loader;
mod maps;
mod provided;
mod raw;
mod stream;
mod thaw;
mod vdso;

pub use features::Features;
pub use format::{LayerFile, VERSION};
pub use freeze::{Freeze, belljar_freeze};
pub use thaw::{Thaw, belljar_thaw};

/// The version of the structures [`Freeze`] and [`Thaw`], which Python mirrors: increased with every change of either.
pub const REQUEST_VERSION: u64 = 2;

/// Nothing here panics on purpose, and a panic cannot be reported.
#[cfg(any(feature = "shared-object", feature = "loader"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    raw::exit_group(EXIT_PANIC)
}

#[cfg(any(feature = "shared-object", feature = "loader"))]
const EXIT_PANIC: i32 = 72;

/// The core library was compiled to unwind, and refers to this symbol. We abort.
#[cfg(any(feature = "shared-object", feature = "loader"))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
