//! The way out: connections to a port of the sandbox's own loopback are handed to the host, which
//! decides about them. See [`belljar_proto::relay`] for the conversation.
//!
//! Nothing listens until the host asks for it. While no host is connected nobody is answered:
//! connections wait until one comes back, and those it had answered before have ended.
//!
//! Pipes and sockets that a connection of the host cannot carry go the same way ([`Relay::give`]).

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
    CERTIFICATES, MAX_CARRIED, MAX_DATA, MAX_STREAMS, Owed, PORT, Part, WINDOW,
};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::connection::{Outgoing, ToHost, failed, refuse};

/// After a failure to accept, which is a lack of descriptors, the next attempt waits this long.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How long what a client still sends is taken from it after its connection was ended: closed
/// with bytes in it, a connection takes the last answer with it.
const LINGER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Relay {
    /// Whoever answers.
    host: watch::Sender<Option<ToHost>>,
    listening: Cell<bool>,
    next: Cell<u64>,
    streams: RefCell<HashMap<u64, Stream>>,
    slots: Arc<Semaphore>,
    /// How many were given to the host for a reply.
    given: Cell<usize>,
}

/// What the host can do to a connection.
#[derive(Debug)]
struct Stream {
    /// Holds no more than a window: the host keeps to what it was given.
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
    /// From now on this connection of the host answers.
    pub(crate) fn attach(
        self: &Rc<Self>,
        outbox: &ToHost,
        certificates: &[u8],
    ) -> Result<(), Refusal> {
        place(Path::new(CERTIFICATES), certificates).map_err(|error| match error.kind() {
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

    /// This connection of the host has ended, and what it carried with it.
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

    /// What the host has to say about a connection.
    pub(crate) fn hear(&self, id: u64, part: Part, body: &[u8]) {
        let mut streams = self.streams.borrow_mut();
        let Some(stream) = streams.get(&id) else { return };
        match part {
            Part::Data if body.is_empty() => {}
            // One that does not listen any more is about to be removed.
            Part::Data => drop(stream.incoming.send(body.to_vec())),
            // No data: the end.
            Part::End => drop(stream.incoming.send(Vec::new())),
            Part::Credit { bytes } => {
                let room = WINDOW.saturating_sub(stream.credit.available_permits());
                stream.credit.add_permits(usize::try_from(bytes).unwrap_or(room).min(room));
            }
            Part::Reset => {
                streams.remove(&id);
            }
            Part::Open => {}
        }
    }

    async fn accept(self: Rc<Self>, listener: TcpListener) {
        let mut host = self.host.subscribe();
        loop {
            // Neither is ever closed.
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
            // It may have gone while we waited.
            let Ok(outbox) = host.wait_for(Option::is_some).await.map(|host| host.clone()) else {
                return;
            };
            if let Some(outbox) = outbox {
                let relay = Rc::clone(&self);
                tokio::task::spawn_local(async move {
                    let _slot = slot;
                    let (mut reader, mut writer) = connection.into_split();
                    let stream = relay.begin(&outbox);
                    let told = stream.told.send(Part::Open, &[]).await;
                    if told.is_err() || stream.carry(&mut reader, &mut writer).await.is_err() {
                        let _ = writer.shutdown().await;
                        let _ = timeout(LINGER, drain(&mut reader)).await;
                    }
                });
            }
        }
    }

    /// Carries a pipe or a socket for the host: the number by which both know it.
    pub(crate) fn give(
        self: &Rc<Self>,
        outbox: &ToHost,
        mut reader: impl AsyncRead + Unpin + 'static,
        mut writer: impl AsyncWrite + Unpin + 'static,
    ) -> Result<u64, Refusal> {
        if self.given.get() >= MAX_CARRIED {
            let message = format!("{MAX_CARRIED} streams are carried for the host already");
            return Err(refuse(RefusalCode::Busy, message));
        }
        self.given.set(self.given.get() + 1);
        let stream = self.begin(outbox);
        let (id, relay) = (stream.told.id, Rc::clone(self));
        tokio::task::spawn_local(async move {
            let _ = stream.carry(&mut reader, &mut writer).await;
            relay.given.set(relay.given.get() - 1);
        });
        Ok(id)
    }

    /// A new connection, which the host can be heard on from now on.
    fn begin(self: &Rc<Self>, outbox: &ToHost) -> Carried {
        let id = self.next.replace(self.next.get() + 1);
        let (sender, incoming) = mpsc::unbounded_channel();
        let credit = Rc::new(Semaphore::new(WINDOW));
        let stream =
            Stream { incoming: sender, credit: Rc::clone(&credit), outbox: outbox.clone() };
        self.streams.borrow_mut().insert(id, stream);
        Carried {
            relay: Rc::clone(self),
            told: Told { id, outbox: outbox.clone() },
            credit,
            incoming,
        }
    }
}

/// One connection, from our side.
struct Carried {
    relay: Rc<Relay>,
    told: Told,
    credit: Rc<Semaphore>,
    incoming: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Carried {
    /// Moves bytes both ways until both have ended, or the host has had enough.
    async fn carry(
        self,
        reader: &mut (impl AsyncRead + Unpin),
        writer: &mut (impl AsyncWrite + Unpin),
    ) -> Result<(), Over> {
        let Carried { relay, told, credit, incoming } = self;
        let carried = async {
            let mut speaking = pin!(outgoing(&told, reader, &credit));
            let mut hearing = pin!(incoming_of(&told, writer, incoming));
            tokio::select! {
                spoken = &mut speaking => {
                    spoken?;
                    hearing.await.map(drop)
                }
                heard = &mut hearing => {
                    // After the end of what the host says comes nothing but its leaving.
                    let mut incoming = heard?;
                    tokio::select! {
                        spoken = speaking => spoken,
                        _ = incoming.recv() => Err(Over),
                    }
                }
            }
        };
        let carried = carried.await;
        relay.streams.borrow_mut().remove(&told.id);
        if carried.is_err() {
            // The host may have said so first, and may be gone.
            let _ = told.send(Part::Reset, &[]).await;
        }
        carried
    }
}

/// The connection is of no further use, for whatever reason.
struct Over;

/// Where the parts of a connection go.
struct Told {
    id: u64,
    outbox: ToHost,
}

impl Told {
    async fn send(&self, part: Part, body: &[u8]) -> Result<(), Over> {
        let bytes = frame::encode(&FromGuest::Relayed { stream: self.id, part }, body);
        self.outbox.send(Outgoing { bytes, fds: Vec::new() }).await.map_err(|_| Over)
    }
}

async fn outgoing(
    told: &Told,
    reader: &mut (impl AsyncRead + Unpin),
    credit: &Semaphore,
) -> Result<(), Over> {
    let mut buffer = vec![0; MAX_DATA];
    loop {
        let read = reader.read(&mut buffer).await.map_err(|_| Over)?;
        if read == 0 {
            return told.send(Part::End, &[]).await;
        }
        // Never closed, and never asked for more than a window holds.
        let bytes = u32::try_from(read).map_err(|_| Over)?;
        credit.acquire_many(bytes).await.map_err(|_| Over)?.forget();
        told.send(Part::Data, &buffer[..read]).await?;
    }
}

async fn incoming_of(
    told: &Told,
    writer: &mut (impl AsyncWrite + Unpin),
    mut incoming: mpsc::UnboundedReceiver<Vec<u8>>,
) -> Result<mpsc::UnboundedReceiver<Vec<u8>>, Over> {
    let mut owed = Owed::default();
    loop {
        // Without a sender the host has gone, or has had enough.
        let bytes = incoming.recv().await.ok_or(Over)?;
        if bytes.is_empty() {
            return writer.shutdown().await.map(|()| incoming).map_err(|_| Over);
        }
        writer.write_all(&bytes).await.map_err(|_| Over)?;
        if let Some(bytes) = owed.taken(bytes.len()) {
            told.send(Part::Credit { bytes }, &[]).await?;
        }
    }
}

async fn drain(reader: &mut (impl AsyncRead + Unpin)) {
    let mut buffer = vec![0; MAX_DATA];
    while reader.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
}

/// Puts a file in its place, whatever code inside has put there meanwhile: a link is replaced and
/// not followed, and nothing is opened that could make us wait.
fn place(path: &Path, contents: &[u8]) -> io::Result<()> {
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
