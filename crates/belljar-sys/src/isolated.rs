//! Runs a program in a sandbox that a plan describes, without a guest: for steps of image builds.

use std::io;
use std::os::fd::AsFd;

use rustix::process::{Pid, WaitOptions};

use crate::apply;
use crate::plan::Plan;
use crate::process::{
    Forked, Started, clone_process, die_with_parent, ended_by, execute, exit_now,
};

/// The status of a child that could not carry out the plan or start the program.
const NOT_STARTED: i32 = 125;

/// Carries out a plan in a child, which then executes a program with our standard output and error. Waits for its end
/// and returns its status as a shell would report it. The caller must be single-threaded.
pub fn run(plan: &Plan, argv: &[String], env: &[(String, String)]) -> io::Result<i32> {
    match clone_process(&plan.namespaces)? {
        Forked::Child => become_isolated(plan, argv, env),
        Forked::Parent(child) => wait_for(&child),
    }
}

fn become_isolated(plan: &Plan, argv: &[String], env: &[(String, String)]) -> ! {
    let null = match std::fs::File::open("/dev/null") {
        Ok(null) => null,
        Err(error) => fail("failed to open /dev/null", &error),
    };
    if let Err(error) = die_with_parent() {
        fail("failed to tie the process to its parent", &error);
    }
    if let Err(error) = apply::apply(&plan.steps, &[]) {
        fail(&error.to_string(), &error.cause);
    }
    let fds = [null.as_fd(), rustix::stdio::stdout(), rustix::stdio::stderr()];
    let error = execute(argv, env, &fds);
    let program = argv.first().map_or("", String::as_str);
    fail(&format!("failed to execute {program}"), &error)
}

fn fail(what: &str, error: &io::Error) -> ! {
    let _ = rustix::io::write(rustix::stdio::stderr(), format!("{what}: {error}\n").as_bytes());
    exit_now(NOT_STARTED)
}

fn wait_for(child: &Started) -> io::Result<i32> {
    loop {
        let pid = i32::try_from(child.pid).ok().and_then(Pid::from_raw);
        match rustix::process::waitpid(pid, WaitOptions::empty()) {
            Ok(Some((_, status))) => {
                if let Some(ended) = ended_by(status) {
                    return Ok(ended.exit_code());
                }
            }
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}
