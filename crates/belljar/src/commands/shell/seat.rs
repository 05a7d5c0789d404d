//! A person at a terminal of a session.
//!
//! ```text
//!   keys ──▶ Keys ──▶ WebSocket ──▶ terminal in the session
//!   screen ◀───────── WebSocket ◀──┘      (connected again, from where we were, if it is lost)
//! ```
//!
//! The person's own terminal is in raw mode meanwhile, and is given back whatever happens: its
//! guard goes out of scope with every way out of here.

use std::io::{IsTerminal, Read, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_sys::tty::{self, RawMode};
use serde_json::{Value, json};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::ShellArgs;
use super::keys::{Keys, Typed};
use super::{Chosen, as_text};
use crate::client::{Client, ClientError, Received, SocketReceiver, SocketSender, escape};
use crate::commands::outage::Outage;
use crate::commands::output;

/// Pieces of what was typed, and of what is to be shown, on their way.
const IN_FLIGHT: usize = 16;

/// What is read of the keyboard at once. The server takes a little more in one message.
const PIECE: usize = 16 * 1024;

/// The code with which a server closes a WebSocket that can be opened again in a moment.
const RESTART: u16 = 1012;

/// How somebody left.
enum Left {
    /// The program has ended, with this status.
    Ended(i32),
    /// It goes on without him.
    Detached,
    /// We were asked to end.
    Signalled(i32),
}

pub(super) fn check_terminal() -> Result<()> {
    for (is_terminal, which) in [
        (std::io::stdin().is_terminal(), "standard input"),
        (std::io::stdout().is_terminal(), "standard output"),
    ] {
        if !is_terminal {
            bail!(
                "{which} is no terminal; `belljar shell --stdio` passes on what comes and goes, \
                 and `belljar session exec` runs one command"
            );
        }
    }
    Ok(())
}

pub(super) async fn sit(client: &Client, session: &Chosen, args: &ShellArgs) -> Result<ExitCode> {
    let mut seat = Seat::open(client, &session.id, args)?;
    let left = seat.stay().await;
    let terminal = seat.terminal.clone();
    // The person's terminal first: what is said from here on is for a person.
    drop(seat);
    let come_back = |terminal: &str| {
        format!("`belljar shell {} --terminal {terminal}` comes back to it", session.id)
    };
    match (left, terminal) {
        (Ok(Left::Ended(status)), _) => {
            session.end(client).await;
            Ok(output::exit_code(status))
        }
        (Ok(Left::Detached), terminal) => {
            let terminal = terminal.unwrap_or_default();
            output::say(&format!("left; {}", come_back(&terminal)));
            Ok(ExitCode::SUCCESS)
        }
        (Ok(Left::Signalled(number)), _) => Ok(output::exit_code(128 + number)),
        (Err(error), Some(terminal)) if error.is_outage() => {
            output::say(&format!("it may go on without us; {}", come_back(&terminal)));
            Err(error.into())
        }
        (Err(error), None) => {
            session.end(client).await;
            Err(error.into())
        }
        (Err(error), Some(_)) => Err(error.into()),
    }
}

struct Seat<'a> {
    client: &'a Client,
    session: &'a str,
    command: Option<String>,
    /// Known once the server has opened it, or from the start.
    terminal: Option<String>,
    /// The position after what was shown; unknown until something was.
    position: Option<u64>,
    keyboard: mpsc::Receiver<Vec<u8>>,
    keys: Keys,
    resized: Signal,
    ended: [(Signal, i32); 3],
    outage: Outage,
    /// Gone while nothing is to be shown any more.
    screen: Option<Screen>,
    /// After the screen, whose last words are still for a raw terminal.
    _raw: RawMode,
}

/// Whoever writes to the person's terminal: it may be slow, and keys must go on.
struct Screen {
    pieces: mpsc::Sender<Vec<u8>>,
    writing: std::thread::JoinHandle<()>,
}

impl Screen {
    fn open() -> Screen {
        let (pieces, mut to_show) = mpsc::channel::<Vec<u8>>(IN_FLIGHT);
        let writing = std::thread::spawn(move || {
            let mut stdout = std::io::stdout();
            while let Some(piece) = to_show.blocking_recv() {
                // Who closed his terminal gets a signal, which is how we learn of it.
                let _ = stdout.write_all(&piece).and_then(|()| stdout.flush());
            }
        });
        Screen { pieces, writing }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if let Some(Screen { pieces, writing }) = self.screen.take() {
            drop(pieces);
            let _ = writing.join();
        }
    }
}

impl<'a> Seat<'a> {
    fn open(client: &'a Client, session: &'a str, args: &ShellArgs) -> Result<Seat<'a>> {
        let listen = |kind| signal(kind).context("failed to listen for signals");
        let ended = [
            (listen(SignalKind::hangup())?, 1),
            (listen(SignalKind::interrupt())?, 2),
            (listen(SignalKind::terminate())?, 15),
        ];
        let resized = listen(SignalKind::window_change())?;
        let command = as_text(&args.command)?;
        let raw = RawMode::enter(std::io::stdin()).context("failed to use this terminal")?;
        let (typed, keyboard) = mpsc::channel(IN_FLIGHT);
        // Not waited for: it ends with us.
        std::thread::spawn(move || {
            let mut stdin = std::io::stdin().lock();
            let mut buffer = vec![0; PIECE];
            while let Ok(n @ 1..) = stdin.read(&mut buffer) {
                if typed.blocking_send(buffer[..n].to_vec()).is_err() {
                    return;
                }
            }
        });
        Ok(Seat {
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

    /// Stays, over as many connections as it takes.
    async fn stay(&mut self) -> Result<Left, ClientError> {
        loop {
            let error = match self.connected().await {
                Ok(left) => return Ok(left),
                Err(error) => error,
            };
            if self.terminal.is_none() {
                return Err(error);
            }
            let [hangup, interrupt, terminate] = &mut self.ended;
            tokio::select! {
                endured = self.outage.endure(error, say) => endured?,
                number = signalled([hangup, interrupt, terminate]) => {
                    return Ok(Left::Signalled(number));
                }
            }
        }
    }

    /// One connection.
    async fn connected(&mut self) -> Result<Left, ClientError> {
        let (mut saying, mut hearing) = self.client.socket(&self.path()).await?.split();
        let Seat { terminal, position, keyboard, keys, resized, ended, outage, screen, .. } = self;
        let Some(Screen { pieces, .. }) = screen else { return Ok(Left::Detached) };
        let [hangup, interrupt, terminate] = ended;
        tokio::select! {
            left = show(&mut hearing, pieces, terminal, position, outage) => left,
            left = type_in(&mut saying, keyboard, keys, resized) => left,
            number = signalled([hangup, interrupt, terminate]) => Ok(Left::Signalled(number)),
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

/// As the server takes it.
fn is_name(term: &str) -> bool {
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte);
    !term.is_empty() && term.len() <= 64 && term.bytes().all(known)
}

/// Shows what comes. Nothing that was received is lost when somebody stops waiting.
async fn show(
    hearing: &mut SocketReceiver,
    screen: &mpsc::Sender<Vec<u8>>,
    terminal: &mut Option<String>,
    position: &mut Option<u64>,
    outage: &mut Outage,
) -> Result<Left, ClientError> {
    loop {
        match hearing.next().await? {
            Received::Bytes(bytes) => {
                *position = position.map(|position| position + bytes.len() as u64);
                // Whoever writes lives as long as we do.
                let _ = screen.send(bytes).await;
            }
            Received::Json(said) => match said["type"].as_str() {
                Some("attached") => {
                    outage.is_over(say);
                    *terminal = said["terminal"].as_str().map(str::to_owned);
                    *position = said["offset"].as_u64();
                }
                Some("skipped") => {
                    let bytes = said["bytes"].as_u64().unwrap_or_default();
                    *position = position.map(|position| position + bytes);
                    say(&format!("{bytes} bytes were printed too fast and are not shown"));
                }
                Some("exit") => {
                    let status = said["exit_code"].as_i64().and_then(|code| code.try_into().ok());
                    return Ok(Left::Ended(status.unwrap_or(1)));
                }
                Some("error") => told(&said)?,
                // Of later servers.
                _ => {}
            },
            Received::Closed(Some(RESTART)) => return Err(ClientError::stopping()),
            Received::Closed(_) => return Err(hearing.cut_off()),
        }
    }
}

/// What the server has to say against something.
fn told(said: &Value) -> Result<(), ClientError> {
    let text = |name: &str| said[name].as_str().unwrap_or_default().to_owned();
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

/// Passes on what is typed, and how large the terminal is.
async fn type_in(
    saying: &mut SocketSender,
    keyboard: &mut mpsc::Receiver<Vec<u8>>,
    keys: &mut Keys,
    resized: &mut Signal,
) -> Result<Left, ClientError> {
    loop {
        tokio::select! {
            typed = keyboard.recv() => {
                // The terminal is gone.
                let Some(typed) = typed else { return Ok(Left::Detached) };
                let Typed { inside, leave } = keys.read(&typed);
                if !inside.is_empty() {
                    saying.bytes(inside).await?;
                }
                if leave {
                    return Ok(Left::Detached);
                }
            }
            _ = resized.recv() => {
                if let Some((rows, cols)) = tty::size(std::io::stdout()) {
                    saying.json(&json!({"type": "resize", "rows": rows, "cols": cols})).await?;
                }
            }
        }
    }
}

/// The first of the signals that end us.
async fn signalled(signals: [&mut (Signal, i32); 3]) -> i32 {
    let [(first, a), (second, b), (third, c)] = signals;
    tokio::select! {
        _ = first.recv() => *a,
        _ = second.recv() => *b,
        _ = third.recv() => *c,
    }
}

/// Our own words, on a terminal that does not begin lines by itself.
fn say(text: &str) {
    let line = format!("\r\nbelljar: {text}\r\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
}
