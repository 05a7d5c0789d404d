//! The store of images on disk.
//!
//! ```text
//!   images/lock                  held by the process that changes anything
//!   images/blobs/<hex>           layers, configurations and manifests, by their content
//!   images/names/<name>.json     an image: which layers, and what else a sandbox must know
//!   images/roots/<hex>/rootfs    its layers unpacked, by the names of all of them
//!   images/roots/<hex>/lock      held shared by its users, sandboxes included
//!   images/partial/<hex>         interrupted downloads, to be continued
//!   images/new/                  unfinished files, which are ignored
//! ```
//!
//! Everything is created in `new/`, synced and then renamed, the name of an image last. So after a crash an image is
//! either complete or absent. The next process that changes something removes leftovers.

mod roots;
mod writer;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::oci::Descriptor;
use crate::{ImageError, Name, OciDigest, UnpackLimits, Unpacked};

pub use roots::InUse;
pub use writer::Writer;

/// Version of an image's record.
const FORMAT: u32 = 1;

#[derive(Debug, Clone)]
pub struct ImageStore {
    directory: PathBuf,
    limits: UnpackLimits,
}

/// The record of a stored image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image {
    format: u32,
    pub name: Name,
    /// The origin of the image, for users.
    pub source: String,
    /// When it was added, in milliseconds since the epoch.
    pub added_ms: u64,
    pub manifest: OciDigest,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Layer>,
    /// The name of its root file system: the chain id of its layers.
    pub root: OciDigest,
    pub architecture: String,
    pub env: Vec<(String, String)>,
    pub user: String,
    pub workdir: String,
    /// The path of the interpreter inside; an image may have none.
    pub python: Option<String>,
    /// Modules that its kernels preload, if the image names them.
    pub preload: Option<Vec<String>>,
    pub unpacked: Unpacked,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Layer {
    pub(crate) blob: Descriptor,
    /// The digest of the uncompressed layer.
    pub(crate) content: OciDigest,
}

impl Image {
    /// The size of its layers as they were received, mostly compressed.
    #[must_use]
    pub fn packed_bytes(&self) -> u64 {
        self.layers.iter().map(|layer| layer.blob.size).sum()
    }

    #[must_use]
    pub fn layer_digests(&self) -> Vec<&OciDigest> {
        self.layers.iter().map(|layer| &layer.blob.digest).collect()
    }

    /// Its identity, independent of its name. The configuration lists the layers too.
    #[must_use]
    pub fn identity(&self) -> String {
        self.config.digest.to_string()
    }

    fn blobs(&self) -> impl Iterator<Item = &OciDigest> {
        let layers = self.layers.iter().map(|layer| &layer.blob.digest);
        layers.chain([&self.manifest, &self.config.digest])
    }
}

impl ImageStore {
    /// Does not access the disk: the directory may not exist.
    #[must_use]
    pub fn new(directory: PathBuf, limits: UnpackLimits) -> ImageStore {
        ImageStore { directory, limits }
    }

    /// All images, by name.
    pub fn list(&self) -> Result<Vec<Image>, ImageError> {
        let names = self.names_dir();
        let entries = match fs::read_dir(&names) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(ImageError::file(&names))?,
        };
        let mut images = Vec::new();
        for entry in entries {
            let path = entry.map_err(ImageError::file(&names))?.path();
            if path.extension().is_some_and(|extension| extension == "json")
                && let Some(image) = read_record(&path)?
            {
                images.push(image);
            }
        }
        images.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(images)
    }

    pub fn find(&self, name: &Name) -> Result<Image, ImageError> {
        let found = read_record(&self.names_dir().join(name.file_name()))?;
        found.ok_or_else(|| ImageError::Missing(name.clone()))
    }

    /// Takes the lock for changes. If another process holds it, says so and waits.
    pub fn writer(&self, say: impl FnOnce(&str)) -> Result<Writer<'_>, ImageError> {
        Writer::open(self, say)
    }

    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The largest size of an archive that contains an image: headers are added to the files, and
    /// the image may be inside another archive.
    pub(crate) fn archive_budget(&self) -> u64 {
        self.limits.bytes.saturating_add(self.limits.entries.saturating_mul(2048))
    }

    fn names_dir(&self) -> PathBuf {
        self.directory.join("names")
    }

    fn roots_dir(&self) -> PathBuf {
        self.directory.join("roots")
    }

    fn blob_path(&self, digest: &OciDigest) -> PathBuf {
        self.directory.join("blobs").join(digest.hex())
    }

    /// Opens a layer, configuration or manifest.
    pub(crate) fn open_blob(&self, digest: &OciDigest) -> Result<File, ImageError> {
        let path = self.blob_path(digest);
        match File::open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Err(ImageError::Incomplete(digest.to_string()))
            }
            opened => opened.map_err(ImageError::file(path)),
        }
    }

    pub(crate) fn read_blob(&self, digest: &OciDigest) -> Result<Vec<u8>, ImageError> {
        read_bounded(self.open_blob(digest)?, &self.blob_path(digest))
    }
}

/// Reads a document, whose size is limited.
pub(crate) fn read_bounded(file: File, path: &Path) -> Result<Vec<u8>, ImageError> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let limit = crate::limits::MAX_DOCUMENT;
    file.take(limit + 1).read_to_end(&mut bytes).map_err(ImageError::file(path))?;
    if bytes.len() as u64 > limit {
        let message = format!("a manifest or configuration has more than {limit} bytes");
        return Err(ImageError::TooMuch(message));
    }
    Ok(bytes)
}

/// A record of another version is ignored: the image is imported or pulled again.
fn read_record(path: &Path) -> Result<Option<Image>, ImageError> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        text => text.map_err(ImageError::file(path))?,
    };
    let image: Option<Image> = serde_json::from_slice(&text).ok();
    Ok(image.filter(|image| image.format == FORMAT))
}
