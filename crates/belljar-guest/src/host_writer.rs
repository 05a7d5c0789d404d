//! Writes queued frames to a connection of the host.

use std::os::fd::{AsFd, OwnedFd};

use belljar_sys::channel;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::mpsc;

/// The most frames that wait to be written. Events are pulled from the spool, so a slow host fills
/// only this queue.
const MAX_QUEUED: usize = 16;

/// Small frames are written together up to this size.
const MAX_WRITE: usize = 64 * 1024;

/// A frame to send, with descriptors for its first byte.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) bytes: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

/// The queue of frames for one connection of the host.
pub(crate) type ToHost = mpsc::Sender<Outgoing>;

/// Starts a task that writes queued frames. It ends when the host disconnects, or when it is
/// aborted.
pub(crate) fn start(writer: OwnedWriteHalf) -> (ToHost, tokio::task::JoinHandle<()>) {
    let (sender, queue) = mpsc::channel(MAX_QUEUED);
    (sender, tokio::task::spawn_local(write(writer, queue)))
}

async fn write(mut writer: OwnedWriteHalf, mut queue: mpsc::Receiver<Outgoing>) {
    while let Some(Outgoing { mut bytes, fds }) = queue.recv().await {
        // Frames that are ready are written together, up to the next one with descriptors.
        let mut next = None;
        while next.is_none() && bytes.len() < MAX_WRITE {
            match queue.try_recv() {
                Ok(more) if more.fds.is_empty() => bytes.extend_from_slice(&more.bytes),
                Ok(other) => next = Some(other),
                Err(_) => break,
            }
        }
        if !send(&mut writer, &bytes, &fds).await {
            return;
        }
        if let Some(Outgoing { bytes, fds }) = next
            && !send(&mut writer, &bytes, &fds).await
        {
            return;
        }
    }
}

/// False when the host has disconnected.
async fn send(writer: &mut OwnedWriteHalf, bytes: &[u8], fds: &[OwnedFd]) -> bool {
    let mut rest = bytes;
    if !fds.is_empty() {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = writer
            .as_ref()
            .async_io(tokio::io::Interest::WRITABLE, || {
                channel::send_with_fds(writer.as_ref(), bytes, &borrowed)
            })
            .await;
        match sent {
            Ok(n) => rest = &bytes[n..],
            Err(_) => return false,
        }
    }
    writer.write_all(rest).await.is_ok()
}
