//! A shell in a session on our standard input and output: for programs that need a process with pipes, such as
//! LangChain's `ShellToolMiddleware`.
//!
//! ```text
//!   stdin ──▶ POST .../stdin ──▶ ┌────────────────────┐
//!                                │ shell in a session │
//!   stdout, stderr ◀── events ── └────────────────────┘
//! ```
//!
//! Our exit status is that of the shell. The shell ends when we end, in any case: a separate process, the [`guard`],
//! notices our end even after SIGKILL, because its standard input is closed then.

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

/// The longest lifetime of a shell in seconds, so that a forgotten shell ends.
const LIFE: u64 = 7 * 24 * 3600;

/// The most output of a shell, over its whole life, that a server keeps and sends.
const MAX_OUTPUT: u64 = 64 << 20;

/// How much input is read at once, and how many of these pieces may wait to be sent.
const PIECE: usize = 64 * 1024;
const QUEUE: usize = 4;

/// The pause before input is sent again, if the input buffer of the shell was full.
const FULL_PAUSE: Duration = Duration::from_millis(20);

/// The exit status if our output was closed (SIGPIPE).
const EXIT_PIPE: i32 = 128 + 13;

pub(super) async fn stdio(
    client: &Client,
    session: &ShellSession,
    args: &ShellArgs,
) -> Result<ExitCode> {
    let exec = belljar_engine::new_id("exec");
    // The guard waits until this pipe is closed, which happens when we end.
    let _guard_input = start_guard(client, &session.id, &exec)?;
    let status = run(client, &session.id, &exec, args).await;
    session.end(client).await;
    status
}

async fn run(client: &Client, session: &str, exec: &str, args: &ShellArgs) -> Result<ExitCode> {
    let ask = ask(args, exec)?;
    // Quiet, because the reader treats everything as output of the shell.
    let mut follower = Follower::new(client, session, exec, Some(&ask)).quiet();
    let begun = watch::Sender::new(false);
    let feeding = feed(client, session, exec, read_stdin(), begun.subscribe());
    let mut feeding = std::pin::pin!(feeding);
    let mut fed = false;
    loop {
        let event = tokio::select! {
            event = follower.next() => event?,
            outcome = &mut feeding, if !fed => {
                // Fails, because the program that writes to us must not wait for a response to lost input.
                outcome.context("input was lost")?;
                fed = true;
                continue;
            }
        };
        begun.send_replace(true);
        let is_written = match event.name.as_str() {
            "stdout" => write_text(&mut std::io::stdout(), &event),
            "stderr" => write_text(&mut std::io::stderr(), &event),
            "done" => return Ok(ended(&event.data)),
            _ => true,
        };
        if !is_written {
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
            let text = std::env::var(name).with_context(|| format!("{name} is not set"))?;
            serde_json::from_str(&text).with_context(|| format!("{name} is not a JSON object"))?
        }
        None => Map::new(),
    };
    env.extend(args.env.iter().map(|(name, value)| (name.clone(), value.as_str().into())));
    Ok(json!({
        "exec_id": exec, "command": command, "env": env, "stdin": true, "timeout": LIFE,
        "max_output": MAX_OUTPUT,
    }))
}

/// Standard input in pieces, read by a thread that is not joined.
fn read_stdin() -> mpsc::Receiver<Vec<u8>> {
    let (pieces, incoming) = mpsc::channel(QUEUE);
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

/// Sends standard input and its end to the shell.
async fn feed(
    client: &Client,
    session: &str,
    exec: &str,
    mut incoming: mpsc::Receiver<Vec<u8>>,
    mut begun: watch::Receiver<bool>,
) -> Result<(), ClientError> {
    // The server must know the execution before it accepts input for it.
    let _ = begun.wait_for(|begun| *begun).await;
    let path = format!("/v1/sessions/{}/execs/{}/stdin", escape(session), escape(exec));
    let mut text = Utf8Decoder::default();
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
                // The shell has not read earlier input.
                Err(error) if error.is("busy") => tokio::time::sleep(FULL_PAUSE).await,
                // The shell has ended or closed its input; its last event gives the reason.
                Err(ClientError::Refused { .. }) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        if close {
            return Ok(());
        }
    }
}

/// Decodes UTF-8 from pieces that may end inside a character.
#[derive(Debug, Default)]
struct Utf8Decoder(Vec<u8>);

impl Utf8Decoder {
    /// Returns the complete characters; `None` is the end of the input.
    fn read(&mut self, piece: Option<&[u8]>) -> String {
        self.0.extend_from_slice(piece.unwrap_or_default());
        let unfinished = piece.map_or(0, |_| unfinished(&self.0));
        let rest = self.0.split_off(self.0.len() - unfinished);
        String::from_utf8_lossy(&std::mem::replace(&mut self.0, rest)).into_owned()
    }
}

/// The number of bytes at the end that are the first part of a character.
fn unfinished(bytes: &[u8]) -> usize {
    let begins = |count: &usize| {
        let last = &bytes[bytes.len() - count..];
        std::str::from_utf8(last)
            .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
    };
    (1..=bytes.len().min(3)).find(begins).unwrap_or(0)
}

/// Writes the text of an event. Returns false if the output is closed.
fn write_text(to: &mut impl Write, event: &ServerEvent) -> bool {
    let text = event.data["text"].as_str().unwrap_or_default();
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

/// Starts the guard: a process that interrupts the shell after we have ended.
fn start_guard(client: &Client, session: &str, exec: &str) -> Result<std::process::ChildStdin> {
    use std::os::unix::process::CommandExt;
    let failed = "failed to start the process that ends the shell when we end";
    let mut guard = Command::new(std::env::current_exe().context(failed)?)
        .args(["shell", "--url", &client.url(), "--guard", exec, session])
        .stdin(Stdio::piped())
        // Closed, because the reader of our pipes waits until all processes have closed them.
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A signal to our process group must not end the guard.
        .process_group(0)
        .spawn()
        .context(failed)?;
    guard.stdin.take().context(failed)
}

/// The guard: waits for our end, then interrupts the shell.
pub(super) async fn guard(client: &Client, session: &str, exec: &str) -> Result<ExitCode> {
    belljar_sys::process::leave_terminal();
    // Blocking is fine: there is nothing else to do on this thread.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    let (session, exec) = (escape(session), escape(exec));
    let path = format!("/v1/sessions/{session}/execs/{exec}/interrupt");
    // The shell or the server may have ended already.
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
            let mut text = Utf8Decoder::default();
            let mut all: String = bytes.chunks(size).map(|piece| text.read(Some(piece))).collect();
            all += &text.read(None);
            assert_eq!(all.as_bytes(), bytes, "in pieces of {size}");
        }
        let mut text = Utf8Decoder::default();
        assert_eq!(text.read(Some(b"a\xffb\xe2\x82")), "a\u{fffd}b");
        assert_eq!(text.read(Some(b"\xac!")), "\u{20ac}!");
        assert_eq!(text.read(Some(b"\xe2")), "");
        assert_eq!(text.read(None), "\u{fffd}");
    }
}
