//! Terminals: programs on pseudo-terminals. They go on without readers.
//!
//! ```text
//!   connection ──type──▶ master ◀──▶ slave: keeper ──▶ program
//!       ▲                  │
//!       └── follow ◀── scroll (the last 256 KiB) ◀── pump
//! ```
//!
//! One task, [`Pump`], owns the program from its start to its end. It reads output only while the
//! readers keep up, so a program waits for a slow reader, as at a real terminal. The program stops
//! waiting for a reader that takes nothing for [`STALL`], until that reader has caught up.

mod scroll;

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::time::Duration;

use belljar_proto::guest::{Answer, FromGuest, Refusal, RefusalCode};
use belljar_proto::terminal::{
    MAX_TERMINAL_INPUT, MAX_TERMINALS, SCROLL_BACK, TerminalEnd, TerminalEvent, TerminalInfo,
    TerminalSize, TerminalSpec,
};
use belljar_sys::process::{self, Ended};
use belljar_sys::{channel, pty};
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::Guest;
use crate::command::{self, KILL_TIMEOUT, SIGCONT};
use crate::outbox::Outbox;
use crate::reaper::End;
use crate::reply::{Reply, failed, refuse};
use scroll::Scroll;

const SIGHUP: i32 = 1;

/// The program waits for a reader that is further behind than this. The rest of the scroll-back has room
/// for output that is read before the program stops.
const MAX_BEHIND: u64 = SCROLL_BACK as u64 / 2;

/// How long the program waits for a reader that takes nothing.
const STALL: Duration = Duration::from_secs(5);

/// The most that is read, or sent, at once.
const PIECE: usize = 16 * 1024;

/// The most that is read after the end of the program; a pseudo-terminal holds less.
const MAX_LAST_OUTPUT: usize = 128 * 1024;

/// How long a program may take to read what was typed.
const TYPING_PATIENCE: Duration = Duration::from_secs(30);

/// On SIGHUP a shell writes its history. A program that takes longer is killed.
const HANGUP_GRACE: Duration = Duration::from_millis(300);

/// One terminal. It is kept for a while after its program has ended.
#[derive(Debug)]
pub(crate) struct Terminal {
    id: String,
    argv: Vec<String>,
    size: Cell<TerminalSize>,
    scroll: RefCell<Scroll>,
    /// Something was printed, or the program has ended.
    grown: Notify,
    readers: RefCell<Vec<Weak<Reader>>>,
    /// Counts as a reader until the first client follows the terminal, so that a program which prints much does not
    /// run far ahead of it.
    expected: RefCell<Option<Rc<Reader>>>,
    /// A reader has taken output, or left.
    read: Notify,
    /// `None` after the program has ended.
    master: RefCell<Option<Rc<AsyncFd<OwnedFd>>>>,
    ended: watch::Sender<Option<TerminalEnd>>,
    /// Set by a request to close it.
    closing: watch::Sender<bool>,
}

/// A client that follows a terminal.
#[derive(Debug)]
struct Reader {
    /// The position of the next byte it gets.
    position: Cell<u64>,
    /// When it last took output, or output became available again.
    moved: Cell<Instant>,
}

/// All terminals of this sandbox, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Terminals(RefCell<Vec<Rc<Terminal>>>);

impl Terminals {
    pub(crate) fn list(&self) -> Result<Reply, Refusal> {
        let all: Vec<TerminalInfo> =
            self.0.borrow().iter().map(|terminal| terminal.info()).collect();
        Reply::with_json(Answer::Terminals, &all)
    }

    /// How many terminals have a program that runs.
    pub(crate) fn alive(&self) -> usize {
        self.0.borrow().iter().filter(|terminal| terminal.ended.borrow().is_none()).count()
    }

    pub(crate) fn get(&self, id: &str) -> Result<Rc<Terminal>, Refusal> {
        let found = self.0.borrow().iter().find(|terminal| terminal.id == id).cloned();
        found.ok_or_else(|| {
            refuse(RefusalCode::UnknownTerminal, format!("there is no terminal `{id}`"))
        })
    }

    /// Makes room for one more: the oldest whose program has ended is forgotten.
    fn make_room(&self, id: &str) -> Result<(), Refusal> {
        let mut all = self.0.borrow_mut();
        if all.iter().any(|terminal| terminal.id == id) {
            let message = format!("terminal `{id}` exists already");
            return Err(refuse(RefusalCode::Invalid, message));
        }
        while all.len() >= MAX_TERMINALS {
            let Some(over) = all.iter().position(|terminal| terminal.ended.borrow().is_some())
            else {
                let message = format!("{MAX_TERMINALS} terminals are open already");
                return Err(refuse(RefusalCode::TooMany, message));
            };
            all.remove(over);
        }
        Ok(())
    }

    fn forget(&self, terminal: &Rc<Terminal>) {
        self.0.borrow_mut().retain(|known| !Rc::ptr_eq(known, terminal));
    }
}

/// Starts a program on a new terminal.
pub(crate) fn open(guest: &Rc<Guest>, spec: &TerminalSpec) -> Result<Reply, Refusal> {
    guest.terminals.make_room(&spec.terminal)?;
    let terminal = start(guest, spec).map_err(|error| {
        use io::ErrorKind::{NotADirectory, NotFound, PermissionDenied};
        let program = spec.argv.first().map_or("", String::as_str);
        let code = match error.kind() {
            NotFound | NotADirectory | PermissionDenied => RefusalCode::Invalid,
            _ => RefusalCode::Failed,
        };
        let cwd = &spec.cwd;
        refuse(code, format!("failed to start `{program}` in `{cwd}` on a terminal: {error}"))
    })?;
    let info = terminal.info();
    guest.terminals.0.borrow_mut().push(terminal);
    Ok(Answer::Terminal(info).into())
}

fn start(guest: &Rc<Guest>, spec: &TerminalSpec) -> io::Result<Rc<Terminal>> {
    let TerminalSpec { terminal: id, argv, env, cwd, size } = spec;
    let pty::Pty { master, slave } = pty::open(size.rows, size.cols)?;
    let fds = [slave.as_fd(); 3];
    let command = process::Command { argv, env, cwd, fds: &fds, on_terminal: true };
    let kept = process::spawn_kept(&command)?;
    let keeper_end = guest.reaper.watch(kept.keeper);
    kept.leash.set_nonblocking(true)?;
    let leash = UnixStream::from_std(kept.leash)?;
    let master = Rc::new(channel::watched(master)?);
    let expected = Rc::new(Reader { position: Cell::new(0), moved: Cell::new(Instant::now()) });
    let terminal = Rc::new(Terminal {
        id: id.clone(),
        argv: argv.clone(),
        size: Cell::new(*size),
        scroll: RefCell::new(Scroll::new(SCROLL_BACK)),
        grown: Notify::new(),
        readers: RefCell::new(vec![Rc::downgrade(&expected)]),
        expected: RefCell::new(Some(expected)),
        read: Notify::new(),
        master: RefCell::new(Some(Rc::clone(&master))),
        ended: watch::Sender::new(None),
        closing: watch::Sender::new(false),
    });
    let pump = Pump {
        terminal: Rc::clone(&terminal),
        master,
        _slave: slave,
        pid: kept.pid,
        keeper: kept.keeper,
        keeper_end,
        mark: kept.mark,
    };
    let guest = Rc::clone(guest);
    tokio::task::spawn_local(async move { pump.run(&guest, leash).await });
    Ok(terminal)
}

/// The task that owns the program.
struct Pump {
    terminal: Rc<Terminal>,
    master: Rc<AsyncFd<OwnedFd>>,
    /// Keeps the terminal usable while no program has it open.
    _slave: OwnedFd,
    pid: u32,
    /// The parent of the program and of everything it starts, see [`process::Kept`].
    keeper: u32,
    keeper_end: End,
    mark: Option<String>,
}

impl Pump {
    async fn run(self, guest: &Guest, mut leash: UnixStream) {
        let mut closing = self.terminal.closing.subscribe();
        let mut ended = pin!(command::await_end(&mut leash, self.pid, guest));
        let how = tokio::select! {
            biased;
            how = &mut ended => Some(how),
            _ = closing.wait_for(|closing| *closing) => None,
            () = self.print() => None,
        };
        let how = match how {
            Some(how) => how,
            None => {
                let _ = process::signal_group(self.pid, SIGHUP);
                let _ = process::signal_group(self.pid, SIGCONT);
                let how = timeout(HANGUP_GRACE, &mut ended).await.ok();
                // Also if the program has ended: processes that it left behind are killed too.
                if self.keeper_end.now().is_none() {
                    command::kill_kept(self.keeper, self.mark.as_deref()).await;
                } else if how.is_none() {
                    command::kill_kept(self.pid, self.mark.as_deref()).await;
                }
                if how.is_none() {
                    let _ = timeout(KILL_TIMEOUT, self.keeper_end.ended()).await;
                }
                how.unwrap_or(Ended::Signaled(command::SIGKILL))
            }
        };
        self.read_last_output();
        self.terminal.master.borrow_mut().take();
        let signal = match how {
            Ended::Signaled(signal) => Some(signal),
            Ended::Exited(_) => None,
        };
        let end = TerminalEnd { exit_code: how.exit_code(), signal };
        self.terminal.ended.send_replace(Some(end));
        self.terminal.grown.notify_waiters();
    }

    /// Reads output as fast as the readers take it. Returns if the terminal itself fails.
    async fn print(&self) {
        let mut buffer = vec![0; PIECE];
        loop {
            self.terminal.readers_keep_up().await;
            let Ok(mut ready) = self.master.readable().await else { return };
            match ready.try_io(|master| channel::read_now(master.get_ref(), &mut buffer)) {
                Ok(Ok(0)) => return,
                Ok(Ok(n)) => self.terminal.printed(&buffer[..n]),
                Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(_)) => return,
                Err(_would_block) => {}
            }
        }
    }

    /// Reads what the program printed before its end.
    fn read_last_output(&self) {
        let mut buffer = vec![0; PIECE];
        let mut total = 0;
        while total < MAX_LAST_OUTPUT {
            match channel::read_now(self.master.get_ref(), &mut buffer) {
                Ok(n) if n > 0 => {
                    total += n;
                    self.terminal.printed(&buffer[..n]);
                }
                _ => return,
            }
        }
    }
}

impl Terminal {
    pub(crate) fn info(&self) -> TerminalInfo {
        let scroll = self.scroll.borrow();
        TerminalInfo {
            terminal: self.id.clone(),
            argv: self.argv.clone(),
            size: self.size.get(),
            attached: u32::try_from(self.attached()).unwrap_or(u32::MAX),
            oldest: scroll.oldest(),
            newest: scroll.newest(),
            ended: *self.ended.borrow(),
        }
    }

    fn attached(&self) -> usize {
        self.live_readers().len() - usize::from(self.expected.borrow().is_some())
    }

    fn live_readers(&self) -> Vec<Rc<Reader>> {
        let mut readers = self.readers.borrow_mut();
        readers.retain(|reader| reader.strong_count() > 0);
        readers.iter().filter_map(Weak::upgrade).collect()
    }

    fn printed(&self, bytes: &[u8]) {
        let newest = self.scroll.borrow().newest();
        for reader in self.live_readers() {
            if reader.position.get() == newest {
                // It has read everything until now: its time limit begins.
                reader.moved.set(Instant::now());
            }
        }
        self.scroll.borrow_mut().push(bytes);
        self.grown.notify_waiters();
    }

    /// Resolves when no reader that still reads is far behind.
    async fn readers_keep_up(&self) {
        loop {
            let read = self.read.notified();
            let newest = self.scroll.borrow().newest();
            let now = Instant::now();
            let waits_until = self
                .live_readers()
                .iter()
                .filter(|reader| newest.saturating_sub(reader.position.get()) > MAX_BEHIND)
                .map(|reader| reader.moved.get() + STALL)
                .filter(|patience| *patience > now)
                .max();
            let Some(patience) = waits_until else { return };
            tokio::select! {
                () = read => {}
                () = sleep_until(patience) => {}
            }
        }
    }

    pub(crate) fn resize(&self, size: TerminalSize) -> Result<Reply, Refusal> {
        let master = self.alive()?;
        pty::resize(master.get_ref(), size.rows, size.cols)
            .map_err(|error| failed(format!("failed to resize terminal `{}`: {error}", self.id)))?;
        self.size.set(size);
        Ok(Answer::Done.into())
    }

    fn alive(&self) -> Result<Rc<AsyncFd<OwnedFd>>, Refusal> {
        self.master.borrow().clone().ok_or_else(|| {
            let message = format!("the program at terminal `{}` has ended", self.id);
            refuse(RefusalCode::Invalid, message)
        })
    }

    /// Writes input as fast as the program reads it.
    pub(crate) async fn type_in(&self, bytes: &[u8]) -> Result<Reply, Refusal> {
        if bytes.len() > MAX_TERMINAL_INPUT {
            let message = format!("a terminal takes at most {MAX_TERMINAL_INPUT} bytes at a time");
            return Err(refuse(RefusalCode::Invalid, message));
        }
        let master = self.alive()?;
        let mut ended = self.ended.subscribe();
        let mut left = bytes;
        let written = tokio::select! {
            biased;
            // Input after the end of the program is accepted, as at a real terminal.
            _ = ended.wait_for(Option::is_some) => Ok(()),
            written = timeout(TYPING_PATIENCE, write_all(&master, &mut left)) => {
                written.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
            }
        };
        match written {
            Ok(()) => Ok(Answer::Done.into()),
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let (id, left) = (&self.id, left.len());
                let message = format!(
                    "the program at terminal `{id}` does not read: {left} bytes were not written"
                );
                Err(refuse(RefusalCode::Busy, message))
            }
            Err(error) => {
                Err(failed(format!("failed to write to terminal `{}`: {error}", self.id)))
            }
        }
    }

    /// Ends everything that was started at this terminal, and forgets it.
    pub(crate) async fn close(self: Rc<Self>, guest: &Guest) -> Result<Reply, Refusal> {
        self.closing.send_replace(true);
        let mut ended = self.ended.subscribe();
        // The sender is in `self`.
        let _ = ended.wait_for(Option::is_some).await;
        guest.terminals.forget(&self);
        Ok(Answer::Done.into())
    }
}

/// Writes `bytes`, and leaves in it what was not written.
async fn write_all(master: &AsyncFd<OwnedFd>, bytes: &mut &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let mut ready = master.writable().await?;
        match ready.try_io(|master| pty::write_now(master.get_ref(), bytes)) {
            Ok(Ok(n)) => *bytes = &bytes[n..],
            Ok(Err(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Ok(Err(error)) => return Err(error),
            Err(_would_block) => {}
        }
    }
    Ok(())
}

/// Sends the output of a terminal, until its end or the connection's. Must be called at once after the
/// reply, which names the first position.
pub(crate) fn follow(terminal: Rc<Terminal>, from: Option<u64>, outbox: Outbox) {
    let position = {
        let scroll = terminal.scroll.borrow();
        from.map_or_else(|| scroll.beginning(), |from| from.min(scroll.newest()))
    };
    let reader =
        Rc::new(Reader { position: Cell::new(position), moved: Cell::new(Instant::now()) });
    terminal.readers.borrow_mut().push(Rc::downgrade(&reader));
    terminal.expected.borrow_mut().take();
    tokio::task::spawn_local(async move {
        tokio::select! {
            () = send_output(&terminal, &reader, &outbox) => {}
            // Also while there is nothing to send.
            () = outbox.closed() => {}
        }
        drop(reader);
        terminal.read.notify_waiters();
    });
}

async fn send_output(terminal: &Terminal, reader: &Reader, outbox: &Outbox) {
    loop {
        let grown = terminal.grown.notified();
        let Some((event, body)) = terminal.next_for(reader) else {
            grown.await;
            continue;
        };
        let message = FromGuest::Terminal { terminal: terminal.id.clone(), event };
        if !outbox.send(&message, &body).await {
            return;
        }
        reader.moved.set(Instant::now());
        terminal.read.notify_waiters();
        if matches!(event, TerminalEvent::Ended(_)) {
            return;
        }
    }
}

impl Terminal {
    /// The next event for a reader, whose position moves past it.
    fn next_for(&self, reader: &Reader) -> Option<(TerminalEvent, Vec<u8>)> {
        let scroll = self.scroll.borrow();
        let at = reader.position.get();
        if at < scroll.oldest() {
            let next = scroll.beginning();
            reader.position.set(next);
            return Some((TerminalEvent::Skipped { bytes: next - at }, Vec::new()));
        }
        if at < scroll.newest() {
            let body = scroll.read(at, PIECE);
            reader.position.set(at + body.len() as u64);
            return Some((TerminalEvent::Output { at }, body));
        }
        self.ended.borrow().map(|end| (TerminalEvent::Ended(end), Vec::new()))
    }
}
