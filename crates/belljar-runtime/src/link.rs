//! The host's connection to a guest.
//!
//! One connection carries everything: replies are matched to requests by id, and events go to the follower of their
//! execution. The guest is not trusted, so the memory it can use in the host is bounded. If it exceeds a bound or breaks
//! the protocol, the link is closed and every waiting call fails.

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
    Answer, Call, FromGuest, KnownExec, Refusal, RefusalCode, ReplyOutcome, Request, TableFile,
};
use belljar_proto::{PROTOCOL, PROTOCOL_WITH_RELAY};
use belljar_sys::channel;
use belljar_sys::descriptor::{self, DescriptorKind};
use belljar_sys::untrusted::{Closer, Untrusted, UntrustedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{mpsc, oneshot};

use crate::RuntimeError;
use crate::relay::{Relay, RelayStream, Streams};
use crate::stream_thread::{StreamThread, StreamThreads};

/// Bytes of events that were received and not taken by their reader. The guest's spool of one execution is smaller, so
/// only a guest that misbehaves gets here.
const MAX_BACKLOG: usize = 256 * 1024 * 1024;

/// Descriptors that were received and belong to no reply yet.
const MAX_STRAY_FDS: usize = channel::MAX_FDS;

/// Descriptors of a sandbox that are not closed yet. Closing takes microseconds unless the sandbox makes it slow on
/// purpose; then its link is closed.
pub(crate) const MAX_UNCLOSED: usize = 1024;

/// How long a guest may take for a reply.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);

/// Requests that wait for a guest which does not read them.
const OUTBOX: usize = 64;

/// The memory of an event besides its body.
const EVENT_OVERHEAD: usize = 256;

/// A guest's reply.
#[derive(Debug)]
pub struct Reply {
    pub answer: Answer,
    pub body: Vec<u8>,
    pub fds: Vec<UntrustedFd>,
    /// Replaces descriptors of files, from a guest that can send none.
    pub files: Vec<TableFile>,
    /// Replaces a pipe or a socket, from such a guest.
    pub relayed: Option<RelayStream>,
}

#[derive(Debug)]
pub struct Link {
    /// Whole frames only: a call that is cancelled must not leave half a frame behind.
    outbox: mpsc::Sender<Vec<u8>>,
    state: Arc<LinkState>,
    next_id: AtomicU64,
    tasks: [tokio::task::JoinHandle<()>; 2],
    /// The generation of the protocol that the guest speaks.
    protocol: u32,
    /// Executions that the guest knew when we connected.
    known: Vec<KnownExec>,
    /// Where the guest listens, if it does, and its nonce.
    address: Option<(PathBuf, String)>,
    /// Closes descriptors that the guest sends.
    closer: Closer,
    /// Reads and writes pipes and sockets that the guest sends.
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

/// Removes the entry of a call that is cancelled.
struct Expecting<'a> {
    state: &'a LinkState,
    id: u64,
}

impl Drop for Expecting<'_> {
    fn drop(&mut self) {
        self.state.lock().replies.remove(&self.id);
    }
}

/// An event of an execution, with its position in the spool.
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

    /// Connects over a stream, which must be nonblocking.
    pub(crate) async fn over(stream: UntrustedFd, nonce: &str) -> Result<Link, RuntimeError> {
        let closer = stream.closer().clone();
        let stream = channel::watched_untrusted(stream).map_err(RuntimeError::Connect)?;
        let stream = Arc::new(stream);
        let state = Arc::new(LinkState::default());
        let (outbox, to_write) = mpsc::channel(OUTBOX);
        let tasks = [
            tokio::spawn(listen(Arc::clone(&stream), Arc::clone(&state), outbox.clone())),
            tokio::spawn(write(Writer(stream), to_write)),
        ];
        let (next_id, streams) = (AtomicU64::new(1), StreamThreads::default());
        let (protocol, known, address) = (0, Vec::new(), None);
        let mut link =
            Link { outbox, state, next_id, tasks, protocol, known, address, closer, streams };
        let hello = Call::Hello { protocol: PROTOCOL, nonce: nonce.to_owned() };
        match link.call(hello, &[]).await?.answer {
            Answer::Welcome { protocol, execs, .. } => {
                (link.protocol, link.known) = (protocol, execs);
                Ok(link)
            }
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }

    /// A second connection to the same guest, as a later server would make it. Fails where guests connect to the host.
    pub async fn again(&self) -> Result<Link, RuntimeError> {
        let (socket, nonce) = self.address.as_ref().ok_or(RuntimeError::Gone)?;
        Link::connect(socket, nonce).await
    }

    /// The generation of the protocol that the guest speaks: it may be older than this server.
    #[must_use]
    pub fn protocol(&self) -> u32 {
        self.protocol
    }

    /// The executions that the guest knew when this connection was made, oldest first: a restarted server may join
    /// them.
    #[must_use]
    pub fn known_execs(&self) -> &[KnownExec] {
        &self.known
    }

    /// Whether the connection to the guest is open.
    #[must_use]
    pub fn is_open(&self) -> bool {
        !self.state.lock().closed
    }

    /// Ends the connection; all waiting calls fail.
    pub fn close(&self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        self.state.close();
    }

    /// Closes the descriptors of this sandbox.
    pub(crate) fn closer(&self) -> &Closer {
        &self.closer
    }

    /// The thread that reads and writes pipes and sockets of this sandbox.
    pub(crate) fn stream_thread(&self) -> io::Result<Arc<StreamThread>> {
        self.streams.get()
    }

    /// Sends a request and waits for its reply.
    pub async fn call(&self, call: Call, body: &[u8]) -> Result<Reply, RuntimeError> {
        if self.closer.backlog() > MAX_UNCLOSED {
            self.close();
            return Err(RuntimeError::Gone);
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        // Arguments, environment and code come from users, and may be too large for a frame.
        let bytes = frame::try_encode(&Request { id, call }, body).map_err(|error| Refusal {
            code: RefusalCode::Invalid,
            message: format!("the request is too large for a sandbox: {error}"),
        })?;
        let (sender, receiver) = oneshot::channel();
        {
            let mut waiting = self.state.lock();
            if waiting.closed {
                return Err(RuntimeError::Gone);
            }
            waiting.replies.insert(id, sender);
        }
        let _expecting = Expecting { state: &self.state, id };
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

    /// Receives connections of code in the sandbox from now on. Those of an earlier link or server have ended. Programs
    /// inside find `certificates`, in PEM.
    pub async fn relay(&self, certificates: &[u8]) -> Result<Relay, RuntimeError> {
        if self.protocol < PROTOCOL_WITH_RELAY {
            let message = "the sandbox was started by an older version of Belljar, which has no network relay";
            return Err(Refusal { code: RefusalCode::Invalid, message: message.into() }.into());
        }
        let relay = self.state.streams.want(self.outbox.clone());
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
        // Registered before the call: events follow the reply at once.
        let (sender, events) = mpsc::unbounded_channel();
        match self.state.lock().events.entry(exec_id.clone()) {
            Entry::Vacant(place) => place.insert(sender),
            // Events are not addressed to a follower: a second one would take those of the first.
            Entry::Occupied(_) => {
                let message = format!("execution {exec_id} is followed on this connection already");
                return Err(Refusal { code: RefusalCode::DuplicateExec, message }.into());
            }
        };
        let following = Following { exec_id, events, state: Arc::clone(&self.state) };
        match self.call(call, body).await?.answer {
            Answer::Started => Ok(following),
            _ => Err(RuntimeError::UnexpectedAnswer),
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.tasks.iter().for_each(tokio::task::JoinHandle::abort);
        self.state.streams.close();
    }
}

/// The events of one execution, as they arrive.
#[derive(Debug)]
pub struct Following {
    exec_id: String,
    events: mpsc::UnboundedReceiver<ExecEvent>,
    state: Arc<LinkState>,
}

impl Following {
    /// The next event; `None` when the link was lost before the end.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        let event = self.events.recv().await?;
        self.state.backlog.fetch_sub(event.cost(), Ordering::Relaxed);
        Some(event)
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.state.lock().events.remove(&self.exec_id);
        self.events.close();
        while let Ok(event) = self.events.try_recv() {
            self.state.backlog.fetch_sub(event.cost(), Ordering::Relaxed);
        }
    }
}

impl LinkState {
    fn lock(&self) -> std::sync::MutexGuard<'_, Waiting> {
        // No critical section can panic: they only move values.
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

/// A connection that the other side can send descriptors through.
pub(crate) fn untrusted(stream: UnixStream, closer: &Closer) -> io::Result<UntrustedFd> {
    Ok(Untrusted::new(stream.into_std()?.into(), closer))
}

/// Ends the stream to the guest when it is dropped.
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
    state: Arc<LinkState>,
    outbox: mpsc::Sender<Vec<u8>>,
) {
    // The link is over, for any reason; waiting calls fail because their channels close.
    let _ = receive(&stream, &state, &outbox).await;
    state.close();
}

async fn receive(
    stream: &AsyncFd<UntrustedFd>,
    state: &LinkState,
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
            dispatch(state, outbox, frame, &mut fds)?;
        }
        if fds.len() > MAX_STRAY_FDS
            || closer.backlog() > MAX_UNCLOSED
            || state.backlog.load(Ordering::Relaxed) > MAX_BACKLOG
        {
            return Err(io::Error::other("the guest exceeded its bounds"));
        }
    }
}

fn dispatch(
    state: &LinkState,
    outbox: &mpsc::Sender<Vec<u8>>,
    frame: Frame,
    fds: &mut Vec<UntrustedFd>,
) -> io::Result<()> {
    match frame.head().map_err(io::Error::other)? {
        FromGuest::Reply { id, outcome: ReplyOutcome::Ok(answer), files, relayed } => {
            let has_fds = files.is_empty() && relayed.is_none();
            let fds = if has_fds { take_fds(&answer, fds)? } else { Vec::new() };
            // Registered before any of its data can arrive.
            let relayed = match relayed {
                Some(number) => Some(
                    state
                        .streams
                        .take(number, outbox.clone())
                        .ok_or_else(|| io::Error::other("the guest relays too many streams"))?,
                ),
                None => None,
            };
            if let Some(waiter) = state.lock().replies.remove(&id) {
                // The caller may have given up.
                let _ = waiter.send(Ok(Reply { answer, body: frame.body, fds, files, relayed }));
            }
        }
        FromGuest::Reply { id, outcome: ReplyOutcome::Err(refusal), .. } => {
            if let Some(waiter) = state.lock().replies.remove(&id) {
                let _ = waiter.send(Err(refusal));
            }
        }
        // This connection follows no terminal and watches no files.
        FromGuest::Terminal { .. } | FromGuest::Changed(_) => {}
        FromGuest::Event { exec_id, seq, offset, event } => {
            if let Some(follower) = state.lock().events.get(&exec_id) {
                let event = ExecEvent { seq, offset, event, body: frame.body };
                let cost = event.cost();
                if follower.send(event).is_ok() {
                    state.backlog.fetch_add(cost, Ordering::Relaxed);
                }
            }
        }
        FromGuest::Relayed { stream, part } => state.streams.receive(stream, &part, &frame.body),
    }
    Ok(())
}

/// Takes the descriptors of a reply. Their kinds are checked here, so that no user of a reply has to.
fn take_fds(answer: &Answer, fds: &mut Vec<UntrustedFd>) -> io::Result<Vec<UntrustedFd>> {
    let wanted: &[DescriptorKind] = match answer {
        Answer::File { .. } | Answer::Created { .. } | Answer::Appending => &PLAIN_FILES[..1],
        Answer::Stream => &[DescriptorKind::Pipe],
        Answer::Connection | Answer::SnapshotSocket => &[DescriptorKind::UnixSocket],
        Answer::Files { descriptors } => PLAIN_FILES
            .get(..*descriptors)
            .ok_or_else(|| io::Error::other("the guest announced too many descriptors"))?,
        _ => &[],
    };
    let are_right = fds.len() >= wanted.len()
        && fds.iter().zip(wanted).all(|(fd, kind)| descriptor::is_of_kind(fd, *kind));
    if !are_right {
        return Err(io::Error::other("the guest sent the wrong descriptors"));
    }
    Ok(fds.drain(..wanted.len()).collect())
}

const PLAIN_FILES: [DescriptorKind; channel::MAX_FDS] =
    [DescriptorKind::PlainFile; channel::MAX_FDS];
