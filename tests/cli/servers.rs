//! `belljar session` with servers that do not run, are not Belljar, or require a key.

use std::io::{Read, Write};
use std::net::TcpListener;

use insta::assert_snapshot;

use belljar_testkit::cli_server::{CliServer, EXPIRED, EXPIRED_KEY, STRANGER};
use belljar_testkit::command::{Finished, TestContext};
use belljar_testkit::port::free_address;
use belljar_testkit::wait::eventually_blocking;

fn list(url: &str) -> Finished {
    TestContext::new().call(["session", "list", "--url", url])
}

/// Listens, reads one request and sends this answer.
fn impostor(answer: &'static [u8]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let _ = stream.read(&mut [0; 4096]);
        let _ = stream.write_all(answer);
    });
    address.to_string()
}

fn reply(finished: &Finished, address: &str) -> String {
    finished.to_string().replace(address, "[ADDRESS]")
}

#[test]
fn nobody_there() {
    let address = free_address();
    assert_snapshot!(reply(&list(&format!("http://{address}")), &address), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: nothing listens at http://[ADDRESS]; start a server with `belljar serve`, or name its URL with --url or BELLJAR_URL
    ");
    assert_snapshot!(list("unix:/nowhere/at/all"), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: nothing listens at unix:/nowhere/at/all; start a server with `belljar serve`, or name its URL with --url or BELLJAR_URL
    ");
    let nameless = list("http://no-such-host.invalid:8000");
    let stderr = nameless.stderr();
    let expected = "belljar: failed to connect to http://no-such-host.invalid:8000: ";
    assert!(stderr.starts_with(expected), "{nameless}");
    assert_snapshot!(list("box"), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: --url box: expected an address such as http://127.0.0.1:8000 or unix:/path/of/a/socket, or local
    ");
}

#[test]
fn errors_name_the_flag_that_was_used_or_the_variable() {
    let context = TestContext::new();
    let state = context.path("state").display().to_string();
    let context = context.env("BELLJAR_STATE_DIR", &state);
    let said = |args: &[&str]| context.call(args).stderr();
    let listen = said(&["serve", "--listen", "example.com"]);
    assert!(
        listen.starts_with("belljar: --listen example.com: expected an IP address"),
        "{listen}"
    );
    let unix = said(&["serve", "--unix", "/proc/none/socket"]);
    assert_eq!(unix, "belljar: --unix: there is no directory for `/proc/none/socket`\n");
    let tls = said(&["serve", "--tls-cert", "/nowhere", "--tls-key", "/nowhere"]);
    assert!(tls.starts_with("belljar: --tls-cert: failed to open `/nowhere`"), "{tls}");
    for command in ["session list", "volume list", "artifacts list", "status", "shell"] {
        let words: Vec<&str> = command.split(' ').chain(["--url", "box"]).collect();
        let url = said(&words);
        assert!(url.starts_with("belljar: --url box: expected an address"), "{command}: {url}");
    }
    let mut command = context.belljar(["session", "list"]);
    let variable = context.finish(command.env("BELLJAR_URL", "box")).stderr();
    assert!(variable.starts_with("belljar: BELLJAR_URL=box: expected an address"), "{variable}");
}

#[test]
fn somebody_else_there() {
    let address = impostor(b"SSH-2.0-OpenSSH_9.6\r\n");
    assert_snapshot!(reply(&list(&format!("http://{address}")), &address), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: what listens at http://[ADDRESS] is not a belljar server: it does not speak HTTP
    ");
    let address = impostor(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnope");
    assert_snapshot!(reply(&list(&format!("http://{address}")), &address), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: what listens at http://[ADDRESS] is not a belljar server: it answers `404 Not Found` without a known error
    ");
    let address = impostor(b"HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\n<html></html>");
    let finished = list(&format!("http://{address}"));
    assert!(finished.stderr().contains("is not a belljar server"), "{finished}");
    let address = impostor(b"");
    let finished = list(&format!("http://{address}"));
    assert!(finished.stderr().starts_with("belljar: the connection to "), "{finished}");
    let address = impostor(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
    let finished = list(&format!("https://{address}"));
    assert_eq!(finished.code, Some(125), "{finished}");
}

#[test]
fn a_server_with_keys_wants_one() {
    let served = CliServer::on_tcp();
    let id = served.create(&[]);
    let created = served.context().call(["key", "create", "--name", "test"]);
    let key = created.stdout().trim().to_owned();
    eventually_blocking("the server notices", || served.call(["list"]).code != Some(0));
    assert_snapshot!(served.call(["list"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: this server needs an API key; send `Authorization: Bearer KEY` or `X-API-Key: KEY`; `belljar key create` makes one
    ");
    let with_key = |key: &str| {
        let mut command = served.context().belljar(["session", "show", &id]);
        served.context().finish(command.env("BELLJAR_API_KEY", key))
    };
    assert_eq!(with_key(&key).code, Some(0));
    let wrong = with_key("bjk_wrong");
    assert_eq!(wrong.code, Some(125));
    assert!(!wrong.to_string().contains("bjk_wrong"), "{wrong}");
}

#[test]
fn certificates_are_looked_at() {
    let served = CliServer::on_tls();
    let id = served.create(&[]);
    assert_eq!(served.ok(["exec", &id, "-c", "6 * 7"]).stdout(), "42\n");
    let mut command = served.context().belljar(["session", "list"]);
    let doubting = served.context().finish(command.env("SSL_CERT_FILE", STRANGER));
    assert_eq!(doubting.code, Some(125), "{doubting}");
    assert!(doubting.stderr().contains("is not trusted"), "{doubting}");
    let mut command = served.context().belljar(["session", "list"]);
    let nothing = served.context().finish(command.env("SSL_CERT_FILE", "/dev/null"));
    assert!(nothing.stderr().contains("no certificates to trust"), "{nothing}");
}

/// A certificate that is its own authority, as `openssl req -x509` makes it by default.
fn self_signed(context: &TestContext, name: &str) -> (String, String) {
    let installation =
        |suffix: &str| context.path(&format!("{name}.{suffix}")).display().to_string();
    let (cert, key) = (installation("pem"), installation("key"));
    let mut openssl = context.program("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=belljar test"]);
    openssl.args(["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", &key, "-out", &cert]);
    let made = context.finish(&mut openssl);
    assert_eq!(made.code, Some(0), "{made}");
    let mut openssl = context.program("openssl");
    let shown = context.finish(openssl.args(["x509", "-in", &cert, "-noout", "-text"]));
    assert!(shown.stdout().contains("CA:TRUE"), "{shown}");
    (cert, key)
}

#[test]
fn a_self_signed_certificate_is_accepted_where_it_is_trusted_and_nowhere_else() {
    let made = TestContext::new();
    let (cert, key) = self_signed(&made, "server");
    let (stranger, _) = self_signed(&made, "stranger");
    let served = CliServer::on_tls_with(&cert, &key);
    assert_eq!(served.ok(["list"]).code, Some(0));
    let by = |trusted: &str, url: Option<&str>| {
        let mut command = served.context().belljar(["session", "list"]);
        command.env("SSL_CERT_FILE", trusted);
        command.envs(url.map(|url| ("BELLJAR_URL", url)));
        served.context().finish(&mut command)
    };
    // curl must come to the same result.
    let url = served.url();
    let curl = |trusted: &str, url: &str| {
        let mut curl = served.context().program("curl");
        curl.args(["-sS", "--cacert", trusted, &format!("{url}/healthz")]);
        served.context().finish(&mut curl).code == Some(0)
    };
    let elsewhere = url.replace("127.0.0.1", "localhost");
    for (trusted, url, accepted) in
        [(&cert, &url, true), (&stranger, &url, false), (&cert, &elsewhere, false)]
    {
        let listed = by(trusted, Some(url));
        assert_eq!(listed.code == Some(0), accepted, "{trusted} {url}: {listed}");
        assert_eq!(curl(trusted, url), accepted, "{trusted} {url}");
    }
    assert!(by(&cert, Some(&elsewhere)).stderr().contains("is not trusted"));
}

#[test]
fn a_self_signed_certificate_that_has_expired_is_refused() {
    let mut server = CliServer::prepared_tls(EXPIRED, EXPIRED_KEY);
    server.start_unasked();
    eventually_blocking("the server listens", || {
        let listed = server.call(["list"]);
        assert_eq!(listed.code, Some(125), "{listed}");
        listed.stderr().contains("is not trusted")
    });
    assert!(server.call(["list"]).stderr().contains("expired"), "the reason is named");
}
