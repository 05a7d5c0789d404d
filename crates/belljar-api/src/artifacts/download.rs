//! `/artifacts/{id}`: downloads the content of an artifact with a link.
//!
//! No key is needed here, only the token in the link. For every invalid token, the response is the
//! same and takes the same time, and the artifact is not read before the token is checked.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, Method as HttpMethod, StatusCode, header};
use axum::response::{IntoResponse, Response};
use belljar_engine::artifacts::{ArtifactRow, BlobReader, Digest, Method, is_active};
use belljar_engine::in_full;
use belljar_engine::objects::ObjectError;
use serde::Deserialize;
use utoipa::IntoParams;

use super::content;
use super::range::Span;
use crate::App;
use crate::error::{ApiError, ErrorBody};
use crate::input::{Path, Query};
use crate::tenants::keeping;

/// Content up to this size is compared with its hash before any of it is sent.
const VERIFIED_UP_TO: u64 = 1024 * 1024;

/// The policy for a page from a sandbox: it may run its own scripts, without an origin, without
/// cookies and without connections.
const CAGE: &str = "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' \
                    'unsafe-eval' blob:; style-src 'unsafe-inline'; img-src data: blob:; \
                    font-src data:; media-src data: blob:; worker-src blob:";

/// The policy for content that is only shown, such as a PDF. The viewers of browsers do not work
/// with `sandbox`, so it is not set here. Scripts, connections and forms are forbidden instead.
const SHOWN: &str = "script-src 'none'; connect-src 'none'; form-action 'none'; base-uri 'none'";

#[derive(Debug, Deserialize, IntoParams)]
pub(crate) struct Opened {
    /// From the artifact's link.
    pub token: Option<String>,
    /// `1`: as an attachment, which browsers save.
    pub download: Option<String>,
}

/// Download an artifact, or a range of it, with a signed link.
#[utoipa::path(method(get, head), path = "/artifacts/{id}", tag = "artifacts",
    params(("id" = String, Path), Opened),
    responses(
        (status = 200, content_type = "application/octet-stream", body = String),
        (status = 206, content_type = "application/octet-stream", body = String),
        (status = 304), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody),
        (status = 416)
    ))]
pub(crate) async fn download(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    Query(query): Query<Opened>,
    method: HttpMethod,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let is_head = method == HttpMethod::HEAD;
    let wanted = if is_head { Method::Head } else { Method::Get };
    let store = app.engine.artifact_store();
    if !store.opens(wanted, &id, query.token.as_deref().unwrap_or_default()) {
        return Err(link_invalid());
    }
    let row = store.find(&id).await?.ok_or_else(gone)?;
    let share = app.tenants.of(&row.tenant);
    let permit = share.enter()?.and(share.reserve(row.size.min(VERIFIED_UP_TO)).await?);
    let content = store.content(&row).await.map_err(|error| unreadable(&row, &error))?;
    let mut response = answer(&row, content, &headers, is_head).await?;
    let as_attachment = query.download.as_deref().is_some_and(|value| value != "0");
    describe(&row, as_attachment, response.headers_mut());
    Ok(keeping(response, permit))
}

pub(crate) fn link_invalid() -> ApiError {
    ApiError::forbidden("link_invalid", "this link is not valid, or has expired")
        .hint("ask for a fresh one with POST /v1/artifacts/{id}/url")
}

pub(crate) fn gone() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "artifact_not_found", "this artifact was removed")
}

async fn answer(
    row: &ArtifactRow,
    content: BlobReader,
    headers: &HeaderMap,
    is_head: bool,
) -> Result<Response, ApiError> {
    let asked = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let etag = etag(row);
    if asked(header::IF_NONE_MATCH).is_some_and(|known| names(known, &etag)) {
        return Ok(StatusCode::NOT_MODIFIED.into_response());
    }
    // If the client has a part of other content, a range of this content is useless to it.
    let is_same = asked(header::IF_RANGE).is_none_or(|known| known == etag);
    let range = asked(header::RANGE).filter(|_| is_same && !is_head);
    let span = match Span::of(range, row.size) {
        Ok(span) => span,
        Err(nothing_there) => return Ok(nothing_there),
    };
    let body = if is_head {
        Body::empty()
    } else if row.size <= VERIFIED_UP_TO {
        let bytes = verified(row, content).await?;
        // The range is within the size that was just checked.
        bytes.slice(to_usize(span.from)..to_usize(span.to)).into()
    } else {
        content::stream(move |to, at| content.read_exact_at(to, at), span.from, span.to)
    };
    Ok(span.respond(body))
}

fn to_usize(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// The whole content, if it still matches its hash.
async fn verified(row: &ArtifactRow, content: BlobReader) -> Result<axum::body::Bytes, ApiError> {
    let (size, sha256) = (row.size, row.sha256);
    let reading = tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; to_usize(size)];
        content.read_exact_at(&mut bytes, 0)?;
        let is_longer = content.read_at(&mut [0], size)? > 0;
        let intact = !is_longer && Digest::of(&bytes) == sha256;
        if intact { Ok(bytes) } else { Err(io::Error::other("it does not match its hash")) }
    });
    let read = reading.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
    read.map(Into::into).map_err(|error| damaged(row, &error.to_string()))
}

/// The content is lost or damaged, or S3 does not answer.
fn unreadable(row: &ArtifactRow, error: &io::Error) -> ApiError {
    let is_there = !matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidData);
    let of_objects = error.get_ref().is_some_and(|cause| cause.is::<ObjectError>());
    if !(is_there && of_objects) {
        return damaged(row, &error.to_string());
    }
    tracing::error!("the content of artifact {} cannot be read: {}", row.id, in_full(error));
    let message = "the content of this artifact cannot be read at the moment";
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", message).retry_after(1)
}

fn damaged(row: &ArtifactRow, why: &str) -> ApiError {
    tracing::error!("the content of artifact {} ({}) is damaged: {why}", row.id, row.sha256);
    content_damaged()
}

pub(crate) fn content_damaged() -> ApiError {
    ApiError::new(
        StatusCode::INTERNAL_SERVER_ERROR,
        "artifact_damaged",
        "the content of this artifact is missing or damaged on the server",
    )
    .hint("`belljar artifacts verify` on the server lists all that are")
}

/// Sets the headers that describe the content, for the whole content and for ranges.
fn describe(row: &ArtifactRow, as_attachment: bool, headers: &mut HeaderMap) {
    let mut set = |name, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    };
    set(header::CONTENT_TYPE, &row.mime);
    set(header::ETAG, &etag(row));
    set(header::ACCEPT_RANGES, "bytes");
    // The content behind a link never changes, but the link expires, so caches must check every
    // time.
    set(header::CACHE_CONTROL, "private, no-cache");
    set(header::CONTENT_DISPOSITION, &disposition(&row.name, as_attachment));
    set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
    set(header::REFERRER_POLICY, "no-referrer");
    let policy = if is_active(&row.mime) { CAGE } else { SHOWN };
    set(header::CONTENT_SECURITY_POLICY, policy);
}

fn etag(row: &ArtifactRow) -> String {
    format!("\"{}\"", row.sha256)
}

/// Whether an `If-None-Match` header contains this tag.
fn names(header: &str, etag: &str) -> bool {
    header
        .split(',')
        .map(|known| known.trim().trim_start_matches("W/"))
        .any(|known| known == "*" || known == etag)
}

/// Whether to show or save the content, and its name: an ASCII name for old clients, and the real
/// name for all others.
fn disposition(name: &str, as_attachment: bool) -> String {
    let how = if as_attachment { "attachment" } else { "inline" };
    let plain: String = name
        .chars()
        .map(|c| if c.is_ascii_graphic() && !"\"\\/%;'".contains(c) || c == ' ' { c } else { '_' })
        .collect();
    let mut encoded = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"!#$&+-.^_`|~".contains(&byte) {
            encoded.push(byte as char);
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    format!("{how}; filename=\"{plain}\"; filename*=UTF-8''{encoded}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_break_out_of_their_header() {
        assert_eq!(
            disposition("a\"b\r\nSet-Cookie: x=1;ü.png", true),
            "attachment; filename=\"a_b__Set-Cookie: x=1__.png\"; \
             filename*=UTF-8''a%22b%0D%0ASet-Cookie%3A%20x%3D1%3B%C3%BC.png"
        );
        assert!(HeaderValue::from_str(&disposition("\u{0}\u{7f}日本", false)).is_ok());
    }

    #[test]
    fn known_content_is_recognised_in_every_spelling() {
        for header in ["\"a\"", "W/\"a\"", "\"b\", \"a\"", "*"] {
            assert!(names(header, "\"a\""), "{header}");
        }
        assert!(!names("\"b\"", "\"a\"") && !names("a", "\"a\""));
    }
}
