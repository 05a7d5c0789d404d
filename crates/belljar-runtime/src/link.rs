//! The host's end of the conversation with a guest.
//!
//! One connection carries everything: requests are matched to replies by number, events go to
//! whoever follows the execution. The guest is not trusted, so what it may make us hold is bounded;
//! when it exceeds a bound or talks nonsense the link is closed and every waiter is told.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_proto::exec::{Event, ExecSpec};
use belljar_proto::frame::{self, Decoder, Frame};
use belljar_proto::guest::{
    Answer, Call, FromGuest, HeldFile, KnownExec, Refusal, RefusalCode, ReplyOutcome, Request,
};
use belljar_proto::{PROTOCOL, PROTOCOL_WITH_RELAY};
use belljar_sys::channel::{self, Kind};
use belljar_sys::untrusted::{Closer, Untrusted, UntrustedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::RuntimeError;
use crate::relay::{Relay, RelayStream, Streams};
use crate::stream_thread::{StreamThread, StreamThreads};

/// Events received and not yet taken by their reader, in bytes. The guest's own spool holds less
/// than this for one execution, so only a guest gone mad gets here.
const MAX_BACKLOG: usize = 256 * 1024 * 1024;

/// Descriptors that arrived and belong to no reply yet.
const MAX_STRAY_FDS: usize = channel::MAX_FDS;

/// Descriptors that a sandbox has sent and that could not be closed yet. Closing takes microseconds
/// unless somebody works at it, and then nothing more is taken from this sandbox.
pub(crate) const MAX_UNCLOSED: usize = 1024;

/// How long a guest may take to answer what it answers at once.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests on their way to a guest that does not read them.
const OUTBOX: usize = 64;

/// What an event costs us besides its body.
const EVENT_OVERHEAD: usize = 256;

/// What a guest answers.
#[derive(Debug)]
pub struct Reply {
    pub answer: Answer,
    pub body: Vec<u8>,
    pub fds: Vec<UntrustedFd>,
    /// Instead of descriptors, from a guest that can send none.
    pub held: Vec<HeldFile>,
    /// Instead of a pipe or a socket, from such a guest.
    pub carried: Option<RelayStream>,
}

#[derive(Debug)]
pub struct Link {
    /// Whole frames only: a caller that gives up half-way must not leave half a frame behind.
    outbox: mpsc::Sender<Vec<u8>>,
    shared: Arc<LinkState>,
    next_id: AtomicU64,
    tasks: [tokio::task::JoinHandle<()>; 2],
    /// The generation of the protocol that the guest speaks.
    protocol: u32,
    /// Executions the guest knew when we connected.
    known: Vec<KnownExec>,
    /// Where the guest listens, if it does, and the nonce it wants to hear.
    address: Option<(PathBuf, String)>,
    /// Closes what the guest sends.
    closer: Closer,
    /// Reads and writes it, where it is to be read or written.
    streams: StreamThreads,
}

#[derive(Debug, Default)]
struct LinkState {
    waiting: Mutex<Waiting>,
    backlog: AtomicUsize,
    streams: Arc<Streams>,
}

#[derive(Debug, Default)]
struct Waiting {
    replies: HashMap<u64, oneshot::Sender<Result<Reply, Refusal>>>,
    events: HashMap<String, mpsc::UnboundedSender<ExecEvent>>,
    closed: bool,
}

/// Stops waiting for a reply when whoever asked does.
struct Expecting<'a> {
    shared: &'a LinkState,
    id: u64,
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        self.shared.lock().replies.remove(&self.id);
    }
}

/// Something that happened in an execution, and where it stands in the spool.
#[derive(Debug)]
pub struct ExecEvent {
    pub seq: u64,
    pub offset: u64,
    pub event: Event,
    pub body: Vec<u8>,
}

impl ExecEvent {
    fn cost(&self) -> usize {
        let words = match &self.event {
            Event::Done(outcome) => outcome.reason.as_ref().map_or(0, String::len),
            _ => 0,
        };
        self.body.len() + words + EVENT_OVERHEAD
    }
}

impl Link {
    /// Connects to the guest that listens at `socket` and knows `nonce`.
    pub async fn connect(socket: &Path, nonce: &str) -> Result<Link, RuntimeError> {
        let stream = UnixStream::connect(socket).await.map_err(RuntimeError::Connect)?;
        let socket_to_it = untrusted(stream, &Closer::default()).map_err(RuntimeError::Connect)?;
        let mut link = Link::over(socket_to_it, nonce).await?;
        link.address = Some((socket.to_owned(), nonce.to_owned()));
        Ok(link)
    }

    /// Talks to the guest at the other end of a stream, which does not block.
    pub(crate) async fn over(stream: UntrustedFd, nonce: &str) -> Result<Link, RuntimeError> {
        let closer = stream.closer().clone();
        let stream = channel::watched_untrusted(stream).map_err(RuntimeError::Connect)?;
        let stream = Arc::new(stream);
        let shared = Arc::new(LinkState::default());
        let (outbox, to_write) = mpsc::channel(OUTBOX);
        let tasks = [
            tokio::spawn(listen(Arc::clone(&stream), Arc::clone(&shared), outbox.clone())),
            tokio::spawn(write(Writer(stream), to_write)),
        ];
        let (next_id, streams) = (AtomicU64::new(1), StreamThreads::default());
        let (protocol, known, address) = (0, Vec::new(), None);
        let mut link =
            Link { outbox, shared, next_id, tasks, protocol, known, address, closer, streams };
        let hello = Call::Hello { protocol: PROTOCOL, nonce: nonce.to_owned() };
        match link.call(hello, &[]).await?.answer {
            Answer::Welcome { protocol, execs, .. } => {
                (link.protocol, link.known) = (protocol, execs);
                Ok(link)
            }
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    /// A second connection to the same guest, as a successor of ours would make it; where guests
    /// connect to us there is none.
    pub async fn again(&self) -> Result<Link, RuntimeError> {
        let (socket, nonce) = self.address.as_ref().ok_or(RuntimeError::Gone)?;
        Link::connect(socket, nonce).await
    }

    /// The generation of the protocol that the guest speaks: it may be older than this server.
    #[must_use]
    pub fn protocol(&self) -> u32 {
        self.protocol
    }

    /// The executions the guest knew when this connection was made, oldest first: what a server
    /// that comes back may join.
    #[must_use]
    pub fn known_execs(&self) -> &[KnownExec] {
        &self.known
    }

    /// Whether the guest is still there, as far as we have heard.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.shared.lock().closed
    }

    /// Ends the connection; everybody who waits is told. What the guest does then it was told before.
    pub fn close(&self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        self.shared.close();
    }

    /// Closes whatever comes from this sandbox.
    pub(crate) fn closer(&self) -> &Closer {
        &self.closer
    }

    /// The thread that may read and write what comes from this sandbox.
    pub(crate) fn stream_thread(&self) -> io::Result<Arc<StreamThread>> {
        self.streams.get()
    }

    /// One request and its answer.
    pub async fn call(&self, call: Call, body: &[u8]) -> Result<Reply, RuntimeError> {
        if self.closer.backlog() > MAX_UNCLOSED {
            self.close();
            return Err(RuntimeError::Gone);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        // Arguments, environment and code are somebody else's, and may be larger than a frame.
        let bytes = frame::try_encode(&Request { id, call }, body).map_err(|error| Refusal {
            code: RefusalCode::Invalid,
            message: format!("it is too large for a sandbox: {error}"),
        })?;
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.shared.lock();
            if waiting.closed {
                return Err(RuntimeError::Gone);
            }
            waiting.replies.insert(id, sender);
        }
        let _expecting = Expecting { shared: &self.shared, id };
        let conversation = async {
            self.outbox.send(bytes).await.map_err(|_| RuntimeError::Gone)?;
            Ok(receiver.await.map_err(|_| RuntimeError::Gone)??)
        };
        tokio::time::timeout(CALL_TIMEOUT, conversation)
            .await
            .unwrap_or(Err(RuntimeError::TimedOut(CALL_TIMEOUT.as_secs())))
    }

    /// Starts an execution and follows it.
    pub async fn exec(&self, spec: ExecSpec, body: &[u8]) -> Result<Following, RuntimeError> {
        let exec_id = spec.exec_id.clone();
        self.follow(exec_id, Call::Exec(spec), body).await
    }

    /// Follows an execution that was begun earlier, by this or another connection.
    pub async fn join(
        &self,
        exec_id: &str,
        from: u64,
        offset: u64,
    ) -> Result<Following, RuntimeError> {
        let call = Call::Join { exec_id: exec_id.to_owned(), from, offset };
        self.follow(exec_id.to_owned(), call, &[]).await
    }

    /// Connections of code in the sandbox from now on, those of an earlier connection of ours or of
    /// an earlier server excepted: they have ended. Programs inside find `certificates`, in PEM.
    pub async fn relay(&self, certificates: &[u8]) -> Result<Relay, RuntimeError> {
        if self.protocol < PROTOCOL_WITH_RELAY {
            let message = "its guest is of an earlier version, which relays no connections";
            return Err(Refusal { code: RefusalCode::Invalid, message: message.into() }.into());
        }
        let relay = self.shared.streams.want(self.outbox.clone());
        match self.call(Call::Relay, certificates).await?.answer {
            Answer::Done => Ok(relay),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    async fn follow(
        &self,
        exec_id: String,
        call: Call,
        body: &[u8],
    ) -> Result<Following, RuntimeError> {
        // Registered first: events follow the reply at once.
        let (sender, events) = mpsc::unbounded_channel();
        match self.shared.lock().events.entry(exec_id.clone()) {
            Entry::Vacant(place) => place.insert(sender),
            // Events do not say for whom they are: a second follower would rob the first.
            Entry::Occupied(_) => {
                let message = format!("execution {exec_id} is followed on this connection already");
                return Err(Refusal { code: RefusalCode::DuplicateExec, message }.into());
            }
        };
        let following = Following { exec_id, events, shared: Arc::clone(&self.shared) };
        match self.call(call, body).await?.answer {
            Answer::Started => Ok(following),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        self.shared.streams.close();
    }
}

/// The events of one execution, as they arrive.
#[derive(Debug)]
pub struct Following {
    exec_id: String,
    events: mpsc::UnboundedReceiver<ExecEvent>,
    shared: Arc<LinkState>,
}

impl Following {
    /// The next event; `None` when the link was lost before the end.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        let event = self.events.recv().await?;
        self.shared.backlog.fetch_sub(event.cost(), Ordering::Relaxed);
        Some(event)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.shared.lock().events.remove(&self.exec_id);
        self.events.close();
        while let Ok(event) = self.events.try_recv() {
            self.shared.backlog.fetch_sub(event.cost(), Ordering::Relaxed);
        }
    }
}

impl LinkState {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        // Nobody panics while holding it: the critical sections only move values.
        self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn close(&self) {
        let mut waiting = self.lock();
        waiting.closed = true;
        waiting.replies.clear();
        waiting.events.clear();
        drop(waiting);
        self.streams.close();
    }
}

/// A connection of ours as something that the other side can put descriptors into.
pub(crate) fn untrusted(stream: UnixStream, closer: &Closer) -> io::Result<UntrustedFd> {
    Ok(Untrusted::new(stream.into_std()?.into(), closer))
}

/// The guest hears when nobody writes any more.
struct Writer(Arc<AsyncFd<UntrustedFd>>);

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = channel::end_writing(self.0.get_ref());
    }
}

async fn write(writer: Writer, mut outbox: mpsc::Receiver<Vec<u8>>) {
    while let Some(bytes) = outbox.recv().await {
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            let send = |stream: &UntrustedFd| channel::send_now(stream, rest);
            match writer.0.async_io(Interest::WRITABLE, send).await {
                Ok(sent) => rest = &rest[sent..],
                Err(_) => return,
            }
        }
    }
}

async fn listen(
    stream: Arc<AsyncFd<UntrustedFd>>,
    shared: Arc<LinkState>,
    outbox: mpsc::Sender<Vec<u8>>,
) {
    // Whatever the reason, the link is over; the waiters learn it by their channels closing.
    let _ = hear(&stream, &shared, &outbox).await;
    shared.close();
}

async fn hear(
    stream: &AsyncFd<UntrustedFd>,
    shared: &LinkState,
    outbox: &mpsc::Sender<Vec<u8>>,
) -> io::Result<()> {
    let closer = stream.get_ref().closer();
    let mut decoder = Decoder::default();
    let mut buffer = vec![0; 16 * 1024];
    let mut fds = Vec::new();
    loop {
        let receive =
            |stream: &UntrustedFd| channel::recv_untrusted(stream, &mut buffer, &mut fds, closer);
        let read = stream.async_io(Interest::READABLE, receive).await?;
        if read == 0 {
            return Ok(());
        }
        decoder.push(&buffer[..read]);
        while let Some(frame) = decoder.next_frame().map_err(io::Error::other)? {
            dispatch(shared, outbox, frame, &mut fds)?;
        }
        if fds.len() > MAX_STRAY_FDS
            || closer.backlog() > MAX_UNCLOSED
            || shared.backlog.load(Ordering::Relaxed) > MAX_BACKLOG
        {
            return Err(io::Error::other("the guest exceeded its bounds"));
        }
    }
}

fn dispatch(
    shared: &LinkState,
    outbox: &mpsc::Sender<Vec<u8>>,
    frame: Frame,
    fds: &mut Vec<UntrustedFd>,
) -> io::Result<()> {
    match frame.head().map_err(io::Error::other)? {
        FromGuest::Reply { id, outcome: ReplyOutcome::Ok(answer), held, carried } => {
            let wanted: &[Kind] = match &answer {
                _ if !held.is_empty() || carried.is_some() => &[],
                Answer::File { .. } | Answer::Created { .. } | Answer::Appending => {
                    &PLAIN_FILES[..1]
                }
                Answer::Stream => &[Kind::Pipe],
                Answer::Connection | Answer::Line => &[Kind::UnixSocket],
                Answer::Files { descriptors } => PLAIN_FILES
                    .get(..*descriptors)
                    .ok_or_else(|| io::Error::other("the guest announced too many descriptors"))?,
                _ => &[],
            };
            // Checked where they arrive: nobody else has to wonder what they are.
            let right = fds.len() >= wanted.len()
                && fds.iter().zip(wanted).all(|(fd, kind)| channel::is_of_kind(fd, *kind));
            if !right {
                return Err(io::Error::other("the guest sent other descriptors than it should"));
            }
            let fds = fds.drain(..wanted.len()).collect();
            // Known before anything of it can come.
            let carried = match carried {
                Some(number) => Some(
                    shared
                        .streams
                        .take(number, outbox.clone())
                        .ok_or_else(|| io::Error::other("the guest carries more than it should"))?,
                ),
                None => None,
            };
            if let Some(waiter) = shared.lock().replies.remove(&id) {
                // Whoever asked may have given up.
                let _ = waiter.send(Ok(Reply { answer, body: frame.body, fds, held, carried }));
            }
        }
        FromGuest::Reply { id, outcome: ReplyOutcome::Err(refusal), .. } => {
            if let Some(waiter) = shared.lock().replies.remove(&id) {
                let _ = waiter.send(Err(refusal));
            }
        }
        // Nobody attaches to a terminal, or watches, here.
        FromGuest::Terminal { .. } | FromGuest::Changed(_) => {}
        FromGuest::Event { exec_id, seq, offset, event } => {
            if let Some(follower) = shared.lock().events.get(&exec_id) {
                let event = ExecEvent { seq, offset, event, body: frame.body };
                let cost = event.cost();
                if follower.send(event).is_ok() {
                    shared.backlog.fetch_add(cost, Ordering::Relaxed);
                }
            }
        }
        FromGuest::Relayed { stream, part } => shared.streams.hear(stream, &part, &frame.body),
    }
    Ok(())
}

const PLAIN_FILES: [Kind; channel::MAX_FDS] = [Kind::PlainFile; channel::MAX_FDS];
