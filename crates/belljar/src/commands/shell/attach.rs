//! Attaches the user's terminal to a terminal of a session.
//!
//! ```text
//!   keys ──▶ Keys ──▶ WebSocket ──▶ terminal in the session
//!   screen ◀───────── WebSocket ◀──┘      (reconnects and continues if the connection is lost)
//! ```
//!
//! The user's terminal is in raw mode meanwhile. A guard restores it in all cases.

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_sys::tty::{self, RawMode};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::ShellArgs;
use super::keys::{Keys, Typed};
use super::{ShellSession, as_text};
use crate::client::{Client, ClientError, Received, SocketReceiver, SocketSender, escape};
use crate::commands::outage::Outage;
use crate::commands::output;

/// How many pieces of input, and of output, may wait in memory.
const QUEUE: usize = 16;

/// How much input is read at once. The server accepts a little more in one message.
const PIECE: usize = 16 * 1024;

/// The code with which a restarting server closes a WebSocket.
const RESTART: u16 = 1012;

/// Why the user's terminal is no longer attached.
enum Detached {
    /// The program in the session ended, with this status.
    Ended(i32),
    /// The user detached; the program continues.
    ByUser,
    /// We received a signal to end.
    BySignal(i32),
}

pub(super) fn check_terminal() -> Result<()> {
    for (is_terminal, which) in [
        (std::io::stdin().is_terminal(), "standard input"),
        (std::io::stdout().is_terminal(), "standard output"),
    ] {
        if !is_terminal {
            bail!(
                "{which} is not a terminal; `belljar shell --stdio` uses pipes instead, and \
                 `belljar session exec` runs one command"
            );
        }
    }
    Ok(())
}

pub(super) async fn attach(
    client: &Client,
    session: &ShellSession,
    args: &ShellArgs,
) -> Result<ExitCode> {
    let mut attachment = Attachment::open(client, &session.id, args)?;
    let outcome = attachment.run().await;
    let terminal = attachment.terminal.clone();
    // Restores the user's terminal, so that the following messages are readable.
    drop(attachment);
    let come_back = |terminal: &str| {
        format!("`belljar shell {} --terminal {terminal}` attaches to it again", session.id)
    };
    match (outcome, terminal) {
        (Ok(Detached::Ended(status)), _) => {
            session.end(client).await;
            Ok(output::exit_code(status))
        }
        (Ok(Detached::ByUser), terminal) => {
            let terminal = terminal.unwrap_or_default();
            output::say(&format!("detached; {}", come_back(&terminal)));
            Ok(ExitCode::SUCCESS)
        }
        (Ok(Detached::BySignal(number)), _) => Ok(output::exit_code(128 + number)),
        (Err(error), Some(terminal)) if error.is_outage() => {
            output::say(&format!("the terminal may still run; {}", come_back(&terminal)));
            Err(error.into())
        }
        (Err(error), None) => {
            session.end(client).await;
            Err(error.into())
        }
        (Err(error), Some(_)) => Err(error.into()),
    }
}

/// A terminal of a session, shown on the user's terminal.
struct Attachment<'a> {
    client: &'a Client,
    session: &'a str,
    command: Option<String>,
    /// Its id: given, or known after the server has opened it.
    terminal: Option<String>,
    /// The offset in the terminal's output up to which output was shown.
    position: Option<u64>,
    keyboard: mpsc::Receiver<Vec<u8>>,
    keys: Keys,
    resized: Signal,
    ended: [(Signal, i32); 3],
    outage: Outage,
    /// `None` after the end.
    screen: Option<Screen>,
    /// Dropped after the screen, because the last output still needs raw mode.
    _raw: RawMode,
}

/// A thread that writes to the user's terminal. The terminal may be slow, and keys must not wait for it.
struct Screen {
    pieces: mpsc::Sender<Vec<u8>>,
    writing: std::thread::JoinHandle<()>,
}

impl Screen {
    fn open() -> Screen {
        let (pieces, mut to_show) = mpsc::channel::<Vec<u8>>(QUEUE);
        let writing = std::thread::spawn(move || {
            let mut stdout = std::io::stdout();
            while let Some(piece) = to_show.blocking_recv() {
                // If the terminal is closed, a signal ends us.
                let _ = stdout.write_all(&piece).and_then(|()| stdout.flush());
            }
        });
        Screen { pieces, writing }
    }
}

impl Drop for Attachment<'_> {
    fn drop(&mut self) {
        if let Some(Screen { pieces, writing }) = self.screen.take() {
            drop(pieces);
            let _ = writing.join();
        }
    }
}

impl<'a> Attachment<'a> {
    fn open(client: &'a Client, session: &'a str, args: &ShellArgs) -> Result<Attachment<'a>> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        let ended = [
            (listen(SignalKind::hangup())?, 1),
            (listen(SignalKind::interrupt())?, 2),
            (listen(SignalKind::terminate())?, 15),
        ];
        let resized = listen(SignalKind::window_change())?;
        let command = as_text(&args.command)?;
        let raw = RawMode::enter(std::io::stdin()).context("failed to use this terminal")?;
        let (typed, keyboard) = mpsc::channel(QUEUE);
        // Not joined: it ends with the process.
        std::thread::spawn(move || {
            let mut stdin = std::io::stdin().lock();
            let mut buffer = vec![0; PIECE];
            while let Ok(n @ 1..) = stdin.read(&mut buffer) {
                if typed.blocking_send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Attachment {
            client,
            session,
            command,
            terminal: args.terminal.clone(),
            position: None,
            keyboard,
            keys: Keys::default(),
            resized,
            ended,
            outage: Outage::default(),
            screen: Some(Screen::open()),
            _raw: raw,
        })
    }

    /// Stays attached, and reconnects whenever the connection is lost.
    async fn run(&mut self) -> Result<Detached, ClientError> {
        loop {
            let error = match self.connect().await {
                Ok(detached) => return Ok(detached),
                Err(error) => error,
            };
            if self.terminal.is_none() {
                return Err(error);
            }
            let [hangup, interrupt, terminate] = &mut self.ended;
            tokio::select! {
                endured = self.outage.endure(error, say) => endured?,
                number = signalled([hangup, interrupt, terminate]) => {
                    return Ok(Detached::BySignal(number));
                }
            }
        }
    }

    /// Attaches over one connection.
    async fn connect(&mut self) -> Result<Detached, ClientError> {
        let (mut sender, mut receiver) = self.client.socket(&self.path()).await?.split();
        let Attachment {
            terminal, position, keyboard, keys, resized, ended, outage, screen, ..
        } = self;
        let Some(Screen { pieces, .. }) = screen else { return Ok(Detached::ByUser) };
        let [hangup, interrupt, terminate] = ended;
        tokio::select! {
            detached = show(&mut receiver, pieces, terminal, position, outage) => detached,
            detached = type_in(&mut sender, keyboard, keys, resized) => detached,
            number = signalled([hangup, interrupt, terminate]) => Ok(Detached::BySignal(number)),
        }
    }

    fn path(&self) -> String {
        let mut path = format!("/v1/sessions/{}/terminal?", escape(self.session));
        if let Some((rows, cols)) = tty::size(std::io::stdout()) {
            path += &format!("rows={rows}&cols={cols}&");
        }
        match (&self.terminal, &self.command) {
            (Some(terminal), _) => {
                path += &format!("terminal={}", escape(terminal));
                if let Some(position) = self.position {
                    path += &format!("&offset={position}");
                }
            }
            (None, command) => {
                if let Some(term) = std::env::var("TERM").ok().filter(|term| is_name(term)) {
                    path += &format!("term={}&", escape(&term));
                }
                if let Some(command) = command {
                    path += &format!("command={}", escape(command));
                }
            }
        }
        path.trim_end_matches(['?', '&']).to_owned()
    }
}

/// Whether the server accepts this value of TERM.
fn is_name(term: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    !term.is_empty() && term.len() <= 64 && term.bytes().all(known)
}

/// Shows the output of the terminal. Cancel-safe.
async fn show(
    receiver: &mut SocketReceiver,
    screen: &mpsc::Sender<Vec<u8>>,
    terminal: &mut Option<String>,
    position: &mut Option<u64>,
    outage: &mut Outage,
) -> Result<Detached, ClientError> {
    loop {
        match receiver.next().await? {
            Received::Bytes(bytes) => {
                *position = position.map(|position| position + bytes.len() as u64);
                // The writing thread lives as long as the attachment.
                let _ = screen.send(bytes).await;
            }
            Received::Json(message) => match message["type"].as_str() {
                Some("attached") => {
                    outage.is_over(say);
                    *terminal = message["terminal"].as_str().map(str::to_owned);
                    *position = message["offset"].as_u64();
                }
                Some("skipped") => {
                    let bytes = message["bytes"].as_u64().unwrap_or_default();
                    *position = position.map(|position| position + bytes);
                    say(&format!("{bytes} bytes of output came too fast and are not shown"));
                }
                Some("exit") => {
                    let status =
                        message["exit_code"].as_i64().and_then(|code| code.try_into().ok());
                    return Ok(Detached::Ended(status.unwrap_or(1)));
                }
                Some("error") => check_error(&message)?,
                // Unknown messages of newer servers.
                _ => {}
            },
            Received::Closed(Some(RESTART)) => return Err(ClientError::stopping()),
            Received::Closed(_) => return Err(receiver.cut_off()),
        }
    }
}

/// Fails if the session has ended; other errors are only shown.
fn check_error(message: &Value) -> Result<(), ClientError> {
    let text = |name: &str| message[name].as_str().unwrap_or_default().to_owned();
    if text("code") == "session_ended" {
        return Err(ClientError::Refused {
            status: reqwest::StatusCode::GONE,
            code: text("code"),
            message: text("message"),
            hint: None,
        });
    }
    say(&text("message"));
    Ok(())
}

/// Sends keys, and the size of the terminal when it changes.
async fn type_in(
    sender: &mut SocketSender,
    keyboard: &mut mpsc::Receiver<Vec<u8>>,
    keys: &mut Keys,
    resized: &mut Signal,
) -> Result<Detached, ClientError> {
    loop {
        tokio::select! {
            typed = keyboard.recv() => {
                // The user's terminal was closed.
                let Some(typed) = typed else { return Ok(Detached::ByUser) };
                let Typed { inside, leave } = keys.read(&typed);
                if !inside.is_empty() {
                    sender.bytes(inside).await?;
                }
                if leave {
                    return Ok(Detached::ByUser);
                }
            }
            _ = resized.recv() => {
                if let Some((rows, cols)) = tty::size(std::io::stdout()) {
                    sender.json(&json!({"type": "resize", "rows": rows, "cols": cols})).await?;
                }
            }
        }
    }
}

/// Waits for the first of the signals. Returns its number.
async fn signalled(signals: [&mut (Signal, i32); 3]) -> i32 {
    let [(first, a), (second, b), (third, c)] = signals;
    tokio::select! {
        _ = first.recv() => *a,
        _ = second.recv() => *b,
        _ = third.recv() => *c,
    }
}

/// Prints a message on a terminal in raw mode.
fn say(text: &str) {
    let line = format!("\r\nbelljar: {text}\r\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
