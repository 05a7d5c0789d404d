//! The proxy between a real listener for clients and a node with mutual TLS.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse as _;
use axum::routing::{any, get};
use belljar_api::listen::{self, Listener, Tls};
use belljar_engine::store::{NodeLoad, NodeRow, NodeState};
use http_body_util::{BodyExt as _, StreamBody};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::*;
use crate::tls::{ClusterTls, Role, create_authority};

const LIMIT: Duration = Duration::from_secs(20);

struct Cluster {
    gateway: SocketAddr,
    node: SocketAddr,
    nodes: Arc<Nodes>,
    /// Ends the listeners when dropped.
    _stop: watch::Sender<bool>,
}

#[derive(Clone)]
struct Passing {
    clients: Arc<Clients>,
    nodes: Arc<Nodes>,
    node: NodeAddress,
}

fn row(address: SocketAddr, state: NodeState) -> NodeRow {
    NodeRow {
        id: "n1".to_owned(),
        epoch: 1,
        address: address.to_string(),
        class: String::new(),
        state,
        capacity: NodeLoad::default(),
        used: NodeLoad::default(),
        lease_left_ms: 1000,
    }
}

async fn serve(router: Router, tls: Option<Tls>, stop: &watch::Sender<bool>) -> SocketAddr {
    let listener = Listener::tcp("127.0.0.1:0", tls).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(listen::serve(listener, router, stop.subscribe(), LIMIT, LIMIT));
    address
}

impl Cluster {
    /// A gateway before a node with these routes. `wanted` is the id that the gateway expects of it.
    async fn start(routes: Router, wanted: &str) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let (ca, key) = (directory.path().join("ca.pem"), directory.path().join("ca.key"));
        let (certificate, private) = create_authority().unwrap();
        std::fs::write(&ca, certificate).unwrap();
        std::fs::write(&key, private).unwrap();
        let tls = |role| ClusterTls::load(&ca, &key, &role).unwrap();
        let stop = watch::Sender::new(false);
        let node_tls = Tls::new(tls(Role::Node("n1".to_owned())).server);
        let node = serve(routes, Some(node_tls), &stop).await;
        let nodes = Arc::new(Nodes::default());
        nodes.set(vec![
            row(node, NodeState::Ready),
            NodeRow { id: "n2".into(), ..row(node, NodeState::Ready) },
        ]);
        let passing = Passing {
            clients: Arc::new(Clients::new(tls(Role::Gateway).client)),
            nodes: Arc::clone(&nodes),
            node: NodeAddress { id: wanted.to_owned(), address: node.to_string() },
        };
        let gateway = serve(Router::new().fallback(pass).with_state(passing), None, &stop).await;
        Cluster { gateway, node, nodes, _stop: stop }
    }

    fn lose_node(&self) {
        self.nodes.set(vec![row(self.node, NodeState::Lost)]);
    }

    async fn request(&self, method: &str, path: &str, body: Body) -> Response<Incoming> {
        let client: Client<HttpConnector, Body> =
            Client::builder(TokioExecutor::new()).build(HttpConnector::new());
        let request = Request::builder()
            .method(method)
            .uri(format!("http://{}{path}", self.gateway))
            .body(body)
            .unwrap();
        tokio::time::timeout(LIMIT, client.request(request)).await.unwrap().unwrap()
    }

    async fn text(&self, method: &str, path: &str, body: Body) -> (u16, String) {
        let answer = self.request(method, path, body).await;
        let status = answer.status().as_u16();
        let bytes = answer.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(bytes.to_vec()).unwrap())
    }
}

async fn pass(State(passing): State<Passing>, request: Request) -> Response {
    let (outgoing, body) = Outgoing::new(request);
    let mut outgoing = outgoing.with(Payload::Stream(Some(body)));
    match send(&passing.clients, &passing.nodes, &passing.node, &mut outgoing).await {
        Ok(found) => answer(found, &passing.nodes, &passing.node, outgoing),
        Err(ProxyError::Unreachable { .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, "unreachable").into_response()
        }
        Err(ProxyError::Broken { .. }) => (StatusCode::BAD_GATEWAY, "broken").into_response(),
        Err(ProxyError::Lost { .. }) => (StatusCode::BAD_GATEWAY, "lost").into_response(),
        Err(ProxyError::Sent) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// A body whose parts the test sends one by one.
fn parts() -> (tokio::sync::mpsc::Sender<&'static str>, Body) {
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<&'static str>(1);
    let stream = futures_stream(move |context| receiver.poll_recv(context));
    (sender, Body::new(StreamBody::new(stream)))
}

/// A stream of frames from a poll function.
fn futures_stream(
    poll: impl FnMut(&mut Context<'_>) -> Poll<Option<&'static str>> + Unpin + Send + 'static,
) -> impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>> + Send {
    let mut poll = poll;
    futures_util::stream::poll_fn(move |context| {
        poll(context)
            .map(|part| part.map(|part| Ok(Frame::data(Bytes::from_static(part.as_bytes())))))
    })
}

#[tokio::test]
async fn requests_and_answers_pass_with_their_headers() {
    async fn show(request: Request) -> Response {
        let shown = format!(
            "{} {} {:?} {:?}",
            request.method(),
            request.uri(),
            request.headers().get("x-forwarded-for"),
            request.headers().get("connection"),
        );
        ([("x-own", "1"), ("content-range", "bytes 0-1/2")], shown).into_response()
    }
    let cluster = Cluster::start(Router::new().fallback(show), "n1").await;
    let answer = cluster.request("GET", "/a%2Fb?c=d%20e", Body::empty()).await;
    assert_eq!(answer.headers()["x-own"], "1");
    assert_eq!(answer.headers()["content-range"], "bytes 0-1/2");
    assert_eq!(answer.headers()["belljar-node"], "n1");
    let text = answer.into_body().collect().await.unwrap().to_bytes();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(text, "GET /a%2Fb?c=d%20e Some(\"127.0.0.1\") None");
    let (status, body) = cluster.text("HEAD", "/", Body::empty()).await;
    assert_eq!((status, body.as_str()), (200, ""));
}

#[tokio::test]
async fn both_bodies_are_streamed() {
    let routes = Router::new().fallback(any(async |body: Body| body));
    let cluster = Cluster::start(routes, "n1").await;
    let (sender, body) = parts();
    sender.send("first").await.unwrap();
    let answer = cluster.request("POST", "/echo", body).await;
    let mut body = answer.into_body();
    let mut next = async || {
        let frame = tokio::time::timeout(LIMIT, body.frame()).await.unwrap();
        frame.map(|frame| frame.unwrap().into_data().unwrap())
    };
    assert_eq!(next().await.unwrap(), "first", "it passes before the request has ended");
    sender.send("second").await.unwrap();
    assert_eq!(next().await.unwrap(), "second");
    drop(sender);
    assert_eq!(next().await, None);
}

#[tokio::test]
async fn a_change_of_protocol_passes_bytes_in_both_directions() {
    async fn echo(mut request: Request) -> Response {
        let upgrade = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut stream = TokioIo::new(upgrade.await.unwrap());
            let mut byte = [0];
            while stream.read_exact(&mut byte).await.is_ok() {
                stream.write_all(&[byte[0] + 1]).await.unwrap();
            }
        });
        let headers = [("connection", "upgrade"), ("upgrade", "counting")];
        (StatusCode::SWITCHING_PROTOCOLS, headers).into_response()
    }
    let cluster = Cluster::start(Router::new().route("/up", get(echo)), "n1").await;
    let mut stream = TcpStream::connect(cluster.gateway).await.unwrap();
    let asking = "GET /up HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: counting\r\n\r\n";
    stream.write_all(asking.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    assert!(head.to_lowercase().contains("upgrade: counting"), "{head}");
    for byte in [1, 7, 41] {
        stream.write_u8(byte).await.unwrap();
        assert_eq!(stream.read_u8().await.unwrap(), byte + 1);
    }
    cluster.lose_node();
    assert!(stream.read_u8().await.is_err(), "it ends with the lease of its node");
}

#[tokio::test]
async fn a_client_that_leaves_cancels_the_request() {
    let (gone, mut seen) = watch::channel(false);
    struct Notes(watch::Sender<bool>);
    impl Drop for Notes {
        fn drop(&mut self) {
            self.0.send_replace(true);
        }
    }
    let hang = move || {
        let notes = Notes(gone.clone());
        async move {
            let _notes = notes;
            std::future::pending::<()>().await;
        }
    };
    let cluster = Cluster::start(Router::new().route("/hang", get(hang)), "n1").await;
    let mut stream = TcpStream::connect(cluster.gateway).await.unwrap();
    stream.write_all(b"GET /hang HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!*seen.borrow());
    drop(stream);
    tokio::time::timeout(LIMIT, seen.wait_for(|gone| *gone)).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_node_that_hangs_is_given_up_with_its_lease() {
    let hang = async || std::future::pending::<()>().await;
    let (sender, body) = parts();
    let stream = std::sync::Mutex::new(Some(body));
    let stream = Arc::new(stream);
    let routes = Router::new().route("/hang", get(hang)).route(
        "/stream",
        get(move || {
            let body = stream.lock().unwrap().take().unwrap();
            async move { body }
        }),
    );
    let cluster = Cluster::start(routes, "n1").await;
    sender.send("event").await.unwrap();
    let mut streaming = cluster.request("GET", "/stream", Body::empty()).await.into_body();
    assert_eq!(streaming.frame().await.unwrap().unwrap().into_data().unwrap(), "event");
    let asking = cluster.text("GET", "/hang", Body::empty());
    let losing = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.lose_node();
    };
    let (answer, ()) = tokio::join!(asking, losing);
    assert_eq!(answer, (502, "lost".to_owned()));
    let end = tokio::time::timeout(LIMIT, streaming.frame()).await.unwrap();
    assert!(end.unwrap().is_err(), "a stream does not end as if it were complete");
}

#[tokio::test]
async fn a_node_with_another_id_or_none_is_not_sent_anything() {
    let cluster = Cluster::start(Router::new().fallback(async || "secret"), "n2").await;
    let answer = cluster.text("GET", "/", Body::empty()).await;
    assert_eq!(answer, (503, "unreachable".to_owned()));
    let broken = Cluster::start(Router::new(), "No Name").await;
    assert_eq!(broken.text("GET", "/", Body::empty()).await.0, 503);
}
