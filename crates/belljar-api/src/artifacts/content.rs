//! Streams the bytes of a file, at the speed of the client.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::body::Bytes;
use futures_util::stream;

/// Bytes of one read. Each read uses a blocking thread, and its bytes are in memory until the client has read them.
const CHUNK: u64 = 512 * 1024;

/// The memory that [`stream`] uses: the piece that is sent, and the next one.
pub(crate) fn memory(from: u64, to: u64) -> u64 {
    (to - from).min(2 * CHUNK)
}

/// The bytes from `from` up to `to`, which must exist. `read` fills its buffer with the bytes at an offset.
pub(crate) fn stream<R>(read: R, from: u64, to: u64) -> Body
where
    R: Fn(&mut [u8], u64) -> io::Result<()> + Send + Sync + 'static,
{
    // The next piece is read while the previous one is sent.
    let reader = Arc::new(read);
    let first = read_ahead(&reader, from, to);
    Body::from_stream(stream::unfold((reader, from, first), move |(reader, at, next)| async move {
        let read = next?.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        let (at, next) = match &read {
            Ok(bytes) => {
                let at = at + bytes.len() as u64;
                (at, read_ahead(&reader, at, to))
            }
            // The client sees that the body ends too early.
            Err(_) => (to, None),
        };
        Some((read, (reader, at, next)))
    }))
}

type Reading = tokio::task::JoinHandle<io::Result<Bytes>>;

/// `None` at the end.
fn read_ahead<R>(reader: &Arc<R>, at: u64, to: u64) -> Option<Reading>
where
    R: Fn(&mut [u8], u64) -> io::Result<()> + Send + Sync + 'static,
{
    let length = usize::try_from((to - at).min(CHUNK)).ok().filter(|length| *length > 0)?;
    let reader = Arc::clone(reader);
    Some(tokio::task::spawn_blocking(move || {
        let mut bytes = vec![0; length];
        reader(&mut bytes, at)?;
        Ok(bytes.into())
    }))
}
