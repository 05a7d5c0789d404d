//! Saves images that the code displayed as files beside the artifacts, because a terminal does not show them.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_proto::exec::MimeBundle;

/// Types of images, the preferred one first, with their file extensions.
const KINDS: [(&str, &str); 4] =
    [("image/png", "png"), ("image/jpeg", "jpg"), ("image/gif", "gif"), ("image/svg+xml", "svg")];

/// How many file names are tried if files with these names exist.
const MAX_TRIES: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Saved {
    pub(super) files: Vec<PathBuf>,
    /// Images that could not be saved, and why.
    pub(super) lost: Vec<String>,
}

/// Saves one image of every display that has one, in order.
pub(super) fn save(shown: &[MimeBundle], directory: &Path) -> Saved {
    let mut saved = Saved::default();
    for (number, (kind, ending, data)) in shown.iter().filter_map(image).enumerate() {
        let name = format!("figure-{}", number + 1);
        let written =
            bytes(kind, data).and_then(|bytes| write_new(directory, &name, ending, &bytes));
        match written {
            Ok(path) => saved.files.push(path),
            Err(error) => saved.lost.push(format!("figure {} ({error})", number + 1)),
        }
    }
    saved
}

fn image(bundle: &MimeBundle) -> Option<(&'static str, &'static str, &str)> {
    KINDS
        .iter()
        .find_map(|(kind, ending)| Some((*kind, *ending, bundle.data.get(*kind)?.as_str()?)))
}

fn bytes(kind: &str, data: &str) -> io::Result<Vec<u8>> {
    if kind == "image/svg+xml" {
        return Ok(data.as_bytes().to_vec());
    }
    // Kernels break the lines of base64 in different ways.
    let plain: String = data.split_whitespace().collect();
    STANDARD.decode(plain).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Writes a new file under an unused name. Creates the directory if needed.
pub(super) fn write_new(
    directory: &Path,
    stem: &str,
    ending: &str,
    bytes: &[u8],
) -> io::Result<PathBuf> {
    fs::create_dir_all(directory)?;
    let mut path = directory.join(format!("{stem}.{ending}"));
    for number in 2..MAX_TRIES {
        match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                path = directory.join(format!("{stem}-{number}.{ending}"));
            }
            opened => {
                opened?.write_all(bytes)?;
                return Ok(path);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}
