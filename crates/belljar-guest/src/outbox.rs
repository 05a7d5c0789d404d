//! The queue for replies and events of one connection.
//!
//! A connection through standard streams carries no descriptors. There [`FdProxy`] replaces them: it
//! keeps files open, for the host to read and write by number, and relays pipes and sockets.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use belljar_proto::frame;
use belljar_proto::guest::{Answer, FromGuest, Refusal, ReplyOutcome, TableFile};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

use crate::file_table::FileTable;
use crate::host_writer::{Outgoing, ToHost};
use crate::relay::Relay;
use crate::reply::{Reply, failed};

#[derive(Debug, Clone)]
pub(crate) struct Outbox {
    sender: ToHost,
    /// Only for connections that cannot carry descriptors.
    fd_proxy: Option<FdProxy>,
}

#[derive(Debug, Clone)]
pub(crate) struct FdProxy {
    files: Rc<FileTable>,
    relay: Rc<Relay>,
}

impl Outbox {
    pub(crate) fn new(sender: ToHost, fd_proxy: Option<FdProxy>) -> Outbox {
        Outbox { sender, fd_proxy }
    }

    pub(crate) fn sender(&self) -> &ToHost {
        &self.sender
    }

    /// Files kept open for the host; `None` on connections that carry descriptors.
    pub(crate) fn file_table(&self) -> Option<&FileTable> {
        self.fd_proxy.as_ref().map(|proxy| &*proxy.files)
    }

    /// Resolves when the connection is gone.
    pub(crate) async fn closed(&self) {
        self.sender.closed().await;
    }

    /// Queues a message; false when the connection is gone.
    pub(crate) async fn send(&self, message: &FromGuest, body: &[u8]) -> bool {
        let bytes = frame::encode(message, body);
        self.sender.send(Outgoing { bytes, fds: Vec::new() }).await.is_ok()
    }

    /// Queues the reply to request `id`; false when the connection is gone.
    pub(crate) async fn reply(&self, id: u64, outcome: Result<Reply, Refusal>) -> bool {
        let (outcome, body, fds) = match outcome {
            Ok(reply) => (ReplyOutcome::Ok(reply.answer), reply.body, reply.fds),
            Err(refusal) => (ReplyOutcome::Err(refusal), Vec::new(), Vec::new()),
        };
        let Some(proxy) = self.fd_proxy.as_ref().filter(|_| !fds.is_empty()) else {
            let head = FromGuest::Reply { id, outcome, files: Vec::new(), relayed: None };
            let bytes = frame::encode(&head, &body);
            return self.sender.send(Outgoing { bytes, fds }).await.is_ok();
        };
        // The reply is queued at once, and so before any bytes of a relayed stream.
        let message = match proxy.replace(&outcome, fds, &self.sender) {
            Ok((files, relayed)) => FromGuest::Reply { id, outcome, files, relayed },
            Err(refusal) => {
                let outcome = ReplyOutcome::Err(refusal);
                FromGuest::Reply { id, outcome, files: Vec::new(), relayed: None }
            }
        };
        self.send(&message, &body).await
    }
}

impl FdProxy {
    pub(crate) fn new(relay: Rc<Relay>) -> FdProxy {
        FdProxy { files: Rc::default(), relay }
    }

    /// The numbers that a reply carries instead of descriptors.
    fn replace(
        &self,
        outcome: &ReplyOutcome,
        fds: Vec<OwnedFd>,
        sender: &ToHost,
    ) -> Result<(Vec<TableFile>, Option<u64>), Refusal> {
        match outcome {
            ReplyOutcome::Ok(answer @ (Answer::Stream | Answer::Connection)) => {
                let is_socket = *answer == Answer::Connection;
                self.relay(fds, is_socket, sender).map(|number| (Vec::new(), Some(number)))
            }
            _ => self.files.add(fds).map(|files| (files, None)),
        }
    }

    fn relay(&self, mut fds: Vec<OwnedFd>, is_socket: bool, to: &ToHost) -> Result<u64, Refusal> {
        let cannot = |error: io::Error| failed(format!("failed to relay a stream: {error}"));
        let fd = fds.pop().ok_or_else(|| failed("there is no stream to relay"))?;
        if is_socket {
            let stream = std::os::unix::net::UnixStream::from(fd);
            stream.set_nonblocking(true).map_err(cannot)?;
            let (reader, writer) = UnixStream::from_std(stream).map_err(cannot)?.into_split();
            return self.relay.give(to, reader, writer);
        }
        // A pipe: its descriptor is either for reading or for writing.
        match pipe::Receiver::from_owned_fd(fd.try_clone().map_err(cannot)?) {
            Ok(reader) => self.relay.give(to, reader, tokio::io::sink()),
            Err(_) => {
                let writer = pipe::Sender::from_owned_fd(fd).map_err(cannot)?;
                self.relay.give(to, tokio::io::empty(), writer)
            }
        }
    }
}
