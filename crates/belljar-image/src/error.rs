//! Errors of images.

use std::io;
use std::path::PathBuf;

use crate::digest::NotAnOciDigest;
use crate::name::BadName;
use crate::{Name, OciDigest};

#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    #[error(transparent)]
    Name(#[from] BadName),
    #[error(
        "there is no image `{0}`; `belljar image pull {0}` gets it from its registry, `belljar image import FILE \
         --name {0}` from an archive, and `belljar image list` shows those there are"
    )]
    Missing(Name),
    #[error("failed to use `{path}`")]
    File {
        path: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("failed to unpack `{path}`")]
    Entry {
        path: String,
        #[source]
        cause: io::Error,
    },
    #[error("the archive is damaged: {0}")]
    Archive(String),
    #[error("failed to read the archive")]
    Read(#[source] io::Error),
    #[error("the image was refused: {0}")]
    Refused(String),
    #[error("the image is too large: {0}")]
    TooMuch(String),
    #[error("this kind of image is not supported: {0}")]
    Unsupported(String),
    #[error("failed to parse the {what} of the image")]
    Document {
        what: &'static str,
        #[source]
        cause: serde_json::Error,
    },
    #[error("the image is damaged: {what} should be {expected} and is {found}")]
    Digest { what: String, expected: OciDigest, found: OciDigest },
    #[error(transparent)]
    NotADigest(#[from] NotAnOciDigest),
    #[error("the image is not for this machine, which needs {wanted}: it has {has}")]
    Platform { wanted: String, has: String },
    #[error("the image is incomplete: {0} is missing")]
    Incomplete(String),
    #[error("the registry refused: {message}{hint}")]
    Registry { message: String, hint: &'static str },
    #[error("failed to query the registry `{registry}`")]
    Unreachable {
        registry: String,
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{0}")]
    Spec(String),
    #[error("failed to build the image: {0}")]
    Build(String),
    #[error("{0}")]
    Docker(String),
}

impl ImageError {
    /// For `map_err`: an error of a file in the store.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> ImageError {
        let path = path.into();
        move |cause| ImageError::File { path, cause }
    }
}
