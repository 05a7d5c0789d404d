//! Network policies: code in a sandbox reaches the allowed hosts and no others. Real clients run
//! inside; the servers are on this machine's loopback, allowed by address.

use std::collections::HashSet;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::files::put;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;
use belljar_testkit::website::Website;

/// A server whose policies may allow this site and everything public.
async fn server_for(site: &Website, env: &[(&str, &str)]) -> Server {
    let most = format!("open {}", site.address);
    let mut all = vec![("BELLJAR_MAX_NETWORK", most.as_str())];
    all.extend_from_slice(env);
    Server::with(&all).await
}

async fn session_for(server: &Server, site: &Website) -> Session {
    server.session_with(json!({"network": {"allow": [site.address.to_string()]}})).await
}

/// A cell that opens a URL and prints the body or the refusal.
fn fetch(url: &str) -> String {
    format!(
        "import urllib.request, urllib.error\n\
         try:\n    print(urllib.request.urlopen({url:?}, timeout=20).read().decode())\n\
         except urllib.error.HTTPError as e:\n    print(e.code, e.read().decode())\n\
         except Exception as e:\n    print(type(e).__name__, e)"
    )
}

async fn visits(session: &Session) -> Value {
    session.client.get(&session.path("/network")).await.json(200)
}

#[tokio::test]
async fn without_a_policy_there_is_no_way_out_and_nothing_that_looks_like_one() {
    let server = Server::start().await;
    let session = server.session().await;
    let code = "import os, socket\n\
        print([k for k in os.environ if 'proxy' in k.lower()])\n\
        print(socket.socket().connect_ex(('127.0.0.1', 3128)) != 0)";
    assert_eq!(session.printed(code).await, "[]\nTrue\n");
    assert_eq!(session.show().await["network"], "none");
    let reply = visits(&session).await;
    assert_eq!((&reply["policy"], &reply["visits"]), (&json!("none"), &json!([])));
    for network in [json!("open"), json!({"allow": ["example.org"]})] {
        let refused = server.post("/v1/sessions", json!({"network": network})).await;
        assert!(refused.error(403, "network_not_allowed").contains("BELLJAR_MAX_NETWORK"));
        let run = server.post("/v1/run", json!({"code": "1", "network": network})).await;
        run.error(403, "network_not_allowed");
    }
    for network in [json!("full"), json!({"allow": ["127.1"]}), json!({"deny": []}), json!(7)] {
        let refused = server.post("/v1/sessions", json!({"network": network})).await;
        assert!(refused.error(422, "invalid").starts_with("network: "));
    }
}

#[tokio::test]
async fn what_is_listed_is_reached_by_every_program_and_nothing_else_is() {
    let site = Website::start().await;
    let server = server_for(&site, &[]).await;
    let session = session_for(&server, &site).await;
    let said = session.printed(&fetch(&site.url("/python"))).await;
    assert!(said.starts_with("GET /python HTTP/1.1"), "{said}");
    let curl = format!("curl -sS {}", site.url("/curl"));
    let said = session.shell(&curl).await;
    assert!(text(&said["stdout"]).starts_with("GET /curl"), "{said:#}");
    let bash = session.exec(json!({"language": "bash", "code": curl})).await.json(200);
    assert!(text(&bash["stdout"]).starts_with("GET /curl"), "{bash:#}");
    // A tunnel, by a client that uses one for every request.
    let tunnel = format!("curl -sS --proxytunnel {}", site.url("/tunnel"));
    let said = session.shell(&tunnel).await;
    assert!(text(&said["stdout"]).starts_with("GET /tunnel"), "{said:#}");

    let elsewhere = Website::start().await;
    let said = session.printed(&fetch(&elsewhere.url("/"))).await;
    assert!(said.starts_with("403 belljar: "), "{said}");
    // The target of a redirect is checked like any other request.
    for to in [elsewhere.url("/"), "http://169.254.169.254/latest/meta-data/".into()] {
        let said = session.printed(&fetch(&site.url(&format!("/to/{to}")))).await;
        assert!(said.starts_with("403 belljar: "), "{said}");
    }
    for url in [
        "http://127.0.0.1:1/",
        "http://localhost:1/",
        "http://[::1]:1/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://example.org\0.test/",
        "https://example.org/",
    ] {
        let proxied = format!(
            "import subprocess\nr = subprocess.run(['curl', '-sS', '--noproxy', '', '-o', '/dev/null', \
             '-w', '%{{http_code}}', {:?}.replace('~', '%00')], capture_output=True, text=True)\n\
             print(r.stdout)",
            url.replace('\0', "~")
        );
        let said = session.printed(&proxied).await;
        // The proxy may accept curl's tunnel and send the refusal inside it; otherwise curl would
        // not show the reason.
        assert!(!said.contains("200"), "{url:?}: {said}");
    }
    assert!(elsewhere.heads().is_empty());

    let reply = visits(&session).await;
    assert_eq!(reply["policy"], json!({"allow": [site.address.to_string()]}));
    assert!(reply["reached"].as_u64() >= Some(4), "{reply:#}");
    assert!(reply["refused"].as_u64() >= Some(3), "{reply:#}");
    let list = reply["visits"].as_array().expect("a list");
    let metadata = list.iter().find(|visit| visit["host"] == "169.254.169.254");
    let metadata = metadata.unwrap_or_else(|| panic!("{reply:#}"));
    assert_eq!((&metadata["outcome"], &metadata["port"]), (&json!("refused"), &json!(80)));
    let audit = server.installation.audit();
    let noted = |line: &&Value| line["action"] == "network" && line["session"] == session.id;
    assert!(audit.iter().filter(noted).count() >= list.len(), "{audit:#?}");
    assert!(server.metric("belljar_network_visits_total{how=\"reached\"}").await >= 4.0);
    assert!(server.metric("belljar_network_bytes_total").await > 0.0);
}

#[tokio::test]
async fn warm_sandboxes_and_runs_have_it_too() {
    let site = Website::start().await;
    let server = server_for(&site, &[("BELLJAR_POOL", "1")]).await;
    eventually("the pool is full", async || server.metric("belljar_pool_ready").await > 0.0).await;
    let session = session_for(&server, &site).await;
    assert_eq!(server.metric("belljar_pool_taken_total{how=\"hit\"}").await, 1.0);
    let said = session.printed(&fetch(&site.url("/warm"))).await;
    assert!(said.starts_with("GET /warm"), "{said}");
    let said = session.shell(&format!("curl -sS {}", site.url("/beside"))).await;
    assert!(text(&said["stdout"]).starts_with("GET /beside"), "{said:#}");
    for language in ["python", "bash"] {
        let code = match language {
            "python" => fetch(&site.url("/run")),
            _ => format!("curl -sS {}", site.url("/run")),
        };
        let network = json!({"allow": [site.address.to_string()]});
        let run = json!({"language": language, "code": code, "network": network});
        let result = server.post("/v1/run", run).await.json(200);
        assert!(text(&result["stdout"]).starts_with("GET /run"), "{result:#}");
    }
}

#[tokio::test]
async fn the_default_is_the_operators_and_a_key_finds_the_same_policy() {
    let site = Website::start().await;
    let own = site.address.to_string();
    let server = Server::with(&[("BELLJAR_NETWORK", &own)]).await;
    let session = server.session_with(json!({"key": "k"})).await;
    let said = session.printed(&fetch(&site.url("/"))).await;
    assert!(said.starts_with("GET / "), "{said}");
    let differs = server.post("/v1/sessions", json!({"key": "k", "network": "none"})).await;
    assert!(differs.error(409, "session_differs").contains("network"));
    let none = server.session_with(json!({"network": "none"})).await;
    let said = none.printed("import os; print('https_proxy' in os.environ)").await;
    assert_eq!(said, "False\n");
}

#[tokio::test]
async fn a_connection_that_is_not_read_delays_no_other() {
    let site = Website::start().await;
    let server = server_for(&site, &[]).await;
    let session = session_for(&server, &site).await;
    let greedy = format!(
        "import socket\n\
         held = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(20)]\n\
         for s in held: s.sendall(b'GET {} HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n')\n\
         for s in held: assert s.recv(12) == b'HTTP/1.1 200'",
        site.url("/endless")
    );
    session.printed(&greedy).await;
    // All these connections have full windows; events and other connections still pass.
    for n in 0..5 {
        let said = session.printed(&fetch(&site.url(&format!("/{n}")))).await;
        assert!(said.starts_with("GET /"), "{said}");
    }
    let much = session.printed("print('y' * 500_000)").await;
    assert_eq!(much.len(), 500_001);
    assert!(server.rss() < 200 << 20, "{}", server.rss());
    // Connections beyond the limit wait for a free place, and get one.
    let crowd = format!(
        "import threading, urllib.request\n\
         for s in held: s.close()\n\
         done = []\n\
         def one(): done.append(len(urllib.request.urlopen({:?}).read()))\n\
         threads = [threading.Thread(target=one) for _ in range(150)]\n\
         [t.start() for t in threads]; [t.join() for t in threads]\n\
         print(len(done))",
        site.url("/crowd")
    );
    assert_eq!(session.printed(&crowd).await, "150\n");
}

#[tokio::test]
async fn much_goes_both_ways_and_half_a_connection_is_one() {
    let site = tokio::net::TcpListener::bind("127.0.0.2:0").await.expect("a port");
    let address = site.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = site.accept().await {
            tokio::spawn(async move {
                let (mut reader, mut writer) = stream.split();
                let _ = tokio::io::copy(&mut reader, &mut writer).await;
            });
        }
    });
    let most = address.to_string();
    let server = Server::with(&[("BELLJAR_NETWORK", &most)]).await;
    let session = server.session().await;
    let code = format!(
        "import socket, threading, hashlib\n\
         s = socket.create_connection(('127.0.0.1', 3128))\n\
         s.sendall(b'CONNECT {address} HTTP/1.1\\r\\n\\r\\n')\n\
         head = b''\n\
         while not head.endswith(b'\\r\\n\\r\\n'): head += s.recv(1)\n\
         sent, got = hashlib.sha256(), hashlib.sha256()\n\
         def send():\n    \
             for i in range(320):\n        \
                 piece = bytes([i % 251]) * 65536\n        \
                 sent.update(piece); s.sendall(piece)\n    \
             s.shutdown(socket.SHUT_WR)\n\
         t = threading.Thread(target=send); t.start()\n\
         n = 0\n\
         while (piece := s.recv(1 << 16)): got.update(piece); n += len(piece)\n\
         t.join()\n\
         print(head.split()[1].decode(), n, sent.digest() == got.digest())"
    );
    assert_eq!(session.printed(&code).await, "200 20971520 True\n");
    let reply = visits(&session).await;
    assert_eq!((&reply["sent"], &reply["received"]), (&json!(20_971_520), &json!(20_971_520)));
}

#[tokio::test]
async fn bytes_are_limited() {
    let site = Website::start().await;
    let server = server_for(&site, &[("BELLJAR_NETWORK_BYTES", "1M")]).await;
    let session = session_for(&server, &site).await;
    let code = format!(
        "import urllib.request\nr = urllib.request.urlopen({:?})\nn = 0\n\
         try:\n    while (b := r.read(1 << 16)): n += len(b)\n\
         except Exception as e: print(type(e).__name__)\nprint(n < 2_000_000)",
        site.url("/endless")
    );
    let said = session.printed(&code).await;
    assert!(said.ends_with("True\n"), "{said}");
    let said = session.printed(&fetch(&site.url("/"))).await;
    assert!(said.contains("403 belljar: ") && said.contains("BELLJAR_NETWORK_BYTES"), "{said}");
}

/// A DNS server on loopback: names that contain `slow` get no answer, all others get the address of
/// this site. Returns its address and the names it was asked for.
async fn dns(site: &Website) -> (String, Arc<Mutex<HashSet<String>>>) {
    let socket = tokio::net::UdpSocket::bind("127.0.0.2:0").await.expect("a port");
    let address = socket.local_addr().expect("an address").to_string();
    let IpAddr::V4(ip) = site.address.ip() else { panic!("it has an IPv4 address") };
    let asked: Arc<Mutex<HashSet<String>>> = Arc::default();
    let seen = Arc::clone(&asked);
    tokio::spawn(async move {
        let mut question = [0; 1500];
        while let Ok((length, from)) = socket.recv_from(&mut question).await {
            let (name, answer) = answer(&question[..length], ip);
            let is_slow = name.contains("slow");
            seen.lock().expect("nobody panics with it").insert(name);
            if !is_slow {
                let _ = socket.send_to(&answer, from).await;
            }
        }
    });
    (address, asked)
}

/// RFC 1035, section 4: a header of twelve bytes, the name in labels, type and class.
fn answer(question: &[u8], ip: Ipv4Addr) -> (String, Vec<u8>) {
    let (mut name, mut at) = (String::new(), 12);
    while question[at] > 0 {
        let label = &question[at + 1..=at + usize::from(question[at])];
        name = format!("{name}{}.", String::from_utf8_lossy(label));
        at += 1 + label.len();
    }
    let asks_for_v4 = question[at + 1..at + 3] == [0, 1];
    let mut answer = question[..at + 5].to_vec();
    answer[2..4].copy_from_slice(&[0x81, 0x80]);
    answer[6..12].copy_from_slice(&[0, u8::from(asks_for_v4), 0, 0, 0, 0]);
    if asks_for_v4 {
        // A pointer to the name above, type A, class IN, TTL 60 s, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(ip.octets());
    }
    (name, answer)
}

#[tokio::test]
async fn a_silent_dns_server_delays_no_other_request() {
    let site = Website::start().await;
    let (servers, asked) = dns(&site).await;
    let most = format!("open {}", site.address);
    let env = [("BELLJAR_MAX_NETWORK", most.as_str()), ("BELLJAR_DNS", &servers)];
    let server = Server::with(&env).await;
    let named = format!("site.example:{}", site.address.port());
    let allow = json!([named, site.address.to_string(), "*.slow.example"]);
    let session = server.session_with(json!({"network": {"allow": allow}})).await;
    let other = server.session_with(json!({"network": {"allow": allow}})).await;
    // The name is looked up at the configured DNS server, and its address is on the list.
    let said = session.printed(&fetch(&format!("http://{named}/named"))).await;
    assert!(said.starts_with("GET /named"), "{said}");
    let threads = || {
        let tasks = format!("/proc/{}/task", server.pid());
        fs::read_dir(tasks).expect("it runs").count()
    };
    let before = threads();
    // Nearly as many connections as a sandbox may have, each with a different name.
    let knock = "import socket\n\
        held = [socket.create_connection(('127.0.0.1', 3128)) for _ in range(60)]\n\
        for n, s in enumerate(held): s.sendall(b'CONNECT n%d.slow.example:443 HTTP/1.1\\r\\n\\r\\n' % n)";
    session.printed(knock).await;
    let slow = || {
        let asked = asked.lock().expect("nobody panics with it");
        asked.iter().filter(|name| name.contains("slow")).count()
    };
    eventually("the DNS is asked", async || slow() >= 8).await;
    // Another session's lookup, and file operations, which need threads of the server.
    let begun = Instant::now();
    let said = other.printed(&fetch(&format!("http://{named}/other"))).await;
    assert!(said.starts_with("GET /other"), "{said}");
    for n in 0..20 {
        put(&server, &other, &format!("f{n}"), "content").await.json(200);
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    // The session's lookups are queued: at most eight at a time, and none takes a thread.
    assert_eq!(slow(), 8);
    assert!(threads() < before + 30, "{before} threads became {}", threads());
}

/// A client that disconnects frees its place before the remote host has answered. The number of
/// such pending connections is bounded.
#[tokio::test]
async fn connections_that_are_left_behind_are_bounded() {
    let silent = tokio::net::TcpListener::bind("127.0.0.2:0").await.expect("a port");
    let address = silent.local_addr().expect("an address");
    let came = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&came);
    tokio::spawn(async move {
        while let Ok((stream, _)) = silent.accept().await {
            kept.lock().expect("nobody panics with it").push(stream);
        }
    });
    let most = address.to_string();
    let server = Server::with(&[("BELLJAR_NETWORK", &most)]).await;
    let session = server.session().await;
    // Closing a connection with unread data resets it.
    let leave = format!(
        "import socket, select\n\
         for n in range(600):\n    \
             s = socket.create_connection(('127.0.0.1', 3128))\n    \
             s.sendall(b'CONNECT {address} HTTP/1.1\\r\\n\\r\\n')\n    \
             if not select.select([s], [], [], 2)[0]: break\n    \
             s.close()\n\
         print(n > 200)"
    );
    assert_eq!(session.printed(&leave).await, "True\n");
    let came = came.lock().expect("nobody panics with it").len();
    assert!((200..=256).contains(&came), "{came}");
}

/// A child process that is killed at the end of the test.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A web server in Python, for sites that are too complex to write here.
async fn python_site(script: &str, directory: &std::path::Path) -> (Ended, String) {
    let path = directory.join("site.py");
    fs::write(&path, script).expect("a file");
    let mut child = Command::new("python3")
        .arg(&path)
        .current_dir(directory)
        .stdout(Stdio::piped())
        .spawn()
        .expect("python3 starts");
    let stdout = child.stdout.take().expect("it was piped");
    let reading = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).map(|_| line)
    });
    let line = tokio::time::timeout(Duration::from_secs(20), reading).await.expect("a line");
    let address = line.expect("no panic").expect("a line").trim().to_owned();
    (Ended(child), address)
}

#[tokio::test]
async fn pip_installs_from_an_index_on_the_list() {
    let directory = tempfile::tempdir().expect("a directory");
    let script = r#"
import http.server, io, os, zipfile
wheel = io.BytesIO()
with zipfile.ZipFile(wheel, "w") as z:
    z.writestr("tinypkg.py", "answer = 42\n")
    z.writestr("tinypkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinypkg\nVersion: 1.0\n")
    z.writestr("tinypkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    z.writestr("tinypkg-1.0.dist-info/RECORD", "tinypkg.py,,\ntinypkg-1.0.dist-info/METADATA,,\ntinypkg-1.0.dist-info/WHEEL,,\ntinypkg-1.0.dist-info/RECORD,,\n")
name = "tinypkg-1.0-py3-none-any.whl"
os.makedirs("simple/tinypkg", exist_ok=True)
open(f"simple/tinypkg/{name}", "wb").write(wheel.getvalue())
open("simple/tinypkg/index.html", "w").write(f'<a href="{name}">{name}</a>')
server = http.server.ThreadingHTTPServer(("127.0.0.2", 0), http.server.SimpleHTTPRequestHandler)
print("%s:%s" % server.server_address, flush=True)
server.serve_forever()
"#;
    let (_site, address) = python_site(script, directory.path()).await;
    let server = Server::with(&[("BELLJAR_NETWORK", &address)]).await;
    let session = server.session().await;
    let missing = session.python("import tinypkg").await;
    assert_eq!(missing["error"]["name"], "ModuleNotFoundError", "{missing:#}");
    let host = address.split(':').next().expect("a host");
    let pip = format!(
        "python3 -m pip install -q --index-url http://{address}/simple --trusted-host {host} tinypkg"
    );
    let installed = session.shell(&pip).await;
    assert_eq!(installed["status"], "ok", "{installed:#}");
    let said = session.shell("python3 -c 'import tinypkg; print(tinypkg.answer)'").await;
    let reply = visits(&session).await;
    assert_eq!(said["stdout"], "42\n", "{said:#} {reply:#}");
    assert_eq!(session.printed("import tinypkg; print(tinypkg.answer)").await, "42\n");
}

#[tokio::test]
async fn a_key_for_a_host_behind_tls_never_enters_the_sandbox() {
    let directory = tempfile::tempdir().expect("a directory");
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-days", "2", "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.2"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(directory.path())
        .output()
        .expect("openssl is here");
    assert!(made.status.success(), "{made:?}");
    let script = r#"
import http.server, ssl
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        right = self.headers["authorization"] == "Bearer hunter2-and-more"
        said = b"right " + body if right else b"wrong"
        self.send_response(200); self.send_header("content-length", str(len(said))); self.end_headers()
        self.wfile.write(said)
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.2", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain("cert.pem", "key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
print("%s:%s" % server.server_address, flush=True)
server.serve_forever()
"#;
    let (_site, address) = python_site(script, directory.path()).await;
    let secrets =
        json!({"MODEL": {"value": "Bearer ${MODEL_KEY}", "hosts": [format!("https://{address}")]}});
    let cert = directory.path().join("cert.pem").display().to_string();
    let env = [
        ("BELLJAR_MAX_NETWORK", address.as_str()),
        ("BELLJAR_NETWORK_SECRETS", &secrets.to_string()),
        ("MODEL_KEY", "hunter2-and-more"),
        ("SSL_CERT_FILE", &cert),
    ];
    let server = Server::with(&env).await;
    let inject = |name: &str, tls: Value| {
        let header =
            json!({"host": address, "header": "Authorization", "value_from": name, "tls": tls});
        json!({"network": {"allow": [address], "inject": [header]}})
    };
    for (name, tls) in [("OTHER", json!("terminate")), ("MODEL", json!(null))] {
        let refused = server.post("/v1/sessions", inject(name, tls)).await;
        assert!(refused.error(403, "network_not_allowed").contains("no secret"));
    }
    let session = server.session_with(inject("MODEL", json!("terminate"))).await;
    let post = format!(
        "import urllib.request\n\
         r = urllib.request.Request('https://{address}/v1', data=b'question', headers={{'Authorization': 'mine'}})\n\
         print(urllib.request.urlopen(r).read().decode())"
    );
    assert_eq!(session.printed(&post).await, "right question\n");
    let curl = format!("curl -sS -d again https://{address}/v1");
    assert_eq!(session.shell(&curl).await["stdout"], "right again");
    let looked = session.shell("env; cat /tmp/.belljar/*; cat /proc/*/environ").await;
    assert!(!text(&looked["stdout"]).contains("hunter2"), "it is inside");
    let reply = visits(&session).await.to_string();
    assert!(reply.contains("authorization") && !reply.contains("hunter2"), "{reply}");
    let audit = format!("{:?}", server.installation.audit());
    assert!(!audit.contains("hunter2") && !server.said().contains("hunter2"));
    // A session that does not ask for the key gets a plain tunnel and the server's trusted
    // certificates, and the site does not accept its request.
    let plain = server.session_with(json!({"network": {"allow": [address]}})).await;
    assert_eq!(plain.printed(&post).await, "wrong\n");
}
