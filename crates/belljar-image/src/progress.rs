//! How far something is, for whoever watches.

/// Told about work that takes its time. One thing at a time; the next one ends the one before.
pub trait Progress {
    /// Something begins, of so many bytes if that is known.
    fn begin(&self, what: &str, total: Option<u64>);
    /// So many bytes of it are done.
    fn at(&self, bytes: u64);
    /// A line of what a program says about its work.
    fn detail(&self, line: &str);
    /// Something that people should read.
    fn say(&self, text: &str);
}

/// Nobody watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&self, _: &str, _: Option<u64>) {}
    fn at(&self, _: u64) {}
    fn detail(&self, _: &str) {}
    fn say(&self, _: &str) {}
}
