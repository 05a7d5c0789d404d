//! What is sent with a request: all of it at once, or a file piece by piece.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use http_body_util::Full;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use tokio::sync::mpsc::Receiver;

#[derive(Debug)]
pub(crate) enum Outgoing {
    Whole(Full<Bytes>),
    Pieces(Pieces),
}

/// Bytes that somebody else reads, as fast as the server takes them.
pub(crate) struct Pieces {
    from: Receiver<io::Result<Bytes>>,
    length: Option<u64>,
    /// Until the server wants them. One that refuses a file without reading it closes the connection,
    /// and what is under way then would destroy its answer.
    wanted: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// Handed to the connection so far; whoever shows the progress looks at it.
    taken: Arc<AtomicU64>,
}

impl Pieces {
    /// With a `length`, exactly that many bytes must come.
    pub(crate) fn new(from: Receiver<io::Result<Bytes>>, length: Option<u64>) -> Pieces {
        Pieces { from, length, wanted: None, taken: Arc::default() }
    }

    /// Sends nothing before `wanted` is over.
    pub(super) fn wait_for(&mut self, wanted: impl Future<Output = ()> + Send + 'static) {
        self.wanted = Some(Box::pin(wanted));
    }

    pub(crate) fn taken(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.taken)
    }
}

impl fmt::Debug for Pieces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pieces").field("length", &self.length).finish_non_exhaustive()
    }
}

impl Body for Outgoing {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Outgoing::Whole(whole) => {
                Pin::new(whole).poll_frame(context).map_err(|never| match never {})
            }
            Outgoing::Pieces(pieces) => {
                if let Some(wanted) = &mut pieces.wanted {
                    ready!(wanted.as_mut().poll(context));
                    pieces.wanted = None;
                }
                pieces.from.poll_recv(context).map(|piece| {
                    let bytes = match piece? {
                        Ok(bytes) => bytes,
                        Err(error) => return Some(Err(error)),
                    };
                    pieces.taken.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                    Some(Ok(Frame::data(bytes)))
                })
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Outgoing::Whole(whole) => whole.is_end_stream(),
            Outgoing::Pieces(pieces) => pieces.length == Some(pieces.taken.load(Ordering::Relaxed)),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Outgoing::Whole(whole) => whole.size_hint(),
            Outgoing::Pieces(pieces) => match pieces.length {
                Some(length) => {
                    let taken = pieces.taken.load(Ordering::Relaxed);
                    SizeHint::with_exact(length.saturating_sub(taken))
                }
                None => SizeHint::default(),
            },
        }
    }
}
