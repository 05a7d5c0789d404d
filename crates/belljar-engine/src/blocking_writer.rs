//! Writes a stream of bytes to a file or a hash on blocking threads.
//!
//! ```text
//!   sender ── chunks ──▶ bounded queue ──▶ task ── a few chunks at a time ──▶ blocking thread, which writes
//! ```
//!
//! A thread waits for the disk and never for the sender: between two chunks, an upload uses no thread.

use std::io;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// Chunks in the queue, and chunks that are written in one step.
const IN_FLIGHT: usize = 8;

/// Writes bytes to a `T`.
#[derive(Debug)]
pub(crate) struct BlockingWriter<T> {
    chunks: mpsc::Sender<Bytes>,
    written: JoinHandle<io::Result<T>>,
}

impl<T: Send + 'static> BlockingWriter<T> {
    /// Starts to write to `target`.
    pub(crate) fn begin(
        target: T,
        write: impl Fn(&mut T, &[u8]) -> io::Result<()> + Send + 'static,
    ) -> BlockingWriter<T> {
        let (chunks, incoming) = mpsc::channel::<Bytes>(IN_FLIGHT);
        BlockingWriter { chunks, written: tokio::spawn(write_all(target, write, incoming)) }
    }

    /// Adds bytes, as fast as they can be written. False if writing has failed: [`BlockingWriter::finish`] returns
    /// the error.
    pub(crate) async fn write(&self, bytes: Bytes) -> bool {
        self.chunks.send(bytes).await.is_ok()
    }

    /// Another sender of bytes. [`BlockingWriter::finish`] waits until all senders are dropped.
    pub(crate) fn sender(&self) -> mpsc::Sender<Bytes> {
        self.chunks.clone()
    }

    /// Waits until everything is written.
    pub(crate) async fn finish(self) -> io::Result<T> {
        drop(self.chunks);
        self.written.await.unwrap_or_else(|panic| Err(io::Error::other(panic)))
    }
}

async fn write_all<T: Send + 'static>(
    mut target: T,
    mut write: impl Fn(&mut T, &[u8]) -> io::Result<()> + Send + 'static,
    mut incoming: mpsc::Receiver<Bytes>,
) -> io::Result<T> {
    let mut batch = Vec::with_capacity(IN_FLIGHT);
    while incoming.recv_many(&mut batch, IN_FLIGHT).await > 0 {
        // After an error, the target is dropped on that thread too: closing a file can wait for the disk.
        let writing = tokio::task::spawn_blocking(move || {
            batch.drain(..).try_for_each(|chunk: Bytes| write(&mut target, &chunk))?;
            Ok::<_, io::Error>((target, write, batch))
        });
        (target, write, batch) = writing.await.map_err(io::Error::other)??;
    }
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(target: &mut Vec<u8>, chunk: &[u8]) -> io::Result<()> {
        target.extend_from_slice(chunk);
        Ok(())
    }

    /// There is one blocking thread: if an upload held it, the others would wait.
    #[test]
    fn uploads_that_wait_for_their_clients_use_no_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .max_blocking_threads(1)
            .enable_time()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut stalled = Vec::new();
            for _ in 0..100 {
                let upload = BlockingWriter::begin(Vec::new(), append);
                assert!(upload.write(Bytes::from_static(b"a")).await);
                stalled.push(upload);
            }
            let done = tokio::task::spawn_blocking(|| 7);
            let done = tokio::time::timeout(std::time::Duration::from_secs(10), done).await;
            assert_eq!(done.expect("a thread is free").unwrap(), 7);
            for upload in stalled {
                assert!(upload.write(Bytes::from_static(b"b")).await);
                assert_eq!(upload.finish().await.unwrap(), b"ab");
            }
        });
    }

    #[tokio::test]
    async fn an_error_of_the_target_ends_the_upload() {
        let upload = BlockingWriter::begin((), |(), chunk| match chunk {
            b"bad" => Err(io::Error::from(io::ErrorKind::StorageFull)),
            _ => Ok(()),
        });
        assert!(upload.write(Bytes::from_static(b"good")).await);
        assert!(upload.write(Bytes::from_static(b"bad")).await);
        while upload.write(Bytes::from_static(b"good")).await {}
        assert_eq!(upload.finish().await.unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
