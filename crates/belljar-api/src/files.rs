//! `/v1/sessions/{id}/files/{path}`: what a program inside could do with files, from outside.
//!
//! A path is relative to `/session`, or absolute: `files//tmp/x` or `files/%2Ftmp/x`.

use std::sync::Arc;

use axum::body::Body as RawBody;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::{Principal, clock};
use belljar_proto::guest::{Entry, EntryKind};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::App;
use crate::artifacts::{Span, stream};
use crate::error::{ApiError, ErrorBody};
use crate::input::{Body, Path, Query, next_piece};

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FileBody {
    /// As it was asked for, or relative to the directory that was listed.
    pub path: String,
    /// file, directory, link or other.
    pub kind: &'static str,
    pub size: u64,
    /// Permissions, as `chmod` takes them.
    pub mode: String,
    pub modified: String,
}

impl From<Entry> for FileBody {
    fn from(entry: Entry) -> FileBody {
        FileBody {
            path: String::from_utf8_lossy(&entry.path).into_owned(),
            kind: match entry.kind {
                EntryKind::File => "file",
                EntryKind::Directory => "directory",
                EntryKind::Link => "link",
                EntryKind::Other => "other",
            },
            size: entry.size,
            mode: format!("{:o}", entry.mode),
            modified: clock::rfc3339(entry.modified_ns / 1_000_000),
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FilesBody {
    pub files: Vec<FileBody>,
    /// How many more there are, at least.
    pub more: u64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// List the directory instead.
    pub list: Option<String>,
    /// With `list`: everything below it.
    pub recursive: Option<String>,
    /// Tell about it instead.
    pub stat: Option<String>,
}

/// A parameter that is there, with any value but these.
fn is_on(value: Option<&String>) -> bool {
    value.is_some_and(|value| !matches!(value.as_str(), "0" | "false"))
}

/// Read a file, whole or in ranges; or list a directory (`?list`), or tell about it (`?stat`).
#[utoipa::path(method(get, head), path = "/v1/sessions/{id}/files/{path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path), ReadFile),
    responses((status = 200, description = "The content, or FilesBody, or FileBody"),
        (status = 206), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 416)))]
pub(crate) async fn read(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, path)): Path<(String, String)>,
    Query(query): Query<ReadFile>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if is_on(query.stat.as_ref()) {
        let entry = app.engine.file_info(&who, &id, &path).await?;
        return Ok(Json(FileBody::from(entry)).into_response());
    }
    if is_on(query.list.as_ref()) {
        let recursive = is_on(query.recursive.as_ref());
        let listing = app.engine.list_files(&who, &id, &path, recursive).await?;
        let files = listing.entries.into_iter().map(Into::into).collect();
        return Ok(Json(FilesBody { files, more: listing.more }).into_response());
    }
    let opened = app.engine.open_file(&who, &id, &path).await?;
    let is_head = method == Method::HEAD;
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let size = opened.size;
    let span = match Span::of(range.filter(|_| !is_head), size) {
        Ok(span) => span,
        Err(nothing_there) => return Ok(nothing_there),
    };
    let body = match is_head {
        true => RawBody::empty(),
        false => stream(opened.file, span.from, span.to),
    };
    let mut response = span.respond(body);
    let headers = response.headers_mut();
    let binary = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, binary);
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    Ok(response)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFile {
    /// Make a directory instead, and those above it.
    pub mkdir: Option<String>,
}

/// Write a file: the body, which appears when all of it has come, over whatever file was there;
/// its directories are made. Or make a directory (`?mkdir`).
#[utoipa::path(put, path = "/v1/sessions/{id}/files/{path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path), WriteFile),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 200, body = FileBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody), (status = 422, body = ErrorBody),
        (status = 507, body = ErrorBody)))]
pub(crate) async fn write(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, path)): Path<(String, String)>,
    Query(query): Query<WriteFile>,
    mut body: RawBody,
) -> Result<Json<FileBody>, ApiError> {
    if is_on(query.mkdir.as_ref()) {
        app.engine.make_directory(&who, &id, &path).await?;
    } else {
        let mut upload = app.engine.write_file(&who, &id, &path).await?;
        while let Some(bytes) = next_piece(&mut body).await? {
            upload.write(bytes).await?;
        }
        upload.finish().await?;
    }
    Ok(Json(app.engine.file_info(&who, &id, &path).await?.into()))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemoveFile {
    /// A directory with everything in it.
    pub recursive: Option<String>,
}

/// Remove a file, an empty directory, or a directory with everything in it (`?recursive`).
#[utoipa::path(delete, path = "/v1/sessions/{id}/files/{path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path), RemoveFile),
    responses((status = 204), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody)))]
pub(crate) async fn remove(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, path)): Path<(String, String)>,
    Query(query): Query<RemoveFile>,
) -> Result<StatusCode, ApiError> {
    let recursive = is_on(query.recursive.as_ref());
    app.engine.remove_path(&who, &id, &path, recursive).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MoveBody {
    /// Its new path; a file that is there is replaced.
    pub to: String,
}

/// Give a file or a directory another path.
#[utoipa::path(post, path = "/v1/sessions/{id}/files/{path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path)), request_body = MoveBody,
    responses((status = 200, body = FileBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub(crate) async fn rename(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, path)): Path<(String, String)>,
    Body(body): Body<MoveBody>,
) -> Result<Json<FileBody>, ApiError> {
    app.engine.move_path(&who, &id, &path, &body.to).await?;
    Ok(Json(app.engine.file_info(&who, &id, &body.to).await?.into()))
}
