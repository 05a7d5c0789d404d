//! Writes a process down while it lives, and makes another process into what was written.
//!
//! ```text
//!   kernel A: belljar_freeze ──▶ index + layer of pages ──▶ belljar_thaw: kernel B
//!       │ returns 0, goes on                                     │ its memory is replaced
//!       ▼                                                        ▼ belljar_freeze returns 1, in B
//! ```
//!
//! It is loaded into an interpreter as a shared object and runs on the interpreter's own stack, in the
//! middle of its memory. So it must not touch what it writes: it allocates nothing but a block of its
//! own ([`block`]), calls no library (but `memcpy` and the like), and lets the system do the rest.
//!
//! A picture is an index ([`picture`]) and layers: files of pages, which later pictures go on referring to.
//! Everything happens within the rights of the process itself, so whoever can forge a picture gains
//! nothing: a process may map its own memory as it likes.
//!
//! Threads are not kept, and neither are descriptors: who calls this brings them back, or refuses.

#![cfg_attr(not(test), no_std)]
#![cfg_attr(feature = "loader", no_main)]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]
#![expect(clippy::cast_possible_truncation, reason = "a word is an address on this processor")]

mod block;
mod format;
mod freeze;
#[cfg(feature = "loader")]
mod loader;
mod maps;
mod raw;
mod stream;
mod thaw;

pub use format::LayerFile;
pub use freeze::{Freeze, belljar_freeze};
pub use thaw::{Thaw, belljar_thaw};

/// Of the structures [`Freeze`] and [`Thaw`], which Python mirrors: counted up with every change of either.
pub const REQUEST_VERSION: u64 = 2;

/// Nothing here panics on purpose, and nobody could be told.
#[cfg(any(feature = "shared-object", feature = "loader"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    raw::exit_group(EXIT_PANIC)
}

#[cfg(any(feature = "shared-object", feature = "loader"))]
const EXIT_PANIC: i32 = 72;

/// The core library was compiled to unwind, and names what it would unwind with. We abort.
#[cfg(any(feature = "shared-object", feature = "loader"))]
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
