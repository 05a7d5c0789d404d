//! `/v1/artifacts`: listing, links, downloads.

mod content;
mod download;
mod links;
mod range;

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use belljar_engine::artifacts::{ArtifactFilter, ArtifactRow, Method};
use belljar_engine::{Principal, clock};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

pub(crate) use content::{memory, stream};
pub(crate) use download::{__path_download, content_damaged, download, gone, link_invalid};
pub(crate) use links::Links;
pub use links::PUBLIC_URL;
pub(crate) use range::Span;

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::fields::page_size;
use crate::input::{JsonBody, Path, Query};

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ArtifactBody {
    pub id: String,
    pub name: String,
    /// In the sandbox.
    pub path: String,
    pub size: u64,
    pub mime: String,
    pub sha256: String,
    pub created: String,
    /// The session or run that it is from.
    pub session_id: String,
    pub exec_id: String,
    /// A signed link to download it, valid for a limited time.
    pub url: String,
    /// On the server's machine.
    pub host_path: String,
}

impl ArtifactBody {
    fn of(links: &Links, row: ArtifactRow, host_path: &std::path::Path) -> ArtifactBody {
        ArtifactBody {
            host_path: host_path.to_string_lossy().into_owned(),
            url: links.url(Method::Get, &row.id).0,
            id: row.id,
            name: row.name,
            path: row.path,
            size: row.size,
            mime: row.mime,
            sha256: row.sha256.to_string(),
            created: clock::rfc3339(row.created_ms),
            session_id: row.session,
            exec_id: row.exec,
        }
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListOfSession {
    /// At most this many. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Only artifacts stored before the one with this id.
    pub before: Option<String>,
    /// Only artifacts of this execution.
    pub exec: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ArtifactsBody {
    pub artifacts: Vec<ArtifactBody>,
    /// There are older ones: repeat the request with the last id as `before`.
    pub more: bool,
}

/// List the artifacts of a session, the newest first.
#[utoipa::path(get, path = "/v1/sessions/{id}/artifacts", tag = "artifacts",
    params(("id" = String, Path), ListOfSession),
    responses((status = 200, body = ArtifactsBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn list_of_session(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    Query(ListOfSession { limit, before, exec }): Query<ListOfSession>,
    links: Links,
) -> Result<Json<ArtifactsBody>, ApiError> {
    let session = Some(app.engine.describe(&who, &id).await?.id);
    page(&app, &who, &links, ListAll { limit, before, session, exec }).await
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListAll {
    /// At most this many. Default: 100.
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Only artifacts stored before the one with this id.
    pub before: Option<String>,
    /// Only artifacts of this session or run.
    pub session: Option<String>,
    /// Only artifacts of this execution.
    pub exec: Option<String>,
}

/// List all artifacts of the tenant, the newest first.
#[utoipa::path(get, path = "/v1/artifacts", tag = "artifacts", params(ListAll),
    responses((status = 200, body = ArtifactsBody), (status = 422, body = ErrorBody)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Query(query): Query<ListAll>,
    links: Links,
) -> Result<Json<ArtifactsBody>, ApiError> {
    page(&app, &who, &links, query).await
}

async fn page(
    app: &App,
    who: &Principal,
    links: &Links,
    ListAll { limit, before, session, exec }: ListAll,
) -> Result<Json<ArtifactsBody>, ApiError> {
    if let Some(before) = &before {
        // Without this check, an unknown id would look like the end of the list.
        app.engine.artifact(who, before).await?;
    }
    let limit = page_size(limit)?;
    let filter = ArtifactFilter { session, exec, before, limit, ..ArtifactFilter::default() };
    let page = app.engine.artifacts(who, filter).await?;
    let paths = app.engine.artifact_store().host_paths(&page.items).await;
    let rows = page.items.into_iter().zip(paths);
    let artifacts = rows.map(|(row, path)| ArtifactBody::of(links, row, &path)).collect();
    Ok(Json(ArtifactsBody { artifacts, more: page.more }))
}

/// Show an artifact.
#[utoipa::path(get, path = "/v1/artifacts/{id}", tag = "artifacts", params(("id" = String, Path)),
    responses((status = 200, body = ArtifactBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    links: Links,
) -> Result<Json<ArtifactBody>, ApiError> {
    let row = app.engine.artifact(&who, &id).await?;
    let path = app.engine.artifact_store().host_paths(std::slice::from_ref(&row)).await;
    let path = path.into_iter().next().unwrap_or_default();
    Ok(Json(ArtifactBody::of(&links, row, &path)))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UrlBody {
    /// What the link is for: `GET` (default; good for `HEAD` too) or `HEAD` alone.
    pub method: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Url {
    pub url: String,
    pub expires: String,
}

/// Create a new link to an artifact.
#[utoipa::path(post, path = "/v1/artifacts/{id}/url", tag = "artifacts",
    params(("id" = String, Path)), request_body = UrlBody,
    responses((status = 200, body = Url), (status = 404, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
pub(crate) async fn url(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    links: Links,
    JsonBody(body): JsonBody<UrlBody>,
) -> Result<Json<Url>, ApiError> {
    let method = match body.method.as_deref() {
        None | Some("GET") => Method::Get,
        Some("HEAD") => Method::Head,
        Some(_) => return Err(ApiError::invalid("method: expected GET or HEAD")),
    };
    let row = app.engine.artifact(&who, &id).await?;
    let (url, expires_s) = links.url(method, &row.id);
    let expires_ms = i64::try_from(expires_s.saturating_mul(1000)).unwrap_or(i64::MAX);
    Ok(Json(Url { url, expires: clock::rfc3339(expires_ms) }))
}

/// Delete an artifact.
#[utoipa::path(delete, path = "/v1/artifacts/{id}", tag = "artifacts",
    params(("id" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody)))]
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.engine.remove_artifact(&who, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
