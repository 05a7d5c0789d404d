//! Signed links to artifacts, created for every response.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName};
use belljar_engine::Engine;
use belljar_engine::artifacts::{Artifact, Artifacts, Method};
use belljar_engine::exec::result::ExecResult;

use crate::{App, stream};

/// The base of links, which a gateway sends to its nodes. It never passes on what a client sent.
pub const PUBLIC_URL: HeaderName = HeaderName::from_static("belljar-public-url");

/// Creates links for the answer to one request.
#[derive(Debug, Clone)]
pub(crate) struct Links {
    engine: Arc<Engine>,
    /// The prefix of links. Empty if the server has no address; then links are only paths.
    base: Arc<str>,
}

impl Links {
    /// A node without a base of its own uses that of the gateway.
    pub(crate) fn of(app: &App, headers: &HeaderMap) -> Links {
        let is_missing = app.guard.behind_gateway && app.public_url.is_empty();
        let of_gateway = headers.get(PUBLIC_URL).filter(|_| is_missing);
        let base = of_gateway.and_then(|base| base.to_str().ok()).unwrap_or(&app.public_url);
        Links { engine: Arc::clone(&app.engine), base: base.into() }
    }

    /// A link, and its expiry in seconds since 1970.
    pub(crate) fn url(&self, method: Method, id: &str) -> (String, u64) {
        let link = self.engine.artifact_store().link(method, id);
        (format!("{}/artifacts/{id}?token={}", self.base, link.token), link.expires_s)
    }

    pub(crate) fn add_to(&self, artifacts: &mut Artifacts) {
        artifacts.artifacts.iter_mut().for_each(|artifact| self.add_to_one(artifact));
    }

    pub(crate) fn add_to_one(&self, artifact: &mut Artifact) {
        artifact.url = artifact.id.as_ref().map(|id| self.url(Method::Get, id).0);
    }

    /// Adds links to the artifacts of a result.
    pub(crate) fn linked(&self, mut result: ExecResult) -> ExecResult {
        self.add_to(&mut result.artifacts);
        result
    }

    /// The function that adds links to artifacts.
    pub(crate) fn linker(self) -> stream::Linked {
        Arc::new(move |artifacts| self.add_to(artifacts))
    }
}

impl FromRequestParts<Arc<App>> for Links {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Links, Infallible> {
        Ok(Links::of(app, &parts.headers))
    }
}
