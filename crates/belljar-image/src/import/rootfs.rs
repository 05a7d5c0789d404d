//! Imports a root file system without metadata: one layer, and a configuration that we write.

use std::fs::File;
use std::path::Path;

use super::Found;
use crate::digest::HashingReader;
use crate::oci::{self, Descriptor, ImageConfig, Manifest, RootfsConfig};
use crate::pack::{self, Packed};
use crate::store::Writer;
use crate::{ImageError, OciDigest, Progress, layer};

pub(super) fn of_archive(
    writer: &Writer<'_>,
    path: &Path,
    progress: &dyn Progress,
) -> Result<Found, ImageError> {
    let open = || File::open(path).map_err(ImageError::file(path));
    progress.begin("Reading the archive", None);
    let (content, compression) = layer::open(open()?, writer.store().archive_budget())?;
    let (content, _) = HashingReader::new(content).finish().map_err(layer::read_error)?;
    let (blob, size) = writer.add_blob(open()?, None)?;
    let blob = Descriptor::new(compression.media_type(), blob, size);
    Ok(Found { manifest: describe(writer, blob, content)?, name: None })
}

pub(super) fn of_directory(
    writer: &Writer<'_>,
    path: &Path,
    progress: &dyn Progress,
) -> Result<Found, ImageError> {
    progress.begin("Packing the directory", None);
    let Packed { digest, size } = pack::directory(writer, path, &pack::Rules::default())?;
    let blob = Descriptor::new(oci::LAYER, digest, size);
    Ok(Found { manifest: describe(writer, blob, digest)?, name: None })
}

fn describe(
    writer: &Writer<'_>,
    layer: Descriptor,
    content: OciDigest,
) -> Result<OciDigest, ImageError> {
    let config = ImageConfig {
        architecture: oci::this_architecture().into(),
        os: "linux".into(),
        rootfs: RootfsConfig { kind: "layers".into(), diff_ids: vec![content] },
        ..ImageConfig::default()
    };
    let text = serde_json::to_vec(&config).expect("documents serialize to JSON");
    let config = writer.add_document(oci::CONFIG, &text)?;
    let manifest = Manifest {
        schema_version: 2,
        media_type: oci::MANIFEST.into(),
        config,
        layers: vec![layer],
    };
    let text = serde_json::to_vec(&manifest).expect("documents serialize to JSON");
    Ok(writer.add_document(oci::MANIFEST, &text)?.digest)
}
