//! The bytes of a file, read as fast as they are taken and no faster.

use std::io;
use std::sync::Arc;

use axum::body::Body;
use axum::body::Bytes;
use futures_util::stream;

/// Read at a time: a thread is woken for each, and each is in memory until the client has it.
const CHUNK: u64 = 512 * 1024;

/// What [`stream`] takes of the server's memory: a piece that is sent, and the next.
pub(crate) fn memory(from: u64, to: u64) -> u64 {
    (to - from).min(2 * CHUNK)
}

/// The bytes from `from` up to `to`, which must be there. `read` fills its buffer with what is at an
/// offset.
pub(crate) fn stream<R>(read: R, from: u64, to: u64) -> Body
where
    R: Fn(&mut [u8], u64) -> io::Result<()> + Send + Sync + 'static,
{
    // The next piece is read while the one before is on its way.
    let reader = Arc::new(read);
    let first = read_ahead(&reader, from, to);
    Body::from_stream(stream::unfold((reader, from, first), move |(reader, at, next)| async move {
        let read = next?.await.unwrap_or_else(|panic| Err(io::Error::other(panic)));
        let (at, next) = match &read {
            Ok(bytes) => {
                let at = at + bytes.len() as u64;
                (at, read_ahead(&reader, at, to))
            }
            // The client sees a body that ends too early.
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
