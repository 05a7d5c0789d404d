//! How a picture leaves the process that it is of: records in a pipe, whose other end puts them into files.
//!
//! ```text
//! head: kind, offset, length (a word each) | as many bytes
//! PAGES ... PAGES | INDEX | END
//! ```
//!
//! Lengths and offsets of pages are whole pages; each record begins where the one before ended, or later if
//! the layer is laid out as the memory is. `belljar-runtime` (`frozen/stream.rs`) reads them.

pub(crate) const HEAD_WORDS: usize = 3;

pub(crate) const PAGES: u64 = 1;
pub(crate) const INDEX: u64 = 2;
pub(crate) const END: u64 = 3;
