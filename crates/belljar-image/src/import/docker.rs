//! Archives of `docker save`: `manifest.json` names a configuration and layers. Before version 25
//! of the engine, layers are in directories of their own; since then they are among the blobs of an
//! OCI layout.

use serde::Deserialize;

use super::Found;
use super::parts::Parts;
use crate::layer::Compression;
use crate::oci::{self, Descriptor, ImageConfig, Manifest};
use crate::store::Writer;
use crate::{ImageError, OciDigest, limits};

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    config: String,
    #[serde(default)]
    repo_tags: Option<Vec<String>>,
    layers: Vec<String>,
}

pub(super) fn read(writer: &Writer<'_>, parts: &Parts) -> Result<Found, ImageError> {
    let text = parts.document("manifest.json")?;
    let broken = |cause| ImageError::Document { what: "manifest.json", cause };
    let saved: Vec<Saved> = serde_json::from_slice(&text).map_err(broken)?;
    let [saved] = &saved[..] else {
        return Err(ImageError::Refused(format!(
            "the archive holds {} images; save one at a time",
            saved.len()
        )));
    };
    if saved.layers.len() > limits::MAX_LAYERS {
        let message = format!("it has {} layers", saved.layers.len());
        return Err(ImageError::TooMuch(message));
    }
    let (config, size) = parts.take(writer, &saved.config, named(&saved.config).as_ref())?;
    let parsed = ImageConfig::parse(&writer.store().read_blob(&config)?)?;
    let mut layers = Vec::with_capacity(saved.layers.len());
    for name in &saved.layers {
        let compression = Compression::of(&parts.head(name)?)?;
        // The content is compared with the configuration when the layer is unpacked.
        let (digest, size) = parts.take(writer, name, None)?;
        layers.push(Descriptor::new(compression.media_type(), digest, size));
    }
    if parsed.rootfs.diff_ids.len() != layers.len() {
        return Err(ImageError::Refused("its configuration names other layers".into()));
    }
    let manifest = Manifest {
        schema_version: 2,
        media_type: oci::MANIFEST.into(),
        config: Descriptor::new(oci::CONFIG, config, size),
        layers,
    };
    let text = serde_json::to_vec(&manifest).expect("documents serialize to JSON");
    let manifest = writer.add_document(oci::MANIFEST, &text)?.digest;
    let name = saved.repo_tags.iter().flatten().next().cloned();
    Ok(Found { manifest, name })
}

/// The digest in a file's name, if the file is named by its digest.
fn named(path: &str) -> Option<OciDigest> {
    let name = path.rsplit('/').next()?;
    OciDigest::from_hex(name.strip_suffix(".json").unwrap_or(name))
}
