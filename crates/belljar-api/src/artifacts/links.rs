//! Signed links to artifacts, created for every response.

use belljar_engine::artifacts::{Artifact, ArtifactStore, Artifacts, Method};
use belljar_engine::exec::result::ExecResult;

/// Creates links with the address of this server.
#[derive(Debug, Clone)]
pub(crate) struct Links {
    /// The prefix of links. Empty if the server has no address; then links are only paths.
    base: String,
}

impl Links {
    pub(crate) fn new(base: String) -> Links {
        Links { base }
    }

    /// A link, and its expiry in seconds since 1970.
    pub(crate) fn url(&self, store: &ArtifactStore, method: Method, id: &str) -> (String, u64) {
        let link = store.link(method, id);
        (format!("{}/artifacts/{id}?token={}", self.base, link.token), link.expires_s)
    }

    pub(crate) fn add_to(&self, store: &ArtifactStore, artifacts: &mut Artifacts) {
        artifacts.artifacts.iter_mut().for_each(|artifact| self.add_to_one(store, artifact));
    }

    pub(crate) fn add_to_one(&self, store: &ArtifactStore, artifact: &mut Artifact) {
        artifact.url = artifact.id.as_ref().map(|id| self.url(store, Method::Get, id).0);
    }

    pub(crate) fn linked(&self, store: &ArtifactStore, mut result: ExecResult) -> ExecResult {
        self.add_to(store, &mut result.artifacts);
        result
    }
}
