//! The host's end of connections that a guest relays; see [`belljar_proto::relay`] for the
//! conversation. To whoever answers them they are streams of bytes like any other.
//!
//! The guest is not trusted: it may open no more than its share, and what it sends beyond the
//! window of a connection ends that connection.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use belljar_proto::frame;
use belljar_proto::guest::{Call, Request};
use belljar_proto::relay::{MAX_CARRIED, MAX_DATA, MAX_STREAMS, Owed, Part, WINDOW};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf};
use tokio::sync::{Notify, Semaphore, mpsc, oneshot};

/// Bytes between us and whoever answers, in either direction.
const PIPE: usize = 64 * 1024;

/// How long the last words of whoever answered may wait for a client to take them.
const LAST_WORDS: Duration = Duration::from_secs(30);

/// Connections as they come.
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

/// A connection that code in a sandbox has made, or a pipe or socket of the guest's that is carried
/// here. Dropped, it ends there too.
#[derive(Debug)]
pub struct RelayStream {
    io: DuplexStream,
    _kept: oneshot::Sender<()>,
}

impl RelayStream {
    /// One with the end that whoever carries its bytes holds; the receiver resolves when the stream
    /// is dropped.
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
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Where new ones go, once somebody wants them.
    wanted: Option<(mpsc::Sender<RelayStream>, mpsc::Sender<Vec<u8>>)>,
    by_id: HashMap<u64, Arc<Ends>>,
}

/// What the guest can do to a connection.
#[derive(Debug)]
struct Ends {
    incoming: Mutex<Incoming>,
    changed: Notify,
    credit: Semaphore,
    /// We asked for it: code inside did not make it.
    asked: bool,
}

#[derive(Debug, Default)]
struct Incoming {
    bytes: Vec<u8>,
    /// Sent by the guest and not given back as credit.
    in_flight: usize,
    ended: bool,
    reset: bool,
}

impl Streams {
    /// From now on connections are wanted, by one at a time.
    pub(crate) fn want(&self, outbox: mpsc::Sender<Vec<u8>>) -> Relay {
        let (sender, opened) = mpsc::channel(MAX_STREAMS);
        self.lock().wanted = Some((sender, outbox));
        Relay { opened }
    }

    pub(crate) fn close(&self) {
        let mut inner = self.lock();
        inner.wanted = None;
        for (_, ends) in inner.by_id.drain() {
            ends.reset();
        }
    }

    /// What the guest has to say about a connection.
    pub(crate) fn hear(self: &Arc<Self>, id: u64, part: &Part, body: &[u8]) {
        if *part == Part::Open {
            return self.open(id);
        }
        let Some(ends) = self.lock().by_id.get(&id).cloned() else { return };
        match part {
            Part::Data => ends.receive(body),
            Part::End => ends.change(|incoming| incoming.ended = true),
            Part::Credit { bytes } => {
                let room = WINDOW.saturating_sub(ends.credit.available_permits());
                ends.credit.add_permits(usize::try_from(*bytes).unwrap_or(room).min(room));
            }
            Part::Reset => ends.reset(),
            Part::Open => {}
        }
    }

    fn open(self: &Arc<Self>, id: u64) {
        let mut inner = self.lock();
        let Some((opened, outbox)) = inner.wanted.clone() else { return };
        let Some(stream) = self.begin(&mut inner, id, false, outbox) else { return };
        drop(inner);
        // It is as large as there are connections. If nobody takes it, it is reset at once.
        let _ = opened.try_send(stream);
    }

    /// What the guest carries for a reply, under a number of its choice.
    pub(crate) fn take(
        self: &Arc<Self>,
        id: u64,
        outbox: mpsc::Sender<Vec<u8>>,
    ) -> Option<RelayStream> {
        self.begin(&mut self.lock(), id, true, outbox)
    }

    /// None from a guest that misbehaves: it opens no more than its share, and no number twice.
    fn begin(
        self: &Arc<Self>,
        inner: &mut Inner,
        id: u64,
        asked: bool,
        outbox: mpsc::Sender<Vec<u8>>,
    ) -> Option<RelayStream> {
        let most = if asked { MAX_CARRIED } else { MAX_STREAMS };
        let alike = inner.by_id.values().filter(|ends| ends.asked == asked).count();
        if alike >= most || inner.by_id.contains_key(&id) {
            return None;
        }
        let (stream, ours, dropped) = RelayStream::pair();
        let ends = Arc::new(Ends {
            incoming: Mutex::default(),
            changed: Notify::new(),
            credit: Semaphore::new(WINDOW),
            asked,
        });
        inner.by_id.insert(id, Arc::clone(&ends));
        tokio::spawn(carry(Arc::clone(self), id, ours, dropped, ends, outbox));
        Some(stream)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// What has come; nothing at the end.
    async fn take(&self) -> Result<Vec<u8>, Over> {
        loop {
            {
                let mut incoming = self.incoming.lock().unwrap_or_else(PoisonError::into_inner);
                if incoming.reset {
                    return Err(Over);
                }
                if !incoming.bytes.is_empty() || incoming.ended {
                    return Ok(std::mem::take(&mut incoming.bytes));
                }
            }
            // There is one who waits, so nothing is missed in between.
            self.changed.notified().await;
        }
    }
}

/// The connection is of no further use, for whatever reason.
struct Over;

impl From<io::Error> for Over {
    fn from(_: io::Error) -> Over {
        Over
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
    let send = async |part: Part, body: &[u8]| {
        // Not answered, so it needs no number.
        let request = Request { id: 0, call: Call::Relayed { stream: id, part } };
        outbox.send(frame::encode(&request, body)).await.map_err(|_| Over)
    };
    let (mut reader, mut writer) = tokio::io::split(ours);
    let outgoing = async {
        let mut buffer = vec![0; MAX_DATA];
        loop {
            let read = reader.read(&mut buffer).await?;
            if read == 0 {
                return send(Part::End, &[]).await;
            }
            let bytes = u32::try_from(read).map_err(|_| Over)?;
            ends.credit.acquire_many(bytes).await.map_err(|_| Over)?.forget();
            send(Part::Data, &buffer[..read]).await?;
        }
    };
    let incoming = async {
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
                send(Part::Credit { bytes }, &[]).await?;
            }
        }
    };
    // Whoever answered has left: what they said is still delivered, and nothing more is heard.
    let left = Notify::new();
    let incoming = async {
        tokio::select! {
            ended = incoming => ended.map(|()| false),
            _ = dropped => {
                left.notify_one();
                Ok(true)
            }
        }
    };
    let too_late = async {
        left.notified().await;
        tokio::time::sleep(LAST_WORDS).await;
    };
    let carried = tokio::select! {
        carried = async { tokio::try_join!(outgoing, incoming) } => carried,
        () = too_late => Err(Over),
    };
    streams.lock().by_id.remove(&id);
    if !matches!(carried, Ok(((), false))) {
        let _ = send(Part::Reset, &[]).await;
    }
}
