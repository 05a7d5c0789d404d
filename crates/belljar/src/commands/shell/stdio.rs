//! A shell in a session, at the end of our own pipes: for programs that want a process to talk to,
//! such as LangChain's `ShellToolMiddleware`.
//!
//! ```text
//!   stdin ──▶ POST .../stdin ──▶ ┌────────────────────┐
//!                                │ shell in a session │
//!   stdout, stderr ◀── events ── └────────────────────┘
//! ```
//!
//! Its exit status is ours. When we end, however that happens, so does the shell: a process of its
//! own, the [`guard`], waits for our end, which even SIGKILL cannot hide from it.

use std::io::{Read, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Map, Value, json};
use tokio::sync::{mpsc, watch};

use super::ShellArgs;
use super::ShellSession;
use crate::client::{Client, ClientError, ServerEvent, escape};
use crate::commands::output;
use crate::commands::session::follow::Follower;

/// Seconds a shell lives at most. No agent needs it for longer, and one that is forgotten ends.
const LIFE: u64 = 7 * 24 * 3600;

/// The most that a server keeps, and passes on, of what a shell says in all its life.
const MAX_OUTPUT: u64 = 64 << 20;

/// What is read at once, and what waits to be sent.
const PIECE: usize = 64 * 1024;
const IN_FLIGHT: usize = 4;

/// A shell that has not read what it was given has time for this until it is given more.
const FULL_PAUSE: Duration = Duration::from_millis(20);

/// Nobody reads what the shell says.
const EXIT_PIPE: i32 = 128 + 13;

pub(super) async fn stdio(
    client: &Client,
    session: &ShellSession,
    args: &ShellArgs,
) -> Result<ExitCode> {
    let exec = belljar_engine::new_id("exec");
    // Held until we end; its closing is what the guard waits for.
    let _leash = leave_a_guard(client, &session.id, &exec)?;
    let status = converse(client, &session.id, &exec, args).await;
    session.end(client).await;
    status
}

async fn converse(
    client: &Client,
    session: &str,
    exec: &str,
    args: &ShellArgs,
) -> Result<ExitCode> {
    let ask = ask(args, exec)?;
    // Whoever reads takes all for the shell's.
    let mut follower = Follower::new(client, session, exec, Some(&ask)).quiet();
    let begun = watch::Sender::new(false);
    let feeding = feed(client, session, exec, read_stdin(), begun.subscribe());
    let mut feeding = std::pin::pin!(feeding);
    let mut fed = false;
    loop {
        let heard = tokio::select! {
            heard = follower.next() => heard?,
            lost = &mut feeding, if !fed => {
                // Whoever fed us must not wait for answers to what never arrived.
                lost.context("input was lost")?;
                fed = true;
                continue;
            }
        };
        begun.send_replace(true);
        let is_heard = match heard.name.as_str() {
            "stdout" => passed(&mut std::io::stdout(), &heard),
            "stderr" => passed(&mut std::io::stderr(), &heard),
            "done" => return Ok(ended(&heard.data)),
            _ => true,
        };
        if !is_heard {
            return Ok(output::exit_code(EXIT_PIPE));
        }
    }
}

fn ask(args: &ShellArgs, exec: &str) -> Result<Value> {
    let command = match &args.command[..] {
        [] => json!(["/bin/bash"]),
        [text] => json!(text),
        words => json!(words),
    };
    let mut env: Map<String, Value> = match &args.env_json {
        Some(name) => {
            let text = std::env::var(name).with_context(|| format!("there is no {name}"))?;
            serde_json::from_str(&text).with_context(|| format!("{name} is no JSON object"))?
        }
        None => Map::new(),
    };
    env.extend(args.env.iter().map(|(name, value)| (name.clone(), value.as_str().into())));
    Ok(json!({
        "exec_id": exec, "command": command, "env": env, "stdin": true, "timeout": LIFE,
        "max_output": MAX_OUTPUT,
    }))
}

/// What comes, in pieces; read by a thread, which nobody waits for.
fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (pieces, incoming) = mpsc::channel(IN_FLIGHT);
    std::thread::spawn(move || {
        let mut stdin = std::io::stdin().lock();
        let mut buffer = vec![0; PIECE];
        while let Ok(n @ 1..) = stdin.read(&mut buffer) {
            if pieces.blocking_send(buffer[..n].to_vec()).is_err() {
                return;
            }
        }
    });
    incoming
}

/// Passes on what comes, and that nothing comes any more.
async fn feed(
    client: &Client,
    session: &str,
    exec: &str,
    mut incoming: mpsc::Receiver<Vec<u8>>,
    mut begun: watch::Receiver<bool>,
) -> Result<(), ClientError> {
    // The server must have heard of an execution before it can be fed.
    let _ = begun.wait_for(|begun| *begun).await;
    let path = format!("/v1/sessions/{}/execs/{}/stdin", escape(session), escape(exec));
    let mut text = Text::default();
    loop {
        let piece = incoming.recv().await;
        let close = piece.is_none();
        let data = text.read(piece.as_deref());
        if data.is_empty() && !close {
            continue;
        }
        let body = json!({"data": data, "close": close});
        loop {
            match client.call_patiently(Method::POST, &path, Some(&body)).await {
                Ok(_) => break,
                // It has not read what came before.
                Err(error) if error.is("busy") => tokio::time::sleep(FULL_PAUSE).await,
                // The shell has ended, or does not listen; its last event says how.
                Err(ClientError::Refused { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if close {
            return Ok(());
        }
    }
}

/// Bytes on their way to becoming text, which a piece may end in the middle of.
#[derive(Debug, Default)]
struct Text(Vec<u8>);

impl Text {
    /// As much text as there is now; the end of everything is `None`.
    fn read(&mut self, piece: Option<&[u8]>) -> String {
        self.0.extend_from_slice(piece.unwrap_or_default());
        let unfinished = piece.map_or(0, |_| unfinished(&self.0));
        let rest = self.0.split_off(self.0.len() - unfinished);
        String::from_utf8_lossy(&std::mem::replace(&mut self.0, rest)).into_owned()
    }
}

/// How many bytes at the end are the beginning of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let begins = |count: &usize| {
        let last = &bytes[bytes.len() - count..];
        std::str::from_utf8(last)
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(3)).find(begins).unwrap_or(0)
}

/// Writes what was said; false if nobody listens.
fn passed(to: &mut impl Write, heard: &ServerEvent) -> bool {
    let text = heard.data["text"].as_str().unwrap_or_default();
    to.write_all(text.as_bytes()).and_then(|()| to.flush()).is_ok()
}

fn ended(done: &Value) -> ExitCode {
    let dropped = |stream: &str| done["dropped"][stream].as_u64().unwrap_or_default();
    let lost = dropped("stdout_bytes") + dropped("stderr_bytes");
    if lost > 0 {
        output::say(&format!("{lost} bytes of output were not kept"));
    }
    let status = done["status"].as_str().unwrap_or_default();
    let reason = done["reason"].as_str();
    if reason.is_some() || matches!(status, "timeout" | "oom" | "crashed") {
        output::say(&format!("the shell ended: {}", reason.unwrap_or(status)));
    }
    let code = done["exit_code"].as_i64().and_then(|code| i32::try_from(code).ok());
    output::exit_code(code.unwrap_or(1))
}

/// Starts the process that outlives us by as long as it takes to interrupt the shell.
fn leave_a_guard(client: &Client, session: &str, exec: &str) -> Result<std::process::ChildStdin> {
    use std::os::unix::process::CommandExt;
    let failed = "failed to start the process that ends the shell when we end";
    let mut guard = Command::new(std::env::current_exe().context(failed)?)
        .args(["shell", "--url", &client.url(), "--guard", exec, session])
        .stdin(Stdio::piped())
        // Whoever reads our pipes waits for the end of all who hold them.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Who kills our group must not kill this.
        .process_group(0)
        .spawn()
        .context(failed)?;
    guard.stdin.take().context(failed)
}

/// What that process does.
pub(super) async fn guard(client: &Client, session: &str, exec: &str) -> Result<ExitCode> {
    belljar_sys::process::leave_terminal();
    // On this thread: there is nothing else to do.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let (session, exec) = (escape(session), escape(exec));
    let path = format!("/v1/sessions/{session}/execs/{exec}/interrupt");
    // It may have ended by itself, and so may the server.
    let _ = client.call_patiently(Method::POST, &path, None).await;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_survives_any_cutting_and_what_is_none_is_shown() {
        let bytes = "a\u{e4}\u{20ac}\u{1f600}z".as_bytes();
        for size in 1..bytes.len() {
            let mut text = Text::default();
            let mut all: String = bytes.chunks(size).map(|piece| text.read(Some(piece))).collect();
            all += &text.read(None);
            assert_eq!(all.as_bytes(), bytes, "in pieces of {size}");
        }
        let mut text = Text::default();
        assert_eq!(text.read(Some(b"a\xffb\xe2\x82")), "a\u{fffd}b");
        assert_eq!(text.read(Some(b"\xac!")), "\u{20ac}!");
        assert_eq!(text.read(Some(b"\xe2")), "");
        assert_eq!(text.read(None), "\u{fffd}");
    }
}
