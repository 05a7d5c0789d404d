//! Bytes that somebody sends, written down by a thread that may wait for the disk.

use std::io;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Pieces on their way to that thread.
const IN_FLIGHT: usize = 16;

/// What comes, on its way into `T`.
#[derive(Debug)]
pub(crate) struct Incoming<T> {
    chunks: mpsc::Sender<Bytes>,
    written: JoinHandle<io::Result<T>>,
}

impl<T: Send + 'static> Incoming<T> {
    /// Begins to write whatever comes to `target`.
    pub(crate) fn begin(
        mut target: T,
        write: impl Fn(&mut T, &[u8]) -> io::Result<()> + Send + 'static,
    ) -> Incoming<T> {
        let (chunks, mut incoming) = mpsc::channel::<Bytes>(IN_FLIGHT);
        let written = tokio::task::spawn_blocking(move || {
            while let Some(chunk) = incoming.blocking_recv() {
                write(&mut target, &chunk)?;
            }
            Ok(target)
        });
        Incoming { chunks, written }
    }

    /// Takes the next bytes, as fast as they can be written. False if the thread has given up:
    /// [`Incoming::finish`] tells why.
    pub(crate) async fn write(&self, bytes: Bytes) -> bool {
        self.chunks.send(bytes).await.is_ok()
    }

    /// Where another can put bytes too; all have come when nobody holds one any more.
    pub(crate) fn sender(&self) -> mpsc::Sender<Bytes> {
        self.chunks.clone()
    }

    /// What has become of it, when all has come.
    pub(crate) async fn finish(self) -> io::Result<T> {
        drop(self.chunks);
        self.written.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }
}
