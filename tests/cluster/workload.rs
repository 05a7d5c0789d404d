//! Clients that use sessions through all gateways at the same time and record every request and every answer.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use belljar_testkit::cluster::Cluster;
use belljar_testkit::cluster::caller::{self, NoAnswer, Reply};
use belljar_testkit::cluster::dice::Dice;
use hyper::Method;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::history::{Op, Outcome, Recorder, Said, State};

/// Every request is answered within this time.
pub(crate) const BOUND: Duration = Duration::from_secs(30);

/// How long a client waits for an answer: longer than [`BOUND`], so that the checker sees late answers.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long a client repeats a request whose result it does not know.
const PERSISTENCE: Duration = Duration::from_secs(25);

/// Sessions that exist at the same time.
const SESSIONS: usize = 5;

/// After this many executions a session is stopped and a new one takes its place.
const LIFE: u64 = 60;

/// Where the numbers of a session are, apart from the kernel's memory.
const APPEND: &str = "\
import json as _json, os as _os, time as _time
_began = _time.monotonic_ns()
try: xs
except NameError: xs = []
xs.append(NUMBER)
with open('/session/xs', 'a') as _f: _f.write('NUMBER\\n')
_file = [int(_line) for _line in open('/session/xs')]
_start = open('/proc/1/stat').read().rsplit(')', 1)[1].split()[19]
print(_json.dumps({'list': xs, 'file': _file, 'sandbox': _os.readlink('/proc/self/ns/pid') + '@' + _start,
                   'began_ns': _began, 'ended_ns': _time.monotonic_ns(), 'said': 'kept'}))";

/// A session that the clients share.
#[derive(Debug, Clone)]
struct Known {
    /// The test's name for it, and its key.
    name: String,
    id: String,
    used: u64,
}

/// What all clients share.
pub(crate) struct World {
    pub(crate) recorder: Recorder,
    gateways: Vec<SocketAddr>,
    key: String,
    sessions: Mutex<Vec<Known>>,
    artifacts: Mutex<Vec<String>>,
    /// Numbers and names that were used.
    next: AtomicU64,
    created: AtomicU64,
    lost: AtomicU64,
    statuses: Mutex<BTreeMap<String, u64>>,
    /// Answers that no client should get, whatever happens.
    wrong: Mutex<Vec<String>>,
    is_over: AtomicBool,
}

impl World {
    pub(crate) fn new(cluster: &Cluster, recorder: Recorder) -> Arc<World> {
        Arc::new(World {
            recorder,
            gateways: cluster.gateways.iter().map(|gateway| gateway.gateway_address()).collect(),
            key: cluster.key.clone(),
            sessions: Mutex::default(),
            artifacts: Mutex::default(),
            next: AtomicU64::new(1),
            created: AtomicU64::new(0),
            lost: AtomicU64::new(0),
            statuses: Mutex::default(),
            wrong: Mutex::default(),
            is_over: AtomicBool::new(false),
        })
    }

    /// One client; works until [`World::finish`].
    pub(crate) async fn client(self: Arc<World>, mut dice: Dice) {
        while !self.is_over.load(Ordering::Relaxed) {
            self.step(&mut dice).await;
            tokio::time::sleep(dice.millis(0, 40)).await;
        }
    }

    pub(crate) fn finish(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    async fn step(&self, dice: &mut Dice) {
        let known = self.sessions.lock().expect("not poisoned").len();
        if known < SESSIONS && dice.below(3) == 0 || known == 0 {
            return self.create(dice).await;
        }
        let Some(session) = self.pick(dice) else { return };
        if session.used > LIFE {
            return self.stop(dice, &session).await;
        }
        match dice.below(100) {
            0..66 => self.append(dice, &session).await,
            66..76 => self.hibernate(dice, &session).await,
            76..80 => self.fork(dice, &session).await,
            80..84 => self.show(dice, &session).await,
            84..90 => self.publish(dice, &session).await,
            90..95 => self.fetch(dice).await,
            _ => self.run(dice).await,
        }
    }

    /// Uses every session once more; after faults have ended they all have to answer.
    pub(crate) async fn look_at_all(&self, dice: &mut Dice) {
        let all = self.sessions.lock().expect("not poisoned").clone();
        for session in all {
            self.append(dice, &session).await;
            self.stop(dice, &session).await;
        }
        let artifacts = self.artifacts.lock().expect("not poisoned").len().min(20);
        for _ in 0..artifacts {
            self.fetch(dice).await;
        }
    }

    fn pick(&self, dice: &mut Dice) -> Option<Known> {
        let mut sessions = self.sessions.lock().expect("not poisoned");
        let length = sessions.len();
        let chosen = sessions.get_mut(dice.index(length.max(1)))?;
        chosen.used += 1;
        Some(chosen.clone())
    }

    fn forget(&self, session: &Known) {
        self.sessions.lock().expect("not poisoned").retain(|known| known.name != session.name);
    }

    fn number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a request until its result is known, and records each attempt. `understand` returns the outcome of an
    /// answer with a status that is not for all requests.
    async fn insist(
        &self,
        dice: &mut Dice,
        op: Op,
        (method, path, body): (Method, &str, Value),
        understand: impl Fn(&Reply) -> Outcome,
    ) -> Outcome {
        let deadline = Instant::now() + PERSISTENCE;
        loop {
            let gateway = dice.index(self.gateways.len());
            let call = self.recorder.invoke(gateway, op.clone());
            let text = if body.is_null() { String::new() } else { body.to_string() };
            let answer = caller::call(
                self.gateways[gateway],
                &self.key,
                (method.clone(), path),
                text,
                PATIENCE,
            )
            .await;
            let outcome = match &answer {
                Ok(reply) => self.judge(&op, reply, &understand),
                Err(NoAnswer::NotSent(why)) => Outcome::Refused { status: 0, code: why.clone() },
                Err(why) => Outcome::Unknown { why: format!("{why:?}") },
            };
            self.count(&answer);
            self.recorder.complete(call, outcome.clone());
            let is_final = !matches!(
                outcome,
                Outcome::Unknown { .. } | Outcome::Refused { status: 0 | 429 | 502 | 503, .. }
            );
            if is_final || Instant::now() > deadline {
                return outcome;
            }
            tokio::time::sleep(dice.millis(20, 300)).await;
        }
    }

    fn judge(&self, op: &Op, reply: &Reply, understand: impl Fn(&Reply) -> Outcome) -> Outcome {
        let code = reply.code();
        let error = || format!("{op:?}: {} {}", reply.status, String::from_utf8_lossy(&reply.body));
        match reply.status {
            200..300 => understand(reply),
            503 | 429 => {
                if reply.retry_after.is_none() {
                    self.wrong
                        .lock()
                        .expect("not poisoned")
                        .push(format!("no Retry-After: {}", error()));
                }
                // Only some of these say that nothing was done.
                Outcome::Unknown { why: format!("{} {code}", reply.status) }
            }
            404 | 410 if op.session().is_some() => {
                let because =
                    reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
                Outcome::Ended { because }
            }
            502 | 504 => Outcome::Unknown { why: format!("{} {code}", reply.status) },
            400..500 if reply.status != 421 => Outcome::Refused { status: reply.status, code },
            _ => {
                self.wrong.lock().expect("not poisoned").push(error());
                Outcome::Unknown { why: error() }
            }
        }
    }

    fn count(&self, answer: &Result<Reply, NoAnswer>) {
        let name = match answer {
            Ok(reply) => reply.status.to_string(),
            Err(NoAnswer::NotSent(_)) => "not sent".to_owned(),
            Err(NoAnswer::Broken(_)) => "broken".to_owned(),
            Err(NoAnswer::TimedOut) => "none".to_owned(),
        };
        *self.statuses.lock().expect("not poisoned").entry(name).or_default() += 1;
    }

    async fn create(&self, dice: &mut Dice) {
        let name = format!("s{}", self.number());
        let ask = json!({"key": name, "ttl": 3600, "limits": {"memory": "256M"}});
        let op = Op::Create { session: name.clone() };
        let id = Mutex::new(String::new());
        let outcome = self.insist(dice, op, (Method::POST, "/v1/sessions", ask), |reply| {
            *id.lock().expect("not poisoned") =
                reply.json()["id"].as_str().unwrap_or_default().to_owned();
            Outcome::Done
        });
        if outcome.await == Outcome::Done {
            self.created.fetch_add(1, Ordering::Relaxed);
            let id = id.into_inner().expect("not poisoned");
            self.sessions.lock().expect("not poisoned").push(Known { name, id, used: 0 });
        }
    }

    async fn append(&self, dice: &mut Dice, session: &Known) {
        let number = self.number();
        let code = APPEND.replace("NUMBER", &number.to_string());
        let ask = json!({"code": code, "exec_id": format!("n{number}"), "timeout": 20});
        let op = Op::Append { session: session.name.clone(), number };
        let path = format!("/v1/sessions/{}/exec", session.id);
        let outcome = self.insist(dice, op, (Method::POST, &path, ask), executed).await;
        match outcome {
            // A new sandbox may have begun with less: the session says so.
            Outcome::State(state) if state.list.len() < 2 || state.said != Said::Kept => {
                self.show(dice, session).await;
            }
            Outcome::State(_) => {}
            Outcome::Ended { .. } => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                self.forget(session);
            }
            _ => self.show(dice, session).await,
        }
    }

    async fn hibernate(&self, dice: &mut Dice, session: &Known) {
        let op = Op::Hibernate { session: session.name.clone() };
        let path = format!("/v1/sessions/{}/hibernate", session.id);
        let ask = (Method::POST, path.as_str(), json!({}));
        self.insist(dice, op, ask, |_| Outcome::Done).await;
    }

    async fn fork(&self, dice: &mut Dice, session: &Known) {
        if self.sessions.lock().expect("not poisoned").len() >= SESSIONS {
            return;
        }
        let name = format!("s{}", self.number());
        let op = Op::Fork { session: session.name.clone(), child: name.clone() };
        let path = format!("/v1/sessions/{}/fork", session.id);
        let id = Mutex::new(String::new());
        // A fork has no id of its own, so an attempt without an answer may leave a session that no one uses.
        let gateway = dice.index(self.gateways.len());
        let call = self.recorder.invoke(gateway, op.clone());
        let answer =
            caller::call(self.gateways[gateway], &self.key, (Method::POST, &path), "{}", PATIENCE)
                .await;
        self.count(&answer);
        let outcome = match &answer {
            Ok(reply) => self.judge(&op, reply, |reply| {
                let forked =
                    reply.json()["sessions"][0]["id"].as_str().unwrap_or_default().to_owned();
                *id.lock().expect("not poisoned") = forked;
                Outcome::Done
            }),
            Err(why) => Outcome::Unknown { why: format!("{why:?}") },
        };
        self.recorder.complete(call, outcome.clone());
        if outcome == Outcome::Done {
            self.created.fetch_add(1, Ordering::Relaxed);
            let id = id.into_inner().expect("not poisoned");
            self.sessions.lock().expect("not poisoned").push(Known { name, id, used: 0 });
        }
    }

    async fn show(&self, dice: &mut Dice, session: &Known) {
        let op = Op::Show { session: session.name.clone() };
        let path = format!("/v1/sessions/{}", session.id);
        let outcome = self.insist(dice, op, (Method::GET, &path, Value::Null), shown).await;
        if matches!(outcome, Outcome::Ended { .. }) {
            self.forget(session);
        }
    }

    async fn stop(&self, dice: &mut Dice, session: &Known) {
        let op = Op::Stop { session: session.name.clone() };
        let path = format!("/v1/sessions/{}", session.id);
        self.insist(dice, op, (Method::DELETE, &path, Value::Null), |_| Outcome::Done).await;
        self.forget(session);
    }

    async fn publish(&self, dice: &mut Dice, session: &Known) {
        let number = self.number();
        let command = format!("seq {number} {} > artifacts/a{number}", number + 1000);
        let ask = json!({"command": command, "exec_id": format!("a{number}"), "timeout": 20});
        let op = Op::Publish { session: session.name.clone(), number };
        let path = format!("/v1/sessions/{}/exec", session.id);
        let expected: String = (number..=number + 1000).map(|n| format!("{n}\n")).collect();
        let expected = hex(&Sha256::digest(expected));
        let outcome = self.insist(dice, op, (Method::POST, &path, ask), |reply| {
            let result = reply.json();
            let name = format!("a{number}");
            // A command that runs at the same time may have written another file.
            let own = result["artifacts"].as_array().into_iter().flatten();
            let own = own.into_iter().find(|artifact| artifact["name"] == name.as_str());
            match (result["status"].as_str(), own.and_then(|own| own["id"].as_str())) {
                (Some("ok"), Some(id)) => {
                    Outcome::Artifact { id: id.to_owned(), sha256: expected.clone() }
                }
                (status, _) => Outcome::Unknown { why: format!("status {status:?}") },
            }
        });
        if let Outcome::Artifact { id, .. } = outcome.await {
            self.artifacts.lock().expect("not poisoned").push(id);
        }
    }

    async fn fetch(&self, dice: &mut Dice) {
        let artifact = {
            let artifacts = self.artifacts.lock().expect("not poisoned");
            let Some(artifact) = artifacts.get(dice.index(artifacts.len().max(1))) else { return };
            artifact.clone()
        };
        let op = Op::Fetch { artifact: artifact.clone() };
        let url = Mutex::new(None);
        let path = format!("/v1/artifacts/{artifact}");
        self.insist(dice, op.clone(), (Method::GET, &path, Value::Null), |reply| {
            *url.lock().expect("not poisoned") = reply.json()["url"].as_str().map(str::to_owned);
            Outcome::Done
        })
        .await;
        let Some(url) = url.into_inner().expect("not poisoned") else { return };
        // A link may name the server or not.
        let path = url.find("/artifacts/").map_or(url.as_str(), |at| &url[at..]);
        self.insist(dice, op, (Method::GET, path, Value::Null), |reply| Outcome::Artifact {
            id: artifact.clone(),
            sha256: hex(&Sha256::digest(&reply.body)),
        })
        .await;
    }

    async fn run(&self, dice: &mut Dice) {
        let number = self.number();
        let ask = json!({"code": format!("print({number} * 2)"), "timeout": 20});
        self.insist(dice, Op::Run { number }, (Method::POST, "/v1/run", ask), |reply| {
            let result = reply.json();
            match result["stdout"].as_str().and_then(|text| text.trim().parse().ok()) {
                Some(found) => Outcome::Number(found),
                None => Outcome::Unknown { why: result.to_string() },
            }
        })
        .await;
    }

    /// Answers that no client should get.
    pub(crate) fn wrong_answers(&self) -> Vec<String> {
        self.wrong.lock().expect("not poisoned").clone()
    }

    /// One line about what clients did.
    pub(crate) fn summary(&self) -> String {
        let statuses = self.statuses.lock().expect("not poisoned");
        let statuses: Vec<String> =
            statuses.iter().map(|(name, n)| format!("{name}: {n}")).collect();
        let (created, lost) =
            (self.created.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed));
        let artifacts = self.artifacts.lock().expect("not poisoned").len();
        let statuses = statuses.join(", ");
        format!(
            "{created} sessions, {lost} of them said to be lost; {artifacts} artifacts; answers {statuses}"
        )
    }
}

/// The outcome of an execution that has a result.
fn executed(reply: &Reply) -> Outcome {
    let result = reply.json();
    let said = said(&result);
    let stdout = result["stdout"].as_str().unwrap_or_default();
    match serde_json::from_str::<State>(stdout.trim()) {
        Ok(state) if result["status"] == "ok" => Outcome::State(State { said, ..state }),
        // It was interrupted by the loss of its sandbox, or failed before it began.
        _ if said != Said::Kept => Outcome::Said(said),
        _ => Outcome::Unknown { why: format!("status {} {}", result["status"], result["error"]) },
    }
}

/// The outcome of a look at a session.
fn shown(reply: &Reply) -> Outcome {
    let session = reply.json();
    match session["state"].as_str() {
        Some("stopped" | "failed") => Outcome::Ended {
            because: session["ended_because"].as_str().unwrap_or_default().to_owned(),
        },
        _ => Outcome::Said(said(&session)),
    }
}

/// What a result or a session says about its state.
fn said(answer: &Value) -> Said {
    let mut words = answer.clone();
    // The output of the code says nothing about the session.
    words["stdout"] = Value::Null;
    let words = words.to_string();
    if words.contains("went back to") || words.contains("goes on from") {
        Said::WentBack
    } else if answer["kernel_state"] == "lost" {
        Said::LostKernel
    } else {
        Said::Kept
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
