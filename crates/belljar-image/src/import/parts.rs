//! The files that an image consists of, documents and layers, in a directory or an archive.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use belljar_sys::rootfs::Rootfs;

use crate::archive::{Kind, Reader, show};
use crate::digest::HashingReader;
use crate::store::{Writer, read_bounded};
use crate::{ImageError, OciDigest, layer, limits};

/// How many links are followed from one layer to another.
const MAX_LINKS: usize = 8;

#[derive(Debug)]
pub(super) enum Parts {
    Directory(PathBuf),
    /// Unpacked to a scratch directory, by their names in the archive. Links are resolved only
    /// among these names, so they cannot lead outside.
    Unpacked(HashMap<String, ImagePart>),
}

#[derive(Debug)]
pub(super) enum ImagePart {
    File { path: PathBuf, digest: OciDigest },
    Link(String),
}

impl Parts {
    pub(super) fn in_directory(path: &Path) -> Parts {
        Parts::Directory(path.to_owned())
    }

    pub(super) fn of_archive(writer: &Writer<'_>, path: &Path) -> Result<Parts, ImageError> {
        let file = File::open(path).map_err(ImageError::file(path))?;
        let (content, _) = layer::open(file, writer.store().archive_budget())?;
        let mut reader = Reader::new(content);
        let (scratch, mut parts) = (writer.scratch()?, HashMap::new());
        while let Some(entry) = reader.next_entry()? {
            let name = entry.path.strip_prefix(b"./").unwrap_or(&entry.path);
            let Ok(name) = std::str::from_utf8(name) else { continue };
            if parts.len() >= limits::MAX_ARCHIVE_FILES {
                let message = format!("its archive has more than {} files", parts.len());
                return Err(ImageError::TooMuch(message));
            }
            let part = match &entry.kind {
                Kind::File => {
                    let place = scratch.join(parts.len().to_string());
                    let mut file = File::create_new(&place).map_err(ImageError::file(&place))?;
                    let mut hashing = HashingReader::new(&mut reader);
                    let failed = |cause| ImageError::Entry { path: show(&entry.path), cause };
                    let bytes = io::copy(&mut hashing, &mut file).map_err(failed)?;
                    if bytes != entry.size {
                        return Err(ImageError::Archive("it ends in the middle of a file".into()));
                    }
                    let (digest, _) = hashing.finish().map_err(failed)?;
                    ImagePart::File { path: place, digest }
                }
                // Older engines write a layer that two images share once, and a link to it.
                Kind::Link(to) => {
                    let to = String::from_utf8_lossy(to);
                    let to = to.rsplit("../").next().unwrap_or_default();
                    ImagePart::Link(to.to_owned())
                }
                Kind::HardLink(to) => ImagePart::Link(String::from_utf8_lossy(to).into_owned()),
                _ => continue,
            };
            parts.insert(name.to_owned(), part);
        }
        Ok(Parts::Unpacked(parts))
    }

    /// Reads a small file.
    pub(super) fn document(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let (file, path) = self.open(name)?;
        read_bounded(file, &path)
    }

    /// Makes a file a blob; fails if its digest is not the `expected` one.
    pub(super) fn take(
        &self,
        writer: &Writer<'_>,
        name: &str,
        expected: Option<&OciDigest>,
    ) -> Result<(OciDigest, u64), ImageError> {
        if let Some((path, digest)) = self.unpacked(name) {
            if let Some(expected) = expected
                && digest != expected
            {
                let what = format!("`{name}`");
                let (expected, found) = (*expected, *digest);
                return Err(ImageError::Digest { what, expected, found });
            }
            let size = fs::metadata(path).map_err(ImageError::file(path))?.len();
            if writer.has_blob(digest).is_none() {
                // Other names may refer to the same file, so a hard link to it is moved, not the
                // file.
                let own = path.with_extension("blob");
                fs::hard_link(path, &own).map_err(ImageError::file(&own))?;
                writer.adopt_blob(&own, digest)?;
            }
            return Ok((*digest, size));
        }
        let (file, _) = self.open(name)?;
        writer.add_blob(file, expected)
    }

    /// The first bytes of a file, which show its compression.
    pub(super) fn head(&self, name: &str) -> Result<Vec<u8>, ImageError> {
        let (file, path) = self.open(name)?;
        let mut head = Vec::new();
        file.take(8).read_to_end(&mut head).map_err(ImageError::file(path))?;
        Ok(head)
    }

    fn unpacked(&self, name: &str) -> Option<(&Path, &OciDigest)> {
        let Parts::Unpacked(parts) = self else { return None };
        let mut part = parts.get(name)?;
        for _ in 0..MAX_LINKS {
            match part {
                ImagePart::File { path, digest } => return Some((path, digest)),
                ImagePart::Link(to) => part = parts.get(to)?,
            }
        }
        None
    }

    fn open(&self, name: &str) -> Result<(File, PathBuf), ImageError> {
        let missing = || ImageError::Incomplete(format!("`{name}`"));
        match self {
            Parts::Unpacked(_) => {
                let (path, _) = self.unpacked(name).ok_or_else(missing)?;
                let file = File::open(path).map_err(ImageError::file(path))?;
                Ok((file, path.to_owned()))
            }
            // A document may name any path, so files are opened only below the directory.
            Parts::Directory(directory) => {
                let root = Rootfs::open(directory).map_err(ImageError::file(directory))?;
                let path = directory.join(name);
                match root.open_file(Path::new(name)) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => Err(missing()),
                    opened => Ok((opened.map_err(ImageError::file(&path))?, path)),
                }
            }
        }
    }
}
