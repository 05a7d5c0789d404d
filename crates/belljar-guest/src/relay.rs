//! Relays connections to a port of the sandbox's loopback to the host, which decides about them. The
//! messages are described in [`belljar_proto::relay`].
//!
//! The guest listens only after the host asks for it. While no host is connected, new connections
//! wait for the next one; those that an earlier host had accepted have ended.
//!
//! Pipes and sockets whose descriptors a connection cannot carry are relayed too ([`Relay::give`]).

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::net::Ipv4Addr;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use belljar_proto::frame;
use belljar_proto::guest::{FromGuest, Refusal, RefusalCode};
use belljar_proto::relay::{
    CERTIFICATES, MAX_CARRIED, MAX_DATA, MAX_STREAMS, Owed, PORT, RelayMessage, WINDOW,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::host_writer::{Outgoing, ToHost};
use crate::reply::{failed, refuse};

/// The pause after a failure to accept, which is a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long the guest reads from a client after its connection has ended. If a socket with unread bytes
/// is closed, the client loses the end of the answer.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Relay {
    /// The host that serves new connections.
    host: watch::Sender<Option<ToHost>>,
    listening: Cell<bool>,
    next: Cell<u64>,
    streams: RefCell<HashMap<u64, HostStream>>,
    slots: Arc<Semaphore>,
    /// How many streams are relayed in place of descriptors.
    given: Cell<usize>,
}

/// The host's side of a connection.
#[derive(Debug)]
struct HostStream {
    /// Holds no more than a window: the host sends only as much as it has credit for.
    incoming: mpsc::UnboundedSender<Vec<u8>>,
    credit: Rc<Semaphore>,
    outbox: ToHost,
}

impl Default for Relay {
    fn default() -> Relay {
        Relay {
            host: watch::Sender::new(None),
            listening: Cell::new(false),
            next: Cell::new(1),
            streams: RefCell::default(),
            slots: Arc::new(Semaphore::new(MAX_STREAMS)),
            given: Cell::new(0),
        }
    }
}

impl Relay {
    /// From now on this host serves new connections.
    pub(crate) fn attach(
        self: &Rc<Self>,
        outbox: &ToHost,
        certificates: &[u8],
    ) -> Result<(), Refusal> {
        write_file(Path::new(CERTIFICATES), certificates).map_err(|error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => refuse(
                RefusalCode::NoSpace,
                format!("there is no room for certificates at {CERTIFICATES}"),
            ),
            _ => failed(format!("failed to write {CERTIFICATES}: {error}")),
        })?;
        if !self.listening.get() {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, PORT))
                .and_then(|listener| {
                    listener.set_nonblocking(true)?;
                    TcpListener::from_std(listener)
                })
                .map_err(|error| failed(format!("failed to listen on port {PORT}: {error}")))?;
            self.listening.set(true);
            tokio::task::spawn_local(Rc::clone(self).accept(listener));
        }
        self.host.send_replace(Some(outbox.clone()));
        Ok(())
    }

    /// A connection of the host has ended, and with it the streams that it relayed.
    pub(crate) fn leave(&self, outbox: &ToHost) {
        self.host.send_if_modified(|host| {
            let ours = host.as_ref().is_some_and(|host| host.same_channel(outbox));
            if ours {
                *host = None;
            }
            ours
        });
        self.streams.borrow_mut().retain(|_, stream| !stream.outbox.same_channel(outbox));
    }

    /// Handles a message of the host about one stream.
    pub(crate) fn receive(&self, id: u64, part: RelayMessage, body: &[u8]) {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.get(&id) else { return };
        match part {
            RelayMessage::Data if body.is_empty() => {}
            // A stream that has stopped receiving is about to be removed.
            RelayMessage::Data => drop(stream.incoming.send(body.to_vec())),
            // No data: the end.
            RelayMessage::End => drop(stream.incoming.send(Vec::new())),
            RelayMessage::Credit { bytes } => {
                let room = WINDOW.saturating_sub(stream.credit.available_permits());
                stream.credit.add_permits(usize::try_from(bytes).unwrap_or(room).min(room));
            }
            RelayMessage::Reset => {
                streams.remove(&id);
            }
            RelayMessage::Open => {}
        }
    }

    async fn accept(self: Rc<Self>, listener: TcpListener) {
        let mut host = self.host.subscribe();
        loop {
            // The semaphore and the channel are never closed.
            let Ok(slot) = Arc::clone(&self.slots).acquire_owned().await else { return };
            let _ = host.wait_for(Option::is_some).await;
            let connection = match listener.accept().await {
                Ok((connection, _)) => connection,
                Err(_) => {
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let _ = connection.set_nodelay(true);
            // The host may have disconnected while we waited.
            let Ok(outbox) = host.wait_for(Option::is_some).await.map(|host| host.clone()) else {
                return;
            };
            if let Some(outbox) = outbox {
                let relay = Rc::clone(&self);
                tokio::task::spawn_local(async move {
                    let _slot = slot;
                    let (mut reader, mut writer) = connection.into_split();
                    let stream = relay.begin(&outbox);
                    let opened = stream.to_host.send(RelayMessage::Open, &[]).await;
                    if opened.is_err() || stream.carry(&mut reader, &mut writer).await.is_err() {
                        let _ = writer.shutdown().await;
                        let _ = timeout(LINGER, drain(&mut reader)).await;
                    }
                });
            }
        }
    }

    /// Relays a pipe or a socket to the host, and returns the number of the stream.
    pub(crate) fn give(
        self: &Rc<Self>,
        outbox: &ToHost,
        mut reader: impl AsyncRead + Unpin + 'static,
        mut writer: impl AsyncWrite + Unpin + 'static,
    ) -> Result<u64, Refusal> {
        if self.given.get() >= MAX_CARRIED {
            let message = format!("{MAX_CARRIED} streams are relayed to the host already");
            return Err(refuse(RefusalCode::Busy, message));
        }
        self.given.set(self.given.get() + 1);
        let stream = self.begin(outbox);
        let (id, relay) = (stream.to_host.id, Rc::clone(self));
        tokio::task::spawn_local(async move {
            let _ = stream.carry(&mut reader, &mut writer).await;
            relay.given.set(relay.given.get() - 1);
        });
        Ok(id)
    }

    /// Registers a new stream, so that messages of the host reach it.
    fn begin(self: &Rc<Self>, outbox: &ToHost) -> RelayedStream {
        let id = self.next.replace(self.next.get() + 1);
        let (sender, incoming) = mpsc::unbounded_channel();
        let credit = Rc::new(Semaphore::new(WINDOW));
        let stream =
            HostStream { incoming: sender, credit: Rc::clone(&credit), outbox: outbox.clone() };
        self.streams.borrow_mut().insert(id, stream);
        RelayedStream {
            relay: Rc::clone(self),
            to_host: StreamSender { id, outbox: outbox.clone() },
            credit,
            incoming,
        }
    }
}

/// The guest's side of a connection.
struct RelayedStream {
    relay: Rc<Relay>,
    to_host: StreamSender,
    credit: Rc<Semaphore>,
    incoming: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl RelayedStream {
    /// Moves bytes both ways until both directions have ended, or the host resets the stream.
    async fn carry(
        self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), StreamEnded> {
        let RelayedStream { relay, to_host, credit, incoming } = self;
        let carried = async {
            let mut sending = pin!(send_all(&to_host, reader, &credit));
            let mut receiving = pin!(receive_all(&to_host, writer, incoming));
            tokio::select! {
                sent = &mut sending => {
                    sent?;
                    receiving.await.map(drop)
                }
                received = &mut receiving => {
                    // After the host's end of data, only a reset can come.
                    let mut incoming = received?;
                    tokio::select! {
                        sent = sending => sent,
                        _ = incoming.recv() => Err(StreamEnded),
                    }
                }
            }
        };
        let carried = carried.await;
        relay.streams.borrow_mut().remove(&to_host.id);
        if carried.is_err() {
            // The host may have reset it first, or have disconnected.
            let _ = to_host.send(RelayMessage::Reset, &[]).await;
        }
        carried
    }
}

/// The stream failed or was reset.
struct StreamEnded;

/// Sends messages about one stream to the host.
struct StreamSender {
    id: u64,
    outbox: ToHost,
}

impl StreamSender {
    async fn send(&self, part: RelayMessage, body: &[u8]) -> Result<(), StreamEnded> {
        let bytes = frame::encode(&FromGuest::Relayed { stream: self.id, part }, body);
        self.outbox.send(Outgoing { bytes, fds: Vec::new() }).await.map_err(|_| StreamEnded)
    }
}

async fn send_all(
    to_host: &StreamSender,
    reader: &mut (impl AsyncRead + Unpin),
    credit: &Semaphore,
) -> Result<(), StreamEnded> {
    let mut buffer = vec![0; MAX_DATA];
    loop {
        let read = reader.read(&mut buffer).await.map_err(|_| StreamEnded)?;
        if read == 0 {
            return to_host.send(RelayMessage::End, &[]).await;
        }
        // The semaphore is never closed, and one read is never more than a window.
        let bytes = u32::try_from(read).map_err(|_| StreamEnded)?;
        credit.acquire_many(bytes).await.map_err(|_| StreamEnded)?.forget();
        to_host.send(RelayMessage::Data, &buffer[..read]).await?;
    }
}

async fn receive_all(
    to_host: &StreamSender,
    writer: &mut (impl AsyncWrite + Unpin),
    mut incoming: mpsc::UnboundedReceiver<Vec<u8>>,
) -> Result<mpsc::UnboundedReceiver<Vec<u8>>, StreamEnded> {
    let mut owed = Owed::default();
    loop {
        // Without a sender the host has disconnected, or reset the stream.
        let bytes = incoming.recv().await.ok_or(StreamEnded)?;
        if bytes.is_empty() {
            return writer.shutdown().await.map(|()| incoming).map_err(|_| StreamEnded);
        }
        writer.write_all(&bytes).await.map_err(|_| StreamEnded)?;
        if let Some(bytes) = owed.taken(bytes.len()) {
            to_host.send(RelayMessage::Credit { bytes }, &[]).await?;
        }
    }
}

async fn drain(reader: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = vec![0; MAX_DATA];
    while reader.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

/// Writes a file by renaming a new one. Anything that code inside has put at `path` is replaced: a link
/// is not followed, and a pipe, which could block us, is not opened.
fn write_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    let fresh = path.with_extension(format!("{}.part", belljar_sys::process::random_name()));
    let write = || {
        let mut file = fs::File::options().write(true).create_new(true).open(&fresh)?;
        file.write_all(contents)?;
        fs::rename(&fresh, path)
    };
    write().inspect_err(|_| {
        let _ = fs::remove_file(&fresh);
    })
}
