//! Images for the tests: large ones, which are made once and shared, and small ones.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use belljar_testkit::command::{Finished, TestContext};

/// Debian with Python and numpy, built by these tests.
pub(crate) const BASE: &str = "belljar-test/base:latest";

/// The base of that image. It has a shell and no Python.
pub(crate) const BARE: &str = "debian:bookworm";

const BASE_SPEC: &str = r#"
base = "debian:bookworm"
apt = ["python3", "python3-venv", "python3-numpy"]
preload = ["numpy"]
"#;

/// The home directory with both images, shared by all tests and kept between runs.
pub(crate) fn shared_home() -> PathBuf {
    let home = Path::new(env!("CARGO_TARGET_TMPDIR")).join("images");
    fs::create_dir_all(&home).expect("a directory");
    let lock = File::create(home.join("test.lock")).expect("a lock");
    lock.lock().expect("it can be locked");
    let context = TestContext::new()
        .env("BELLJAR_HOME", home.to_str().expect("text"))
        .file("base.toml", BASE_SPEC);
    if context.call(["image", "show", BASE]).code != Some(0) {
        let built = call_with_certificates(
            &context,
            &["image", "build", "-f", "base.toml", "--name", BASE, "--no-docker"],
        );
        assert_eq!(built.code, Some(0), "{built}");
    }
    home
}

/// A context with the shared images.
pub(crate) fn with_shared_images() -> TestContext {
    TestContext::new().env("BELLJAR_HOME", shared_home().to_str().expect("text"))
}

/// A context with its own image store.
pub(crate) fn with_own_store() -> TestContext {
    let context = TestContext::new();
    let home = context.path("home").display().to_string();
    context.env("BELLJAR_HOME", &home)
}

/// Builds need this machine's certificates, package index and proxies, which other tests do not get.
pub(crate) fn call_with_certificates(context: &TestContext, args: &[&str]) -> Finished {
    let mut command = context.belljar(args);
    for name in ["SSL_CERT_FILE", "PIP_INDEX_URL", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"] {
        command.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    context.finish(&mut command)
}

/// A layer of a few files, as an archive.
pub(crate) fn layer(files: &[(&str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, *content).expect("it fits");
    }
    archive.into_inner().expect("it is complete")
}

pub(crate) fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packer.write_all(bytes).expect("memory");
    packer.finish().expect("memory")
}

/// `sha256:...` of some bytes.
pub(crate) fn digest(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    let hex: String =
        sha2::Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    format!("sha256:{hex}")
}

/// An image with one layer: the layer as it is transferred, the configuration and the manifest.
pub(crate) struct Small {
    pub(crate) layer: Vec<u8>,
    pub(crate) config: Vec<u8>,
    pub(crate) manifest: Vec<u8>,
}

impl Small {
    pub(crate) fn new(files: &[(&str, &[u8])], architecture: &str) -> Small {
        let content = layer(files);
        let layer = gzip(&content);
        let config = serde_json::json!({
            "architecture": architecture,
            "os": "linux",
            "config": { "Env": ["MADE_BY=a test"] },
            "rootfs": { "type": "layers", "diff_ids": [digest(&content)] },
        });
        let config = config.to_string().into_bytes();
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {
                "mediaType": "application/vnd.oci.image.config.v1+json",
                "digest": digest(&config),
                "size": config.len(),
            },
            "layers": [{
                "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
                "digest": digest(&layer),
                "size": layer.len(),
            }],
        });
        Small { layer, config, manifest: manifest.to_string().into_bytes() }
    }
}

/// The architecture of this machine, by its name in images.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
