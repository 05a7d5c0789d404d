//! Reads an OCI image layout: an index, and blobs named by their digests.

use super::Found;
use super::parts::Parts;
use crate::oci::{self, Descriptor, Document, Index};
use crate::store::Writer;
use crate::{ImageError, OciDigest};

/// How many indexes may be nested; one is enough for any image.
const MAX_INDEXES: usize = 3;

const REF_NAME: &str = "org.opencontainers.image.ref.name";
const FULL_NAME: &str = "io.containerd.image.name";

pub(super) fn read(writer: &Writer<'_>, parts: &Parts) -> Result<Found, ImageError> {
    let text = parts.document("index.json")?;
    let broken = |cause| ImageError::Document { what: "index.json", cause };
    let mut index: Index = serde_json::from_slice(&text).map_err(broken)?;
    let images: Vec<_> =
        index.manifests.iter().filter(|entry| is_image(&entry.media_type)).collect();
    let names: Vec<&String> = images.iter().filter_map(|entry| own_name(entry)).collect();
    if images.len() > 1 && images.iter().all(|entry| entry.platform.is_none()) {
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).take(10).collect();
        return Err(ImageError::Refused(format!(
            "the layout holds {} images ({}); export one at a time",
            images.len(),
            names.join(", ")
        )));
    }
    let name = names.first().map(|name| (*name).clone());
    for _ in 0..MAX_INDEXES {
        let entry = match &index.manifests[..] {
            [only] => only,
            _ => index.for_this_machine()?,
        };
        let bytes = parts.document(&blob(&entry.digest))?;
        let found = OciDigest::of(&bytes);
        if found != entry.digest {
            let (what, expected) = ("its manifest".to_owned(), entry.digest);
            return Err(ImageError::Digest { what, expected, found });
        }
        match Document::parse(&bytes)? {
            Document::Index(next) => index = next,
            Document::Manifest(manifest) => {
                for part in manifest.layers.iter().chain([&manifest.config]) {
                    if writer.has_blob(&part.digest).is_none() {
                        parts.take(writer, &blob(&part.digest), Some(&part.digest))?;
                    }
                }
                let manifest = writer.add_document(oci::MANIFEST, &bytes)?.digest;
                return Ok(Found {
                    manifest,
                    name: name.filter(|name| name.parse::<crate::Name>().is_ok()),
                });
            }
        }
    }
    Err(ImageError::Refused("an index names an index names an index".into()))
}

fn blob(digest: &OciDigest) -> String {
    format!("blobs/sha256/{}", digest.hex())
}

fn is_image(media_type: &str) -> bool {
    [oci::MANIFEST, oci::INDEX, oci::DOCKER_MANIFEST, oci::DOCKER_INDEX].contains(&media_type)
}

/// The name of the image. An annotation that is only a tag is not a name.
fn own_name(entry: &Descriptor) -> Option<&String> {
    entry
        .annotations
        .get(FULL_NAME)
        .or_else(|| entry.annotations.get(REF_NAME).filter(|name| name.contains([':', '/'])))
}
