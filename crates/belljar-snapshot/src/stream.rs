//! The stream of a snapshot: records in a pipe, which the host writes to files.
//!
//! ```text
//! head: kind, offset, length (a word each) | as many bytes
//! PAGES ... PAGES | INDEX | END
//! ```
//!
//! Lengths and offsets of pages are whole pages. Each record begins where the one before ended, or later if
//! the layer has the layout of the memory. `belljar-runtime` (`snapshot/stream.rs`) reads them, and has a test
//! that compares these constants with its own.

pub(crate) const HEAD_WORDS: usize = 3;

pub(crate) const PAGES: u64 = 1;
pub(crate) const INDEX: u64 = 2;
pub(crate) const END: u64 = 3;
