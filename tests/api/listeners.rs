//! Where the server listens: host names and origins, sockets, certificates.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use hyper::Method;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use belljar_testkit::client::{Answer, Client, Connection};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::wait::{PATIENCE, eventually};

async fn call(client: &Client, host: &str, origin: Option<&str>) -> Answer {
    let mut request = client.request(Method::GET, "/v1/sessions", "");
    request.headers_mut().insert("host", host.parse().expect("a value"));
    if let Some(origin) = origin {
        request.headers_mut().insert("origin", origin.parse().expect("a value"));
    }
    client.send(request).await
}

#[tokio::test]
async fn web_pages_are_no_way_in() {
    let server = Server::with(&[
        ("BELLJAR_ALLOWED_HOSTS", "jar.lan"),
        ("BELLJAR_ALLOWED_ORIGINS", "https://app.example"),
    ])
    .await;
    for good in ["127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:80", "jar.lan", "JAR.lan:8000"]
    {
        call(&server, good, None).await.json(200);
    }
    for bad in [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "jar.lan.evil",
        "x@127.0.0.1:1.evil.example",
    ] {
        let message = call(&server, bad, None).await.error(403, "wrong_host");
        assert!(message.contains(bad), "{message}");
    }
    call(&server, "127.0.0.1:80", Some("https://app.example")).await.json(200);
    call(&server, "127.0.0.1:80", Some("http://127.0.0.1:80")).await.json(200);
    for bad in [
        "http://evil.example",
        "null",
        "http://127.0.0.1:81",
        "https://app.example.evil.example",
        "",
    ] {
        call(&server, "127.0.0.1:80", Some(bad)).await.error(403, "wrong_origin");
    }
    // A page whose own host name resolves to this server (DNS rebinding).
    call(&server, "evil.example", Some("http://evil.example")).await.error(403, "wrong_origin");
    // Even endpoints that need no key refuse a wrong host name.
    let mut request = server.request(Method::GET, "/healthz", "");
    request.headers_mut().insert("host", "evil.example".parse().expect("a value"));
    server.send(request).await.error(403, "wrong_host");
    // Twelve refusals, of which two were identical and are stored once.
    eventually("every denial is written down", async || server.installation.refusals().len() == 11)
        .await;
    assert!(server.installation.refusals().iter().all(|line| line["action"] == "deny"));
    assert!(server.installation.audit().is_empty(), "which tells what tenants did");

    // A request must name one host: ambiguous requests are refused.
    for (request, status) in [
        ("GET /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n", 200),
        ("GET http://localhost/v1/sessions HTTP/1.1\r\nHost: localhost\r\n", 200),
        ("GET /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n", 400),
        ("GET /v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: 127.0.0.1\r\n", 400),
        ("GET http://evil.example/v1/sessions HTTP/1.1\r\nHost: 127.0.0.1\r\n", 400),
        ("GET http://evil.example/v1/sessions HTTP/1.1\r\nHost: evil.example\r\n", 403),
        ("GET http://evil.example/v1/sessions HTTP/1.1\r\n", 403),
        ("GET /v1/sessions HTTP/1.1\r\n", 403),
    ] {
        let answer = said_to(&server, &format!("{request}Connection: close\r\n\r\n")).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
}

/// The server's response to these bytes.
async fn said_to(client: &Client, bytes: &str) -> String {
    let mut wire = client.dial().await;
    wire.write_all(bytes.as_bytes()).await.expect("it listens");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, wire.read_to_end(&mut answer)).await;
    let _ = read.expect("it hangs up");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn pages_of_allowed_origins_may_call() {
    let installation = Installation::new().env("BELLJAR_ALLOWED_ORIGINS", "https://app.example");
    let installation = Arc::new(installation);
    let key = installation.key(&["--name", "page"]);
    let server = installation.serve().await;
    let page = "https://app.example";
    let call = async |method: Method, key: Option<&str>, headers: &[(&'static str, &str)]| {
        let client = key.map_or_else(|| server.client(), |key| server.with_key(key));
        let body = if method == Method::POST { "{}" } else { "" };
        let mut request = client.request(method, "/v1/sessions", body);
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().expect("a value"));
        }
        client.send(request).await
    };
    let reply = |answer: &Answer, name: &str| {
        let values = answer.headers.get_all(name).iter();
        values.map(|value| value.to_str().expect("text")).collect::<Vec<_>>().join(", ")
    };
    // A browser sends a preflight request first, without the page's key.
    let asks = [("origin", page), ("access-control-request-method", "POST")];
    let preflight = call(Method::OPTIONS, None, &asks).await;
    assert_eq!((preflight.status, preflight.body.len()), (204, 0), "{preflight}");
    assert_eq!(reply(&preflight, "access-control-allow-origin"), page);
    assert!(reply(&preflight, "access-control-allow-methods").contains("POST"));
    let headers = reply(&preflight, "access-control-allow-headers");
    for needed in ["authorization", "content-type", "x-api-key", "last-event-id", "range"] {
        assert!(headers.split(", ").any(|header| header == needed), "{needed}: {headers}");
    }
    assert_eq!(reply(&preflight, "vary"), "origin");
    // Then it sends the request, and the page may read the response, also a refusal.
    let secret = key["secret"].as_str().expect("text");
    let made = call(Method::POST, Some(secret), &[("origin", page)]).await;
    made.json(201);
    let refused = call(Method::POST, None, &[("origin", page)]).await;
    refused.error(401, "unauthorized");
    for answer in [&made, &refused] {
        assert_eq!(reply(answer, "access-control-allow-origin"), page);
        assert!(reply(answer, "access-control-expose-headers").contains("retry-after"));
        assert_eq!(reply(answer, "vary"), "origin");
        assert_eq!(reply(answer, "access-control-allow-credentials"), "", "no cookies");
    }
    // Other origins get no CORS headers.
    let plain = call(Method::GET, Some(secret), &[]).await;
    assert_eq!((plain.status, reply(&plain, "vary").as_str()), (200, "origin"));
    assert_eq!(reply(&plain, "access-control-allow-origin"), "");
    let evil = [("origin", "https://evil.example"), ("access-control-request-method", "POST")];
    for (method, key) in [(Method::OPTIONS, None), (Method::POST, Some(secret))] {
        let answer = call(method, key, &evil).await;
        answer.error(403, "wrong_origin");
        assert_eq!(reply(&answer, "access-control-allow-origin"), "");
    }
    // Only a preflight request needs no key.
    call(Method::OPTIONS, None, &[("origin", page)]).await.error(401, "unauthorized");
    call(Method::OPTIONS, None, &asks[1..]).await.error(401, "unauthorized");
}

#[tokio::test]
async fn strangers_cannot_push_out_what_tenants_did() {
    const EACH: u64 = 300;
    let installation = Arc::new(Installation::new());
    let key = installation.key(&["--name", "k", "--tenant", "acme"]);
    let server = installation.serve().await;
    let acme = server.with_key(key["secret"].as_str().expect("text"));
    acme.session_with(json!({})).await;
    // A head that is too large is refused before it is parsed.
    let (small, large) = ("x".repeat(40 << 10), "x".repeat(380 << 10));
    for _ in 0..3 {
        let request = format!(
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
                               Origin: http://{large}\r\n\r\n"
        );
        let answer = said_to(&server, &request).await;
        assert!(answer.starts_with("HTTP/1.1 431 "), "{}", answer.len());
    }
    let mut connection = server.connect().await;
    for number in 0..EACH {
        let mut request = server.request(Method::GET, &format!("/{number}"), "");
        request.headers_mut().insert("origin", format!("http://{small}").parse().expect("text"));
        let answer = connection.send(request).await;
        assert!(answer.error(403, "wrong_origin").len() < 500, "{answer}");
        connection.send(server.request(Method::GET, "/v1/sessions", "")).await;
        acme.get("/v1/sessions").await.json(200);
    }
    server.terminate().await;
    let actions: Vec<_> = installation.audit().iter().map(|line| line["action"].clone()).collect();
    assert_eq!(actions, ["key_create", "create"]);
    let log = fs::metadata(installation.path("state/refusals.log")).expect("a log");
    assert_eq!(log.permissions().mode() & 0o777, 0o600);
    assert!(log.len() < 100_000, "{} bytes", log.len());
    let counted = |outcome: Option<&str>| -> u64 {
        let lines = installation.refusals();
        let of_it = lines.iter().filter(|line| outcome.is_none_or(|it| line["outcome"] == it));
        of_it.map(|line| line["times"].as_u64().unwrap_or(1)).sum()
    };
    assert_eq!((counted(None), counted(Some("unauthorized"))), (2 * EACH, EACH));
}

#[tokio::test]
async fn strangers_need_keys() {
    let installation = Arc::new(Installation::new().env("BELLJAR_LISTEN", "0.0.0.0:0"));
    let refusal = installation.refusal().await;
    assert!(refusal.contains("belljar key create"), "{refusal}");
    let key = installation.key(&["--name", "k"]);
    let server = installation.serve().await;
    server.get("/v1/sessions").await.error(401, "unauthorized");
    server.with_key(key["secret"].as_str().expect("text")).get("/v1/sessions").await.json(200);
}

#[tokio::test]
async fn a_socket_is_for_its_owner() {
    let installation = Installation::new();
    let path = installation.path("socket");
    let installation = Arc::new(installation.env("BELLJAR_UNIX", &path.display().to_string()));
    // A killed server has left a socket.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a socket"));
    let server = installation.serve().await;
    let metadata = fs::symlink_metadata(&path).expect("a socket");
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    // Over a socket the Host header is not checked.
    call(&server, "whatever", None).await.json(200);
    call(&server, "whatever", Some("http://evil.example")).await.error(403, "wrong_origin");
    let run = server.post("/v1/run", json!({"code": "1 + 1"})).await.json(200);
    assert_eq!(run["status"], "ok");
    // Another server does not take the socket over.
    let other = Arc::new(Installation::new().env("BELLJAR_UNIX", &path.display().to_string()));
    let refusal = other.refusal().await;
    assert!(refusal.contains("another server listens on the socket"), "{refusal}");
    server.get("/healthz").await.json(200);
    server.terminate().await;
    assert!(!path.exists(), "it is gone with the server");
    // A file that is not a socket is not touched.
    fs::write(&path, "precious").expect("a file");
    let refusal = installation.refusal().await;
    assert!(refusal.contains("socket"), "{refusal}");
    assert_eq!(fs::read_to_string(&path).expect("a file"), "precious");
}

fn make_certificate(directory: &Path) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-days", "2"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(directory)
        .output()
        .expect("openssl is here");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

#[tokio::test]
async fn certificates_are_used() {
    let installation = Installation::new();
    make_certificate(&installation.path(""));
    let installation =
        Arc::new(installation.args(&["--tls-cert", "cert.pem", "--tls-key", "key.pem"]));
    let server = installation.serve().await;
    assert!(server.said().contains("listens on https://"), "{}", server.said());

    let mut roots = RootCertStore::empty();
    let certificate =
        CertificateDer::from_pem_file(installation.path("cert.pem")).expect("a certificate");
    roots.add(certificate).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").expect("a name");
    let stream = connector.connect(name, server.dial().await).await.expect("a handshake");
    let mut connection = Connection::over(Box::pin(stream)).await;
    let ask = json!({"code": "6 * 7"}).to_string();
    let run = connection.send(server.request(Method::POST, "/v1/run", ask)).await.json(200);
    assert_eq!(run["results"][0]["data"]["text/plain"], "42");

    // A client that does not speak TLS is disconnected, and other clients are not affected.
    let mut plain = server.dial().await;
    plain.write_all(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").await.expect("sent");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, plain.read_to_end(&mut answer)).await;
    let _ = read.expect("it hangs up");
    assert!(!answer.starts_with(b"HTTP"), "{}", String::from_utf8_lossy(&answer));
    let health = connection.send(server.request(Method::GET, "/healthz", "")).await;
    health.json(200);
    drop(connection);
    server.terminate().await;

    // A certificate and key that do not match are refused at the start.
    fs::copy(installation.path("cert.pem"), installation.path("key.pem")).expect("copied");
    let refusal = installation.refusal().await;
    assert!(refusal.contains("key.pem"), "{refusal}");
    fs::write(installation.path("cert.pem"), "nothing").expect("written");
    let refusal = installation.refusal().await;
    assert!(refusal.contains("cert.pem"), "{refusal}");
}
