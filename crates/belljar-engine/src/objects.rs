//! Objects in an S3 bucket: put, get, list and remove, with time limits and bounded retries.
//!
//! An object is written once under its key and never changed. Keys are relative to the prefix of the setting
//! `BELLJAR_BLOBS_URL`. What the objects mean is up to the callers.

mod error;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as Location;
use object_store::{
    BackoffConfig, ClientOptions, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutPayload, RetryConfig,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

pub use error::ObjectError;

/// Bytes of one request. Larger objects are sent and fetched in pieces of this size. S3 wants at least 5 MiB.
const PIECE: u64 = 8 << 20;

/// The most pieces of one object that S3 takes.
const MAX_PIECES: u64 = 10_000;

/// Fewer bytes are fetched with one request, because several would not be faster.
const SMALLEST_FETCH: u64 = 1 << 20;

/// Pieces of one object that are sent or fetched at the same time.
const PIECES_AT_ONCE: usize = 4;

/// Pieces of all objects that are sent or fetched at the same time; each is in memory.
const PIECES_IN_MEMORY: usize = 16;

/// Objects that are removed at the same time.
const REMOVED_AT_ONCE: usize = 8;

/// Objects that one call of [`Objects::list`] returns at most, which is what S3 returns for one request.
const LISTED_AT_ONCE: usize = 1000;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// For one request with one piece.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// A request is repeated after 5xx, 429 and errors of the connection, with growing pauses.
const RETRIES: usize = 6;
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// No request is repeated after this time.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// Where the objects are, and the key for access.
#[derive(Clone)]
pub struct ObjectsConfig {
    /// `s3://bucket/prefix`.
    pub url: String,
    /// The address of the server; `None` means AWS.
    pub endpoint: Option<String>,
    pub region: Option<String>,
    /// Id and secret. Without them the identity of the machine or pod is used, as AWS describes it in `AWS_*`
    /// variables.
    pub key: Option<(String, String)>,
}

impl fmt::Debug for ObjectsConfig {
    /// Without the secret key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ObjectsConfig")
            .field("url", &self.url)
            .field("endpoint", &self.endpoint)
            .field("region", &self.region)
            .field("key", &self.key.as_ref().map(|(id, _)| id))
            .finish()
    }
}

/// The objects below one prefix of a bucket. Clones share the connections.
#[derive(Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// `s3://bucket/prefix`, for messages.
    place: Arc<str>,
    prefix: Location,
    /// Limits the pieces in memory.
    pieces: Arc<Semaphore>,
}

impl fmt::Debug for Objects {
    /// Without the client, which has the secret key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Objects").field(&self.place).finish()
    }
}

/// An object that exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectInfo {
    pub key: String,
    pub size: u64,
    /// When it was put, by the clock of the server.
    pub put_ms: i64,
}

impl Objects {
    /// Prepares access; no request is sent. Fails if the URL or the endpoint is not valid.
    pub fn open(config: &ObjectsConfig) -> Result<Objects, ObjectError> {
        let (bucket, prefix) = parse(&config.url)?;
        // The client for HTTP takes the default of the process. If there is one already, it stays.
        let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
        let place: Arc<str> = config.url.trim_end_matches('/').into();
        let store = builder(config, bucket).build();
        let store = store.map_err(|cause| ObjectError::Setup {
            place: place.to_string(),
            cause: Box::new(cause),
        })?;
        let pieces = Arc::new(Semaphore::new(PIECES_IN_MEMORY));
        Ok(Objects { store: Arc::new(store), place, prefix, pieces })
    }

    /// Whether this is a URL for [`ObjectsConfig`].
    #[must_use]
    pub fn is_url(text: &str) -> bool {
        parse(text).is_ok()
    }

    /// `s3://bucket/prefix`.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Asks the server for one key, which shows that it can be reached and that the access key is accepted.
    pub async fn check(&self) -> Result<(), ObjectError> {
        let mut listing = self.store.list(Some(&self.prefix));
        match listing.next().await {
            Some(Err(error)) => Err(self.error("list", "", error)),
            _ => Ok(()),
        }
    }

    /// Stores the first `size` bytes of a file.
    pub async fn put_file(&self, key: &str, file: Arc<File>, size: u64) -> Result<(), ObjectError> {
        if size > PIECE {
            return self.put_pieces(key, file, size).await;
        }
        let _permit = self.pieces.acquire().await;
        let content = read_piece(file, 0..size).await.map_err(|cause| local(key, cause))?;
        self.put(key, content).await
    }

    pub async fn put(&self, key: &str, content: Bytes) -> Result<(), ObjectError> {
        let put = self.store.put(&self.location(key)?, content.into()).await;
        put.map(drop).map_err(|error| self.error("put", key, error))
    }

    /// Fetches an object of a known size into an empty file. Fails if the object has another size.
    pub async fn get_file(&self, key: &str, file: Arc<File>, size: u64) -> Result<(), ObjectError> {
        let mut fetching = JoinSet::new();
        // A session waits for its snapshot, so also an object that one request could fetch is divided.
        let step = size.div_ceil(PIECES_AT_ONCE as u64).clamp(SMALLEST_FETCH, PIECE);
        for start in (0..size).step_by(usize_of(step)) {
            let piece = start..size.min(start + step);
            if fetching.len() == PIECES_AT_ONCE {
                next(&mut fetching, key).await?;
            }
            let (objects, key, file) = (self.clone(), key.to_owned(), Arc::clone(&file));
            fetching.spawn(async move {
                let _permit = objects.pieces.acquire().await;
                let content = objects.get_range(&key, piece.clone()).await?;
                let write = move || file.write_all_at(&content, piece.start);
                blocking(write).await.map_err(|cause| local(&key, cause))
            });
        }
        while !fetching.is_empty() {
            next(&mut fetching, key).await?;
        }
        Ok(())
    }

    /// Reads a part of an object, which must have all of it.
    pub async fn get_range(&self, key: &str, range: Range<u64>) -> Result<Bytes, ObjectError> {
        if range.is_empty() {
            return Ok(Bytes::new());
        }
        let wanted = range.end - range.start;
        let got = self.store.get_range(&self.location(key)?, range).await;
        let content = got.map_err(|error| self.error("get", key, error))?;
        if content.len() as u64 != wanted {
            return Err(ObjectError::Truncated { key: key.to_owned(), place: self.place_text() });
        }
        Ok(content)
    }

    /// `None` if there is no such object.
    pub async fn head(&self, key: &str) -> Result<Option<ObjectInfo>, ObjectError> {
        match self.store.head(&self.location(key)?).await {
            Ok(meta) => Ok(Some(info(key.to_owned(), &meta))),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(self.error("look up", key, error)),
        }
    }

    /// Removes an object. It need not exist.
    pub async fn remove(&self, key: &str) -> Result<(), ObjectError> {
        match self.store.delete(&self.location(key)?).await {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.error("remove", key, error)),
        }
    }

    pub async fn remove_all(&self, keys: Vec<String>) -> Result<(), ObjectError> {
        let removing = keys.into_iter().map(|key| async move { self.remove(&key).await });
        futures_util::stream::iter(removing)
            .buffer_unordered(REMOVED_AT_ONCE)
            .try_for_each(|()| async { Ok(()) })
            .await
    }

    /// Up to 1,000 objects below `prefix` whose keys come after `after`, in the order of their keys. An empty list
    /// means that there are no more.
    pub async fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
    ) -> Result<Vec<ObjectInfo>, ObjectError> {
        let below = self.location(prefix)?;
        let listing = match after {
            Some(after) => self.store.list_with_offset(Some(&below), &self.location(after)?),
            None => self.store.list(Some(&below)),
        };
        let listing = listing.take(LISTED_AT_ONCE).try_collect::<Vec<ObjectMeta>>().await;
        let listed = listing.map_err(|error| self.error("list", prefix, error))?;
        Ok(listed.iter().filter_map(|meta| Some(info(self.key(&meta.location)?, meta))).collect())
    }

    /// All objects below `prefix`.
    pub async fn list_all(&self, prefix: &str) -> Result<Vec<ObjectInfo>, ObjectError> {
        let mut all: Vec<ObjectInfo> = Vec::new();
        loop {
            let page = self.list(prefix, all.last().map(|last| last.key.as_str())).await?;
            if page.is_empty() {
                return Ok(all);
            }
            all.extend(page);
        }
    }

    async fn put_pieces(&self, key: &str, file: Arc<File>, size: u64) -> Result<(), ObjectError> {
        let begun = self.store.put_multipart(&self.location(key)?).await;
        let mut upload = begun.map_err(|error| self.error("put", key, error))?;
        let sent = self.send_pieces(key, &mut *upload, file, size).await;
        let done = match sent {
            Ok(()) => match upload.complete().await {
                Ok(_) => return Ok(()),
                Err(error) => Err(self.error("put", key, error)),
            },
            Err(error) => Err(error),
        };
        // Pieces that stay take space in the bucket until its rule for incomplete uploads removes them.
        if let Err(error) = upload.abort().await {
            tracing::warn!("failed to remove the pieces of an upload to `{}`: {error}", self.place);
        }
        done
    }

    async fn send_pieces(
        &self,
        key: &str,
        upload: &mut dyn MultipartUpload,
        file: Arc<File>,
        size: u64,
    ) -> Result<(), ObjectError> {
        let piece = PIECE.max(size.div_ceil(MAX_PIECES));
        let mut sending = JoinSet::new();
        for start in (0..size).step_by(usize_of(piece)) {
            if sending.len() == PIECES_AT_ONCE {
                next(&mut sending, key).await?;
            }
            let range = start..size.min(start + piece);
            let permit = Arc::clone(&self.pieces).acquire_owned().await;
            let content = read_piece(Arc::clone(&file), range).await;
            let content = content.map_err(|cause| local(key, cause))?;
            let part = upload.put_part(PutPayload::from_bytes(content));
            let (objects, key) = (self.clone(), key.to_owned());
            sending.spawn(async move {
                let sent = part.await.map_err(|error| objects.error("put", &key, error));
                drop(permit);
                sent
            });
        }
        while !sending.is_empty() {
            next(&mut sending, key).await?;
        }
        Ok(())
    }

    fn location(&self, key: &str) -> Result<Location, ObjectError> {
        let parsed = Location::parse(format!("{}/{key}", self.prefix));
        parsed.map_err(|_| ObjectError::Key(key.to_owned()))
    }

    /// The key of an object of the bucket; `None` if it is not below the prefix.
    fn key(&self, location: &Location) -> Option<String> {
        let rest = location.as_ref().strip_prefix(self.prefix.as_ref())?;
        Some(rest.trim_start_matches('/').to_owned())
    }

    fn error(&self, action: &'static str, key: &str, error: object_store::Error) -> ObjectError {
        ObjectError::of(action, key, &self.place, error)
    }

    fn place_text(&self) -> String {
        self.place.to_string()
    }
}

fn builder(config: &ObjectsConfig, bucket: &str) -> AmazonS3Builder {
    let backoff =
        BackoffConfig { init_backoff: FIRST_PAUSE, max_backoff: LONGEST_PAUSE, base: 2.0 };
    let retry = RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_TIMEOUT };
    let client = ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_timeout(REQUEST_TIMEOUT)
        .with_allow_http(config.endpoint.as_ref().is_some_and(|url| url.starts_with("http://")));
    let mut builder = match &config.key {
        Some((id, secret)) => {
            AmazonS3Builder::new().with_access_key_id(id).with_secret_access_key(secret)
        }
        None => AmazonS3Builder::from_env(),
    };
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint);
    }
    builder
        .with_bucket_name(bucket)
        .with_region(config.region.as_deref().unwrap_or("us-east-1"))
        // Not every S3 server removes several objects in one request.
        .with_disable_bulk_delete(true)
        .with_client_options(client)
        .with_retry(retry)
}

/// Bucket and prefix of `s3://bucket/prefix`.
fn parse(url: &str) -> Result<(&str, Location), ObjectError> {
    let invalid = || ObjectError::Url(url.to_owned());
    let rest = url.strip_prefix("s3://").ok_or_else(invalid)?;
    let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let is_part = |char: char| char.is_ascii_alphanumeric() || "-._".contains(char);
    if bucket.is_empty() || !bucket.chars().all(is_part) {
        return Err(invalid());
    }
    let prefix = Location::parse(prefix.trim_end_matches('/')).map_err(|_| invalid())?;
    Ok((bucket, prefix))
}

fn info(key: String, meta: &ObjectMeta) -> ObjectInfo {
    ObjectInfo { key, size: meta.size, put_ms: meta.last_modified.timestamp_millis() }
}

/// Waits for one of the tasks.
async fn next(tasks: &mut JoinSet<Result<(), ObjectError>>, key: &str) -> Result<(), ObjectError> {
    match tasks.join_next().await {
        Some(Ok(done)) => done,
        Some(Err(panic)) => Err(local(key, io::Error::other(panic))),
        None => Ok(()),
    }
}

async fn read_piece(file: Arc<File>, range: Range<u64>) -> io::Result<Bytes> {
    let read = move || {
        let mut content = vec![0; usize_of(range.end - range.start)];
        file.read_exact_at(&mut content, range.start)?;
        Ok(content.into())
    };
    blocking(read).await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let working = tokio::task::spawn_blocking(work);
    working.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
}

fn local(key: &str, cause: io::Error) -> ObjectError {
    ObjectError::Local { key: key.to_owned(), cause }
}

/// The size of a piece, which always fits.
fn usize_of(size: u64) -> usize {
    usize::try_from(size).unwrap_or(usize::MAX)
}
