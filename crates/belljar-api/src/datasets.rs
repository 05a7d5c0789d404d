//! `/v1/sessions/{id}/datasets`: listing, uploading, staging and exporting datasets.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body as RawBody, HttpBody as _};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::{Extension, Json};
use belljar_engine::Principal;
use belljar_engine::artifacts::{Digest, RefusedArtifact};
use belljar_engine::datasets::{DatasetInfo, DatasetName, Exported};
use belljar_engine::spec::Datasets;
use http_body_util::BodyExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use utoipa::{IntoParams, ToSchema};

use crate::App;
use crate::artifacts::Links;
use crate::error::{ApiError, ErrorBody};
use crate::input::{BodyPieces, JsonBody, Path, Query, Stall};

/// How many bytes of an unneeded body are read. Most clients read the response only after they have sent the whole
/// body, and lose the response if the connection is closed before that.
const MAX_DISCARDED: u64 = 64 << 20;
const DISCARD_TIME: Duration = Duration::from_secs(5);
/// A client that sends nothing for this long is waiting for the response.
const PAUSE: Duration = Duration::from_millis(200);

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct DatasetsBody {
    /// NONE, LOCAL_RO or API.
    #[schema(value_type = String)]
    pub access: Datasets,
    /// name, path, status, size, modified, format, columns, rows, ...
    #[schema(value_type = Vec<Object>)]
    pub datasets: Vec<DatasetInfo>,
    /// How many entries are not listed: files beyond the limit, links, pipes and other special files.
    pub more: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<&'static str>,
}

/// List the datasets of a session.
#[utoipa::path(get, path = "/v1/sessions/{id}/datasets", tag = "datasets",
    params(("id" = String, Path)),
    responses((status = 200, body = DatasetsBody), (status = 404, body = ErrorBody),
        (status = 410, body = ErrorBody)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
) -> Result<Json<DatasetsBody>, ApiError> {
    let (access, listing) = app.engine.datasets(&who, &id).await?;
    let message = match access {
        Datasets::None => {
            Some("this session has no datasets: it was created without access to any")
        }
        _ if listing.datasets.is_empty() => Some("there are no datasets yet"),
        _ => None,
    };
    Ok(Json(DatasetsBody { access, datasets: listing.datasets, more: listing.more, message }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutDataset {
    /// The SHA-256 of the content: if the server has it already, nothing need be sent. An empty
    /// body, or `Expect: 100-continue`, asks just that; a body must have this hash.
    #[param(pattern = "^[0-9a-f]{64}$")]
    pub sha256: Option<String>,
}

/// Bring a dataset into a session: the body is the file, which appears in `/session/data` when all
/// of it has come.
#[utoipa::path(put, path = "/v1/sessions/{id}/datasets/{dataset}", tag = "datasets",
    params(("id" = String, Path), ("dataset" = String, Path), PutDataset),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 200, body = Object), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 413, body = ErrorBody),
        (status = 422, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn put(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, dataset)): Path<(String, String)>,
    Query(query): Query<PutDataset>,
    Extension(stall): Extension<Stall>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Json<DatasetInfo>, ApiError> {
    let mut pieces = BodyPieces::new(body, stall);
    let asks_first = headers
        .get(header::EXPECT)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let taken = take(&app, &who, &id, &dataset, query, asks_first, &mut pieces).await;
    if taken.is_err() && !asks_first {
        let _ = tokio::time::timeout(DISCARD_TIME, hear_out(&mut pieces.body)).await;
    }
    taken.map(Json)
}

async fn take(
    app: &App,
    who: &Principal,
    id: &str,
    dataset: &str,
    query: PutDataset,
    asks_first: bool,
    pieces: &mut BodyPieces,
) -> Result<DatasetInfo, ApiError> {
    let name = parse_name(dataset)?;
    // A request without a body has length 0, with or without a header.
    let length = pieces.body.size_hint().exact();
    let promised = query.sha256.map(|text| text.parse::<Digest>()).transpose();
    let promised = promised.map_err(|error| ApiError::invalid(format!("sha256: {error}")))?;
    // A client that sends the content at once reads the response only after it has sent everything.
    if let Some(sha256) = promised
        && (length == Some(0) || asks_first)
    {
        if let Some(info) = app.engine.stage_known(who, id, name.clone(), sha256).await? {
            return Ok(info);
        }
        if length == Some(0) && sha256 != Digest::of(b"") {
            return Err(content_unknown());
        }
    }
    let mut upload = app.engine.upload(who, id, name, length, promised).await?;
    // If the upload is dropped before its end, it is stored as failed.
    while let Some(bytes) = pieces.next().await? {
        upload.write(bytes).await?;
    }
    Ok(upload.finish().await?)
}

pub(crate) fn content_unknown() -> ApiError {
    let message = "the server does not have this content yet";
    ApiError::new(StatusCode::NOT_FOUND, "content_unknown", message).hint("send it as the body")
}

/// Reads and discards the rest of the body, within limits.
async fn hear_out(body: &mut RawBody) {
    let mut heard = 0;
    while heard < MAX_DISCARDED
        && let Ok(Some(Ok(frame))) = tokio::time::timeout(PAUSE, body.frame()).await
    {
        heard += frame.data_ref().map_or(0, |bytes| bytes.len() as u64);
    }
}

/// Bring a dataset with the name `export` into a session, as any other.
#[utoipa::path(put, path = "/v1/sessions/{id}/datasets/export", tag = "datasets",
    params(("id" = String, Path), PutDataset),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 200, body = Object)))]
pub(crate) async fn put_named_export(
    state: State<Arc<App>>,
    who: Extension<Principal>,
    Path(id): Path<String>,
    query: Query<PutDataset>,
    stall: Extension<Stall>,
    headers: HeaderMap,
    body: RawBody,
) -> Result<Json<DatasetInfo>, ApiError> {
    put(state, who, Path((id, "export".to_owned())), query, stall, headers, body).await
}

fn parse_name(text: &str) -> Result<DatasetName, ApiError> {
    text.parse().map_err(|error| ApiError::invalid(format!("dataset: {error}")))
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct StageBody {
    /// The dataset's id, as the server's sources know it.
    pub dataset: String,
    /// Ask the source again, even if it is there.
    #[serde(default)]
    pub refresh: bool,
    /// `false`: do not wait for it if it must be fetched; `GET .../datasets` has the state of
    /// it.
    pub wait: Option<bool>,
}

/// Have the server fetch a dataset from one of its sources (`BELLJAR_DATASET_SOURCES`).
#[utoipa::path(post, path = "/v1/sessions/{id}/datasets", tag = "datasets",
    params(("id" = String, Path)), request_body = StageBody,
    responses((status = 200, body = Object), (status = 202, body = Object),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 422, body = ErrorBody), (status = 502, body = ErrorBody),
        (status = 504, body = ErrorBody)))]
pub(crate) async fn stage(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<StageBody>,
) -> Result<(StatusCode, Json<DatasetInfo>), ApiError> {
    parse_name(&body.dataset)?;
    // The fetch continues when the client disconnects, because other sessions may want the dataset.
    let engine = Arc::clone(&app.engine);
    let (tell, begun) = oneshot::channel();
    let staging = tokio::spawn(async move {
        engine.stage_from_source(&who, &id, &body.dataset, body.refresh, tell).await
    });
    // If no transfer has begun, the session has the dataset already, or staging failed.
    if body.wait == Some(false)
        && let Ok(pending) = begun.await
    {
        return Ok((StatusCode::ACCEPTED, Json(pending)));
    }
    let lost = |_| ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "it was lost");
    Ok((StatusCode::OK, Json(staging.await.map_err(lost)??)))
}

#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportBody {
    /// Names below `/session/data`. Default: all.
    pub datasets: Option<Vec<String>>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ExportsBody {
    /// dataset, host_path and the artifact that it became, with a link.
    #[schema(value_type = Vec<Object>)]
    pub exports: Vec<Exported>,
    /// What was not exported, and why.
    #[schema(value_type = Vec<Object>)]
    pub refused: Vec<RefusedArtifact>,
}

/// Copy files from `/session/data` to the server's exports, under new names, and make artifacts of
/// them.
#[utoipa::path(post, path = "/v1/sessions/{id}/datasets/export", tag = "datasets",
    params(("id" = String, Path)), request_body = ExportBody,
    responses((status = 200, body = ExportsBody), (status = 404, body = ErrorBody),
        (status = 422, body = ErrorBody)))]
pub(crate) async fn export(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    links: Links,
    Path(id): Path<String>,
    JsonBody(body): JsonBody<ExportBody>,
) -> Result<Json<ExportsBody>, ApiError> {
    let names = body.datasets.map(|names| names.iter().map(|name| parse_name(name)).collect());
    let mut exports = app.engine.export(&who, &id, names.transpose()?).await?;
    for export in &mut exports.exports {
        links.add_to_one(&mut export.artifact);
    }
    Ok(Json(ExportsBody { exports: exports.exports, refused: exports.refused }))
}
