//! The guest: our process inside the sandbox, its PID 1.
//!
//! It starts processes and supervises kernels, keeps their output within bounds until the host has
//! fetched it, opens and writes files on the host's behalf and reaps orphans. It has no more rights
//! than the code it supervises: same user, same seccomp filter, same Landlock rules, no
//! capabilities.
//!
//! ```text
//!  host ──UNIX socket──▶ connection ──▶ execs (spool) ◀── kernel ◀──private socket──▶ python, bash
//!                            ▲            │   ▲              └── stdout, stderr pipes ──┘
//!                            └── events ──┼───┘        command ──▶ keeper ──▶ process
//!                                         └── input ──▶ kernel, process
//!         connection ◀──────────── relay ◀── loopback ── whoever wants to leave, if they may
//! ```
//!
//! The guest outlives the server for as long as it was told: connections come and go, executions go
//! on. One thread, one
//! event loop; nothing here is shared with anybody, so state is `Rc` and `Cell`.

#![forbid(unsafe_code)]

mod alone;
mod command;
mod connection;
mod dialect;
mod execs;
mod files;
mod input;
mod kernel;
mod output;
mod reaper;
mod relay;

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::rc::Rc;

use belljar_proto::exec::Language;

use alone::Company;
use execs::Execs;
use kernel::Kernel;
use reaper::Reaper;
use relay::Relay;

/// What the guest is born with.
#[derive(Debug)]
pub struct Start {
    /// Bound by the host, at a path nobody inside can see.
    pub listener: UnixListener,
    /// Whoever connects must know it.
    pub nonce: String,
    /// Where the kernel counts processes it killed for memory.
    pub oom_events: Option<File>,
    /// The rules we live under, for kernels that join later.
    pub landlock: Option<OwnedFd>,
    /// For how many seconds to go on while nobody is connected; 0: end with the last connection.
    pub alone_for_s: u64,
}

/// Serves the host until it says `Shutdown`.
pub fn run(start: Start) -> io::Result<()> {
    // The language's own handlers for faults would let code inside reach us with a signal.
    belljar_sys::process::forget_signal_handlers();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, serve(start))
}

async fn serve(start: Start) -> io::Result<()> {
    start.listener.set_nonblocking(true)?;
    let listener = tokio::net::UnixListener::from_std(start.listener)?;
    let guest = Rc::new(Guest {
        nonce: start.nonce,
        oom_events: start.oom_events,
        landlock: start.landlock,
        execs: Execs::default(),
        reaper: Reaper::start()?,
        kernels: RefCell::default(),
        lost_kernel: RefCell::default(),
        company: Rc::new(Company::new(start.alone_for_s)),
        relay: Rc::default(),
    });
    tokio::task::spawn_local(alone::exit_when_deserted(Rc::clone(&guest.company)));
    loop {
        let (stream, _) = listener.accept().await?;
        if guest.company.connections() >= MAX_CONNECTIONS {
            continue;
        }
        tokio::task::spawn_local(connection::serve(Rc::clone(&guest), stream));
    }
}

/// The host needs one connection, and a second while it takes over from a predecessor; in a
/// container the socket can be reached from inside, and must not be a way to exhaust us.
const MAX_CONNECTIONS: usize = 64;

/// Everything the guest knows.
#[derive(Debug)]
struct Guest {
    nonce: String,
    oom_events: Option<File>,
    landlock: Option<OwnedFd>,
    execs: Execs,
    reaper: Reaper,
    kernels: RefCell<HashMap<Language, Rc<Kernel>>>,
    /// How a kernel died that nobody was told about yet.
    lost_kernel: RefCell<HashMap<Language, String>>,
    company: Rc<Company>,
    /// Connections that the host answers.
    relay: Rc<Relay>,
}

impl Guest {
    /// How many processes of this sandbox the kernel has killed for memory so far.
    fn oom_kills(&self) -> u64 {
        let Some(file) = &self.oom_events else {
            return 0;
        };
        let mut text = [0; 1024];
        let len = file.read_at(&mut text, 0).unwrap_or(0);
        belljar_sys::cgroup::parse_oom_kills(&String::from_utf8_lossy(&text[..len]))
    }
}
