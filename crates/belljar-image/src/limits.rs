//! What an image may be at most. An archive says what it likes; these are compared with what comes.

/// The bounds of unpacking one image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpackLimits {
    /// Bytes of all files of all layers together.
    pub bytes: u64,
    /// Entries of all layers together.
    pub entries: u64,
}

impl UnpackLimits {
    pub const DEFAULT_BYTES: u64 = 32 << 30;
    pub const DEFAULT_ENTRIES: u64 = 2_000_000;
}

impl Default for UnpackLimits {
    fn default() -> Self {
        UnpackLimits { bytes: Self::DEFAULT_BYTES, entries: Self::DEFAULT_ENTRIES }
    }
}

/// Bytes of a path, and of where a link leads: what the system takes.
pub(crate) const MAX_PATH: usize = 4095;

/// Bytes of one name in a path.
pub(crate) const MAX_NAME: usize = 255;

/// How many directories deep a path may lead.
pub(crate) const MAX_DEPTH: usize = 256;

/// How much more a layer may be than what came over the wire. Real ones reach 10; gzip itself
/// 1000, with nothing but zeros.
pub(crate) const MAX_RATIO: u64 = 200;

/// Below this nobody is hurt, whatever the ratio.
pub(crate) const RATIO_MATTERS: u64 = 64 << 20;

/// Bytes of a manifest, an index or a configuration. They are held in memory.
pub(crate) const MAX_DOCUMENT: u64 = 4 << 20;

/// Layers of an image; container engines stop at 127.
pub(crate) const MAX_LAYERS: usize = 512;

/// Files of an archive that holds an image (not of the image).
pub(crate) const MAX_ARCHIVE_FILES: usize = 8192;

/// Bytes of the head of an entry that does not fit into one block: long names and attributes.
pub(crate) const MAX_EXTENSION: u64 = 1 << 20;

/// Pieces of one file with holes.
pub(crate) const MAX_SPARSE_PIECES: usize = 65_536;

/// Bytes of paths that are remembered while one layer is unpacked. Two million short ones fit. Tests
/// would take minutes to make that many directories.
pub(crate) const MAX_REMEMBERED: usize = if cfg!(test) { 2 << 20 } else { 256 << 20 };
