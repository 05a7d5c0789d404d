//! `--network`: where code may go, from the command line.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use insta::assert_snapshot;

use crate::context::TestContext;
use crate::served::Served;

/// Answers everybody with one word, for as long as the test lasts.
fn site() -> String {
    let listener = TcpListener::bind("127.0.0.2:0").expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nreached");
        }
    });
    address
}

#[test]
fn a_run_reaches_what_is_listed() {
    let context = TestContext::new();
    let address = site();
    let fetch = format!("curl -s http://{address}/; echo; curl -s http://127.0.0.3:80/");
    let finished = context.run(["--lang", "bash", "--network", &address, "-c", &fetch]);
    assert_snapshot!(finished, @r"
    exit 0
    --- stdout
    reached
    belljar: `127.0.0.3:80` is not allowed by the network policy of this sandbox
    --- stderr
    ");
    let none = context.run(["--lang", "bash", "-c", &format!("curl -s http://{address}/")]);
    assert_eq!(none.code, Some(7), "{none}");
    let set = TestContext::new().env("BELLJAR_NETWORK", &address);
    let fetch =
        format!("import urllib.request\nurllib.request.urlopen('http://{address}/').read()");
    let finished = set.run(["-c", &fetch]);
    assert_eq!(finished.stdout(), "b'reached'\n", "{finished}");
}

#[test]
fn what_is_no_policy_is_said_to_be_none() {
    assert_snapshot!(TestContext::new().run(["--network", "127.1", "-c", "1"]), @r"
    exit 2
    --- stdout
    --- stderr
    error: invalid value '127.1' for '--network <POLICY>': `127.1` is no IPv4 address of four plain numbers

    For more information, try '--help'.
    ");
    let inject = r#"{"allow": ["a.test"], "inject": [{"host": "a.test", "header": "X", "value_from": "KEY"}]}"#;
    assert_snapshot!(TestContext::new().run(["--network", inject, "-c", "1"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: --network: network.inject: this server has no secret `KEY` for http://a.test:80
    ");
}

#[test]
fn a_session_gets_what_its_server_allows() {
    let served = Served::on_socket();
    assert_snapshot!(served.call(["create", "--network", "example.org"]), @r"
    exit 125
    --- stdout
    --- stderr
    belljar: network: this server does not allow `example.org`; its operator can, with BELLJAR_MAX_NETWORK
    ");
    let id = served.create(&["--network", "none"]);
    let shown = served.call(["show", &id]);
    assert!(shown.stdout().contains("network"), "{shown}");
}
