//! The host's side of streams that a guest relays ([`belljar_proto::relay`]). Their users see ordinary streams of bytes.
//!
//! The guest is not trusted: the number of its streams is limited, and a guest that exceeds the window of a stream
//! loses that stream.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use belljar_proto::frame;
use belljar_proto::guest::{Call, Request};
use belljar_proto::relay::{MAX_CARRIED, MAX_DATA, MAX_STREAMS, Owed, RelayMessage, WINDOW};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

/// Bytes buffered for the user of a stream, in each direction.
const PIPE: usize = 64 * 1024;

/// How long data that was written before a stream was dropped may wait for the client to read it.
const LAST_DATA: Duration = Duration::from_secs(30);

/// New connections of code in the sandbox.
#[derive(Debug)]
pub struct Relay {
    pub(crate) opened: mpsc::Receiver<RelayStream>,
}

impl Relay {
    /// The next connection; `None` when the link is lost.
    pub async fn next(&mut self) -> Option<RelayStream> {
        self.opened.recv().await
    }
}

/// A connection of code in a sandbox, or a relayed pipe or socket of the guest. Dropping it ends it.
#[derive(Debug)]
pub struct RelayStream {
    io: DuplexStream,
    _kept: oneshot::Sender<()>,
}

impl RelayStream {
    /// A stream, with the other end for the task that moves its bytes. The receiver resolves when the stream is dropped.
    pub(crate) fn pair() -> (RelayStream, DuplexStream, oneshot::Receiver<()>) {
        let (io, carried) = tokio::io::duplex(PIPE);
        let (kept, dropped) = oneshot::channel();
        (RelayStream { io, _kept: kept }, carried, dropped)
    }
}

impl AsyncRead for RelayStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl AsyncWrite for RelayStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

/// All relayed connections of one link.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    open: Mutex<OpenStreams>,
}

#[derive(Debug, Default)]
struct OpenStreams {
    /// Where new connections go, after `want` was called.
    wanted: Option<(mpsc::Sender<RelayStream>, mpsc::Sender<Vec<u8>>)>,
    by_id: HashMap<u64, Arc<Ends>>,
}

/// The guest's side of a stream.
#[derive(Debug)]
struct Ends {
    incoming: Mutex<Incoming>,
    changed: Notify,
    credit: Semaphore,
    /// It belongs to a reply: code inside did not open it.
    for_reply: bool,
}

#[derive(Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
    /// Bytes that the guest sent and that were not returned as credit.
    in_flight: usize,
    ended: bool,
    reset: bool,
}

impl Streams {
    /// From now on new connections go to the returned relay, and no longer to an earlier one.
    pub(crate) fn want(&self, outbox: mpsc::Sender<Vec<u8>>) -> Relay {
        let (sender, opened) = mpsc::channel(MAX_STREAMS);
        self.lock().wanted = Some((sender, outbox));
        Relay { opened }
    }

    pub(crate) fn close(&self) {
        let mut streams = self.lock();
        streams.wanted = None;
        for (_, ends) in streams.by_id.drain() {
            ends.reset();
        }
    }

    /// Handles a message of the guest about one stream.
    pub(crate) fn receive(self: &Arc<Self>, id: u64, part: &RelayMessage, body: &[u8]) {
        if *part == RelayMessage::Open {
            return self.open(id);
        }
        let Some(ends) = self.lock().by_id.get(&id).cloned() else { return };
        match part {
            RelayMessage::Data => ends.receive(body),
            RelayMessage::End => ends.change(|incoming| incoming.ended = true),
            RelayMessage::Credit { bytes } => {
                let room = WINDOW.saturating_sub(ends.credit.available_permits());
                ends.credit.add_permits(usize::try_from(*bytes).unwrap_or(room).min(room));
            }
            RelayMessage::Reset => ends.reset(),
            RelayMessage::Open => {}
        }
    }

    fn open(self: &Arc<Self>, id: u64) {
        let mut streams = self.lock();
        let Some((opened, outbox)) = streams.wanted.clone() else { return };
        let Some(stream) = self.begin(&mut streams, id, false, outbox) else { return };
        drop(streams);
        // The queue has room for all connections. If the relay was dropped, the stream is reset at once.
        let _ = opened.try_send(stream);
    }

    /// A stream that the guest relays for a reply, with a number of its choice.
    pub(crate) fn take(
        self: &Arc<Self>,
        id: u64,
        outbox: mpsc::Sender<Vec<u8>>,
    ) -> Option<RelayStream> {
        self.begin(&mut self.lock(), id, true, outbox)
    }

    /// Registers a stream. `None` if the guest exceeds its limit or uses a number twice.
    fn begin(
        self: &Arc<Self>,
        streams: &mut OpenStreams,
        id: u64,
        for_reply: bool,
        outbox: mpsc::Sender<Vec<u8>>,
    ) -> Option<RelayStream> {
        let most = if for_reply { MAX_CARRIED } else { MAX_STREAMS };
        let alike = streams.by_id.values().filter(|ends| ends.for_reply == for_reply).count();
        if alike >= most || streams.by_id.contains_key(&id) {
            return None;
        }
        let (stream, ours, dropped) = RelayStream::pair();
        let ends = Arc::new(Ends {
            incoming: Mutex::default(),
            changed: Notify::new(),
            credit: Semaphore::new(WINDOW),
            for_reply,
        });
        streams.by_id.insert(id, Arc::clone(&ends));
        tokio::spawn(carry(Arc::clone(self), id, ours, dropped, ends, outbox));
        Some(stream)
    }

    fn lock(&self) -> MutexGuard<'_, OpenStreams> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ends {
    fn receive(&self, body: &[u8]) {
        self.change(|incoming| {
            incoming.in_flight += body.len();
            if incoming.in_flight > WINDOW {
                incoming.reset = true;
            } else {
                incoming.bytes.extend_from_slice(body);
            }
        });
    }

    fn reset(&self) {
        self.change(|incoming| incoming.reset = true);
        self.credit.close();
    }

    fn change(&self, change: impl FnOnce(&mut Incoming)) {
        change(&mut self.incoming.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_one();
    }

    /// Waits for data; empty at the end.
    async fn take(&self) -> Result<Vec<u8>, StreamEnded> {
        loop {
            {
                let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
                if incoming.reset {
                    return Err(StreamEnded);
                }
                if !incoming.bytes.is_empty() || incoming.ended {
                    return Ok(std::mem::take(&mut incoming.bytes));
                }
            }
            // Only one task waits, so no notification is missed in between.
            self.changed.notified().await;
        }
    }
}

/// The stream failed or was reset.
struct StreamEnded;

impl From<io::Error> for StreamEnded {
    fn from(_: io::Error) -> StreamEnded {
        StreamEnded
    }
}

/// Sends messages about one stream to the guest.
struct ToGuest {
    id: u64,
    outbox: mpsc::Sender<Vec<u8>>,
}

impl ToGuest {
    async fn send(&self, part: RelayMessage, body: &[u8]) -> Result<(), StreamEnded> {
        // It gets no reply, so it needs no id.
        let request = Request { id: 0, call: Call::Relayed { stream: self.id, part } };
        self.outbox.send(frame::encode(&request, body)).await.map_err(|_| StreamEnded)
    }
}

async fn carry(
    streams: Arc<Streams>,
    id: u64,
    ours: DuplexStream,
    dropped: oneshot::Receiver<()>,
    ends: Arc<Ends>,
    outbox: mpsc::Sender<Vec<u8>>,
) {
    let to_guest = ToGuest { id, outbox };
    let (reader, writer) = tokio::io::split(ours);
    // After the stream was dropped, data that was written is still delivered, and nothing more is received.
    let left = Notify::new();
    let receiving = async {
        tokio::select! {
            ended = receive_all(&to_guest, &ends, writer) => ended.map(|()| false),
            _ = dropped => {
                left.notify_one();
                Ok(true)
            }
        }
    };
    let too_late = async {
        left.notified().await;
        tokio::time::sleep(LAST_DATA).await;
    };
    let sending = send_all(&to_guest, &ends, reader);
    let carried = tokio::select! {
        carried = async { tokio::try_join!(sending, receiving) } => carried,
        () = too_late => Err(StreamEnded),
    };
    streams.lock().by_id.remove(&id);
    if !matches!(carried, Ok(((), false))) {
        let _ = to_guest.send(RelayMessage::Reset, &[]).await;
    }
}

/// Sends what the user of the stream writes, as far as there is credit.
async fn send_all(
    to_guest: &ToGuest,
    ends: &Ends,
    mut reader: impl AsyncRead + Unpin,
) -> Result<(), StreamEnded> {
    let mut buffer = vec![0; MAX_DATA];
    loop {
        let read = reader.read(&mut buffer).await?;
        if read == 0 {
            return to_guest.send(RelayMessage::End, &[]).await;
        }
        let bytes = u32::try_from(read).map_err(|_| StreamEnded)?;
        ends.credit.acquire_many(bytes).await.map_err(|_| StreamEnded)?.forget();
        to_guest.send(RelayMessage::Data, &buffer[..read]).await?;
    }
}

/// Passes on what the guest sends, and returns credit for it.
async fn receive_all(
    to_guest: &ToGuest,
    ends: &Ends,
    mut writer: impl AsyncWrite + Unpin,
) -> Result<(), StreamEnded> {
    let mut owed = Owed::default();
    loop {
        let bytes = ends.take().await?;
        if bytes.is_empty() {
            return Ok(writer.shutdown().await?);
        }
        writer.write_all(&bytes).await?;
        if let Some(bytes) = owed.taken(bytes.len()) {
            ends.change(|incoming| {
                let given = usize::try_from(bytes).unwrap_or(usize::MAX);
                incoming.in_flight = incoming.in_flight.saturating_sub(given);
            });
            to_guest.send(RelayMessage::Credit { bytes }, &[]).await?;
        }
    }
}
