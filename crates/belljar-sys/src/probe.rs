//! Tries to exceed limits, in a child of the guest inside a temporary sandbox.
//!
//! A limit that is configured but not enforced is worse than none, because users rely on it. So the self-test runs these
//! probes and checks the result.

use std::io;
use std::time::{Duration, Instant};

use crate::process::{self, Ended, Forked};

/// Touches `bytes` of memory in a child. True if Linux killed the child for it.
pub fn memory(bytes: u64) -> io::Result<bool> {
    let ended = in_child(move || {
        const CHUNK: usize = 1024 * 1024;
        let mut held: Vec<Vec<u8>> = Vec::new();
        for _ in 0..bytes.div_ceil(CHUNK as u64) {
            // Non-zero bytes, so that every page is really allocated.
            held.push(std::hint::black_box(vec![1; CHUNK]));
        }
        0
    })?;
    Ok(ended == Ended::Signaled(libc::SIGKILL))
}

/// Starts up to `count` processes that do nothing, and returns how many started.
pub fn processes(count: u32) -> io::Result<u32> {
    let mut children = Vec::new();
    for _ in 0..count {
        match process::fork_process() {
            Ok(Forked::Child) => loop {
                std::thread::sleep(Duration::from_secs(60));
            },
            Ok(Forked::Parent(pid)) => children.push(pid),
            Err(_) => break,
        }
    }
    let started = u32::try_from(children.len()).map_err(io::Error::other)?;
    for child in children {
        process::signal(child, libc::SIGKILL)?;
        wait_for(child)?;
    }
    Ok(started)
}

/// Uses processor time in two children for `wall`, and returns how much they got.
pub fn cpu(wall: Duration) -> io::Result<(Duration, Duration)> {
    let before = children_time();
    let start = Instant::now();
    let burn = move || {
        while start.elapsed() < wall {
            std::hint::black_box(0);
        }
        0
    };
    let first = start_child(burn)?;
    let second = start_child(burn)?;
    wait_for(first)?;
    wait_for(second)?;
    Ok((children_time().saturating_sub(before), start.elapsed()))
}

/// Uses processor time in two threads of this process for `wall`, and returns how much they got: what a program without a
/// limit gets on this machine at the moment.
#[must_use]
pub fn unlimited_cpu(wall: Duration) -> Duration {
    let start = Instant::now();
    let burn = move || {
        let before = time_of(libc::RUSAGE_THREAD);
        while start.elapsed() < wall {
            std::hint::black_box(0);
        }
        time_of(libc::RUSAGE_THREAD).saturating_sub(before)
    };
    let threads = [std::thread::spawn(burn), std::thread::spawn(burn)];
    threads.into_iter().filter_map(|thread| thread.join().ok()).sum()
}

/// Interfaces other than loopback, and whether a packet could be addressed to the outside.
pub fn network() -> io::Result<(Vec<String>, bool)> {
    let interfaces = std::fs::read_to_string("/proc/net/dev")?
        .lines()
        .skip(2)
        .filter_map(|line| Some(line.split_once(':')?.0.trim().to_owned()))
        .filter(|name| name != "lo")
        // If their drivers are built into Linux, every namespace has these interfaces, down and without an address.
        .filter(|name| {
            ![
                "tunl0", "sit0", "ip6tnl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0",
                "ip6gre0",
            ]
            .contains(&name.as_str())
        })
        .collect();
    // Connecting a datagram socket sends nothing; it only asks Linux for a route. The address belongs to the range
    // reserved for documentation.
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0))?;
    let reached_out = socket.connect(("192.0.2.1", 9)).is_ok();
    Ok((interfaces, reached_out))
}

fn in_child(work: impl FnOnce() -> i32) -> io::Result<Ended> {
    wait_for(start_child(work)?)
}

fn start_child(work: impl FnOnce() -> i32) -> io::Result<u32> {
    match process::fork_process()? {
        Forked::Child => process::exit_now(work()),
        Forked::Parent(pid) => Ok(pid),
    }
}

fn wait_for(pid: u32) -> io::Result<Ended> {
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    let mut status = 0;
    loop {
        // SAFETY: `status` is live for the call.
        if unsafe { libc::waitpid(pid, &raw mut status, 0) } == pid {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(if libc::WIFSIGNALED(status) {
        Ended::Signaled(libc::WTERMSIG(status))
    } else {
        Ended::Exited(libc::WEXITSTATUS(status))
    })
}

fn children_time() -> Duration {
    time_of(libc::RUSAGE_CHILDREN)
}

/// Processor time of our children that have ended, or of this thread.
fn time_of(whom: libc::c_int) -> Duration {
    // SAFETY: all-zero is a valid `rusage`, and the call fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(whom, &raw mut usage);
        usage
    };
    let of = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec.unsigned_abs())
            + Duration::from_micros(time.tv_usec.unsigned_abs())
    };
    of(usage.ru_utime) + of(usage.ru_stime)
}
