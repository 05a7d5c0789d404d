//! Tests with hostile guests that send descriptors over every channel. The event loop must go on: these tests have one
//! thread, on which a watchdog ticks.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use belljar_proto::PROTOCOL;
use belljar_proto::exec::Language;
use belljar_proto::frame::{self, Decoder};
use belljar_proto::guest::{Answer, Call, FromGuest, ReplyOutcome, Request};
use belljar_proto::job::ArchiveFormat;
use belljar_sys::cgroup::Meters;
use belljar_sys::untrusted::{Closer, Untrusted};
use belljar_sys::{channel, pty};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{sleep, timeout};

use crate::link::{Link, MAX_UNCLOSED};
use crate::sandbox::{BackendHandle, Parts};
use crate::{Fixed, FreezeRequest, Handle, RuntimeError, Sandbox, SandboxSpec};

/// How long a descriptor takes to close.
const LINGER: Duration = Duration::from_secs(30);

/// How long an operation may take on a busy machine. A thread that waits for a descriptor waits for [`LINGER`].
const HELD_UP: Duration = Duration::from_secs(10);

/// How long to wait for something that never comes.
const A_WHILE: Duration = Duration::from_millis(200);

/// A socket with unsent data that takes [`LINGER`] to close. Its data is never read.
fn lingering() -> OwnedFd {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    std::mem::forget(listener.accept().unwrap());
    socket.set_nonblocking(true).unwrap();
    while socket.write(&[0; 64 * 1024]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&socket, Some(LINGER)).unwrap();
    socket.into()
}

/// A UNIX socket that holds others in its queue.
fn queue(inside: Vec<OwnedFd>) -> OwnedFd {
    let (kept, sent) = UnixStream::pair().unwrap();
    send(&kept, b"x", &inside);
    std::mem::forget(kept);
    sent.into()
}

pub(crate) fn send(to: &UnixStream, bytes: &[u8], fds: &[OwnedFd]) {
    let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    let sent = channel::send_with_fds(to, bytes, &fds);
    // The host may have closed the connection.
    assert!(sent.is_err() || sent.unwrap() == bytes.len());
}

/// A name, and a function that makes new descriptors of one kind.
pub(crate) type HostileFds = (&'static str, fn() -> Vec<OwnedFd>);

pub(crate) const KINDS: [HostileFds; 7] = [
    ("a socket", || vec![lingering()]),
    ("a socket in a queue", || vec![queue(vec![lingering()])]),
    ("a socket in a queue in a queue", || vec![queue(vec![queue(vec![lingering()])])]),
    ("many", || {
        let one = lingering();
        let mut many: Vec<OwnedFd> = (0..200).map(|_| one.try_clone().unwrap()).collect();
        many.push(one);
        many
    }),
    ("a terminal", || {
        let pty = pty::open(24, 80).unwrap();
        vec![pty.master, pty.slave]
    }),
    ("a pipe", || {
        let (reader, writer) = std::io::pipe().unwrap();
        vec![reader.into(), writer.into()]
    }),
    ("a file", || vec![tempfile::tempfile().unwrap().into()]),
];

/// Ticks for as long as the event loop goes on.
pub(crate) struct Watchdog {
    task: tokio::task::JoinHandle<()>,
    longest: Arc<Mutex<Duration>>,
}

impl Watchdog {
    pub(crate) fn start() -> Watchdog {
        let longest = Arc::<Mutex<Duration>>::default();
        let kept = Arc::clone(&longest);
        let task = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                sleep(Duration::from_millis(1)).await;
                let mut longest = kept.lock().unwrap();
                *longest = (*longest).max(begun.elapsed());
            }
        });
        Watchdog { task, longest }
    }

    /// Checks that the event loop was never blocked.
    pub(crate) async fn content(self, what: &str) {
        // Let pending work finish.
        sleep(Duration::from_millis(20)).await;
        self.task.abort();
        let longest = *self.longest.lock().unwrap();
        assert!(longest < HELD_UP, "{what}: the event loop was blocked for {longest:?}");
    }
}

fn answer(request: &Request, answer: Answer) -> Vec<u8> {
    let (outcome, files, relayed) = (ReplyOutcome::Ok(answer), Vec::new(), None);
    frame::encode(&FromGuest::Reply { id: request.id, outcome, files, relayed }, &[])
}

/// A guest that answers every call with `act`, until the host disconnects.
fn guest(act: impl Fn(&UnixStream, &Request) + Send + 'static) -> UnixStream {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    thread::spawn(move || {
        let (mut decoder, mut buffer) = (Decoder::default(), vec![0; 16 * 1024]);
        while let Ok(read @ 1..) = theirs.read(&mut buffer) {
            decoder.push(&buffer[..read]);
            while let Some(frame) = decoder.next_frame().unwrap() {
                let request: Request = frame.head().unwrap();
                if let Call::Hello { .. } = request.call {
                    let (protocol, version, execs) = (PROTOCOL, "0".into(), Vec::new());
                    let welcome = Answer::Welcome { protocol, version, execs };
                    send(&theirs, &answer(&request, welcome), &[]);
                } else {
                    act(&theirs, &request);
                }
            }
        }
    });
    ours.set_nonblocking(true).unwrap();
    ours
}

/// A backend that does nothing: only the guest matters.
#[derive(Debug)]
struct NoBackend;

#[async_trait]
impl BackendHandle for NoBackend {
    async fn fork_python(
        &self,
        _: &Link,
        _: &[(String, String)],
        _: &str,
    ) -> Option<Result<(), RuntimeError>> {
        None
    }

    fn may_reopen(&self) -> bool {
        false
    }

    fn meters(&self) -> Option<&Meters> {
        None
    }

    async fn ended(&self) {}

    fn kill(&self) {}
}

async fn sandbox(act: impl Fn(&UnixStream, &Request) + Send + 'static) -> Sandbox {
    let socket = Untrusted::new(OwnedFd::from(guest(act)), &Closer::default());
    let link = Link::over(socket, "nonce").await.unwrap();
    let handle = Handle {
        name: "hostile".into(),
        pid: 0,
        started: 0,
        nonce: "nonce".into(),
        block: None,
        container: None,
    };
    let (spec, backend) = (SandboxSpec::default(), Box::new(NoBackend));
    Sandbox::assemble(Parts { handle, spec, env: Vec::new(), python: Vec::new(), link, backend })
}

#[tokio::test]
async fn unexpected_descriptors() {
    for (kind, make) in KINDS {
        let watchdog = Watchdog::start();
        let there = sandbox(move |host, request| {
            send(host, &answer(request, Answer::Done), &make());
        });
        let there = there.await;
        for _ in 0..3 {
            let _ = timeout(A_WHILE, there.make_directory(b"/session/a")).await;
        }
        drop(there);
        watchdog.content(kind).await;
    }
}

#[tokio::test]
async fn descriptors_that_are_something_else() {
    for (kind, make) in KINDS {
        let watchdog = Watchdog::start();
        // The host disconnects after the first wrong descriptor, so each call needs a new guest.
        let there = || {
            sandbox(move |host, request| {
                let right = match request.call {
                    Call::OpenPath { .. } => Answer::File { size: 1 },
                    Call::CreateFile { .. } => Answer::Created { temporary: "t".into() },
                    Call::AppendFile { .. } => Answer::Appending,
                    Call::Pack { .. } | Call::Unpack { .. } => Answer::Stream,
                    Call::LoadKernel { .. } => Answer::SnapshotSocket,
                    _ => Answer::Connection,
                };
                send(host, &answer(request, right), &make());
            })
        };
        let _ = timeout(A_WHILE, there().await.open_path(b"/session/a")).await;
        let _ = timeout(A_WHILE, there().await.create_file("/session", b"a")).await;
        let _ = timeout(A_WHILE, there().await.append_file(b"/session/a", 0o644)).await;
        let _ = timeout(A_WHILE, there().await.pack(b"/session", ArchiveFormat::Tar)).await;
        let _ = timeout(A_WHILE, there().await.unpack(b"/session", ArchiveFormat::Tar)).await;
        let _ = timeout(A_WHILE, there().await.watch_files(b"/session", true)).await;
        let load = Call::LoadKernel { language: Language::Python, argv: Vec::new() };
        let _ = timeout(A_WHILE, there().await.link().call(load, &[])).await;
        watchdog.content(kind).await;
    }
}

#[tokio::test]
async fn what_is_left_in_the_queue_of_a_link() {
    for (kind, make) in KINDS {
        let watchdog = Watchdog::start();
        let ((go, going), (sent, sending)) = (mpsc::channel(), mpsc::channel());
        let there = sandbox(move |host, _| {
            going.recv().unwrap();
            send(host, b"x", &make());
            send(host, b"y", &make());
            sent.send(()).unwrap();
        });
        let there = there.await;
        assert!(timeout(A_WHILE, there.make_directory(b"/session/a")).await.is_err());
        // From here on the event loop has no time to read, until the link is dropped.
        go.send(()).unwrap();
        sending.recv_timeout(HELD_UP / 2).unwrap();
        drop(there);
        watchdog.content(kind).await;
    }
}

#[tokio::test]
async fn descriptors_on_the_connection_of_a_watch_or_a_terminal() {
    for (kind, make) in KINDS {
        let watchdog = Watchdog::start();
        let there = sandbox(move |host, request| {
            let (ours, theirs) = UnixStream::pair().unwrap();
            // In the queue before the first read, with a correct answer.
            let zero = Request { id: 0, call: Call::Connect };
            send(&ours, &answer(&zero, Answer::Started), &make());
            send(&ours, b"y", &make());
            // It blocks, and stays open.
            std::mem::forget(ours);
            send(host, &answer(request, Answer::Connection), &[theirs.into()]);
        });
        let there = there.await;
        let watched = timeout(A_WHILE, there.watch_files(b"/session", true)).await;
        let attached = timeout(A_WHILE, there.attach_terminal("t", None)).await;
        if let Ok(Ok(mut changes)) = watched {
            let _ = timeout(A_WHILE, changes.next()).await;
        }
        drop(attached);
        drop(there);
        watchdog.content(kind).await;
    }
}

/// Makes a descriptor blocking again and again.
fn keep_blocking(fd: &OwnedFd) {
    let fd = UnixStream::from(fd.try_clone().unwrap());
    thread::spawn(move || {
        let begun = Instant::now();
        while begun.elapsed() < LINGER {
            // This call works for pipes too.
            fd.set_nonblocking(false).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    });
}

#[tokio::test]
async fn pipes_and_sockets_that_block() {
    let watchdog = Watchdog::start();
    let there = sandbox(|host, request| {
        let (reader, writer) = std::io::pipe().unwrap();
        let (reader, writer) = (OwnedFd::from(reader), OwnedFd::from(writer));
        let (sent, kept) = match request.call {
            Call::Pack { .. } => (reader, writer),
            Call::Unpack { .. } => (writer, reader),
            _ => {
                let (ours, theirs) = UnixStream::pair().unwrap();
                (theirs.into(), ours.into())
            }
        };
        keep_blocking(&sent);
        let right = match request.call {
            Call::Connect => Answer::Connection,
            _ => Answer::Stream,
        };
        if let Call::Pack { .. } = request.call {
            let mut some = std::fs::File::from(kept.try_clone().unwrap());
            // A byte now and then, so that the host tries to read more.
            thread::spawn(move || {
                while some.write_all(b"x").is_ok() {
                    thread::sleep(Duration::from_millis(7));
                }
            });
        }
        std::mem::forget(kept);
        send(host, &answer(request, right), &[sent]);
    });
    let there = there.await;
    let (_, mut packed) = there.pack(b"/session", ArchiveFormat::Tar).await.unwrap();
    let mut bytes = [0; 1024];
    for _ in 0..10 {
        assert_eq!(timeout(HELD_UP, packed.read(&mut bytes[..1])).await.unwrap().unwrap(), 1);
    }
    let (_, mut unpacked) = there.unpack(b"/session", ArchiveFormat::Tar).await.unwrap();
    // More than fits into the pipe, which is never read.
    let full = timeout(A_WHILE, unpacked.write_all(&vec![0; 1 << 20])).await;
    assert!(full.is_err(), "{full:?}");
    assert!(timeout(A_WHILE, there.watch_files(b"/session", true)).await.is_err());
    // Its other streams go on.
    assert_eq!(timeout(HELD_UP, packed.read(&mut bytes[..1])).await.unwrap().unwrap(), 1);
    drop((packed, unpacked, there));
    watchdog.content("what blocks").await;
}

#[tokio::test]
async fn archives_come_and_go_whole() {
    let (taken, all) = mpsc::channel();
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| (number % 251) as u8).collect();
    let packed = content.clone();
    let there = sandbox(move |host, request| {
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        let sent: OwnedFd = match request.call {
            Call::Pack { .. } => {
                let packed = packed.clone();
                thread::spawn(move || writer.write_all(&packed));
                reader.into()
            }
            _ => {
                let taken = taken.clone();
                thread::spawn(move || {
                    let mut unpacked = Vec::new();
                    reader.read_to_end(&mut unpacked).unwrap();
                    taken.send(unpacked).unwrap();
                });
                writer.into()
            }
        };
        send(host, &answer(request, Answer::Stream), &[sent]);
    });
    let there = there.await;
    let (_, mut pipe) = there.pack(b"/session", ArchiveFormat::Tar).await.unwrap();
    let mut got = Vec::new();
    pipe.read_to_end(&mut got).await.unwrap();
    assert!(got == content, "{} bytes of {}", got.len(), content.len());
    let (_, mut pipe) = there.unpack(b"/session", ArchiveFormat::Tar).await.unwrap();
    pipe.write_all(&content).await.unwrap();
    drop(pipe);
    let arrived = tokio::task::spawn_blocking(move || all.recv_timeout(HELD_UP)).await.unwrap();
    assert!(arrived.unwrap() == content, "what was written before it was dropped arrives");
}

#[tokio::test]
async fn descriptors_on_the_line_of_a_kernel() {
    for (kind, make) in KINDS {
        let watchdog = Watchdog::start();
        let there = sandbox(move |host, request| {
            let (ours, theirs) = channel::packet_pair().unwrap();
            let fds = make();
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            channel::send_with_fds(&ours, br#"{"refused": ["no"]}"#, &fds).unwrap();
            std::mem::forget(ours);
            send(host, &answer(request, Answer::SnapshotSocket), &[theirs]);
        });
        let there = there.await;
        let place = tempfile::tempdir().unwrap();
        let (pages, index) = (place.path().join("pages"), place.path().join("index"));
        let how = FreezeRequest {
            layer: 1,
            pages: &pages,
            index: &index,
            before: None,
            commons: Path::new("/nonexistent"),
            meter: Arc::new(Fixed::new(1 << 20)),
            force: false,
        };
        if let Ok(answered) = timeout(A_WHILE, there.freeze(&how)).await {
            let why = answered.unwrap_err();
            assert_eq!(why.to_string(), "it answered with descriptors");
        }
        drop(there);
        watchdog.content(kind).await;
    }
}

#[tokio::test]
async fn a_sandbox_whose_descriptors_cannot_be_closed_is_left() {
    const FILES: usize = 50;
    let there = sandbox(|host, request| {
        let file = tempfile::tempfile().unwrap();
        let many: Vec<OwnedFd> = (0..FILES).map(|_| file.try_clone().unwrap().into()).collect();
        send(host, &answer(request, Answer::Files { descriptors: FILES }), &many);
    });
    let there = there.await;
    drop(Untrusted::new(lingering(), there.link().closer()));
    let mut answered = 0;
    while there.link().call(Call::OpenFiles { root: "/".into() }, &[]).await.is_ok() {
        answered += 1;
        assert!(there.link().closer().backlog() <= MAX_UNCLOSED + FILES);
    }
    assert!(answered >= MAX_UNCLOSED / FILES, "{answered}");
    assert!(!there.link().is_open());
}
