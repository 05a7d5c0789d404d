//! An S3 server for tests, behind a proxy that can be slow, fail, refuse, and cut answers off.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, combinators::BoxBody};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::{Request, Response, StatusCode, service::service_fn};
use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::{TcpListener, TcpStream};

pub const BUCKET: &str = "belljar-test";
pub const KEY_ID: &str = "test-key-id";
pub const SECRET: &str = "test-secret-key";

type S3Answer = Response<BoxBody<Bytes, std::io::Error>>;

/// A server with one empty bucket. It ends when this is dropped.
pub struct S3Server {
    address: SocketAddr,
    directory: tempfile::TempDir,
    faults: Arc<Faults>,
    runtime: Option<tokio::runtime::Runtime>,
}

/// What the proxy does to requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Waits before it forwards the request.
    Slow(Duration),
    /// Answers with this status.
    Status(u16),
    /// Answers 403, as for a wrong key.
    Refuse,
    /// Closes the connection after this many bytes of the answer's body.
    Cut(u64),
    /// Closes the connection without an answer.
    Drop,
}

#[derive(Default)]
struct Faults {
    /// The fault, the number of requests that still get it, and the method that they must have.
    next: Mutex<Option<(Fault, usize, Option<&'static str>)>>,
    requests: Mutex<Vec<String>>,
}

impl S3Server {
    pub fn start() -> S3Server {
        let directory = tempfile::tempdir().expect("a directory");
        std::fs::create_dir(directory.path().join(BUCKET)).expect("a bucket");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let (root, faults) = (directory.path().to_owned(), Arc::<Faults>::default());
        let (handle, seen) = (runtime.handle().clone(), Arc::clone(&faults));
        // On a thread of its own, because the caller may be in a runtime.
        let starting = std::thread::spawn(move || {
            handle.block_on(async { proxy(serve(root).await, seen).await })
        });
        let address = starting.join().expect("it starts");
        S3Server { address, directory, faults, runtime: Some(runtime) }
    }

    /// For `AWS_ENDPOINT_URL`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// For `BELLJAR_BLOBS_URL`.
    pub fn url(&self) -> String {
        format!("s3://{BUCKET}/prefix")
    }

    /// The settings of a Belljar that uses this server.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        vec![
            ("BELLJAR_BLOBS_URL", self.url()),
            ("AWS_ENDPOINT_URL", self.endpoint()),
            ("AWS_REGION", "us-east-1".into()),
            ("AWS_ACCESS_KEY_ID", KEY_ID.into()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.into()),
        ]
    }

    /// The file with the content of an object, which a test may change.
    pub fn file(&self, key: &str) -> PathBuf {
        self.directory.path().join(BUCKET).join("prefix").join(key)
    }

    /// The next `times` requests get this fault.
    pub fn fail(&self, fault: Fault, times: usize) {
        *self.faults.next.lock().expect("not poisoned") = Some((fault, times, None));
    }

    /// The next `times` requests with this method get this fault.
    pub fn fail_method(&self, method: &'static str, fault: Fault, times: usize) {
        *self.faults.next.lock().expect("not poisoned") = Some((fault, times, Some(method)));
    }

    pub fn recover(&self) {
        *self.faults.next.lock().expect("not poisoned") = None;
    }

    /// Method and path of the requests since the last call.
    pub fn requests(&self) -> Vec<String> {
        std::mem::take(&mut *self.faults.requests.lock().expect("not poisoned"))
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Faults {
    fn take(&self, request: &Request<Incoming>) -> Option<Fault> {
        let noted = format!("{} {}", request.method(), request.uri());
        self.requests.lock().expect("not poisoned").push(noted);
        let mut next = self.next.lock().expect("not poisoned");
        let (fault, times, method) = next.as_mut()?;
        if *times == 0 || method.is_some_and(|method| method != request.method()) {
            return None;
        }
        *times -= 1;
        Some(*fault)
    }
}

async fn serve(root: PathBuf) -> SocketAddr {
    let files = FileSystem::new(root).expect("a directory of buckets");
    let mut builder = S3ServiceBuilder::new(files);
    builder.set_auth(SimpleAuth::from_single(KEY_ID, SECRET));
    let service = builder.build();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = service.clone();
            tokio::spawn(async move {
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(stream), service).await;
            });
        }
    });
    address
}

/// Forwards requests to `upstream`, with faults.
async fn proxy(upstream: SocketAddr, faults: Arc<Faults>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let faults = Arc::clone(&faults);
            tokio::spawn(async move {
                let answer = service_fn(|request| answer(request, upstream, &faults));
                let http = hyper::server::conn::http1::Builder::new();
                let _ = http.serve_connection(TokioIo::new(stream), answer).await;
            });
        }
    });
    address
}

async fn answer(
    request: Request<Incoming>,
    upstream: SocketAddr,
    faults: &Faults,
) -> std::io::Result<S3Answer> {
    match faults.take(&request) {
        None => forward(request, upstream, None).await,
        Some(Fault::Slow(pause)) => {
            tokio::time::sleep(pause).await;
            forward(request, upstream, None).await
        }
        Some(Fault::Cut(bytes)) => forward(request, upstream, Some(bytes)).await,
        Some(Fault::Drop) => Err(std::io::Error::other("the proxy closes the connection")),
        Some(Fault::Status(status)) => Ok(refusal(status, "InternalError")),
        Some(Fault::Refuse) => Ok(refusal(403, "SignatureDoesNotMatch")),
    }
}

fn refusal(status: u16, code: &str) -> S3Answer {
    let text =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>no</Message></Error>");
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed());
    *answer.status_mut() = StatusCode::from_u16(status).expect("a status");
    answer
}

async fn forward(
    request: Request<Incoming>,
    upstream: SocketAddr,
    cut: Option<u64>,
) -> std::io::Result<S3Answer> {
    let stream = TcpStream::connect(upstream).await?;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(std::io::Error::other)?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(std::io::Error::other)?;
    Ok(answer.map(|body| match cut {
        None => body.map_err(std::io::Error::other).boxed(),
        Some(bytes) => CutBody { size: body.size_hint(), body, left: bytes }.boxed(),
    }))
}

/// A body that fails after some bytes. Its declared length is that of the whole.
struct CutBody {
    size: SizeHint,
    body: Incoming,
    left: u64,
}

impl Body for CutBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        use std::task::Poll;
        if self.left == 0 {
            return Poll::Ready(Some(Err(std::io::Error::other("the proxy cuts the answer off"))));
        }
        match std::pin::Pin::new(&mut self.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let Ok(mut data) = frame.into_data() else { return Poll::Ready(None) };
                let keep = usize::try_from(self.left).unwrap_or(usize::MAX).min(data.len());
                self.left -= keep as u64;
                Poll::Ready(Some(Ok(Frame::data(data.split_to(keep)))))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(std::io::Error::other(error)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.size
    }
}
