//! `/v1/volumes`: files that outlive sessions; any number of sessions may use a volume.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use belljar_engine::volumes::{VolumeInfo, VolumeMode, VolumeUser};
use belljar_engine::{Principal, clock};
use belljar_runtime::VolumeKind;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::fields::{Size, parse_volume_name};
use crate::input::{JsonBody, Path};

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CreateVolume {
    /// 1 to 64 letters, digits, `.`, `_` and `-`; sessions see it at `/volumes/NAME`.
    pub name: String,
    /// Its size: bytes, or text such as `512M`.
    pub size: Option<Size>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VolumeBody {
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
    /// `image`, a file system of its own, or `directory`.
    #[schema(value_type = String)]
    pub storage: VolumeKind,
    /// Whether its size is enforced; if not, it is only checked now and then.
    pub enforced: bool,
    pub created: String,
    /// Sessions that have not ended, and runs.
    pub used_by: Vec<VolumeUserBody>,
    /// Bytes in use; only in the answer about a single volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub used: Option<u64>,
    /// Files of any kind in it; present if `used` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub files: Option<u64>,
    /// Not everything was counted: there is more.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VolumeUserBody {
    /// Of a session, or of a run.
    pub id: String,
    #[schema(value_type = String, example = "rw")]
    pub mode: VolumeMode,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct VolumesBody {
    pub volumes: Vec<VolumeBody>,
}

impl VolumeBody {
    fn of(info: VolumeInfo) -> VolumeBody {
        let user = |VolumeUser { id, mode }| VolumeUserBody { id, mode };
        VolumeBody {
            enforced: info.is_enforced(),
            name: info.name.into(),
            size: info.size,
            storage: info.kind,
            created: clock::rfc3339(info.created_ms),
            used_by: info.used_by.into_iter().map(user).collect(),
            used: info.usage.map(|usage| usage.bytes),
            files: info.usage.map(|usage| usage.files),
            partial: info.usage.is_some_and(|usage| usage.partial),
        }
    }
}

/// Create a volume.
#[utoipa::path(post, path = "/v1/volumes", tag = "volumes", request_body = CreateVolume,
    responses(
        (status = 201, body = VolumeBody, description = "Created"),
        (status = 409, body = ErrorBody, description = "There is one already, or there are too many"),
        (status = 422, body = ErrorBody), (status = 507, body = ErrorBody),
    ))]
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    JsonBody(body): JsonBody<CreateVolume>,
) -> Result<(StatusCode, Json<VolumeBody>), ApiError> {
    let name = parse_volume_name(&body.name, "name")?;
    let made = app.engine.create_volume(&who, name, body.size.map(|size| size.0)).await?;
    Ok((StatusCode::CREATED, Json(VolumeBody::of(made))))
}

/// List the volumes of the tenant, by name.
#[utoipa::path(get, path = "/v1/volumes", tag = "volumes",
    responses((status = 200, body = VolumesBody)))]
pub(crate) async fn list(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
) -> Result<Json<VolumesBody>, ApiError> {
    let volumes = app.engine.volumes(&who).await?;
    Ok(Json(VolumesBody { volumes: volumes.into_iter().map(VolumeBody::of).collect() }))
}

/// Show a volume: how full it is, and what uses it.
#[utoipa::path(get, path = "/v1/volumes/{name}", tag = "volumes", params(("name" = String, Path)),
    responses((status = 200, body = VolumeBody), (status = 404, body = ErrorBody)))]
pub(crate) async fn show(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(name): Path<String>,
) -> Result<Json<VolumeBody>, ApiError> {
    let found = app.engine.volume(&who, parse_volume_name(&name, "name")?).await?;
    Ok(Json(VolumeBody::of(found)))
}

/// Remove a volume with everything in it, unless a session or a run uses it.
#[utoipa::path(delete, path = "/v1/volumes/{name}", tag = "volumes",
    params(("name" = String, Path)),
    responses((status = 204), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "It is in use; the message says by what")))]
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path(name): Path<String>,
) -> Result<StatusCode, ApiError> {
    app.engine.remove_volume(&who, parse_volume_name(&name, "name")?).await?;
    Ok(StatusCode::NO_CONTENT)
}
