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
//!                        terminal (scroll-back) ──▶ keeper ──▶ process on a pseudo-terminal
//! ```
//!
//! The guest outlives the server for as long as it was told: connections come and go, executions go
//! on. One thread, one
//! event loop; nothing here is shared with anybody, so state is `Rc` and `Cell`.

#![forbid(unsafe_code)]

mod command;
mod connection;
mod dialect;
mod execs;
mod file_table;
mod files;
mod host_presence;
mod input;
mod jobs;
mod kernel;
mod output;
mod quiescence;
mod reaper;
mod relay;
mod terminal;
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

/// What the guest is born with.
#[derive(Debug)]
pub struct Start {
    pub transport: Transport,
    /// Whoever connects must know it. Where it is not told, the first to come decides: no code runs
    /// before that.
    pub nonce: Option<String>,
    /// Where the kernel counts processes it killed for memory.
    pub oom_events: Option<File>,
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
        company: Rc::new(HostPresence::new(start.alone_for_s)),
        relay: Rc::default(),
    });
    tokio::task::spawn_local(host_presence::exit_when_deserted(Rc::clone(&guest.company)));
    transport::serve(guest, start.transport).await
}

/// Everything the guest knows.
#[derive(Debug)]
struct Guest {
    nonce: OnceCell<String>,
    oom_events: Option<File>,
    execs: Execs,
    reaper: Reaper,
    kernels: RefCell<HashMap<Language, Rc<Kernel>>>,
    /// Where kernels are forked from inside.
    zygote: tokio::sync::Mutex<Option<Zygote>>,
    terminals: Terminals,
    jobs: Jobs,
    watches: Watches,
    /// How a kernel died that nobody was told about yet.
    lost_kernel: RefCell<HashMap<Language, String>>,
    company: Rc<HostPresence>,
    /// Connections that the host answers.
    relay: Rc<Relay>,
}

impl Guest {
    /// Whether this is our host: it knows the nonce, or is the first to tell us one.
    fn recognises(&self, nonce: &str) -> bool {
        self.nonce.get_or_init(|| nonce.to_owned()) == nonce
    }

    /// What to be recognised by; empty before the first conversation.
    fn nonce(&self) -> String {
        self.nonce.get().cloned().unwrap_or_default()
    }

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

/// Tests measure how much memory parsers of hostile input take.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: belljar_fuzz::Counting = belljar_fuzz::Counting;
