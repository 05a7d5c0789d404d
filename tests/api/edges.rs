//! Ordinary conditions that look like failures, and deceptive names.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_sys::process;
use hyper::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_tungstenite::tungstenite::Message;

use crate::keys::{secret, with_keys};
use belljar_testkit::client::Answer;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::terminal::TerminalClient;
use belljar_testkit::values::{names, text};
use belljar_testkit::wait::{PATIENCE, eventually};

const SIGKILL: i32 = 9;

/// Link loops, sockets, terminals, mounts, and `/proc` files of the guest itself.
#[tokio::test]
async fn what_is_no_file_is_no_failure_of_ours() {
    let server = Server::start().await;
    let session = server.session().await;
    session
        .printed(
            "import os, socket\nos.symlink('b', 'a')\nos.symlink('a', 'b')\n\
             s = socket.socket(socket.AF_UNIX)\ns.bind('/session/s')\n\
             os.symlink('/proc/self', 'me')\nopen('plain', 'w').write('kept')",
        )
        .await;
    let ask = async |method: Method, path: &str, body: &str| -> Answer {
        let path = session.path(&format!("/files/{path}"));
        server.send(server.request(method, &path, body.to_owned())).await
    };
    for (path, code) in [
        ("a", "not_a_file"),
        ("a/x?stat", "not_a_file"),
        ("a?list", "not_a_file"),
        ("s", "not_a_file"),
        ("/dev/tty", "not_a_file"),
        ("/dev/ptmx", "not_a_file"),
        // The guest reads these paths, so they would describe the guest.
        ("/proc/self/map_files?list", "not_permitted_inside"),
        ("/proc?list", "not_permitted_inside"),
        ("me/map_files?list", "not_permitted_inside"),
        ("me/fd?list&recursive", "not_permitted_inside"),
        ("/proc/1/exe?stat", "not_permitted_inside"),
        ("/proc/self/maps", "not_permitted_inside"),
        ("me?archive=tar", "not_permitted_inside"),
    ] {
        let answer = ask(Method::GET, path, "").await;
        assert_eq!(answer.status, 409, "{path}: {answer}");
        answer.error(409, code);
    }
    // A listing of `/` has `/proc` by name only. The list contains all of the machine's programs,
    // which takes long to read from a cold disk.
    let request =
        server.request(Method::GET, &session.path("/files//?list&recursive"), String::new());
    let listing = async { server.connect().await.send(request).await };
    let all = tokio::time::timeout(Duration::from_secs(90), listing).await;
    let all = all.expect("a list").json(200);
    let below = |file: &Value| text(&file["path"]).starts_with("proc/");
    assert!(!all["files"].as_array().expect("a list").iter().any(below));
    for body in [json!({"to": "/session/maps"}), json!({"to": "/session/maps", "copy": true})] {
        let answer = ask(Method::POST, "/proc/self/maps", &body.to_string()).await;
        answer.error(409, "not_permitted_inside");
    }
    for path in ["/", "/?recursive", "/session?recursive", "/tmp?recursive", "/proc?recursive"] {
        let answer = ask(Method::DELETE, path, "").await;
        assert_eq!(answer.status, 409, "{path}: {answer}");
        answer.error(409, "not_permitted_inside");
    }
    assert_eq!(ask(Method::GET, "plain", "").await.text(200), "kept", "nothing was removed");
    let own = ask(Method::GET, "/session?list", "").await.json(200);
    let own: Vec<&str> =
        own["files"].as_array().expect("a list").iter().map(|file| text(&file["path"])).collect();
    assert!(!own.contains(&"maps"), "{own:?}");

    // Numbers larger than that of any execution.
    for number in [i64::MAX as u64, 1 << 63, u64::MAX] {
        let log = server.get(&session.path(&format!("/log?after={number}"))).await.json(200);
        assert_eq!(log["entries"], json!([]), "{log:#}");
        let execs = server.get(&session.path(&format!("/execs?before={number}"))).await.json(200);
        assert_eq!(execs["execs"].as_array().expect("a list").len(), 1, "{execs:#}");
    }

    // The sandbox dies during an upload.
    let mut wire = server.dial().await;
    let head = format!(
        "PUT {} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20\r\nConnection: close\r\n\r\n0123456789",
        session.path("/files/upload")
    );
    wire.write_all(head.as_bytes()).await.expect("it listens");
    let is_begun = "import os\nprint([n for n in os.listdir('/session') if n.endswith('.part')])";
    eventually("it has begun", async || session.printed(is_begun).await != "[]\n").await;
    for pid in server.installation.pids_inside(1) {
        process::signal(pid, SIGKILL).expect("it lives");
    }
    session.becomes("failed").await;
    wire.write_all(b"0123456789").await.expect("it listens");
    let mut answer = String::new();
    let read = tokio::time::timeout(PATIENCE, wire.read_to_string(&mut answer)).await;
    read.expect("an answer").expect("text");
    assert!(answer.starts_with("HTTP/1.1 410 "), "{answer}");
    assert!(answer.contains("session_ended"), "{answer}");
    assert!(!server.said().contains(" ERROR "), "{}", server.said());
}

#[tokio::test]
async fn directories_deeper_than_any_path_do_not_keep_a_session_from_starting_again() {
    let server = Server::start().await;
    let session = server.session_with(json!({"storage": "BIND"})).await;
    let dig = "import os\nopen('kept', 'w').write('x')\nfor _ in range(2500):\n    \
               os.mkdir('deep'); os.chdir('deep')\nopen('bottom', 'w').write('y')";
    session.printed(dig).await;
    session.stop().await;
    let started = server.post_answer(&session, "/start").await;
    assert_eq!(started.status, 200, "{started}");
    let look = "import os\nprint(open('/session/kept').read())\nos.chdir('/session')\n\
                for _ in range(2500): os.chdir('deep')\n\
                print(open('bottom').read(), os.stat('bottom').st_uid == os.getuid())";
    assert_eq!(session.printed(look).await, "x\ny True\n");
}

/// The server's log has one event per line, and never contains terminal input.
#[tokio::test]
async fn a_log_cannot_be_forged_and_does_not_listen_in() {
    let server = Server::with(&[("BELLJAR_LOG", "trace")]).await;
    let session = server.session().await;
    let mut terminal = TerminalClient::take(&server.client(), &session, "command=cat").await;
    let typed = Message::Binary(b"swordfish\n".to_vec().into());
    futures_util::SinkExt::send(&mut terminal.socket, typed).await.expect("sent");
    terminal.until("swordfish").await;
    // The error for an interrupted archive contains a file name, and the code in the sandbox chose
    // that name.
    let make = "import os\nos.mkdir('d')\nos.chdir('d')\n\
                big = os.urandom(3 << 20)\nopen('1', 'wb').write(big)\n\
                name = 'x\\n2026-11-16T00:00:00Z ERROR belljar: forged\\x1b[2J'\n\
                open(name, 'w').close()\nos.chmod(name, 0)\nopen('2', 'wb').write(big)";
    session.printed(make).await;
    let mut wire = server.dial().await;
    let head = format!(
        "GET {} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n",
        session.path("/files/d?archive=tar")
    );
    wire.write_all(head.as_bytes()).await.expect("it listens");
    let mut answer = Vec::new();
    let read = tokio::time::timeout(PATIENCE, wire.read_to_end(&mut answer)).await;
    let _ = read.expect("it breaks off");
    eventually("it is logged", async || server.said().contains("forged")).await;
    let said = server.said();
    let bytes: Vec<String> = b"swordfish".iter().map(u8::to_string).collect();
    let hex: String = b"swordfish".iter().map(|byte| format!("{byte:02x}")).collect();
    for typed in ["swordfish", &bytes.join(", "), &hex] {
        assert!(!said.contains(typed), "{typed}: {said}");
    }
    assert!(!said.lines().any(|line| line.starts_with("2026-11-16T00:00:00Z ERROR")), "{said}");
    assert!(!said.contains('\u{1b}'), "{said}");
}

/// Tenants share these directories. Each tenant's files in them are private.
#[tokio::test]
async fn exports_and_outputs_are_private_and_apart() {
    let (server, keys) = with_keys(&[&["--name", "a", "--tenant", "acme"], &["--name", "d"]]).await;
    let [acme, default] = [0, 1].map(|n: usize| server.with_key(secret(&keys[n])));
    let mut places = Vec::new();
    for client in [&acme, &default] {
        let session = client.session_with(json!({"datasets": "API"})).await;
        session.shell("mkdir -p data/d && echo 1 > data/d/sales.csv").await;
        let exported = client.post(&session.path("/datasets/export"), json!({})).await.json(200);
        let code = "import os; os.makedirs('/work/artifacts/d'); \
                    open('/work/artifacts/d/plot.txt', 'w').write('1\\n')";
        let run = json!({"code": code});
        let run = client.post("/v1/run", run).await.json(200);
        let installation = |artifact: &Value| PathBuf::from(text(&artifact["host_path"]));
        places.push((installation(&exported["exports"][0]), installation(&run["artifacts"][0])));
        assert_eq!(fs::read_to_string(&places[places.len() - 1].1).expect("a file"), "1\n");
    }
    let shown = |installation: &Path, shared: &str| {
        let shared = server.path(shared);
        let below =
            installation.strip_prefix(&shared).unwrap_or_else(|_| panic!("{installation:?}"));
        for part in below.ancestors().skip(1) {
            let mode = fs::metadata(shared.join(part)).expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "{part:?}");
        }
        below.components().count()
    };
    let [(acme_export, acme_output), (export, output)] = &places[..] else { unreachable!() };
    // The default tenant, the only one of a server without keys, has no directory of its own.
    assert_eq!((shown(export, "exports"), shown(output, "outputs")), (2, 3));
    assert_eq!((shown(acme_export, "exports"), shown(acme_output, "outputs")), (3, 4));
    for file in [acme_export, export] {
        let mode = fs::metadata(file).expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{file:?}");
    }
}

#[tokio::test]
async fn a_list_of_artifacts_has_one_server() {
    let database = tempfile::tempdir().expect("a directory");
    let database = database.path().join("artifacts.db");
    let installation =
        || Arc::new(Installation::new().env("ARTIFACTS_DB", &database.display().to_string()));
    let (one, other) = (installation(), installation());
    let server = one.serve().await;
    let refusal = other.refusal().await;
    assert!(refusal.contains("another server uses it; set ARTIFACTS_DB"), "{refusal}");
    assert!(names(&other.path("blobstore")).is_empty(), "nothing was touched");
    server.terminate().await;
    other.serve().await.terminate().await;
}

#[tokio::test]
async fn ids_cannot_be_guessed() {
    let server = Server::start().await;
    let session = server.session().await;
    let result = session.python("open('/session/artifacts/a', 'w').write('x')").await;
    let run = server.post("/v1/run", json!({"code": "1"})).await.json(200);
    let ids =
        [&json!(session.id), &result["exec_id"], &result["artifacts"][0]["id"], &run["exec_id"]];
    for id in ids {
        let (_, random) = text(id).split_once('_').expect("a prefix");
        assert_eq!((random.len(), hex(random)), (32, true), "{id}");
    }
}

fn hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
