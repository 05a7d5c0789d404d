//! Correct and faulty sources, on real sockets.

use std::net::IpAddr;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::*;
use crate::error::in_full;

const SECRET: &str = "hunter2-and-more";

/// How the server of a test answers a request.
enum Reply {
    Whole(String),
    /// Sends this and leaves the connection open.
    ThenSilence(String),
    /// Sends this, and then a space now and then, without end.
    ThenDrip(String),
}

struct Server {
    port: u16,
    /// The heads of all requests, in lower case.
    heads: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn start(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> Server {
        Server::start_with(None, reply).await
    }

    async fn start_with(
        tls: Option<TlsAcceptor>,
        reply: impl Fn(&str) -> Reply + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let heads = Arc::new(Mutex::new(Vec::new()));
        let (seen, reply) = (Arc::clone(&heads), Arc::new(reply));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (seen, reply, tls) = (Arc::clone(&seen), Arc::clone(&reply), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => answer(stream, &seen, &*reply).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => answer(stream, &seen, &*reply).await,
                            Err(_) => None,
                        },
                    }
                });
            }
        });
        Server { port, heads, _tasks: tasks }
    }

    fn url(&self, host: &str) -> String {
        format!("http://{host}:{}", self.port)
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

/// `None` when the client has disconnected.
async fn answer(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    seen: &Mutex<Vec<String>>,
    reply: &(impl Fn(&str) -> Reply + ?Sized),
) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let reply = reply(&head);
    seen.lock().unwrap().push(head);
    let (Reply::Whole(text) | Reply::ThenSilence(text) | Reply::ThenDrip(text)) = &reply;
    stream.write_all(text.as_bytes()).await.ok()?;
    stream.flush().await.ok()?;
    match reply {
        Reply::Whole(_) => stream.shutdown().await.ok(),
        Reply::ThenSilence(_) => std::future::pending().await,
        Reply::ThenDrip(_) => loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            stream.write_all(b" ").await.ok()?;
            stream.flush().await.ok()?;
        },
    }
}

fn ok(headers: &str, body: &str) -> Reply {
    let length = body.len();
    Reply::Whole(format!("HTTP/1.1 200 OK\r\n{headers}Content-Length: {length}\r\n\r\n{body}"))
}

fn redirect(location: &str) -> Reply {
    let location = format!("Location: {location}\r\n");
    Reply::Whole(format!("HTTP/1.1 302 Found\r\n{location}Content-Length: 0\r\n\r\n"))
}

fn path(head: &str) -> &str {
    head.split(' ').nth(1).unwrap()
}

/// Sources for which the names `*.test` resolve to loopback.
fn sources(setting: &Value) -> Sources {
    let env = |name: &str| (name == "TOKEN").then(|| SECRET.to_owned());
    let mut sources = Sources::parse(&setting.to_string(), env).unwrap();
    for name in ["data.test", "other.test", "evil.test"] {
        add_name(&mut sources, name, &[IpAddr::from([127, 0, 0, 1])]);
    }
    sources
}

fn add_name(sources: &mut Sources, name: &str, addresses: &[IpAddr]) {
    let connector = std::mem::take(&mut sources.connector);
    sources.connector = connector.with_name(name, addresses);
}

/// One source at `data.test`, which is allowed, as is `other.test`.
fn source_at(server: &Server, more: Value) -> Sources {
    let mut source = json!({
        "url": format!("{}/d/{{path}}", server.url("data.test")),
        "allow": ["data.test", "other.test"],
        "headers": {"Authorization": "Bearer ${TOKEN}", "X-Written-Out": SECRET},
    });
    source.as_object_mut().unwrap().append(&mut more.as_object().unwrap().clone());
    sources(&json!({"s/": source}))
}

async fn fetch(sources: &Sources, id: &str) -> Result<(Fetched, String), SourceError> {
    let (sender, mut chunks) = mpsc::channel::<Bytes>(1);
    let read = async {
        let mut data = Vec::new();
        while let Some(chunk) = chunks.recv().await {
            data.extend_from_slice(&chunk);
        }
        String::from_utf8(data).unwrap()
    };
    let (answer, data) = tokio::join!(sources.fetch(id, None, sender), read);
    match answer? {
        FetchOutcome::Fetched(fetched) => Ok((fetched, data)),
        FetchOutcome::NotModified => panic!("there was no ETag"),
    }
}

/// The code and the message of the error. Checks that they contain no secret.
async fn refused(sources: &Sources, id: &str) -> (&'static str, String) {
    let error = fetch(sources, id).await.unwrap_err();
    for said in [in_full(&error), format!("{error:?}"), format!("{sources:?}")] {
        assert!(!said.contains("hunter2"), "{said}");
    }
    (error.code(), error.to_string())
}

#[tokio::test]
async fn a_dataset_comes_with_its_name_and_what_is_known_of_it() {
    let server = Server::start(|head| {
        assert!(head.contains(&format!("authorization: bearer {SECRET}\r\n")), "{head}");
        assert!(head.contains("accept-encoding: identity\r\n"), "{head}");
        ok("Content-Type: text/csv\r\nETag: \"v1\"\r\n", "a,b\n1,2\n")
    })
    .await;
    let sources = source_at(&server, json!({}));
    let (fetched, data) = fetch(&sources, "s/2024/umsätze q1?").await.unwrap();
    assert_eq!(data, "a,b\n1,2\n");
    let expected = Fetched {
        file_name: "umsätze q1?.csv".into(),
        content_type: Some("text/csv".into()),
        etag: Some("\"v1\"".into()),
        size: 8,
    };
    assert_eq!(fetched, expected);
    assert_eq!(path(&server.heads()[0]), "/d/2024/ums%c3%a4tze%20q1%3f");
}

#[tokio::test]
async fn chunked_bodies_and_bodies_that_end_with_the_connection_are_read_to_their_end() {
    let server = Server::start(|head| {
        Reply::Whole(match path(head) {
            "/d/chunked" => "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n\
                             3\r\nabc\r\n2\r\nde\r\n0\r\nX-Trailer: 1\r\n\r\n"
                .into(),
            _ => "HTTP/1.0 200 OK\r\n\r\nabcde".into(),
        })
    })
    .await;
    let sources = source_at(&server, json!({}));
    assert_eq!(fetch(&sources, "s/chunked").await.unwrap().1, "abcde");
    assert_eq!(fetch(&sources, "s/closed").await.unwrap().1, "abcde");
}

#[tokio::test]
async fn the_longest_prefix_decides() {
    let server = Server::start(|head| ok("", path(head))).await;
    let at = |tail: &str| json!({"url": server.url("data.test") + tail, "allow": ["data.test"]});
    let sources = sources(&json!({
        "*": at("/all/{name}"), "s/": at("/s/{name}"), "s/t*": at("/st/{name}"),
        "s/team": at("/team?i={id}"),
    }));
    for (id, path) in [
        ("x/y", "/all/x%2fy"),
        ("s/x", "/s/x"),
        ("s/tx", "/st/x"),
        ("s/t", "/s/t"),
        ("s/team", "/team?i=s%2fteam"),
        ("s/teams", "/st/eams"),
    ] {
        assert_eq!(fetch(&sources, id).await.unwrap().1, path, "{id}");
    }
}

#[tokio::test]
async fn what_is_known_already_is_not_sent_again() {
    let server = Server::start(|head| {
        if head.contains("if-none-match: \"v1\"\r\n") {
            return Reply::Whole("HTTP/1.1 304 Not Modified\r\n\r\n".into());
        }
        ok("ETag: \"v2\"\r\n", "new")
    })
    .await;
    let sources = source_at(&server, json!({}));
    let (sender, _chunks) = mpsc::channel(1);
    let answer = sources.fetch("s/a", Some("\"v1\""), sender.clone()).await.unwrap();
    assert_eq!(answer, FetchOutcome::NotModified);
    let answer = sources.fetch("s/a", Some("\"v0\""), sender).await.unwrap();
    assert!(
        matches!(answer, FetchOutcome::Fetched(fetched) if fetched.etag.as_deref() == Some("\"v2\""))
    );
}

#[tokio::test]
async fn ids_that_lead_elsewhere_or_nowhere_are_not_asked_for() {
    let server = Server::start(|_| ok("", "")).await;
    let sources = source_at(&server, json!({}));
    for id in ["s/../x", "s/a/../../x", "s/.", "s/a\\b", "s/a\r\nHost: x", "s//x", "s/", ""] {
        assert_eq!(refused(&sources, id).await.0, "invalid_dataset", "{id:?}");
    }
    assert_eq!(refused(&sources, "t/a").await.0, "no_source");
    assert_eq!(refused(&Sources::default(), "s/a").await.0, "no_source");
    assert!(server.heads().is_empty());
}

#[tokio::test]
async fn a_refusal_is_passed_on_in_its_first_line_and_without_our_secrets() {
    let server = Server::start(|head| match path(head) {
        "/d/echo" => Reply::Whole(format!(
            "HTTP/1.1 401 No\r\n\r\n\n  \x1b[31mbad token {SECRET}, sorry\nsecond line"
        )),
        "/d/long" => Reply::Whole(format!("HTTP/1.1 500 No\r\n\r\n{}", "x".repeat(100_000))),
        "/d/partial" => Reply::Whole("HTTP/1.1 206 Part\r\nContent-Length: 1\r\n\r\nx".into()),
        "/d/304" => Reply::Whole("HTTP/1.1 304 Not Modified\r\n\r\n".into()),
        _ => Reply::Whole("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".into()),
    })
    .await;
    let sources = source_at(&server, json!({}));
    let origin = server.url("data.test");
    for (id, expected) in [
        ("s/missing", format!("{origin} answers 404")),
        ("s/echo", format!("{origin} answers 401: [31mbad token [secret], sorry")),
        ("s/long", format!("{origin} answers 500: {}", "x".repeat(200))),
        ("s/partial", format!("{origin} answers 206: x")),
    ] {
        assert_eq!(refused(&sources, id).await, ("source_status", expected));
    }
    let (code, message) = refused(&sources, "s/304").await;
    assert_eq!(code, "source_status");
    assert_eq!(message, format!("{origin} answered 304 to a request without an ETag"));
}

#[tokio::test]
async fn redirects_are_followed_and_our_headers_stay_at_home() {
    let other = Server::start(|head| ok("", path(head))).await;
    let elsewhere = other.url("other.test");
    let server = Server::start(move |head| match path(head) {
        "/d/a" => redirect("/d/b"),
        "/d/b" => redirect("c?signature=1"),
        "/d/c?signature=1" => redirect(&format!("{elsewhere}/there?signature=2")),
        _ => redirect("/d/loop"),
    })
    .await;
    let sources = source_at(&server, json!({}));
    let (fetched, data) = fetch(&sources, "s/a").await.unwrap();
    assert_eq!((fetched.file_name.as_str(), data.as_str()), ("a", "/there?signature=2"));
    let at_home = server.heads();
    assert_eq!(at_home.len(), 3);
    assert!(at_home.iter().all(|head| head.contains(SECRET)), "{at_home:?}");
    let away = other.heads().remove(0);
    assert!(!away.contains("hunter2") && !away.contains("authorization"), "{away}");
    assert!(away.contains(&format!("host: other.test:{}\r\n", other.port)), "{away}");

    assert_eq!(refused(&sources, "s/loop").await.0, "source_redirect");
    assert_eq!(server.heads().len(), 3 + 1 + MAX_REDIRECTS);
}

#[tokio::test]
async fn redirects_to_near_addresses_are_refused_unless_allowed() {
    let neighbour = Server::start(|_| ok("", "internal")).await;
    let port = neighbour.port;
    let server = Server::start(move |head| {
        redirect(&match path(head) {
            "/d/name" => format!("http://evil.test:{port}/"),
            "/d/loopback" => format!("http://127.0.0.1:{port}/?signature=hunter2"),
            "/d/short" => format!("http://127.1:{port}/"),
            "/d/number" => format!("http://2130706433:{port}/"),
            "/d/any" => format!("http://0.0.0.0:{port}/"),
            "/d/mapped" => format!("http://[::ffff:127.0.0.1]:{port}/"),
            "/d/metadata" => "http://169.254.169.254/latest/meta-data/".into(),
            "/d/user" => format!("http://data.test@127.0.0.1:{port}/"),
            "/d/file" => "file:///etc/passwd".into(),
            _ => String::new(),
        })
    })
    .await;
    let sources = source_at(&server, json!({}));
    for (id, code) in [
        ("s/name", "source_refused_address"),
        ("s/loopback", "source_refused_address"),
        // Old notations of an address.
        ("s/short", "source_refused_address"),
        ("s/number", "source_refused_address"),
        ("s/any", "source_refused_address"),
        ("s/mapped", "source_refused_address"),
        ("s/metadata", "source_refused_address"),
        ("s/user", "source_redirect"),
        ("s/file", "source_redirect"),
    ] {
        let (found, message) = refused(&sources, id).await;
        assert_eq!(found, code, "{id}: {message}");
    }
    assert!(neighbour.heads().is_empty());

    let allow = json!({"allow": ["data.test", format!("127.0.0.1:{port}")]});
    let sources = source_at(&server, allow);
    assert_eq!(fetch(&sources, "s/loopback").await.unwrap().1, "internal");
    let another_port = json!({"allow": ["data.test", "127.0.0.1:1"]});
    let sources = source_at(&server, another_port);
    assert_eq!(refused(&sources, "s/loopback").await.0, "source_refused_address");
}

#[tokio::test]
async fn a_name_with_a_public_and_a_private_address_is_refused() {
    let server = Server::start(|_| ok("", "internal")).await;
    let url = server.url("both.test") + "/{name}";
    let mut sources = sources(&json!({"s/": url}));
    let addresses = [IpAddr::from([93, 184, 216, 34]), IpAddr::from([127, 0, 0, 1])];
    add_name(&mut sources, "both.test", &addresses);
    let (code, message) = refused(&sources, "s/a").await;
    assert_eq!(code, "source_refused_address");
    assert!(message.starts_with("`both.test` has a loopback address"), "{message}");
    assert!(server.heads().is_empty());
}

#[tokio::test]
async fn what_is_too_large_is_refused_by_its_header_and_by_its_bytes() {
    let server = Server::start(|head| match path(head) {
        "/d/header" => Reply::ThenSilence("HTTP/1.1 200 OK\r\nContent-Length: 1025\r\n\r\n".into()),
        "/d/bytes" => Reply::Whole(format!("HTTP/1.0 200 OK\r\n\r\n{}", "x".repeat(1025))),
        _ => ok("", &"x".repeat(1024)),
    })
    .await;
    let sources = source_at(&server, json!({"max_bytes": "1K"}));
    let (code, message) = refused(&sources, "s/header").await;
    assert_eq!(code, "source_too_large");
    assert!(message.ends_with("it has 1025"), "{message}");
    assert_eq!(refused(&sources, "s/bytes").await.0, "source_too_large");
    assert_eq!(fetch(&sources, "s/fits").await.unwrap().0.size, 1024);
}

#[tokio::test]
async fn sources_that_stop_or_go_on_for_ever_are_left() {
    let server = Server::start(|head| match path(head) {
        "/d/stall" => Reply::ThenSilence("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".into()),
        "/d/cut" => Reply::Whole("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc".into()),
        "/d/cut-chunk" => {
            Reply::Whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n".into())
        }
        "/d/drip" => Reply::ThenDrip("HTTP/1.1 200 OK\r\n\r\n".into()),
        "/d/slow-head" => Reply::ThenDrip("HTTP/1.1 200 OK\r\nX-Slow: ".into()),
        "/d/silent" => Reply::ThenSilence(String::new()),
        "/d/vast-head" => {
            Reply::Whole(format!("HTTP/1.1 200 OK\r\nX-Vast: {}\r\n\r\n", "x".repeat(1 << 20)))
        }
        "/d/packed" => ok("Content-Encoding: gzip\r\n", "..."),
        "/d/ssh" => Reply::Whole("SSH-2.0-OpenSSH_9.6\r\n".into()),
        _ => Reply::Whole(String::new()),
    })
    .await;
    let mut sources = source_at(&server, json!({"timeout_s": 1}));
    for (id, code) in [
        ("s/stall", "source_timeout"),
        ("s/cut", "source_cut_off"),
        ("s/cut-chunk", "source_cut_off"),
        ("s/drip", "source_timeout"),
        ("s/slow-head", "source_timeout"),
        ("s/silent", "source_timeout"),
        ("s/vast-head", "source_protocol"),
        ("s/packed", "source_protocol"),
        ("s/ssh", "source_protocol"),
        ("s/closed", "source_unreachable"),
    ] {
        let (found, message) = refused(&sources, id).await;
        assert_eq!(found, code, "{id}: {message}");
    }
    sources.idle = Some(Duration::from_millis(200));
    let stalled = refused(&sources, "s/stall").await.1;
    assert!(stalled.contains("sent nothing for"), "{stalled}");
    let cut = refused(&sources, "s/cut").await.1;
    assert!(cut.ends_with("closed the connection after 3 of 10 bytes; try again"), "{cut}");
}

#[tokio::test]
async fn cancelled_transfers_and_unreachable_hosts_are_reported() {
    let server = Server::start(|_| ok("", "abc")).await;
    let given_up = source_at(&server, json!({}));
    let (sender, chunks) = mpsc::channel(1);
    drop(chunks);
    // In a separate task, as in the engine.
    let fetching = tokio::spawn(async move { given_up.fetch("s/a", None, sender).await });
    assert_eq!(fetching.await.unwrap().unwrap_err().code(), "source_abandoned");

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let url = format!("http://data.test:{}/{{name}}", free.port());
    let closed = sources(&json!({"s/": {"url": url, "allow": ["data.test"]}}));
    assert_eq!(refused(&closed, "s/a").await.0, "source_unreachable");
    let nowhere = sources(&json!({"s/": "http://nowhere.invalid/{name}"}));
    assert_eq!(refused(&nowhere, "s/a").await.0, "source_unreachable");
}

/// A certificate for `data.test` that is its own authority, and its key.
fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let directory = tempfile::tempdir().unwrap();
    let (cert, key) = (directory.path().join("cert.pem"), directory.path().join("key.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=data.test", "-addext", "subjectAltName=DNS:data.test"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout"])
        .arg(&key)
        .arg("-out")
        .arg(&cert)
        .output()
        .expect("openssl is here");
    assert!(made.status.success(), "{made:?}");
    (CertificateDer::from_pem_file(&cert).unwrap(), PrivateKeyDer::from_pem_file(&key).unwrap())
}

#[tokio::test]
async fn https_needs_a_trusted_certificate_and_never_becomes_http() {
    let (cert, key) = certificate();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![cert.clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let server = Server::start_with(Some(acceptor), |head| match path(head) {
        "/d/plain" => redirect("http://data.test/"),
        _ => ok("", "sealed"),
    })
    .await;
    let url = server.url("data.test").replace("http:", "https:") + "/d/{name}";
    let setting = json!({"s/": {"url": url, "allow": ["data.test"],
                                "headers": {"Authorization": "Bearer ${TOKEN}"}}});

    let trusting = |certificate| {
        let mut sources = sources(&setting);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate).unwrap();
        let connector = std::mem::take(&mut sources.connector);
        sources.connector = connector.with_certificates(roots).unwrap();
        sources
    };
    let (code, message) = refused(&trusting(certificate().0), "s/a").await;
    assert_eq!(code, "source_untrusted", "{message}");
    assert!(server.heads().is_empty());

    let trusting = trusting(cert);
    assert_eq!(fetch(&trusting, "s/a").await.unwrap().1, "sealed");
    let (code, message) = refused(&trusting, "s/plain").await;
    assert_eq!(code, "source_redirect");
    assert!(message.ends_with("it leads from https to http"), "{message}");
}
