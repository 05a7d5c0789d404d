//! Pulls images from registries.
//!
//! ```text
//!   reference ─▶ manifest, or the one for this machine out of several ─▶ configuration, layers
//!                                        each on its own to disk, hashed on the way, kept if cut off
//! ```
//!
//! Every document and layer is compared with the digest that named it.

mod auth;
mod download;

use std::time::Duration;

use oci_client::client::{Client, ClientConfig, ClientProtocol};
use oci_client::errors::{OciDistributionError, OciErrorCode};
use oci_client::secrets::RegistryAuth;
use oci_client::{Reference, RegistryOperation};

use crate::oci::{self, Descriptor, Document, Manifest};
use crate::store::Writer;
use crate::{Image, ImageError, Name, OciDigest, Progress, limits};

pub use auth::Login;

/// How long connecting to a registry may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);

/// How long a registry may send nothing during a response.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Options of a pull.
#[derive(Debug, Default)]
pub struct PullOptions {
    /// The login at the registry; `None` uses the credentials of `docker login`.
    pub login: Option<Login>,
    /// Without TLS, even if the registry is on another machine.
    pub plain_http: bool,
}

/// Pulls an image and stores it under its reference, or under another name if one is given.
pub async fn pull(
    writer: &Writer<'_>,
    reference: &str,
    name: Option<Name>,
    options: &PullOptions,
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    let wanted: Reference = reference.parse().map_err(|error| {
        ImageError::Refused(format!("`{reference}` is not the name of an image: {error}"))
    })?;
    let name = name.map_or_else(|| reference.parse(), Ok)?;
    let registry = Registry::new(&wanted, options)?;
    progress.begin(&format!("Asking {} for {name}", wanted.registry()), None);
    let (bytes, manifest) = registry.manifest(&wanted).await?;
    let parts = manifest.layers.iter().chain([&manifest.config]);
    for part in parts.clone() {
        if part.size > writer.store().archive_budget() {
            return Err(ImageError::TooMuch(format!("a layer has {} bytes", part.size)));
        }
    }
    for part in parts {
        match writer.has_blob(&part.digest) {
            Some(_) => progress.say(&format!("{} is there already", short(&part.digest))),
            None => download::fetch(&registry, &wanted, writer, part, progress).await?,
        }
    }
    let document = writer.add_document(oci::MANIFEST, &bytes)?;
    writer.commit(name, &document.digest, wanted.whole(), progress)
}

fn short(digest: &OciDigest) -> String {
    digest.hex()[..12].to_owned()
}

/// A client of one registry.
struct Registry {
    client: Client,
    auth: RegistryAuth,
    name: String,
}

impl Registry {
    fn new(reference: &Reference, options: &PullOptions) -> Result<Registry, ImageError> {
        // Fails only if a provider was installed before; that one works as well.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let name = reference.resolve_registry().to_owned();
        let is_plain = options.plain_http || is_loopback(&name);
        let variable = |name: &str| {
            // A proxy cannot reach this machine's loopback.
            if is_loopback(reference.resolve_registry()) {
                return None;
            }
            let values =
                [name.to_owned(), name.to_lowercase()].map(|name| std::env::var(name).ok());
            values.into_iter().flatten().find(|value| !value.is_empty())
        };
        let config = ClientConfig {
            protocol: match is_plain {
                true => ClientProtocol::HttpsExcept(vec![name.clone()]),
                false => ClientProtocol::Https,
            },
            connect_timeout: Some(CONNECT_TIMEOUT),
            read_timeout: Some(READ_TIMEOUT),
            user_agent: concat!("belljar/", env!("CARGO_PKG_VERSION")),
            https_proxy: variable("HTTPS_PROXY"),
            http_proxy: variable("HTTP_PROXY"),
            no_proxy: variable("NO_PROXY"),
            ..ClientConfig::default()
        };
        let client = Client::try_from(config).map_err(|error| meaning(&name, error))?;
        let auth = auth::find(options.login.as_ref(), reference.registry())?;
        Ok(Registry { client, auth, name })
    }

    /// The manifest for this machine: its bytes and its parsed form.
    async fn manifest(&self, reference: &Reference) -> Result<(Vec<u8>, Manifest), ImageError> {
        let asked = self.client.auth(reference, &self.auth, RegistryOperation::Pull).await;
        asked.map_err(|error| meaning(&self.name, error))?;
        let mut bytes = self.document(reference, None).await?;
        for _ in 0..2 {
            match Document::parse(&bytes)? {
                Document::Manifest(manifest) => return Ok((bytes, manifest)),
                Document::Index(index) => {
                    let Descriptor { digest, .. } = index.for_this_machine()?;
                    let chosen = reference.clone_with_digest(digest.to_string());
                    bytes = self.document(&chosen, Some(digest)).await?;
                }
            }
        }
        Err(ImageError::Refused("an index names an index names an index".into()))
    }

    async fn document(
        &self,
        reference: &Reference,
        expected: Option<&OciDigest>,
    ) -> Result<Vec<u8>, ImageError> {
        let kinds = [oci::MANIFEST, oci::INDEX, oci::DOCKER_MANIFEST, oci::DOCKER_INDEX];
        let asked = self.client.pull_manifest_raw(reference, &self.auth, &kinds).await;
        let (bytes, _) = asked.map_err(|error| meaning(&self.name, error))?;
        if bytes.len() as u64 > limits::MAX_DOCUMENT {
            return Err(ImageError::TooMuch(format!("its manifest has {} bytes", bytes.len())));
        }
        let expected = match (expected, reference.digest()) {
            (Some(expected), _) => Some(*expected),
            (None, Some(digest)) => Some(digest.parse()?),
            (None, None) => None,
        };
        let found = OciDigest::of(&bytes);
        match expected {
            Some(expected) if expected != found => {
                let what = "its manifest".to_owned();
                Err(ImageError::Digest { what, expected, found })
            }
            _ => Ok(bytes.to_vec()),
        }
    }
}

/// The error for a registry's answer. The answer may be long; it never contains secrets.
fn meaning(registry: &str, error: OciDistributionError) -> ImageError {
    const LOG_IN: &str = "; give --username and --password-stdin, or use `docker login` before";
    let refused = |message: String, hint| {
        let message = message.chars().take(500).collect();
        ImageError::Registry { message, hint }
    };
    match error {
        OciDistributionError::UnauthorizedError { .. } => {
            refused(format!("{registry} does not let us"), LOG_IN)
        }
        OciDistributionError::AuthenticationFailure(_) => {
            refused(format!("{registry} does not know this user or password"), LOG_IN)
        }
        OciDistributionError::ImageManifestNotFoundError(_) => {
            refused("there is no such image".into(), "")
        }
        OciDistributionError::RegistryError { envelope, .. } => {
            let first = envelope.errors.into_iter().next();
            let code = first.as_ref().map(|first| &first.code);
            match code {
                Some(OciErrorCode::ManifestUnknown | OciErrorCode::NameUnknown) => {
                    refused(format!("{registry} has no such image"), "")
                }
                Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => {
                    refused(format!("{registry} does not let us"), LOG_IN)
                }
                _ => refused(first.map(|first| first.message).unwrap_or_default(), ""),
            }
        }
        OciDistributionError::ServerError { code, .. } => {
            refused(format!("{registry} answered with status {code}"), "")
        }
        error => ImageError::Unreachable { registry: registry.to_owned(), cause: Box::new(error) },
    }
}

/// Whether a registry is on this machine.
fn is_loopback(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => registry.rsplit_once(':').map_or(registry, |(host, _)| host),
    };
    let address: Result<std::net::IpAddr, _> = host.parse();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_asked_without_tls() {
        for own in ["localhost", "localhost:5000", "127.0.0.1:5000", "127.1.2.3", "[::1]:5000"] {
            assert!(is_loopback(own), "{own}");
        }
        for other in ["example.com", "localhost.example.com", "10.0.0.1:5000", "127.example.com"] {
            assert!(!is_loopback(other), "{other}");
        }
    }
}
