//! Ways for a tenant to hold resources of the server without using its processors. Each attack returns a
//! value that keeps them held.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::task::JoinHandle;

use belljar_testkit::client::{Client, Wire};
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::terminal;
use belljar_testkit::wait::eventually;

/// Resources that are held until this is dropped.
pub(crate) type Hold = Vec<Box<dyn Any + Send>>;
type Attack = fn(Attacker) -> Pin<Box<dyn Future<Output = Hold>>>;

macro_rules! attacks {
    ($($name:literal => $attack:ident),* $(,)?) => {
        pub(crate) const ATTACKS: &[(&str, Attack)] =
            &[$(($name, |attacker| Box::pin($attack(attacker)))),*];
    };
}

attacks! {
    "slow uploads" => slow_uploads,
    "unread results" => unread_results,
    "unread streams" => unread_streams,
    "slow bodies" => slow_bodies,
    "watches" => watches,
    "terminals" => terminals,
    "huge headers" => huge_headers,
    "sleepers and forks" => sleepers_and_forks,
    "throttled sandboxes" => throttled_sandboxes,
}

/// The attacking tenant, and the size of its attacks.
#[derive(Clone)]
pub(crate) struct Attacker {
    client: Client,
    key: String,
    session: Session,
    times: usize,
}

impl Attacker {
    pub(crate) async fn new(server: &Server, key: &str, times: usize) -> Attacker {
        let client = server.with_key(key);
        let session = client.session_with(json!({})).await;
        Attacker { client, key: key.to_owned(), session, times }
    }

    /// Sends a request on a connection, and reads nothing from it.
    async fn say(&self, method: &str, path: &str, more: &str) -> Box<dyn Any + Send> {
        let key = &self.key;
        let head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\n");
        let mut wire: Pin<Box<dyn Wire>> = self.client.dial().await;
        // The server may close the connection early.
        let _ = wire.write_all((head + more).as_bytes()).await;
        Box::new(wire)
    }
}

/// A task that runs until this is dropped.
struct Going(JoinHandle<()>);

impl Drop for Going {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn going(doing: impl Future<Output = ()> + Send + 'static) -> Box<dyn Any + Send> {
    Box::new(Going(tokio::spawn(doing)))
}

/// More uploads than tokio has threads for blocking work.
async fn slow_uploads(attacker: Attacker) -> Hold {
    let mut hold = Hold::new();
    for number in 0..600 * attacker.times.min(4) {
        let path = attacker.session.path(&format!("/files/file{number}"));
        hold.push(attacker.say("PUT", &path, "content-length: 1000000\r\n\r\nx").await);
    }
    hold
}

/// Each request announces a very large body, and sends a part of it.
async fn slow_bodies(attacker: Attacker) -> Hold {
    let part = " ".repeat(200_000);
    let more =
        format!("content-type: application/json\r\ncontent-length: {}\r\n\r\n{part}", 60 << 20);
    let mut hold = Hold::new();
    for _ in 0..50 * attacker.times {
        hold.push(attacker.say("POST", &attacker.session.path("/exec"), &more).await);
    }
    hold
}

/// Prints many NUL bytes. Each takes six characters in JSON.
async fn large(attacker: &Attacker) -> String {
    let ask = json!({
        "code": "import sys\n_ = sys.stdout.write(chr(0) * (16 << 20))",
        "exec_id": "large", "max_output": "16M", "background": true,
    });
    let session = &attacker.session;
    if session.exec(ask).await.status == 202 {
        let done = session.path(&format!("/execs/large/events?offset={}", 16 << 20));
        attacker.client.get(&done).await.text(200);
    }
    session.path("/execs/large")
}

async fn unread_results(attacker: Attacker) -> Hold {
    let path = large(&attacker).await;
    let mut hold = Hold::new();
    for _ in 0..40 * attacker.times {
        hold.push(attacker.say("GET", &path, "\r\n").await);
    }
    hold
}

/// Streams of a finished execution and of one that never ends, all of them unread.
async fn unread_streams(attacker: Attacker) -> Hold {
    let over = large(&attacker).await + "/events";
    let endless = json!({
        "code": "import time\nwhile True:\n    print('x' * 1000, flush=True)\n    time.sleep(0.02)",
        "exec_id": "endless", "background": true,
    });
    attacker.session.exec(endless).await.json(202);
    let going_on = attacker.session.path("/execs/endless/events");
    let mut hold = Hold::new();
    for _ in 0..40 * attacker.times {
        hold.push(attacker.say("GET", &over, "\r\n").await);
        hold.push(attacker.say("GET", &going_on, "\r\n").await);
    }
    hold
}

/// More watches than a session allows.
async fn watches(attacker: Attacker) -> Hold {
    let mut hold = Hold::new();
    for _ in 0..100 * attacker.times {
        let path = attacker.session.path("/files/.?watch&recursive");
        hold.push(attacker.say("GET", &path, "\r\n").await);
    }
    hold
}

async fn terminals(attacker: Attacker) -> Hold {
    let session = attacker.client.session_with(json!({})).await;
    let mut hold = Hold::new();
    for _ in 0..10 * attacker.times {
        let key = [("x-api-key", attacker.key.as_str())];
        // The number of terminals of a session is limited.
        if let Ok(socket) =
            terminal::connect(&attacker.client, &session, "rows=9&cols=9", &key).await
        {
            hold.push(Box::new(socket));
        }
    }
    assert!(hold.len() >= 4, "{} terminals", hold.len());
    hold
}

async fn huge_headers(attacker: Attacker) -> Hold {
    let header = format!("x-large: {}\r\n", "x".repeat(350_000));
    let mut hold = Hold::new();
    for _ in 0..50 * attacker.times {
        // The empty line at the end is missing, so more headers could follow.
        hold.push(attacker.say("GET", "/v1/sessions", &header).await);
    }
    hold
}

/// Sessions that are hibernated, forked and woken for as long as this is held.
async fn sleepers_and_forks(attacker: Attacker) -> Hold {
    let mut hold = Hold::new();
    for _ in 0..2 * attacker.times.min(2) {
        let session = attacker.client.session_with(json!({})).await;
        session.python("x = 1").await;
        hold.push(going(async move {
            let client = session.client.clone();
            loop {
                // Some of these are refused, because the other attacks use the tenant's share.
                client.post(&session.path("/hibernate"), json!({})).await;
                let forked = client.post(&session.path("/fork"), json!({"count": 1})).await;
                if forked.status == 201 {
                    let fork = &forked.json(201)["sessions"][0]["id"];
                    let id = fork.as_str().unwrap_or_default();
                    client.delete(&format!("/v1/sessions/{id}")).await;
                }
                session.exec(json!({"code": "x"})).await;
                tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            }
        }));
    }
    hold
}

/// Sandboxes that are slow to make, because they may use only a hundredth of a processor.
pub(crate) async fn throttled_sandboxes(attacker: Attacker) -> Hold {
    let mut hold = Hold::new();
    let slow = Arc::new(json!({"limits": {"cpus": 0.01, "memory": "64M"}}).to_string());
    for _ in 0..48 {
        let more = format!(
            "content-type: application/json\r\ncontent-length: {}\r\n\r\n{slow}",
            slow.len()
        );
        hold.push(attacker.say("POST", "/v1/sessions", &more).await);
    }
    // They are being made, or wait to be made.
    eventually("they are known", async || {
        let list = attacker.client.get("/v1/sessions?state=creating&limit=100").await.json(200);
        list["sessions"].as_array().is_some_and(|sessions| sessions.len() >= 16)
    })
    .await;
    hold
}
