//! `belljar session exec`

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::artifacts::Artifacts;
use belljar_proto::exec::Language;
use belljar_proto::exec::{Dropped, Event, KernelState, MimeBundle, Status};
use belljar_runtime::languages;
use clap::Args;
use indicatif::HumanBytes;
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::follow::Follower;
use super::{find_id, print_json};
use crate::client::{Client, ClientError, ServerEvent, escape};
use crate::commands::code::{self, GivenCode};
use crate::commands::output::{self, Ending};
use crate::flags::SessionArg;
use crate::flags::values::{parse_env, parse_language, parse_seconds, parse_size};

#[derive(Debug, Args)]
#[command(after_help = "\
The exit status is that of the code; 124 after a timeout, 130 if it was interrupted, 137 if memory ran
out, 125 if something else failed. Ctrl-C interrupts the code; a second Ctrl-C leaves it running. If the
server is lost, the command waits for it and loses no output.

Examples:
  belljar session exec demo -c 'import pandas as pd; df = pd.read_csv(\"/data/a.csv\")'
  belljar session exec demo analysis.py --timeout 600
  belljar session exec demo --lang bash -c 'cd /tmp; export A=1'
  belljar session exec demo --background --command python3 -m http.server
  echo 'df.describe()' | belljar session exec demo -")]
pub(crate) struct SessionExecArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// A file with code, or - for standard input
    #[arg(value_name = "FILE", required_unless_present_any = ["code", "command", "join"],
        conflicts_with_all = ["code", "command", "join"])]
    pub(crate) file: Option<PathBuf>,
    /// The code itself; the value of its last expression is printed
    #[arg(short = 'c', long = "code", value_name = "CODE", allow_hyphen_values = true,
        conflicts_with_all = ["command", "join"])]
    pub(crate) code: Option<String>,
    /// Language of the code: python, bash, javascript, typescript or r [default: by the file's name,
    /// else python]
    #[arg(long, value_name = "LANG", value_parser = parse_language,
        conflicts_with_all = ["command", "join"])]
    pub(crate) lang: Option<Language>,
    /// Seconds the code may run [default: 60, and a year in the background]
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds, conflicts_with = "join")]
    pub(crate) timeout: Option<u64>,
    /// A variable for its environment; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env, conflicts_with = "join")]
    pub(crate) env: Vec<(String, String)>,
    /// How much of stdout, and of stderr, to keep
    #[arg(long, value_name = "SIZE", value_parser = parse_size, conflicts_with = "join")]
    pub(crate) max_output: Option<u64>,
    /// Do not wait: the code runs in the background, in a process of its own
    #[arg(long, conflicts_with = "join")]
    pub(crate) background: bool,
    /// Show the output of this execution from its beginning and follow it, instead of starting one
    #[arg(long, value_name = "EXEC", conflicts_with = "command")]
    pub(crate) join: Option<String>,
    /// Print the whole result as JSON at the end, instead of the output while it runs
    #[arg(long)]
    pub(crate) json: bool,
    /// Instead of code, run a command in a process of its own: the rest of the line is a program with its
    /// arguments, or one text for a shell
    #[arg(long, value_name = "WORD", num_args = 1.., allow_hyphen_values = true)]
    pub(crate) command: Vec<String>,
}

/// The most artifacts that are listed one by one.
const MAX_SHOWN: usize = 20;

/// The exit status after Ctrl-C.
const EXIT_INTERRUPTED: i32 = 130;

pub(super) async fn exec(client: &Client, args: SessionExecArgs) -> Result<ExitCode> {
    let (exec, ask) = match &args.join {
        Some(exec) => (exec.clone(), None),
        None => {
            let exec = belljar_engine::new_id("exec");
            let ask = ask(&args, &exec)?;
            (exec, Some(ask))
        }
    };
    let session = find_id(client, &args.session).await?;
    let followed = FollowedExec { client, session: &session, exec: &exec, json: args.json };
    match &ask {
        Some(ask) if args.background => followed.start_in_background(ask).await,
        ask => followed.follow(ask.as_ref()).await,
    }
}

fn ask(args: &SessionExecArgs, exec: &str) -> Result<Value> {
    let mut ask = Map::new();
    ask.insert("exec_id".into(), exec.into());
    match &args.command[..] {
        [] => {
            let GivenCode { code, lang, .. } =
                code::read(args.code.as_deref(), args.file.as_deref(), args.lang)?;
            let code = String::from_utf8(code).ok().context("the code must be text in UTF-8")?;
            ask.insert("language".into(), languages::name(lang).into());
            ask.insert("code".into(), code.into());
        }
        [text] => {
            ask.insert("command".into(), text.as_str().into());
        }
        words => {
            ask.insert("command".into(), json!(words));
        }
    }
    if let Some(ms) = args.timeout {
        ask.insert("timeout".into(), std::time::Duration::from_millis(ms).as_secs_f64().into());
    }
    if let Some(size) = args.max_output {
        ask.insert("max_output".into(), size.into());
    }
    if !args.env.is_empty() {
        let env: Map<String, Value> =
            args.env.iter().map(|(name, value)| (name.clone(), value.as_str().into())).collect();
        ask.insert("env".into(), env.into());
    }
    if args.background {
        ask.insert("background".into(), true.into());
    }
    Ok(ask.into())
}

/// The end of an execution: the data of its last event.
#[derive(Debug, Deserialize)]
struct DoneEvent {
    status: Status,
    exit_code: i32,
    reason: Option<String>,
    #[serde(default)]
    dropped: Dropped,
    kernel_state: KernelState,
}

/// An execution that is followed to its end.
struct FollowedExec<'a> {
    client: &'a Client,
    session: &'a str,
    exec: &'a str,
    json: bool,
}

/// The next thing to handle while following.
enum FollowEvent {
    Event(Result<ServerEvent, ClientError>),
    CtrlC,
    Interrupted(Result<Value, ClientError>),
}

impl FollowedExec<'_> {
    async fn start_in_background(&self, ask: &Value) -> Result<ExitCode> {
        let path = format!("/v1/sessions/{}/exec", escape(self.session));
        let state = self.client.post(&path, ask).await?;
        if self.json {
            print_json(&state)?;
        } else {
            output::print(&format!("{}\n", self.exec))?;
            output::say(&format!("it runs in the background; {}", self.how_to_join()));
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Shows its output until it ends. Ctrl-C interrupts it; after a second Ctrl-C it keeps running.
    async fn follow(&self, ask: Option<&Value>) -> Result<ExitCode> {
        let mut follower = Follower::new(self.client, self.session, self.exec, ask);
        let mut ctrl_c = signal(SignalKind::interrupt()).context("failed to listen for signals")?;
        let (mut images, mut presses) = (0, 0);
        let mut interrupting = None;
        loop {
            let next = tokio::select! {
                event = follower.next() => FollowEvent::Event(event),
                () = pressed(&mut ctrl_c) => FollowEvent::CtrlC,
                answer = async { interrupting.as_mut().expect("as the condition says").await },
                    if interrupting.is_some() => FollowEvent::Interrupted(answer),
            };
            match next {
                FollowEvent::Event(Err(error)) => {
                    if error.is_outage() && follower.is_accepted() {
                        output::say(&format!(
                            "the execution may still run; {}",
                            self.how_to_join()
                        ));
                    }
                    return Err(error.into());
                }
                FollowEvent::Event(Ok(event)) => {
                    if event.name == "done" {
                        return self.ended(&event.data, images).await;
                    }
                    images += usize::from(self.show(&event));
                }
                FollowEvent::CtrlC => {
                    presses += 1;
                    if presses > 1 {
                        output::say(&format!("left running; {}", self.how_to_join()));
                        return Ok(output::exit_code(EXIT_INTERRUPTED));
                    }
                    interrupting = Some(Box::pin(self.interrupt()));
                }
                // The server does not know the execution, so there is nothing to wait for.
                FollowEvent::Interrupted(Err(error)) if error.is("exec_not_found") => {
                    output::say("interrupted");
                    return Ok(output::exit_code(EXIT_INTERRUPTED));
                }
                // After a successful interrupt, the events show how the execution ends.
                FollowEvent::Interrupted(answer) => {
                    interrupting = None;
                    if let Err(error) = answer {
                        let error = anyhow::Error::from(error);
                        output::say(&format!("failed to interrupt it: {error:#}"));
                    }
                }
            }
        }
    }

    async fn interrupt(&self) -> Result<Value, ClientError> {
        let (session, exec) = (escape(self.session), escape(self.exec));
        let path = format!("/v1/sessions/{session}/execs/{exec}/interrupt");
        self.client.call_patiently(Method::POST, &path, None).await
    }

    /// Shows an event. Returns whether it contains an image.
    fn show(&self, event: &ServerEvent) -> bool {
        let text = || event.data["text"].as_str().unwrap_or_default().as_bytes().to_vec();
        let json = || event.data.to_string().into_bytes();
        let (kind, body) = match event.name.as_str() {
            "stdout" => (Event::Stdout, text()),
            "stderr" => (Event::Stderr, text()),
            "display" => (Event::Display, json()),
            "result" => (Event::Result, json()),
            "error" => (Event::Error, json()),
            "artifacts" => {
                if let (false, Ok(left)) = (self.json, Artifacts::deserialize(&event.data)) {
                    self.show_artifacts(&left);
                }
                return false;
            }
            // Unknown events of newer servers, and events that have no output.
            _ => return false,
        };
        if !self.json {
            output::pass_through(&kind, &body);
        }
        MimeBundle::deserialize(&event.data).is_ok_and(|bundle| output::is_image(&bundle))
    }

    /// Lists artifacts, and how to get them.
    fn show_artifacts(&self, left: &Artifacts) {
        for artifact in left.artifacts.iter().take(MAX_SHOWN) {
            let link = artifact.url.as_deref().and_then(|url| self.client.complete(url));
            let how = match (link, &artifact.id) {
                (Some(link), _) => link,
                (None, Some(id)) => format!("`belljar artifacts get {id}`"),
                (None, None) => artifact.host_path.display().to_string(),
            };
            let size = HumanBytes(artifact.size);
            output::say(&format!("{} ({size}) -> {how}", output::plain(&artifact.path)));
        }
        if let more @ 1.. = left.artifacts.len().saturating_sub(MAX_SHOWN) {
            let FollowedExec { session, exec, .. } = self;
            output::say(&format!(
                "{more} more files; `belljar artifacts list --session {session} --exec {exec}` \
                 shows them"
            ));
        }
        output::report_refused("taken", &left.artifacts_refused);
    }

    async fn ended(&self, done: &Value, images: usize) -> Result<ExitCode> {
        let done =
            DoneEvent::deserialize(done).context("the server's last event cannot be read")?;
        if self.json {
            let (session, exec) = (escape(self.session), escape(self.exec));
            let path = format!("/v1/sessions/{session}/execs/{exec}");
            let mut state = self.client.call_patiently(Method::GET, &path, None).await?;
            print_json(&state["result"].take())?;
        } else {
            let reason = done.reason.as_deref();
            Ending { status: done.status, reason, dropped: done.dropped, images }.report();
            match (done.kernel_state, done.status) {
                // The session had lost them before, or went back to an earlier snapshot.
                (KernelState::Lost, Status::Ok) => output::say(&format!(
                    "variables of the session were lost or have earlier values; \
                     `belljar session show {}` says why",
                    self.session
                )),
                (KernelState::Lost, _) => output::say("the variables of the session are lost"),
                _ => {}
            }
        }
        Ok(output::exit_code(done.exit_code))
    }

    fn how_to_join(&self) -> String {
        let FollowedExec { session, exec, .. } = self;
        format!("`belljar session exec {session} --join {exec}` shows its output")
    }
}

async fn pressed(ctrl_c: &mut Signal) {
    if ctrl_c.recv().await.is_none() {
        std::future::pending::<()>().await;
    }
}
