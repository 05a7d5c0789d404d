//! `/v1/sessions/{id}/files/{path}`: reading and writing the files of a session.
//!
//! A path is relative to `/session`, or absolute: `files//tmp/x` or `files/%2Ftmp/x`.

use std::convert::Infallible;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use axum::body::Body as RawBody;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::{ArchiveDownload, Principal, Watching, clock, in_full};
use belljar_proto::guest::{ChangeKind, EntryKind, FileEntry};
use belljar_proto::job::{ArchiveFormat, JobReport};
use belljar_runtime::{OpenedFile, Wanted};
use futures_util::StreamExt as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::{IntoParams, ToSchema};

use crate::App;
use crate::artifacts::{Span, memory, stream};
use crate::error::{ApiError, ErrorBody};
use crate::input::{BodyPieces, JsonBody, Path, Query, Stall};
use crate::stream::KEEP_ALIVE;
use crate::tenants::{Share, keeping};

/// Memory of an archive while it is sent: one piece being sent, and one being read.
const ARCHIVE_MEMORY: u64 = 512 * 1024;

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

impl From<FileEntry> for FileBody {
    fn from(entry: FileEntry) -> FileBody {
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
    /// How many files are not listed, at least.
    pub more: u64,
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadFile {
    /// List the directory instead.
    pub list: Option<String>,
    /// With `list`: everything below it.
    pub recursive: Option<String>,
    /// With `list`: only what matches, by its path below the directory: `*.py`, `**/*.py`, `[a-c]?`.
    pub glob: Option<String>,
    /// With `list`: `0` leaves out what begins with a dot.
    pub hidden: Option<String>,
    /// Stream changes in the directory as events; with `recursive`, also below it.
    pub watch: Option<String>,
    /// The directory with everything in it, as an archive: `tar`, `tar.gz` or `zip`.
    pub archive: Option<String>,
    /// Describe the file instead: kind, size, mode, time.
    pub stat: Option<String>,
}

/// Whether a parameter is present with a value other than `0` and `false`.
fn is_on(value: Option<&String>) -> bool {
    value.is_some_and(|value| !matches!(value.as_str(), "0" | "false"))
}

/// Read a file, whole or in ranges; or list a directory (`?list`), describe it (`?stat`), pack it
/// (`?archive=`), or watch it (`?watch`): events `watching`, `change` with `kind`
/// (`created`, `modified`, `removed`, `lost`), `path` and `directory`, and `gone`.
#[utoipa::path(method(get, head), path = "/v1/sessions/{id}/files/{path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path), ReadFile),
    responses((status = 200, description = "The content, FilesBody, FileBody, an archive or events"),
        (status = 206), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 416)))]
pub(crate) async fn read(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, path)): Path<(String, String)>,
    Query(query): Query<ReadFile>,
    Extension(share): Extension<Share>,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if is_on(query.stat.as_ref()) {
        let entry = app.engine.file_info(&who, &id, &path).await?;
        return Ok(Json(FileBody::from(entry)).into_response());
    }
    if is_on(query.list.as_ref()) {
        let wanted = Wanted {
            recursive: is_on(query.recursive.as_ref()),
            glob: query.glob,
            without_hidden: query.hidden.as_ref().is_some_and(|_| !is_on(query.hidden.as_ref())),
        };
        let listing = app.engine.list_files(&who, &id, &path, &wanted).await?;
        let files = listing.entries.into_iter().map(Into::into).collect();
        return Ok(Json(FilesBody { files, more: listing.more }).into_response());
    }
    if is_on(query.watch.as_ref()) {
        let recursive = is_on(query.recursive.as_ref());
        let watching = app.engine.watch_files(&who, &id, &path, recursive).await?;
        return Ok(tell_changes(app, watching));
    }
    if query.recursive.is_some() || query.glob.is_some() || query.hidden.is_some() {
        return Err(ApiError::invalid("recursive, glob and hidden are for `list`"));
    }
    if let Some(format) = &query.archive {
        let format = archive_format(format)?;
        if method == Method::HEAD {
            return Ok(StatusCode::OK.into_response());
        }
        let permit = share.reserve(ARCHIVE_MEMORY).await?;
        let archive = app.engine.download_archive(&who, &id, &path, format).await?;
        return Ok(keeping(send_archive(archive, format).await?, permit));
    }
    let opened = app.engine.open_file(&who, &id, &path).await?;
    send_content(opened, &share, method == Method::HEAD, &headers).await
}

async fn send_content(
    opened: OpenedFile,
    share: &Share,
    is_head: bool,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    let range = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let span = match Span::of(range.filter(|_| !is_head), opened.size) {
        Ok(span) => span,
        Err(nothing_there) => return Ok(nothing_there),
    };
    let permit = share.reserve(memory(span.from, span.to)).await?;
    let body = match is_head {
        true => RawBody::empty(),
        false => {
            let file = opened.file;
            stream(move |buffer, at| file.read_exact_at(buffer, at), span.from, span.to)
        }
    };
    let mut response = keeping(span.respond(body), permit);
    attachment(&mut response, "application/octet-stream");
    Ok(response)
}

/// Headers for content from a sandbox: browsers must save it and never show it.
fn attachment(response: &mut Response, kind: &'static str) {
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct WriteFile {
    /// Create a directory instead, with its parents.
    pub mkdir: Option<String>,
    /// Append to the file; it is created if it does not exist.
    pub append: Option<String>,
    /// Permissions of a new file, as `chmod` takes them: `755`.
    #[param(pattern = "^0?[0-7]{1,3}$")]
    pub mode: Option<String>,
    /// The body is an archive, to be unpacked into this directory: `tar`, `tar.gz` or `zip`. Names in
    /// it that lead elsewhere are refused; files with the same names are replaced.
    pub archive: Option<String>,
}

impl WriteFile {
    fn mode(&self) -> Result<Option<u32>, ApiError> {
        let wrong = || ApiError::invalid("mode: expected permissions such as 644 or 0755");
        let parse = |mode: &String| {
            let digits = (1..=4).contains(&mode.len()) && mode.bytes().all(|b| b.is_ascii_digit());
            let mode = u32::from_str_radix(mode, 8).ok().filter(|mode| digits && *mode <= 0o777);
            mode.ok_or_else(wrong)
        };
        self.mode.as_ref().map(parse).transpose()
    }
}

/// What came of unpacking an archive.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct UnpackedBody {
    /// The directory, as it was asked for.
    pub path: String,
    /// Files, directories and links.
    pub entries: u64,
    /// Bytes of the files.
    pub bytes: u64,
    /// Pipes, sockets and devices, which were left out.
    pub skipped: u64,
}

/// Streams changes as events until the directory, the session or the server is gone.
fn tell_changes(app: Arc<App>, watching: Watching) -> Response {
    let first = SseEvent::default().event("watching").data("{}");
    let changes = futures_util::stream::unfold(Some((app, watching)), |state| async move {
        let (app, mut watching) = state?;
        let change = tokio::select! {
            change = watching.next() => change,
            // An endless stream must not delay the end of the server.
            () = app.drained() => return None,
        };
        let Ok(Some(change)) = change else { return None };
        if change.change == ChangeKind::Gone {
            return Some((Ok(SseEvent::default().event("gone").data("{}")), None));
        }
        let change = json!({
            "kind": change.change,
            "path": String::from_utf8_lossy(&change.path),
            "directory": change.directory,
        });
        let event = SseEvent::default().event("change").data(change.to_string());
        Some((Ok::<_, Infallible>(event), Some((app, watching))))
    });
    let events = futures_util::stream::iter([Ok(first)]).chain(changes);
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

fn archive_format(name: &str) -> Result<ArchiveFormat, ApiError> {
    match name {
        "tar" => Ok(ArchiveFormat::Tar),
        "tar.gz" | "tgz" => Ok(ArchiveFormat::TarGz),
        "zip" => Ok(ArchiveFormat::Zip),
        _ => Err(ApiError::invalid("archive: expected tar, tar.gz or zip")),
    }
}

async fn send_archive(
    mut archive: ArchiveDownload,
    format: ArchiveFormat,
) -> Result<Response, ApiError> {
    // If packing fails at once, the response is an error.
    let first = archive.next().await?;
    let rest = futures_util::stream::unfold(Some(archive), |archive| async move {
        let mut archive = archive?;
        match archive.next().await {
            Ok(Some(bytes)) => Some((Ok(bytes), Some(archive))),
            Ok(None) => None,
            // The client sees that the body ends too early.
            Err(error) => {
                tracing::warn!("an archive was broken off: {}", in_full(&error));
                Some((Err(std::io::Error::other(error)), None))
            }
        }
    });
    let first = futures_util::stream::iter(first.map(Ok));
    let mut response = RawBody::from_stream(first.chain(rest)).into_response();
    let kind = match format {
        ArchiveFormat::Tar => "application/x-tar",
        ArchiveFormat::TarGz => "application/gzip",
        ArchiveFormat::Zip => "application/zip",
    };
    attachment(&mut response, kind);
    Ok(response)
}

/// Write a file. The file is replaced when the whole body has arrived;
/// its directories are created. Or append (`?append`), create a directory
/// (`?mkdir`), or unpack an archive into one (`?archive=`).
#[utoipa::path(put, path = "/v1/sessions/{id}/files/{path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path), WriteFile),
    request_body(content = String, content_type = "application/octet-stream"),
    responses((status = 200, description = "FileBody, or UnpackedBody", body = FileBody),
        (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 422, body = ErrorBody), (status = 507, body = ErrorBody)))]
pub(crate) async fn write(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, path)): Path<(String, String)>,
    Query(query): Query<WriteFile>,
    Extension(stall): Extension<Stall>,
    body: RawBody,
) -> Result<Response, ApiError> {
    let mut pieces = BodyPieces::new(body, stall);
    let mode = query.mode()?;
    let (mkdir, append) = (is_on(query.mkdir.as_ref()), is_on(query.append.as_ref()));
    if usize::from(mkdir) + usize::from(append) + usize::from(query.archive.is_some()) > 1 {
        return Err(ApiError::invalid("mkdir, append and archive exclude each other"));
    }
    if mode.is_some() && (mkdir || query.archive.is_some()) {
        return Err(ApiError::invalid("mode is for a file"));
    }
    if let Some(format) = &query.archive {
        let format = archive_format(format)?;
        let mut upload = app.engine.upload_archive(&who, &id, &path, format).await?;
        while let Some(bytes) = pieces.next().await? {
            upload.write(bytes).await?;
        }
        let JobReport { entries, bytes, skipped } = upload.finish().await?;
        return Ok(Json(UnpackedBody { path, entries, bytes, skipped }).into_response());
    }
    if mkdir {
        app.engine.make_directory(&who, &id, &path).await?;
    } else {
        let mut upload = match append {
            true => app.engine.append_file(&who, &id, &path, mode).await?,
            false => app.engine.write_file(&who, &id, &path, mode).await?,
        };
        while let Some(bytes) = pieces.next().await? {
            upload.write(bytes).await?;
        }
        upload.finish().await?;
    }
    Ok(Json(FileBody::from(app.engine.file_info(&who, &id, &path).await?)).into_response())
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
    /// The new path; an existing file is replaced.
    pub to: String,
    /// Copy instead of moving: a directory with everything in it, also into an existing one.
    #[serde(default)]
    pub copy: bool,
}

/// Move or copy a file or a directory.
#[utoipa::path(post, path = "/v1/sessions/{id}/files/{path}", tag = "files",
    params(("id" = String, Path), ("path" = String, Path)), request_body = MoveBody,
    responses((status = 200, body = FileBody), (status = 404, body = ErrorBody),
        (status = 409, body = ErrorBody)))]
pub(crate) async fn rename(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
    Path((id, path)): Path<(String, String)>,
    JsonBody(body): JsonBody<MoveBody>,
) -> Result<Json<FileBody>, ApiError> {
    match body.copy {
        true => {
            app.engine.copy_path(&who, &id, &path, &body.to).await?;
        }
        false => app.engine.move_path(&who, &id, &path, &body.to).await?,
    }
    Ok(Json(app.engine.file_info(&who, &id, &body.to).await?.into()))
}
