//! Limits for images. They apply to the actual content, not to what an archive declares.

/// Limits for unpacking one image.
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

/// Bytes of a path and of a link's target; the system's limit.
pub(crate) const MAX_PATH: usize = 4095;

/// Bytes of one name in a path.
pub(crate) const MAX_NAME: usize = 255;

/// The depth of a path.
pub(crate) const MAX_DEPTH: usize = 256;

/// The largest compression ratio of a layer. Real layers reach 10; gzip reaches 1000 with zeros.
pub(crate) const MAX_RATIO: u64 = 200;

/// Up to this size the ratio is not checked.
pub(crate) const RATIO_MATTERS: u64 = 64 << 20;

/// Bytes of a manifest, an index or a configuration, which are kept in memory.
pub(crate) const MAX_DOCUMENT: u64 = 4 << 20;

/// Layers of an image; container engines stop at 127.
pub(crate) const MAX_LAYERS: usize = 512;

/// Files of an archive that holds an image (not of the image).
pub(crate) const MAX_ARCHIVE_FILES: usize = 8192;

/// Bytes of an extended header: long names and attributes.
pub(crate) const MAX_EXTENSION: u64 = 1 << 20;

/// Segments of a sparse file.
pub(crate) const MAX_SPARSE_PIECES: usize = 65_536;

/// Bytes of paths that are kept in memory while one layer is unpacked: enough for two million short
/// paths. Smaller in tests, which would take minutes to create that many directories.
pub(crate) const MAX_REMEMBERED: usize = if cfg!(test) { 2 << 20 } else { 256 << 20 };
