//! The guest: our process inside the sandbox, its PID 1.
//!
//! It starts processes, supervises kernels, keeps a bounded amount of their output until the host has
//! fetched it, opens and writes files for the host, and reaps orphans. It has no more rights than the
//! code it supervises: same user, same seccomp filter, same Landlock rules, no capabilities.
//!
//! ```text
//!  host ──UNIX socket──▶ connection ──▶ execs (spool) ◀── kernel ◀──private socket──▶ python, bash
//!                            ▲            │   ▲              └── stdout, stderr pipes ──┘
//!                            └── events ──┼───┘        command ──▶ keeper ──▶ process
//!                                         └── input ──▶ kernel, process
//!         connection ◀──────────── relay ◀── loopback ── connections to the network, if allowed
//!                        terminal (scroll-back) ──▶ keeper ──▶ process on a pseudo-terminal
//! ```
//!
//! Connections end and begin again while executions go on; [`host_presence`] limits how long the guest
//! lives without one. There is one thread with one event loop, so state is `Rc` and `Cell`.

#![forbid(unsafe_code)]

mod command;
mod connection;
mod dialect;
mod execs;
mod file_table;
mod files;
mod host_presence;
mod host_writer;
mod input;
mod jobs;
mod kernel;
mod outbox;
mod output;
mod quiescence;
mod reaper;
mod relay;
mod reply;
mod terminal;
mod time_limit;
mod transport;
mod watching;
mod zygote;

use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::rc::Rc;

use belljar_proto::exec::Language;

use execs::Execs;
use host_presence::HostPresence;
use jobs::Jobs;
pub use jobs::{pack_directory, unpack_into};
use kernel::Kernel;
use reaper::Reaper;
use relay::Relay;
use terminal::Terminals;
pub use transport::Transport;
use watching::Watches;
use zygote::Zygote;

/// What the guest is started with.
#[derive(Debug)]
pub struct Start {
    pub transport: Transport,
    /// The secret that a host must present. `None`: the first host that connects chooses it, before
    /// any user code runs.
    pub nonce: Option<String>,
    /// The cgroup file in which Linux counts processes killed for memory.
    pub oom_events: Option<File>,
    /// For how many seconds to go on without a connected host; 0: end with the last connection.
    pub alone_for_s: u64,
}

/// Serves the host until `Shutdown`.
pub fn run(start: Start) -> io::Result<()> {
    // Rust's own handlers for faults would let code inside the sandbox disturb us with a signal.
    belljar_sys::process::forget_signal_handlers();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    local.block_on(&runtime, serve(start))
}

async fn serve(start: Start) -> io::Result<()> {
    let guest = Rc::new(Guest {
        nonce: start.nonce.map_or_else(OnceCell::new, OnceCell::from),
        oom_events: start.oom_events,
        execs: Execs::default(),
        reaper: Reaper::start()?,
        kernels: RefCell::default(),
        zygote: tokio::sync::Mutex::default(),
        terminals: Terminals::default(),
        jobs: Jobs::default(),
        watches: Watches::default(),
        lost_kernel: RefCell::default(),
        presence: Rc::new(HostPresence::new(start.alone_for_s)),
        relay: Rc::default(),
    });
    tokio::task::spawn_local(host_presence::exit_when_deserted(Rc::clone(&guest.presence)));
    transport::serve(guest, start.transport).await
}

/// The state of the guest.
#[derive(Debug)]
struct Guest {
    nonce: OnceCell<String>,
    oom_events: Option<File>,
    execs: Execs,
    reaper: Reaper,
    kernels: RefCell<HashMap<Language, Rc<Kernel>>>,
    /// The process inside the sandbox that forks kernels, if one was started.
    zygote: tokio::sync::Mutex<Option<Zygote>>,
    terminals: Terminals,
    jobs: Jobs,
    watches: Watches,
    /// How a kernel died, until the next execution in its language has reported it.
    lost_kernel: RefCell<HashMap<Language, String>>,
    presence: Rc<HostPresence>,
    /// Streams that the host serves over its connection.
    relay: Rc<Relay>,
}

impl Guest {
    /// Whether this is our host: it knows the nonce, or is the first to choose one.
    fn recognises(&self, nonce: &str) -> bool {
        self.nonce.get_or_init(|| nonce.to_owned()) == nonce
    }

    /// The nonce; empty before the first connection.
    fn nonce(&self) -> String {
        self.nonce.get().cloned().unwrap_or_default()
    }

    /// How many processes of this sandbox Linux has killed for memory so far.
    fn oom_kills(&self) -> u64 {
        let Some(file) = &self.oom_events else {
            return 0;
        };
        let mut text = [0; 1024];
        let len = file.read_at(&mut text, 0).unwrap_or(0);
        belljar_sys::cgroup::parse_oom_kills(&String::from_utf8_lossy(&text[..len]))
    }
}

/// Tests measure how much memory parsers of hostile input take.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: belljar_fuzz::Counting = belljar_fuzz::Counting;
