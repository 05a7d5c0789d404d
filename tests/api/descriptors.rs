//! A kernel controlled by hostile code sends descriptors to the server: other sessions are not
//! delayed.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::sync::oneshot;

use belljar_testkit::client::Client;
use belljar_testkit::server::Server;

/// How long the close of a socket blocks, if `SO_LINGER` is set.
const LINGER: Duration = Duration::from_secs(15);

/// No answer may take this long, even on a busy test machine. A server that waits for a descriptor
/// waits for [`LINGER`].
const HELD_UP: Duration = Duration::from_secs(5);

/// Upper bound for the median response time: a busy machine delays some answers.
const PROMPT: Duration = Duration::from_millis(50);

/// Answers the host's request with descriptors instead of doing what it asks for.
const TAKEN_OVER: &str = r#"
import array, os, pty, select, socket, struct
from belljar_kernel import snapshot

kept = []

def lingering():
    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    kept.append(listener.accept()[0])
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    try:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 15))
    except PermissionError:
        pass
    return sender.detach()

def queue(*inside):
    kept_end, sent = socket.socketpair()
    socket.send_fds(kept_end, [b"x"], inside)
    for fd in inside:
        os.close(fd)
    return sent.detach()

def memory():
    fd = os.memfd_create("large")
    os.write(fd, bytes(64 << 20))
    return fd

def events():
    poll = select.epoll()
    for _ in range(200):
        poll.register(os.eventfd(0), select.EPOLLIN)
    return os.dup(poll.fileno())

KINDS = {
    "a socket": lambda: [lingering()],
    "a socket in a queue": lambda: [queue(lingering())],
    "a socket in a queue in a queue": lambda: [queue(queue(lingering()))],
    "many sockets": lambda: [lingering() for _ in range(20)] + [os.dup(0) for _ in range(233)],
    "memory": lambda: [memory()],
    "a terminal": lambda: list(pty.openpty()),
    "pipes": lambda: list(os.pipe()),
    "events": lambda: [events()],
}

def talk(line, kernel):
    with line:
        _, files, _, _ = socket.recv_fds(line, 1 << 17, 64)
        for fd in files:
            os.close(fd)
        sent = KINDS[KIND]()
        socket.send_fds(line, [b"{}" + bytes(TOO_LONG)], sent)
        for fd in sent:
            os.close(fd)

snapshot.talk = talk
"#;

const KINDS: [&str; 8] = [
    "a socket",
    "a socket in a queue",
    "a socket in a queue in a queue",
    "many sockets",
    "memory",
    "a terminal",
    "pipes",
    "events",
];

#[tokio::test]
async fn no_message_of_a_kernel_delays_other_sessions() {
    let server = Server::start().await;
    let mut taken_over = Vec::new();
    for (number, kind) in KINDS.iter().enumerate() {
        let session = server.session().await;
        // Some also send more than one packet holds.
        let too_long = if number % 2 == 0 { 0 } else { 140_000 };
        let code = format!("KIND, TOO_LONG = {kind:?}, {too_long}\n{TAKEN_OVER}");
        let ready = session.python(&code).await;
        assert_eq!(ready["status"], "ok", "{ready:#}");
        taken_over.push(session);
    }
    let (stop, stopped) = oneshot::channel();
    let watching = tokio::spawn(watch(server.client(), stopped));
    // All at once: if each blocked a worker, none would be left.
    let asked: Vec<_> = taken_over
        .iter()
        .map(|session| {
            let (client, path) = (session.client.clone(), session.path("/hibernate"));
            tokio::spawn(async move { client.post(&path, json!({})).await })
        })
        .collect();
    for (asked, kind) in asked.into_iter().zip(KINDS) {
        let answer = asked.await.expect("an answer");
        assert!(answer.status >= 400, "{kind}: {}", answer.status);
    }
    // Descriptors that close late are closed by now.
    for session in &taken_over {
        session.stop().await;
    }
    let _ = stop.send(());
    let mut waited = watching.await.expect("a watchdog");
    waited.sort();
    let (median, longest) = (waited[waited.len() / 2], waited[waited.len() - 1]);
    println!("/healthz, {} times: median {median:?}, longest {longest:?}", waited.len());
    assert!(longest < HELD_UP, "somebody waited {longest:?} of {LINGER:?}");
    assert!(median < PROMPT, "the median is {median:?}");
    server.installation.has_no_traces().await;
}

/// Response times of another client.
async fn watch(client: Client, mut stopped: oneshot::Receiver<()>) -> Vec<Duration> {
    let mut waited = Vec::new();
    while stopped.try_recv().is_err() {
        let begun = Instant::now();
        assert_eq!(client.get("/healthz").await.status, 200);
        waited.push(begun.elapsed());
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    waited
}
