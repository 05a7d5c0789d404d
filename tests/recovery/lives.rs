//! Random lives of sessions. A model of their variables and files must agree with them after every step.
//!
//! Sessions are created, used, hibernated, forked, restored, crashed and stopped. In between the server ends, in an
//! orderly way or by kill -9, also in the middle of a call; the sandbox that loads its zygote is killed; its disk is
//! full.
//!
//! `make test-lives SECONDS=3600` runs for that long. A failure prints its seed and all steps that led to it. `make
//! test-lives SEED=7` repeats the steps, as far as timing allows.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_sys::process;
use serde_json::{Value, json};

use crate::disk::Disk;
use crate::worker::Dice;
use belljar_testkit::client::Answer;
use belljar_testkit::installation::Installation;
use belljar_testkit::server::Server;
use belljar_testkit::session::Session;
use belljar_testkit::values::{names, text};

/// How long the test runs in `make test`.
const SECONDS: u64 = 40;

/// Sessions that live at the same time.
const SESSIONS: usize = 4;

const SIGKILL: i32 = 9;

/// Prints the variables and files of a session in the same form as [`State::shown`].
const LOOK: &str = "import json, os\n\
    print(json.dumps([\
    {n: v if isinstance(v, int) else [len(v), sum(v)] for n, v in globals().items() if n[0] == 'v' and n[1:].isdigit()}, \
    {f: open(f).read() for f in os.listdir('/session') if f[0] == 'f' and f[1:].isdigit()}], sort_keys=True))";

#[derive(Debug, Clone, Copy, PartialEq)]
enum Variable {
    Number(u64),
    /// This many bytes (first) of one value (second).
    Bytes(u64, u64),
    /// The numbers below this one.
    List(u64),
}

impl Variable {
    fn any(dice: &mut Dice) -> Variable {
        match dice.below(3) {
            0 => Variable::Number(dice.below(1 << 40)),
            1 => Variable::Bytes(dice.below(2_000_000), 1 + dice.below(255)),
            _ => Variable::List(dice.below(50_000)),
        }
    }

    fn code(self) -> String {
        match self {
            Variable::Number(n) => format!("{n}"),
            Variable::Bytes(len, byte) => format!("bytes([{byte}]) * {len}"),
            Variable::List(below) => format!("list(range({below}))"),
        }
    }

    fn shown(self) -> Value {
        match self {
            Variable::Number(n) => json!(n),
            Variable::Bytes(len, byte) => json!([len, len * byte]),
            Variable::List(below) => json!([below, below * below.saturating_sub(1) / 2]),
        }
    }
}

/// What a session should have.
#[derive(Debug, Clone, Default, PartialEq)]
struct State {
    variables: BTreeMap<String, Variable>,
    files: BTreeMap<String, String>,
    /// The kernel died, and no result has reported it yet.
    unsaid: bool,
}

impl State {
    fn shown(&self) -> Value {
        let variables: BTreeMap<_, _> =
            self.variables.iter().map(|(name, value)| (name, value.shown())).collect();
        json!([variables, self.files])
    }
}

#[derive(Debug)]
struct Life {
    id: String,
    state: State,
    checkpoints: Vec<(String, State)>,
    /// Executions during which the server was killed. They may have a checkpoint that no result
    /// names.
    unreported: Vec<(String, State)>,
}

struct World {
    dice: Dice,
    installation: Arc<Installation>,
    disk: Disk,
    is_full: bool,
    server: Option<Server>,
    lives: Vec<Life>,
    steps: u64,
    asked: u64,
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().filter(|text| !text.is_empty()).map(|text| text.parse().expect(name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_agree_with_their_model() {
    let seed = setting("LIVES_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let seconds = setting("LIVES_SECONDS").unwrap_or(SECONDS);
    eprintln!("LIVES_SEED={seed} LIVES_SECONDS={seconds}");
    let installation = Installation::new()
        .env("BELLJAR_LOG", "warn")
        .env("BELLJAR_POOL", "1")
        .env("BELLJAR_HIBERNATE_SEC", "1")
        .env("IDLE_HIBERNATE_SEC", "0");
    let installation = Arc::new(installation);
    let disk = Disk::below(&installation, "1g");
    let server = Some(disk.serve(&installation).await);
    let dice = Dice::new(seed);
    let lives = Vec::new();
    let mut world =
        World { dice, installation, disk, is_full: false, server, lives, steps: 0, asked: 0 };
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        world.step().await;
    }
    world.end().await;
}

fn is_of_zygote(pid: u32) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup"));
    groups.is_ok_and(|groups| groups.contains(".zygote-"))
}

impl World {
    fn say(&self, what: &str) {
        let full = if self.is_full { " (disk full)" } else { "" };
        eprintln!("{}: {what}{full}", self.steps);
    }

    /// A random index below this number.
    fn choose(&mut self, of: usize) -> usize {
        usize::try_from(self.dice.below(of as u64)).expect("less than a usize")
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("it runs")
    }

    fn session(&self, at: usize) -> Session {
        Session::of(&self.server().client(), &self.lives[at].id)
    }

    async fn step(&mut self) {
        self.steps += 1;
        if self.lives.is_empty() {
            return self.create().await;
        }
        let at = self.choose(self.lives.len());
        match self.dice.below(100) {
            0..5 => self.create().await,
            5..25 => self.put(at).await,
            25..33 => self.write(at).await,
            33..45 => self.command_and_sleep(at).await,
            45..57 => self.sleep(at).await,
            57..65 => self.fork(at).await,
            65..73 => self.restore(at).await,
            73..76 => self.crash(at).await,
            76..79 => self.kill_kernel(at).await,
            79..82 => self.leave_behind(at).await,
            82..85 => self.stop(at).await,
            85..88 => self.fill().await,
            88..91 => self.terminate().await,
            91..94 => self.kill().await,
            94..97 => self.kill_during_exec(at).await,
            _ => self.kill_during_call(at).await,
        }
        if !self.lives.is_empty() {
            let at = self.choose(self.lives.len());
            self.look(at).await;
        }
    }

    /// Whether the call succeeded. With a full disk it may be refused, and then it has changed
    /// nothing.
    #[track_caller]
    fn done(&self, answer: &Answer, status: u16) -> bool {
        if self.is_full && answer.status == 507 {
            let reply = answer.json(507);
            assert!(!reply.to_string().contains("force"), "{reply:#}");
            return false;
        }
        assert_eq!(answer.status, status, "{answer}");
        true
    }

    /// Runs an execution; `None` if the disk had no room for it.
    async fn exec(&mut self, at: usize, mut ask: Value) -> Option<Value> {
        self.asked += 1;
        let exec = format!("e{}", self.asked);
        ask["exec_id"] = json!(exec);
        let answer = self.session(at).exec(ask.clone()).await;
        if !self.done(&answer, 200) {
            return None;
        }
        let result = answer.json(200);
        let state = &mut self.lives[at].state;
        if ask.get("code").is_some() && ask.get("language").is_none() {
            let reply = if state.unsaid { "lost" } else { "kept" };
            if result["status"] != "crashed" {
                assert_eq!(result["kernel_state"], reply, "{result:#}");
            }
            state.unsaid = false;
        }
        Some(result)
    }

    /// Remembers the state after an execution if a checkpoint was made.
    fn note_checkpoint(&mut self, at: usize, result: &Value) {
        if result["checkpoint"] == true {
            let life = &mut self.lives[at];
            life.checkpoints.push((text(&result["exec_id"]).to_owned(), life.state.clone()));
        } else if let Some(why) = result["no_checkpoint"].as_str() {
            assert!(self.is_full, "no checkpoint: {why}; {}", self.disk.usage());
        }
    }

    async fn look(&mut self, at: usize) {
        let Some(result) = self.exec(at, json!({"code": LOOK})).await else { return };
        assert_eq!(result["status"], "ok", "{result:#}");
        let seen: Value = serde_json::from_str(text(&result["stdout"])).expect("JSON");
        let life = &self.lives[at];
        assert_eq!(seen, life.state.shown(), "{}", life.id);
        self.note_checkpoint(at, &result);
        if !self.is_full {
            let shown = self.session(at).show().await;
            let warnings = shown["warnings"].to_string();
            assert!(
                !warnings.contains("sleep")
                    || warnings.contains("full")
                    || warnings.contains("space"),
                "{shown:#}"
            );
        }
    }

    async fn create(&mut self) {
        if self.lives.len() >= SESSIONS {
            return;
        }
        let ask = match self.dice.below(4) {
            0 => json!({"storage": "BIND"}),
            1 => json!({}),
            // The checkpoints of four sessions have to fit on the disk.
            _ => json!({"checkpoints": {"max": 4, "max_bytes": "48M"}}),
        };
        self.say(&format!("create {ask}"));
        let answer = self.server().post("/v1/sessions", ask).await;
        if self.done(&answer, 201) {
            let id = text(&answer.json(201)["id"]).to_owned();
            self.lives.push(Life {
                id,
                state: State::default(),
                checkpoints: Vec::new(),
                unreported: Vec::new(),
            });
        }
    }

    async fn put(&mut self, at: usize) {
        let (name, value) = (format!("v{}", self.dice.below(6)), Variable::any(&mut self.dice));
        self.say(&format!("{at}: {name} = {}", value.code()));
        let ask = json!({"code": format!("{name} = {}", value.code())});
        if let Some(result) = self.exec(at, ask).await {
            assert_eq!(result["status"], "ok", "{result:#}");
            self.lives[at].state.variables.insert(name, value);
            self.note_checkpoint(at, &result);
        }
    }

    async fn write(&mut self, at: usize) {
        let (name, content) =
            (format!("f{}", self.dice.below(4)), self.dice.below(1 << 30).to_string());
        self.say(&format!("{at}: write {name}"));
        if self.dice.below(2) == 0 {
            let path = self.session(at).path(&format!("/files/{name}"));
            let put = self.server().request(hyper::Method::PUT, &path, content.clone());
            if self.done(&self.server().send(put).await, 200) {
                self.lives[at].state.files.insert(name, content);
            }
            return;
        }
        let ask = json!({"command": format!("printf {content} > /session/{name}")});
        if let Some(result) = self.exec(at, ask).await {
            assert_eq!(result["status"], "ok", "{result:#}");
            self.lives[at].state.files.insert(name, content);
            self.note_checkpoint(at, &result);
        }
    }

    /// A command that has ended leaves nothing that prevents hibernation.
    async fn command_and_sleep(&mut self, at: usize) {
        self.say(&format!("{at}: a command, and sleep"));
        if let Some(result) = self.exec(at, json!({"command": "echo $$ | cat"})).await {
            assert_eq!(result["status"], "ok", "{result:#}");
            self.note_checkpoint(at, &result);
        }
        self.hibernate(at, false).await;
    }

    async fn sleep(&mut self, at: usize) {
        let force = self.dice.below(2) == 0;
        self.say(&format!("{at}: sleep, force {force}"));
        self.hibernate(at, force).await;
    }

    async fn hibernate(&mut self, at: usize, force: bool) {
        let session = self.session(at);
        // A session that is hibernated already reports what was lost when it hibernated.
        let slept = session.show().await["state"] == "hibernated";
        let answer =
            session.client.post(&session.path("/hibernate"), json!({"force": force})).await;
        if self.done(&answer, 200) {
            let reply = answer.json(200);
            assert_eq!(reply["state"], "hibernated", "{reply:#}");
            let lost = reply["lost"].as_array().map_or(0, Vec::len);
            assert!(slept || lost == usize::from(self.lives[at].state.unsaid), "{reply:#}");
        }
    }

    async fn fork(&mut self, at: usize) {
        if self.lives.len() >= SESSIONS {
            return;
        }
        self.say(&format!("{at}: fork"));
        let session = self.session(at);
        let answer = session.client.post(&session.path("/fork"), json!({})).await;
        if self.done(&answer, 201) {
            let id = text(&answer.json(201)["sessions"][0]["id"]).to_owned();
            let state = self.lives[at].state.clone();
            self.lives.push(Life { id, state, checkpoints: Vec::new(), unreported: Vec::new() });
            self.look(self.lives.len() - 1).await;
        }
    }

    /// The number of checkpoints of a session. The model drops those that the session has dropped.
    async fn checkpoints(&mut self, at: usize) -> usize {
        let session = self.session(at);
        let listed = session.client.get(&session.path("/checkpoints")).await.text(200);
        let life = &mut self.lives[at];
        let known = &mut life.checkpoints;
        let number = |exec: &str| exec[1..].parse::<u64>().expect("a number");
        for found in
            life.unreported.extract_if(.., |(exec, _)| listed.contains(&format!("\"{exec}\"")))
        {
            let at = known.partition_point(|(exec, _)| number(exec) < number(&found.0));
            known.insert(at, found);
        }
        let newest = known.last().map(|(exec, _)| number(exec));
        known.retain(|(exec, _)| listed.contains(&format!("\"{exec}\"")));
        // A checkpoint may be newer than all that results have named: of an execution that a killed server had begun.
        let listed: Value = serde_json::from_str(&listed).expect("JSON");
        let kept = listed["checkpoints"].as_array().expect("a list");
        let kept = kept.iter().map(|checkpoint| number(text(&checkpoint["exec_id"]))).max();
        assert!(kept >= newest, "the newest is kept: {newest:?}, {listed}");
        known.len()
    }

    async fn restore(&mut self, at: usize) {
        let known = self.checkpoints(at).await;
        if known == 0 {
            return;
        }
        let chosen = self.choose(known);
        let (exec, state) = self.lives[at].checkpoints[chosen].clone();
        self.say(&format!("{at}: back to {exec}"));
        let session = self.session(at);
        let answer = session.client.post(&session.path("/restore"), json!({"exec_id": exec})).await;
        if self.done(&answer, 200) {
            self.lives[at].state = state;
        }
    }

    async fn crash(&mut self, at: usize) {
        self.say(&format!("{at}: the kernel crashes"));
        let Some(result) = self.exec(at, json!({"code": "import os; os._exit(3)"})).await else {
            return;
        };
        assert_eq!(result["kernel_state"], "lost", "{result:#}");
        self.lives[at].state.variables.clear();
        self.note_checkpoint(at, &result);
    }

    /// The kernel dies between executions.
    async fn kill_kernel(&mut self, at: usize) {
        self.say(&format!("{at}: the kernel is killed"));
        let ask = json!({"code": "import os; print(os.getpid())"});
        let Some(result) = self.exec(at, ask).await else { return };
        self.note_checkpoint(at, &result);
        let pid = text(&result["stdout"]).trim().to_owned();
        let ask = json!({"command": format!("kill -9 {pid} && while kill -0 {pid}; do :; done")});
        if let Some(result) = self.exec(at, ask).await {
            assert_eq!(result["status"], "ok", "{result:#}");
            let state = &mut self.lives[at].state;
            state.variables.clear();
            state.unsaid = true;
            self.note_checkpoint(at, &result);
        }
    }

    /// State that cannot be kept is lost with `force` only, and is then listed. The rest is kept.
    async fn leave_behind(&mut self, at: usize) {
        self.say(&format!("{at}: sleep without a thread"));
        let code = "import threading, time\n\
            threading.Thread(target=time.sleep, args=(3600,), name='left', daemon=True).start()";
        let Some(result) = self.exec(at, json!({"code": code})).await else { return };
        assert_eq!(result["status"], "ok", "{result:#}");
        let session = self.session(at);
        let ask = async |force: bool| {
            session.client.post(&session.path("/hibernate"), json!({"force": force})).await
        };
        let refused = ask(false).await;
        if self.done(&refused, 409) {
            assert!(refused.error(409, "not_quiescent").contains("left"));
        }
        let mut answer = ask(true).await;
        if !self.done(&answer, 200) {
            // The model knows no threads, so the session must hibernate without this one.
            self.free();
            answer = ask(true).await;
        }
        let lost = answer.json(200)["lost"].clone();
        assert_eq!(lost.as_array().map(Vec::len), Some(1), "{lost:#}");
        assert!(text(&lost[0]).contains("left"), "{lost:#}");
    }

    async fn stop(&mut self, at: usize) {
        self.say(&format!("{at}: stop"));
        self.session(at).stop().await;
        self.lives.remove(at);
    }

    async fn fill(&mut self) {
        if self.is_full {
            self.say("there is room again");
            return self.free();
        }
        let leave = [0, 20_000, 1 << 20, 8 << 20][self.choose(4)];
        self.say(&format!("the disk is full but for {leave} bytes"));
        self.disk.fill(leave);
        self.is_full = true;
    }

    fn free(&mut self) {
        self.disk.free();
        self.is_full = false;
    }

    async fn terminate(&mut self) {
        self.free();
        self.say("the server ends, and another begins");
        self.server.take().expect("it runs").terminate().await;
        self.serve().await;
    }

    async fn kill(&mut self) {
        self.free();
        self.say("the server is killed, and another begins");
        self.server.take().expect("it runs").kill().await;
        self.serve().await;
    }

    /// The server is killed during an execution. The repeated request does not execute the code
    /// twice.
    async fn kill_during_exec(&mut self, at: usize) {
        self.free();
        let (name, value) = (format!("v{}", self.dice.below(6)), Variable::any(&mut self.dice));
        self.say(&format!("{at}: {name} = {}, and the server is killed", value.code()));
        self.asked += 1;
        let ask = json!({"code": format!("{name} = {}", value.code()), "exec_id": format!("e{}", self.asked)});
        let path = self.session(at).path("/exec");
        self.kill_meanwhile(&path, &ask, 40).await;
        let result = self.session(at).exec(ask).await.json(200);
        assert_eq!(result["status"], "ok", "{result:#}");
        let state = &mut self.lives[at].state;
        let reply = if std::mem::take(&mut state.unsaid) { "lost" } else { "kept" };
        assert_eq!(result["kernel_state"], reply, "{result:#}");
        state.variables.insert(name, value);
        if result["checkpoint"] == true {
            self.note_checkpoint(at, &result);
        } else {
            let life = &mut self.lives[at];
            life.unreported.push((text(&result["exec_id"]).to_owned(), life.state.clone()));
        }
    }

    /// The server is killed during a call. Afterwards the session is as before the call, or, for a
    /// restore, as in the checkpoint.
    async fn kill_during_call(&mut self, at: usize) {
        self.free();
        let known = self.checkpoints(at).await;
        let (path, ask, then) = match self.dice.below(3) {
            0 => ("/hibernate", json!({}), None),
            1 if known > 0 => {
                let chosen = self.choose(known);
                let (exec, state) = self.lives[at].checkpoints[chosen].clone();
                ("/restore", json!({"exec_id": exec}), Some(state))
            }
            _ => ("/fork", json!({}), None),
        };
        self.say(&format!("{at}: {path}, and the server is killed"));
        let path = self.session(at).path(path);
        self.kill_meanwhile(&path, &ask, 200).await;
        if let Some(then) = then {
            self.asked += 1;
            let ask = json!({"code": LOOK, "exec_id": format!("e{}", self.asked)});
            let result = self.session(at).exec(ask).await.json(200);
            let seen: Value = serde_json::from_str(text(&result["stdout"])).expect("JSON");
            let is_lost = result["kernel_state"] == "lost";
            let life = &mut self.lives[at];
            let mut possible = [life.state.clone(), then].into_iter();
            let found = possible.find(|it| it.shown() == seen && it.unsaid == is_lost);
            let found = found.unwrap_or_else(|| panic!("neither: {result:#}"));
            life.state = State { unsaid: false, ..found };
        }
        // Stops forks whose ids never reached the client.
        let listed = self.server().get("/v1/sessions?limit=1000").await.json(200);
        for listed in listed["sessions"].as_array().expect("a list") {
            let (id, state) = (text(&listed["id"]), text(&listed["state"]));
            let is_over = ["stopped", "failed"].contains(&state);
            if !is_over && !self.lives.iter().any(|life| life.id == id) {
                Session::of(&self.server().client(), id).stop().await;
            }
        }
    }

    /// Sends a request and kills the server at a random moment after it.
    async fn kill_meanwhile(&mut self, path: &str, ask: &Value, most_ms: u64) {
        let mut connection = self.server().connect().await;
        let request = self.server().request(hyper::Method::POST, path, ask.to_string());
        // The request gets no answer, unless the server is quick.
        let asking = tokio::spawn(async move { drop(connection.try_send(request).await) });
        tokio::time::sleep(Duration::from_millis(self.dice.below(most_ms))).await;
        self.server.take().expect("it runs").kill().await;
        asking.abort();
        let _ = asking.await;
        self.serve().await;
    }

    async fn serve(&mut self) {
        let server = self.disk.serve(&self.installation).await;
        if self.dice.below(2) == 0 {
            // Kills the sandbox that loads the new zygote. The server makes another one.
            let mut pids = self.installation.scratch().processes();
            pids.retain(|pid| is_of_zygote(*pid));
            for pid in pids {
                let _ = process::signal(pid, SIGKILL);
            }
        }
        self.server = Some(server);
    }

    async fn end(mut self) {
        // A server that is killed while it makes a sandbox may leave the control group of the sandbox, if the sandbox
        // joins it after the next server has looked for leftovers. The server after that removes it.
        self.terminate().await;
        for at in 0..self.lives.len() {
            self.look(at).await;
        }
        while !self.lives.is_empty() {
            self.stop(0).await;
        }
        let frozen = self.disk.path("frozen");
        let mut left = names(&frozen.join(names(&frozen).remove(0)));
        left.retain(|name| name != "commons");
        assert_eq!(left, [""; 0], "pictures are left");
        self.server.take().expect("it runs").terminate().await;
        self.installation.has_no_traces().await;
        eprintln!("{} steps", self.steps);
    }
}
