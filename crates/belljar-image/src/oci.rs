//! The documents of images, as registries and container engines write them. Only the fields that we
//! read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{ImageError, OciDigest, limits};

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(crate) const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
pub(crate) const LAYER_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(crate) const LAYER_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
pub(crate) const DOCKER_MANIFEST: &str = "application/vnd.docker.distribution.manifest.v2+json";
pub(crate) const DOCKER_INDEX: &str = "application/vnd.docker.distribution.manifest.list.v2+json";

/// The label of images that were made for Belljar.
pub const LABEL_IMAGE: &str = "belljar.image";
/// The label with the modules that kernels of this image preload, separated by commas.
pub const LABEL_PRELOAD: &str = "belljar.preload";

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: OciDigest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) platform: Option<Platform>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub(crate) fn new(media_type: &str, digest: OciDigest, size: u64) -> Descriptor {
        let annotations = BTreeMap::new();
        Descriptor { media_type: media_type.into(), digest, size, platform: None, annotations }
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Platform {
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) variant: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    pub(crate) schema_version: u32,
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Index {
    pub(crate) schema_version: u32,
    #[serde(default)]
    pub(crate) media_type: String,
    pub(crate) manifests: Vec<Descriptor>,
}

/// A manifest, or an index with one manifest per platform.
#[derive(Debug)]
pub(crate) enum Document {
    Manifest(Manifest),
    Index(Index),
}

impl Document {
    /// Decides by the content, because older documents have no media type.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Document, ImageError> {
        #[derive(Deserialize)]
        struct Shape {
            #[serde(rename = "schemaVersion")]
            schema_version: u32,
            manifests: Option<serde_json::Value>,
        }
        let broken = |cause| ImageError::Document { what: "manifest", cause };
        let shape: Shape = serde_json::from_slice(bytes).map_err(broken)?;
        if shape.schema_version != 2 {
            let message = format!("its manifest is of version {}", shape.schema_version);
            return Err(ImageError::Unsupported(message));
        }
        if shape.manifests.is_some() {
            let index = serde_json::from_slice(bytes).map_err(broken)?;
            return Ok(Document::Index(index));
        }
        let manifest: Manifest = serde_json::from_slice(bytes).map_err(broken)?;
        if manifest.layers.len() > limits::MAX_LAYERS {
            let many = manifest.layers.len();
            return Err(ImageError::TooMuch(format!(
                "it has {many} layers, and {} are allowed",
                limits::MAX_LAYERS
            )));
        }
        Ok(Document::Manifest(manifest))
    }
}

impl Index {
    /// The manifest for this machine. A single entry without a platform is accepted.
    pub(crate) fn for_this_machine(&self) -> Result<&Descriptor, ImageError> {
        let wanted = this_architecture();
        let fits = |entry: &&Descriptor| {
            entry.platform.as_ref().is_some_and(|platform| {
                platform.os == "linux"
                    && platform.architecture == wanted
                    && platform
                        .variant
                        .as_deref()
                        .is_none_or(|variant| is_baseline(wanted, variant))
            })
        };
        if let Some(found) = self.manifests.iter().find(fits) {
            return Ok(found);
        }
        if let [only] = &self.manifests[..]
            && only.platform.is_none()
        {
            return Ok(only);
        }
        let mut has: Vec<String> = self
            .manifests
            .iter()
            .filter_map(|entry| entry.platform.as_ref())
            .filter(|platform| platform.os != "unknown")
            .map(|platform| format!("{}/{}", platform.os, platform.architecture))
            .take(20)
            .collect();
        has.dedup();
        Err(ImageError::Platform { wanted: format!("linux/{wanted}"), has: has.join(", ") })
    }
}

/// The architecture of this machine, in the names that images use.
#[must_use]
pub(crate) fn this_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn is_baseline(architecture: &str, variant: &str) -> bool {
    match architecture {
        "amd64" => matches!(variant, "" | "v1"),
        "arm64" => matches!(variant, "" | "v8"),
        _ => true,
    }
}

/// The configuration of an image.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ImageConfig {
    #[serde(default)]
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) os: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) created: Option<String>,
    #[serde(default)]
    pub(crate) config: RunConfig,
    #[serde(default)]
    pub(crate) rootfs: RootfsConfig,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) history: Vec<serde_json::Value>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct RunConfig {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) user: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) env: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) cmd: Option<Vec<String>>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) working_dir: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) labels: Option<BTreeMap<String, String>>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RootfsConfig {
    #[serde(default, rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) diff_ids: Vec<OciDigest>,
}

impl ImageConfig {
    pub(crate) fn parse(bytes: &[u8]) -> Result<ImageConfig, ImageError> {
        let broken = |cause| ImageError::Document { what: "configuration", cause };
        serde_json::from_slice(bytes).map_err(broken)
    }

    /// The variables of the environment; invalid entries are skipped.
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        let env = self.config.env.iter().flatten();
        env.filter_map(|line| line.split_once('='))
            .filter(|(key, value)| !key.is_empty() && !value.contains('\0') && !key.contains('\0'))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    pub(crate) fn label(&self, name: &str) -> Option<&str> {
        self.config.labels.as_ref()?.get(name).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(os: &str, architecture: &str, variant: Option<&str>) -> Descriptor {
        let platform = Platform {
            os: os.into(),
            architecture: architecture.into(),
            variant: variant.map(str::to_owned),
        };
        let name = format!("{os}{architecture}{variant:?}");
        let digest = OciDigest::of(name.as_bytes());
        Descriptor { platform: Some(platform), ..Descriptor::new(MANIFEST, digest, 1) }
    }

    #[test]
    fn the_manifest_for_this_machine_is_taken() {
        let own = this_architecture();
        let index = |manifests| Index { schema_version: 2, media_type: INDEX.into(), manifests };
        let all = index(vec![
            entry("windows", own, None),
            entry("unknown", "unknown", None),
            entry("linux", own, Some("v3")),
            entry("linux", "s390x", None),
            entry("linux", own, None),
        ]);
        assert_eq!(all.for_this_machine().unwrap(), &all.manifests[4]);
        let foreign = index(vec![entry("linux", "s390x", None)]);
        let error = foreign.for_this_machine().unwrap_err().to_string();
        assert!(error.contains("linux/s390x") && error.contains(own), "{error}");
    }

    #[test]
    fn documents_are_told_apart_by_what_is_in_them() {
        assert!(matches!(
            Document::parse(br#"{"schemaVersion":2,"manifests":[]}"#),
            Ok(Document::Index(_))
        ));
        for wrong in ["", "[]", "{}", r#"{"schemaVersion":1}"#, r#"{"schemaVersion":2}"#] {
            assert!(Document::parse(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }
}
