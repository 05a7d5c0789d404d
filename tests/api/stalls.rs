//! Clients that stall: they use only their own share, are disconnected after a while, and delay no
//! other client. Also servers that temporarily cannot work, and report it.

use std::fs;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::files::at;
use crate::keys::secret;
use crate::storage::on_a_small_disk;
use belljar_testkit::client::{Client, Wire};
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::text;
use belljar_testkit::wait::eventually;

/// Sends a request on a new connection and reads nothing.
async fn said(client: &Client, request: &str) -> Pin<Box<dyn Wire>> {
    let mut wire = client.dial().await;
    wire.write_all(request.as_bytes()).await.expect("a connection");
    wire
}

/// The head of a request; a body may follow.
fn head(method: &str, path: &str, key: &str, more: &str) -> String {
    format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n{more}\r\n")
}

/// Everything the server sends until it closes the connection.
async fn answer(wire: &mut Pin<Box<dyn Wire>>) -> String {
    let mut answer = Vec::new();
    let reading =
        tokio::time::timeout(belljar_testkit::wait::PATIENCE, wire.read_to_end(&mut answer));
    let _ = reading.await.expect("an end");
    String::from_utf8_lossy(&answer).into_owned()
}

fn threads(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs").count()
}

fn open_files(server: &Server) -> usize {
    fs::read_dir(format!("/proc/{}/fd", server.pid())).expect("it runs").count()
}

/// A server with two tenants, and their keys.
async fn two_tenants(env: &[(&str, &str)]) -> (Server, [String; 2]) {
    let installation = env
        .iter()
        .fold(Installation::new(), |installation, (name, value)| installation.env(name, value));
    let installation = Arc::new(installation);
    let key = |name| {
        let key = installation.key(&["--name", name, "--tenant", name]);
        secret(&key).to_owned()
    };
    let keys = ["mallory", "alice"].map(key);
    (installation.serve().await, keys)
}

/// 600 uploads are more than tokio's blocking threads. Each stalled upload used to take one.
#[tokio::test]
async fn stalled_uploads_hold_no_threads() {
    let (server, [mallory, alice]) = two_tenants(&[("BELLJAR_STALL", "3")]).await;
    let theirs = server.with_key(&mallory).session_with(json!({})).await;
    let other = server.with_key(&alice);
    let session = other.session_with(json!({})).await;
    let mut stalled = Vec::new();
    for number in 0..600 {
        let path = at(&theirs, &format!("file{number}"));
        let upload = head("PUT", &path, &mallory, "content-length: 1000000\r\n") + "x";
        stalled.push(said(&server, &upload).await);
    }
    // Waits until enough uploads are being written: the session admits at least this many.
    let listed = format!("{}?list&glob=*.part", at(&theirs, "."));
    let begun = async || {
        let files = server.with_key(&mallory).get(&listed).await.json(200);
        files["files"].as_array().expect("a list").len()
    };
    eventually("uploads are under way", async || begun().await >= 16).await;
    assert!(threads(&server) < 60, "{} threads", threads(&server));
    // All of these read the database or write a file.
    let asked = Instant::now();
    other.get("/v1/sessions").await.json(200);
    other.get(&session.path("/log")).await.json(200);
    assert_eq!(session.printed("print(1)").await, "1\n");
    other.post("/v1/run", json!({"code": "print(2)"})).await.json(200);
    other.session_with(json!({"storage": "BIND"})).await;
    let put = other.request(Method::PUT, &at(&session, "file"), "hello");
    other.send(put).await.json(200);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    // Stalled clients get an error, and none of their files is left.
    let reply = answer(&mut stalled[0]).await;
    assert!(reply.starts_with("HTTP/1.1 408"), "{reply}");
    assert!(reply.contains("1 bytes of the body came in 3 s, which is too slow"), "{reply}");
    drop(stalled);
    eventually("nothing is left of them", async || begun().await == 0).await;
}

/// A stalled upload has a lease of the sandbox. Hibernation is refused meanwhile, but the session
/// can end.
#[tokio::test]
async fn a_stalled_upload_does_not_hold_up_the_end_of_its_session() {
    let (server, [mallory, _]) = two_tenants(&[("BELLJAR_STALL", "60")]).await;
    let client = server.with_key(&mallory);
    let session = client.session_with(json!({})).await;
    let upload = head("PUT", &at(&session, "file"), &mallory, "content-length: 1000000\r\n") + "x";
    let stalled = said(&server, &upload).await;
    let listed = format!("{}?list&glob=*.part", at(&session, "."));
    let begun = async || {
        let files = client.get(&listed).await.json(200);
        files["files"].as_array().expect("a list").len()
    };
    eventually("the upload is under way", async || begun().await == 1).await;
    let refused = client.post(&session.path("/hibernate"), json!({})).await;
    let message = refused.error(409, "not_quiescent");
    assert!(message.contains("a call that uses it is in progress"), "{message}");
    assert_eq!(session.printed("print(1)").await, "1\n", "it goes on");

    let asked = Instant::now();
    assert_eq!(session.stop().await["state"], "stopped");
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    drop(stalled);
    server.installation.has_no_traces().await;
}

#[tokio::test]
async fn a_byte_now_and_then_is_too_slow() {
    let (server, [mallory, _]) = two_tenants(&[("BELLJAR_STALL", "2")]).await;
    let session = server.with_key(&mallory).session_with(json!({})).await;
    let long = "content-length: 1000000\r\n";
    let json = "content-type: application/json\r\ncontent-length: 1000000\r\n";
    let requests = [
        head("PUT", &at(&session, "file"), &mallory, long),
        head("PUT", &format!("{}?append", at(&session, "log")), &mallory, long),
        head("PUT", &format!("{}?archive=tar", at(&session, "dir")), &mallory, long),
        head("POST", &session.path("/exec"), &mallory, json),
    ];
    for request in requests {
        let begun = Instant::now();
        let mut wire = said(&server, &request).await;
        let (mut reader, mut writer) = tokio::io::split(&mut wire);
        let dripping = async {
            while writer.write_all(b" ").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let mut first = [0; 12];
        tokio::select! {
            () = dripping => {}
            read = reader.read_exact(&mut first) => drop(read.expect("an answer")),
            () = tokio::time::sleep(belljar_testkit::wait::PATIENCE) => panic!("it goes on: {request}"),
        }
        assert_eq!(&first, b"HTTP/1.1 408", "{request}");
        assert!(begun.elapsed() < Duration::from_secs(10), "{request}");
    }
}

/// Prints more than a socket's buffers can hold.
async fn prints(session: &Session, exec_id: &str, bytes: usize) {
    let code = format!("import sys\n_ = sys.stdout.write(chr(0) * {bytes})");
    let ask = json!({"code": code, "exec_id": exec_id, "max_output": "32M", "background": true});
    session.exec(ask).await.json(202);
    // Waits for the end without reading the output, which is large.
    let end = session.path(&format!("/execs/{exec_id}/events?offset={bytes}"));
    let end = session.client.get(&end).await.text(200);
    assert!(end.contains("event: done"), "{end}");
}

#[tokio::test]
async fn who_reads_nothing_is_cut_off_and_who_waits_is_not() {
    let (server, [mallory, alice]) = two_tenants(&[("BELLJAR_STALL", "2")]).await;
    let theirs = server.with_key(&mallory).session_with(json!({})).await;
    let session = server.with_key(&alice).session_with(json!({})).await;
    let mut idle = session.client.follow(&format!("{}?watch", at(&session, "."))).await;
    idle.until("watching").await;
    prints(&theirs, "large", 8 << 20).await;
    theirs.shell("head -c 16000000 /dev/zero > large").await;
    let before = open_files(&server);
    let paths = [
        theirs.path("/execs/large"),
        theirs.path("/execs/large/events"),
        theirs.path("/log"),
        at(&theirs, "large"),
        format!("{}?archive=tar", at(&theirs, ".")),
    ];
    let mut unread = Vec::new();
    for path in paths.iter().cycle().take(25) {
        unread.push(said(&server, &head("GET", path, &mallory, "")).await);
    }
    eventually("they are served", async || open_files(&server) >= before + 25).await;
    let begun = Instant::now();
    eventually("they are cut off", async || open_files(&server) <= before + 3).await;
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    // A client that had nothing to read is still connected.
    session.shell("touch seen").await;
    assert_eq!(idle.until("change").await.data["path"], "seen");
    drop(unread);
}

/// Printed NUL bytes are six times as long in JSON. One reader may hold as much as was printed, and
/// all readers of one tenant together at most a quarter of a gigabyte.
#[tokio::test]
async fn readers_that_never_read_hold_a_bounded_share() {
    const PRINTED: usize = 16 << 20;
    const GROWTH: u64 = 600 << 20;
    let (server, [mallory, alice]) = two_tenants(&[]).await;
    let theirs = server.with_key(&mallory).session_with(json!({})).await;
    let session = server.with_key(&alice).session_with(json!({})).await;
    prints(&theirs, "large", PRINTED).await;
    let before = server.rss();
    let mut unread = Vec::new();
    for _ in 0..24 {
        let path = theirs.path("/execs/large");
        unread.push(said(&server, &head("GET", &path, &mallory, "connection: close\r\n")).await);
    }
    // Sixteen fit. The others are refused, and can read the refusal.
    let mut refused = 0;
    let mut most = 0;
    while refused == 0 {
        most = most.max(server.rss());
        let begun = Instant::now();
        assert_eq!(session.printed("print(1)").await, "1\n");
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        for wire in &mut unread {
            let mut seen = [0; 12];
            // Responses to the others begin with 200, and little more than that is read.
            let peeked =
                tokio::time::timeout(Duration::from_millis(20), wire.read(&mut seen)).await;
            if matches!(peeked, Ok(Ok(12)) if &seen == b"HTTP/1.1 429") {
                refused += 1;
            }
        }
    }
    most = most.max(server.rss());
    let growth = most.saturating_sub(before);
    assert!(growth < GROWTH, "the server grew by {} MiB", growth >> 20);
    let second = server.with_key(&mallory).get(&theirs.path("/execs/large")).await;
    second.error(429, "too_much_unread");
    // When they disconnect, their share is free again, and the response has the whole output.
    drop(unread);
    eventually("there is room", async || {
        let answer = server.with_key(&mallory).get(&theirs.path("/execs/large")).await;
        answer.status == 200 && answer.body.len() > 6 * PRINTED
    })
    .await;
}

#[tokio::test]
async fn large_answers_are_what_was_said() {
    let server = Server::start().await;
    let session = server.session().await;
    let code = "import sys\nprint('é\\0\"\\\\\\n😀' * 30000)\nprint('ü\\t' * 30000, file=sys.stderr)\n'x' * 99";
    let ask = json!({"code": code, "exec_id": "e"});
    let result = session.exec(ask.clone()).await.json(200);
    assert_eq!(result["stdout"], "é\0\"\\\n😀".repeat(30000) + "\n");
    assert_eq!(result["stderr"], "ü\t".repeat(30000) + "\n");
    assert_eq!(text(&result["results"][0]["data"]["text/plain"]).len(), 101);
    let of = |value: &Value| (value["stdout"].clone(), value["stderr"].clone());
    assert_eq!(of(&session.exec(ask).await.json(200)), of(&result), "asked again");
    assert_eq!(of(&session.exec_info("e").await["result"]), of(&result));
    let list = server.get(&session.path("/execs")).await.json(200);
    assert_eq!(of(&list["execs"][0]["result"]), of(&result));
    let log = server.get(&session.path("/log")).await.json(200);
    assert_eq!((of(&log["entries"][0]), &log["more"]), (of(&result), &json!(false)));
    let run = server.post("/v1/run", json!({"code": code})).await.json(200);
    assert_eq!(of(&run), of(&result));
    let made = server.post("/create_session", json!({})).await.json(200);
    let command = "head -c 100000 /dev/zero";
    let ask = json!({"session_id": made["session_id"], "command": command});
    let output = server.post("/execute", ask).await.json(200);
    assert_eq!(output["output"], "\0".repeat(100_000));
}

#[tokio::test]
async fn a_locked_database_is_said_soon() {
    let server = Server::start().await;
    let session = server.session().await;
    server.get("/readyz").await.json(200);
    let other = rusqlite::Connection::open(server.path("state/belljar.db")).expect("a database");
    other.execute_batch("BEGIN IMMEDIATE").expect("it is free");
    let mut slowest = Duration::ZERO;
    // A previous result of the check is reused for a moment.
    eventually("it is said", async || {
        let begun = Instant::now();
        let health = server.get("/healthz").await;
        slowest = slowest.max(begun.elapsed());
        health.status == 503
    })
    .await;
    assert!(slowest < Duration::from_secs(3), "{slowest:?}");
    let health = server.get("/healthz").await.json(503);
    assert_eq!(health["status"], "database cannot be written to");
    let ready = server.get("/readyz").await.json(503);
    assert_eq!(ready, json!({"ready": false, "reason": "database cannot be written to"}));
    let refused = session.exec(json!({"code": "print(1)"})).await;
    refused.error(503, "database_locked");
    assert_eq!(refused.retry_after(), 1);
    // By now the lock is known, and requests do not wait long.
    let begun = Instant::now();
    server.post("/v1/sessions", json!({})).await.error(503, "database_locked");
    server.get("/v1/sessions").await.json(200);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    other.execute_batch("ROLLBACK").expect("it was begun");
    eventually("it is well", async || server.get("/healthz").await.status == 200).await;
    assert_eq!(session.printed("print(2)").await, "2\n");
}

#[tokio::test]
async fn a_server_with_a_full_disk_is_not_ready() {
    for directory in ["state", "sessions"] {
        let server = on_a_small_disk(directory, "size=4m").await;
        eventually("it is ready", async || server.get("/readyz").await.status == 200).await;
        let root = server.path(directory).display().to_string();
        let filler = format!("/proc/{}/root{root}/filler", server.pid());
        // Fills the disk.
        let _ = fs::write(&filler, vec![0; 8 << 20]);
        eventually("it says so", async || server.get("/readyz").await.status == 503).await;
        assert_eq!(server.get("/readyz").await.json(503)["ready"], false);
        fs::remove_file(&filler).expect("it was there");
        eventually("it is ready", async || server.get("/readyz").await.status == 200).await;
    }
}
