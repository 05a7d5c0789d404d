//! `--network`: which hosts code may reach, from the command line.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use insta::assert_snapshot;

use belljar_testkit::cli_server::CliServer;
use belljar_testkit::command::TestContext;

/// Starts a site that answers every request with one word until the test ends.
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
    let fetch = format!("curl -s http://{address}/; echo; curl -s http://127.0.0.3:80/ | head -1");
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
    error: invalid value '127.1' for '--network <POLICY>': `127.1` is not an IPv4 address of four decimal numbers

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
    let served = CliServer::on_socket();
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

/// A package index that ends with the test.
struct Index {
    process: Child,
    address: String,
}

impl Index {
    fn start() -> Index {
        let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/cli/package_index.py");
        let mut process = Command::new("python3")
            .args([program, "127.0.0.2"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3");
        let mut port = String::new();
        let said = process.stdout.take().expect("it is piped");
        BufReader::new(said).read_line(&mut port).expect("a port");
        Index { process, address: format!("127.0.0.2:{}", port.trim()) }
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn pip_installs_where_the_virtual_environment_is() {
    let index = Index::start();
    let served = CliServer::on_tcp_with(&[("BELLJAR_NETWORK", &index.address)]);
    let url = format!("PIP_INDEX_URL=http://{}/simple", index.address);
    let host = format!("PIP_TRUSTED_HOST={}", "127.0.0.2");
    let id = served.create(&["--env", &url, "--env", &host]);
    let bash = |code: &str| served.ok(["exec", &id, "--lang", "bash", "-c", code]).stdout();

    // A virtual environment is separate from the session's own packages.
    let found = "import belljar_demo; print(belljar_demo.__file__)";
    assert_eq!(bash("python -m venv /session/v && echo made"), "made\n");
    bash("/session/v/bin/pip install -q belljar_demo");
    let inside = bash(&format!("/session/v/bin/python -c '{found}'"));
    assert!(inside.starts_with("/session/v/lib/python3."), "{inside}");
    assert_eq!(bash("python -c 'import belljar_demo' 2>/dev/null || echo not here"), "not here\n");

    // Otherwise packages are installed for the session. Its kernel and its commands find them.
    let said = served.ok(["exec", &id, "-c", "%pip install -q belljar_demo"]);
    assert!(!said.stdout().contains("ERROR"), "{said}");
    let kernel = served.ok(["exec", &id, "-c", "import belljar_demo; belljar_demo.__file__"]);
    assert!(kernel.stdout().contains("/session/.local/lib/python3."), "{kernel}");
    let command = bash(&format!("python -c '{found}'"));
    assert!(command.starts_with("/session/.local/lib/python3."), "{command}");
    let path = "PYTHONPATH=/session/src:$PYTHONPATH python -c 'import belljar_demo; print(1)'";
    assert_eq!(bash(path), "1\n");
    // A virtual environment that lacks a package does not see the one of the session.
    bash("/session/v/bin/pip uninstall -q -y belljar_demo");
    let gone = bash("/session/v/bin/python -c 'import belljar_demo' 2>/dev/null || echo gone");
    assert_eq!(gone, "gone\n");
    // An explicit `--target` is respected.
    assert_eq!(
        bash("pip install -q --target /tmp/there belljar_demo && ls /tmp/there/*.py"),
        "/tmp/there/belljar_demo.py\n"
    );
}

#[test]
fn a_refusal_says_why_where_it_is_met() {
    let address = site();
    let served = CliServer::on_tcp_with(&[("BELLJAR_NETWORK", &address)]);
    let id = served.create(&[]);
    let bash = |code: &str| served.call(["exec", &id, "--lang", "bash", "-c", code]).to_string();
    let why = "is not allowed by the network policy of this sandbox";
    let allows = format!("It allows {address}.");

    // curl does not show the answer to a refused CONNECT, so the refusal is sent inside TLS.
    let curl = bash("curl -sS https://example.org/a; curl -sS http://example.org/b");
    assert!(curl.contains(&format!("`example.org:443` {why}")), "{curl}");
    assert!(curl.contains(&format!("`example.org:80` {why}")) && curl.contains(&allows), "{curl}");
    let failed = bash("curl -fsS https://example.org/ || echo failed with $?");
    assert!(failed.contains("failed with 22"), "{failed}");
    // Other clients show the reason phrase of the answer.
    let pip = bash("pip install --retries 1 --index-url https://example.org/simple x 2>&1");
    assert!(pip.contains(&format!("403 Forbidden by belljar: `example.org:443` {why}")), "{pip}");
    let fetch = "import urllib.request; urllib.request.urlopen('https://example.org')";
    let python = served.call(["exec", &id, "-c", fetch]).to_string();
    assert!(
        python.contains(&format!("403 Forbidden by belljar: `example.org:443` {why}")),
        "{python}"
    );

    // The list of connections shows the reason too.
    bash(&format!("curl -s http://{address}/"));
    let listed = served.ok(["network", &id]);
    let lines: Vec<String> = listed.stdout().lines().map(str::to_owned).collect();
    assert!(lines[0].starts_with("when") && lines[0].trim_end().ends_with("why"), "{listed}");
    assert!(lines[2].contains("reached") && lines[2].contains("answered 200"), "{listed}");
    let refused = |line: &&String| line.contains("refused") && line.contains(why);
    assert!(lines.iter().filter(refused).count() >= 5, "{listed}");
    assert!(listed.stderr().contains(&format!("policy: {address}; 1 reached, ")), "{listed}");
    let only = served.ok(["network", "--refused", &id]);
    assert!(!only.stdout().contains("reached"), "{only}");
    assert_eq!(served.ok(["network", "--json", &id]).json()["reached"], 1);
    let none = served.create(&["--network", "none"]);
    let listed = served.ok(["network", &none]);
    assert_eq!(listed.stdout(), "", "{listed}");
    assert!(listed.stderr().contains("policy: none; 0 reached, 0 refused, 0 failed"), "{listed}");
}
