//! Imports images from files. The content of a file decides its format.

mod docker;
mod layout;
mod parts;
mod rootfs;

use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use crate::archive::Reader;
use crate::store::Writer;
use crate::{Image, ImageError, Name, OciDigest, Progress, layer, skeleton};
use parts::Parts;

/// The format of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// `docker save`, of any version.
    Docker,
    /// An OCI image layout.
    Layout,
    /// The files of a root file system, without metadata.
    Rootfs,
}

/// An image from a file, and the name that the file gives it.
struct Found {
    manifest: OciDigest,
    name: Option<String>,
}

/// Imports an image. Without `name`, it gets the name in the archive, else that of the file.
pub fn import(
    writer: &Writer<'_>,
    from: &Path,
    name: Option<Name>,
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    let is_directory = std::fs::metadata(from).map_err(ImageError::file(from))?.is_dir();
    let form = if is_directory { form_of_directory(from) } else { form_of_archive(writer, from)? };
    let source = std::path::absolute(from).unwrap_or_else(|_| from.to_owned());
    let found = match form {
        Form::Rootfs if is_directory => rootfs::of_directory(writer, from, progress)?,
        Form::Rootfs => rootfs::of_archive(writer, from, progress)?,
        form => {
            let parts = if is_directory {
                Parts::in_directory(from)
            } else {
                progress
                    .begin("Reading the archive", std::fs::metadata(from).ok().map(|m| m.len()));
                Parts::of_archive(writer, from)?
            };
            match form {
                Form::Docker => docker::read(writer, &parts)?,
                _ => layout::read(writer, &parts)?,
            }
        }
    };
    let name = match (name, found.name) {
        (Some(name), _) => name,
        (None, Some(own)) => own.parse()?,
        (None, None) => name_of_file(from)?,
    };
    writer.commit(name, &found.manifest, source.display().to_string(), progress)
}

fn form_of_directory(path: &Path) -> Form {
    if path.join("manifest.json").is_file() {
        Form::Docker
    } else if path.join("oci-layout").is_file() || path.join("index.json").is_file() {
        Form::Layout
    } else {
        Form::Rootfs
    }
}

/// Reads the names of entries until the format is known.
fn form_of_archive(writer: &Writer<'_>, path: &Path) -> Result<Form, ImageError> {
    let mut file = File::open(path).map_err(ImageError::file(path))?;
    let (content, _) = layer::open(&mut file, writer.store().archive_budget())?;
    let mut reader = Reader::new(content);
    let mut found = None;
    let mut entries: u64 = 0;
    while let Some(entry) = reader.next_entry()? {
        entries += 1;
        let name = entry.path.strip_prefix(b"./").unwrap_or(&entry.path);
        let top = name.split(|&byte| byte == b'/').next().unwrap_or_default();
        match name {
            b"manifest.json" => return Ok(Form::Docker),
            // Goes on: newer engines write both formats, and `manifest.json` has more information.
            b"oci-layout" | b"index.json" => found = Some(Form::Layout),
            _ if found.is_none() && skeleton::looks_like_root(top) => return Ok(Form::Rootfs),
            _ => {}
        }
    }
    drop(reader);
    if entries == 0 {
        let nothing = file.seek(SeekFrom::End(0)).is_ok_and(|length| length == 0);
        let why = if nothing { "it is empty" } else { "it holds no entries" };
        return Err(ImageError::Archive(why.into()));
    }
    Ok(found.unwrap_or(Form::Rootfs))
}

/// The name of an image by its file: `lab-1.0` for `lab-1.0.tar.gz`.
fn name_of_file(path: &Path) -> Result<Name, ImageError> {
    let name = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let name = name.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
    let mut stem = name.as_str();
    for suffix in [".gz", ".zst", ".tgz", ".tar"] {
        stem = stem.strip_suffix(suffix).unwrap_or(stem);
    }
    stem.parse().map_err(|_| {
        ImageError::Refused(format!("`{name}` is not a name for an image; give one with --name"))
    })
}
