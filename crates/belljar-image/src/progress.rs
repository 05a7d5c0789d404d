//! Progress of long operations.

/// Receives the progress of one operation at a time; a new operation ends the previous one.
pub trait Progress {
    /// An operation begins, with its size in bytes if it is known.
    fn begin(&self, what: &str, total: Option<u64>);
    /// The number of bytes that are done so far.
    fn at(&self, bytes: u64);
    /// A line of a program's output.
    fn detail(&self, line: &str);
    /// A message for the user.
    fn say(&self, text: &str);
}

/// Ignores progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: Option<u64>) {}
    fn at(&self, _: u64) {}
    fn detail(&self, _: &str) {}
    fn say(&self, _: &str) {}
}
