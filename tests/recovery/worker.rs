//! A client that works against a server which is killed again and again, and detects every wrong
//! answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How long a server may be away before a worker gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Deterministic: a failure can be repeated with the same seed.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    body: Vec<u8>,
}

impl Answer {
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let text = String::from_utf8_lossy(&self.body);
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    #[track_caller]
    pub(crate) fn ok(&self) -> Value {
        assert!(matches!(self.status, 200 | 201), "{}: {:#}", self.status, self.json());
        self.json()
    }
}

/// Repeats a request until there is an answer. All our requests can safely be sent twice.
pub(crate) async fn insist(port: u16, method: &str, path: &str, body: &Value) -> Answer {
    let deadline = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < deadline, "no answer to {method} {path} {body}");
        let asked = tokio::time::timeout(PATIENCE, ask(port, method, path, body)).await;
        if let Some(answer) = asked.ok().flatten()
            // A server that stops or starts answers 503.
            && answer.status != 503
        {
            return answer;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// `None` if the server ended before it had answered completely.
async fn ask(port: u16, method: &str, path: &str, body: &Value) -> Option<Answer> {
    let mut stream = send(port, method, path, body).await.ok()?;
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.ok()?;
    let (head, body) = split(&bytes)?;
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    let whole = length.and_then(|length| length.parse().ok()) == Some(body.len());
    let status = head.split(' ').nth(1)?.parse().ok()?;
    whole.then(|| Answer { status, body: body.to_vec() })
}

/// Uses HTTP/1.0, whose answers end with the connection and are not chunked.
async fn send(port: u16, method: &str, path: &str, body: &Value) -> io::Result<TcpStream> {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await?;
    let head = format!(
        "{method} {path} HTTP/1.0\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    Ok(stream)
}

fn split(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    Some((std::str::from_utf8(&bytes[..end]).ok()?, &bytes[end + 4..]))
}

/// Reads a stream of events until it ends or breaks off. Returns the text, the position to continue
/// from, and whether the execution is done.
async fn listen(port: u16, path: &str, mut offset: u64) -> Option<(String, u64, bool)> {
    let path = format!("{path}?offset={offset}");
    let mut stream = send(port, "GET", &path, &Value::Null).await.ok()?;
    let mut bytes = Vec::new();
    // A broken stream is treated like an ended one: complete events count.
    let _ = stream.read_to_end(&mut bytes).await;
    let (head, body) = split(&bytes)?;
    head.starts_with("HTTP/1.0 200").then_some(())?;
    let (mut text, mut done) = (String::new(), false);
    let body = String::from_utf8_lossy(body);
    let whole = body.rfind("\n\n").map_or("", |end| &body[..end]);
    for event in whole.split("\n\n") {
        let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
        if let Some(id) = field("id: ") {
            offset = id.parse().expect("a position");
        }
        if field("event: ") == Some("stdout") {
            let data: Value = serde_json::from_str(field("data: ")?).expect("JSON");
            text += data["text"].as_str().expect("text");
        }
        done |= field("event: ") == Some("done");
    }
    Some((text, offset, done))
}

/// Works in its own session, and counts its steps both here and in the kernel.
pub(crate) struct Worker {
    name: String,
    port: u16,
    dice: Dice,
    /// What the kernel must have counted.
    steps: u64,
    session: String,
    total: Arc<AtomicU64>,
}

impl Worker {
    pub(crate) async fn begin(name: &str, port: u16, seed: u64, total: Arc<AtomicU64>) -> Worker {
        let mut worker = Worker {
            name: name.to_owned(),
            port,
            dice: Dice::new(seed),
            steps: 0,
            session: String::new(),
            total,
        };
        worker.session = worker.find().await;
        worker.step("log = []").await;
        worker
    }

    /// Finds the session with our key. It must always be the same one.
    async fn find(&self) -> String {
        let ask = json!({"key": self.name});
        let body = insist(self.port, "POST", "/v1/sessions", &ask).await.ok();
        assert_eq!(body["replaced"], Value::Null, "a live session was replaced: {body:#}");
        body["id"].as_str().expect("an id").to_owned()
    }

    pub(crate) async fn work(&mut self) {
        match self.dice.below(10) {
            0 => assert_eq!(self.find().await, self.session),
            1 => self.stream().await,
            2 => self.passing_session().await,
            3 => self.run().await,
            _ => self.count().await,
        }
        self.total.fetch_add(1, Ordering::Relaxed);
    }

    /// Appends an entry to the kernel's log, exactly once.
    async fn count(&mut self) {
        let n = self.steps;
        let result = self.step(&format!("log.append({n})\nprint(len(log), log[-1])")).await;
        let printed = result["stdout"].as_str().expect("text");
        assert_eq!(printed, format!("{} {n}\n", self.counted()), "{result:#}");
    }

    /// How many entries the log has now: one for each step except the first.
    fn counted(&self) -> u64 {
        self.steps - 1
    }

    /// Executes code with our own id, so that a repeated request after a lost answer does not
    /// execute it twice.
    async fn step(&mut self, code: &str) -> Value {
        let exec_id = format!("{}-{}", self.name, self.steps);
        self.steps += 1;
        let path = format!("/v1/sessions/{}/exec", self.session);
        let ask = json!({"code": code, "exec_id": exec_id});
        loop {
            let answer = insist(self.port, "POST", &path, &ask).await;
            let result = answer.ok();
            // The server is still joining the execution, which its predecessor started.
            if result.get("status").is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            assert_eq!(result["status"], "ok", "{result:#}");
            assert_eq!(result["kernel_state"], "kept", "{result:#}");
            return result;
        }
    }

    /// Follows output across any number of servers: every line once, in order.
    async fn stream(&mut self) {
        const LINES: u64 = 40;
        let n = self.steps;
        let exec_id = format!("{}-{n}", self.name);
        self.steps += 1;
        let code = format!(
            "import time\nlog.append({n})\nfor i in range({LINES}):\n    print('line', i)\n    \
             time.sleep(0.005)"
        );
        let ask = json!({"code": code, "exec_id": exec_id, "background": false});
        let exec = format!("/v1/sessions/{}/exec", self.session);
        // The execution was accepted, at the latest, when a GET finds it.
        let port = self.port;
        let asking = tokio::spawn(async move { insist(port, "POST", &exec, &ask).await });
        let known = format!("/v1/sessions/{}/execs/{exec_id}", self.session);
        while insist(port, "GET", &known, &Value::Null).await.status == 404 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let (mut offset, mut text, mut done) = (0, String::new(), false);
        let deadline = Instant::now() + PATIENCE;
        while !done {
            assert!(Instant::now() < deadline, "never ends after {text:?}");
            match listen(port, &format!("{known}/events"), offset).await {
                Some((more, next, over)) => {
                    text += &more;
                    (offset, done) = (next, over);
                }
                None => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
        let expected: String = (0..LINES).map(|i| format!("line {i}\n")).collect();
        assert_eq!(text, expected);
        asking.await.expect("no panic");
    }

    /// A short-lived session. Once it is stopped, it stays stopped.
    async fn passing_session(&mut self) {
        let ask = json!({"key": format!("{}-passing-{}", self.name, self.dice.below(3))});
        let body = insist(self.port, "POST", "/v1/sessions", &ask).await.ok();
        let path = format!("/v1/sessions/{}", body["id"].as_str().expect("an id"));
        let stopped = insist(self.port, "DELETE", &path, &Value::Null).await.ok();
        assert_eq!(stopped["state"], "stopped", "{stopped:#}");
        let shown = insist(self.port, "GET", &path, &Value::Null).await.ok();
        assert_eq!(shown["state"], "stopped", "{shown:#}");
    }

    async fn run(&mut self) {
        let ask = json!({"code": "6 * 7"});
        let result = insist(self.port, "POST", "/v1/run", &ask).await.ok();
        assert_eq!(result["results"][0]["data"]["text/plain"], "42", "{result:#}");
    }

    /// Everything that was ever acknowledged is still true.
    pub(crate) async fn check(&mut self) {
        let shown = format!("/v1/sessions/{}", self.session);
        let shown = insist(self.port, "GET", &shown, &Value::Null).await.ok();
        assert!(matches!(shown["state"].as_str(), Some("ready" | "busy")), "{shown:#}");
        let log: Vec<u64> = (1..self.steps).collect();
        let n = self.steps;
        let result = self.step(&format!("print(log)\nlog.append({n})")).await;
        let printed = result["stdout"].as_str().expect("text").trim();
        let counted: Vec<u64> = serde_json::from_str(printed).expect("a list");
        assert_eq!(counted, log, "{}: nothing lost, nothing twice", self.name);
        let last = format!("/v1/sessions/{}/execs/{}-{}", self.session, self.name, n - 1);
        let last = insist(self.port, "GET", &last, &Value::Null).await.ok();
        assert_eq!(last["state"], "finished", "{last:#}");
        assert_eq!(last["result"]["status"], "ok", "{last:#}");
    }
}
