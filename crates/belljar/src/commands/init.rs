//! `belljar init`: PID 1 of a container or pod. It starts the server, and starts it again when it dies.
//!
//! Linux kills every process of a PID namespace when its PID 1 ends. If the server were PID 1, a crash of the server would end
//! all sandboxes. With `belljar init` as PID 1 they go on, and the next server finds them. One thread waits for signals:
//!
//! ```text
//!   SIGTERM, SIGINT, SIGQUIT ──▶ passed on; when the server ends, init ends with its code
//!   SIGHUP, SIGUSR1, SIGUSR2 ──▶ passed on
//!   SIGCHLD ──▶ ended children are reaped; if the server is among them: exit, or start it again after a pause
//! ```

use std::io;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use belljar_sys::process::{self, Ended};
use belljar_sys::signals::{Awaited, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use clap::Args;

use super::EXIT_FAILED;
use crate::logging;

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// The server and its arguments, for example: belljar serve
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<String>,
}

/// After one of these the server is expected to end.
const STOPS: [i32; 3] = [SIGTERM, SIGINT, SIGQUIT];
const OTHERS: [i32; 3] = [SIGHUP, SIGUSR1, SIGUSR2];

pub(crate) fn init(args: &InitArgs) -> Result<ExitCode> {
    process::adopt_orphans().context("failed to become the parent of orphaned processes")?;
    let awaited = [&STOPS[..], &OTHERS[..], &[SIGCHLD]].concat();
    let mut init = Init {
        signals: Awaited::block(&awaited).context("failed to block signals")?,
        restarts: Restarts::default(),
    };
    let code = init.run(&args.command)?;
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)))
}

struct Init {
    signals: Awaited,
    restarts: Restarts,
}

/// How one server ended.
#[derive(Debug, Clone, Copy)]
struct Life {
    ended: Ended,
    lived: Duration,
    /// A signal that asks it to stop was passed on to it.
    asked_to_stop: bool,
}

impl Init {
    /// Runs servers until one ends as expected. Returns the exit code.
    fn run(&mut self, command: &[String]) -> Result<i32> {
        loop {
            let life = match start(command) {
                Ok(server) => self.watch(server)?,
                Err(error) if self.restarts.settled => {
                    logging::warn(&format!("failed to start `{}`: {error}", command[0]));
                    let ended = Ended::Exited(EXIT_FAILED.into());
                    Life { ended, lived: Duration::ZERO, asked_to_stop: false }
                }
                Err(error) => {
                    return Err(error).with_context(|| format!("failed to start `{}`", command[0]));
                }
            };
            let pause = match self.restarts.after(life) {
                InitStep::Exit(code) => return Ok(code),
                InitStep::StartAgain(pause) => pause,
            };
            let how = match life.ended {
                Ended::Exited(code) => format!("ended with code {code}"),
                Ended::Signaled(signal) => format!("was killed by signal {signal}"),
            };
            let ms = pause.as_millis();
            logging::warn(&format!("the server {how}; it is started again in {ms} ms"));
            if let Some(signal) = self.pause(pause)? {
                return Ok(Ended::Signaled(signal).exit_code());
            }
        }
    }

    /// Passes signals on to the server, and reaps processes, until the server has ended.
    fn watch(&self, server: u32) -> Result<Life> {
        let started = Instant::now();
        let mut asked_to_stop = false;
        loop {
            match self.next(None)? {
                Some(SIGCHLD) => {
                    if let Some(ended) = reap(server) {
                        return Ok(Life { ended, lived: started.elapsed(), asked_to_stop });
                    }
                }
                Some(signal) => {
                    asked_to_stop |= STOPS.contains(&signal);
                    // It was not reaped, so this pid is the server's.
                    let _ = process::signal(server, signal);
                }
                None => {}
            }
        }
    }

    /// Waits before the next start. Returns a signal that asks to stop instead.
    fn pause(&self, pause: Duration) -> Result<Option<i32>> {
        let end = Instant::now() + pause;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.next(Some(left))? {
                None => return Ok(None),
                Some(signal) if STOPS.contains(&signal) => return Ok(Some(signal)),
                Some(SIGCHLD) => _ = reap(0),
                Some(_) => {}
            }
        }
    }

    fn next(&self, limit: Option<Duration>) -> Result<Option<i32>> {
        self.signals.next(limit).context("failed to wait for signals")
    }
}

/// Starts the server with our streams, in a session of its own: a Ctrl-C at a terminal reaches it only once, from us.
fn start(command: &[String]) -> io::Result<u32> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    let env: Vec<(String, String)> = std::env::vars_os().filter_map(text).collect();
    let argv = process::find_program(command, &env)?;
    process::spawn(&process::Command {
        argv: &argv,
        env: &env,
        cwd: ".",
        fds: &process::standard_streams(),
        on_terminal: false,
    })
}

/// Reaps all children that have ended. Returns how this one did, if it is among them.
fn reap(server: u32) -> Option<Ended> {
    let mut found = None;
    while let Some((pid, ended)) = process::reap_any() {
        if pid == server {
            found = Some(ended);
        }
    }
    found
}

/// A server that lived this long has started, and may have sandboxes.
const SETTLED: Duration = Duration::from_secs(5);

/// The pause before a server is started again: it doubles with every server that does not live for [`SETTLED`].
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Decides what happens after a server has ended.
#[derive(Debug, Default)]
struct Restarts {
    /// Some server lived for [`SETTLED`].
    settled: bool,
    /// Servers in a row that did not.
    short: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum InitStep {
    Exit(i32),
    StartAgain(Duration),
}

impl Restarts {
    fn after(&mut self, life: Life) -> InitStep {
        if life.lived >= SETTLED {
            *self = Restarts { settled: true, short: 0 };
        }
        // A server that reports an error at its first start has no sandboxes, and starting it again would only hide the error.
        let is_refused = !self.settled && matches!(life.ended, Ended::Exited(_));
        if life.asked_to_stop || life.ended == Ended::Exited(0) || is_refused {
            return InitStep::Exit(life.ended.exit_code());
        }
        let pause = FIRST_PAUSE.saturating_mul(1 << self.short.min(16)).min(LONGEST_PAUSE);
        self.short += 1;
        InitStep::StartAgain(pause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: Ended = Ended::Signaled(9);
    const FAILED: Ended = Ended::Exited(125);
    const MOMENT: Duration = Duration::from_millis(10);

    fn after(
        restarts: &mut Restarts,
        ended: Ended,
        lived: Duration,
        asked_to_stop: bool,
    ) -> InitStep {
        restarts.after(Life { ended, lived, asked_to_stop })
    }

    #[test]
    fn an_ordinary_end_is_the_end() {
        for lived in [MOMENT, SETTLED] {
            let end = |ended, asked| after(&mut Restarts::default(), ended, lived, asked);
            assert_eq!(end(Ended::Exited(0), false), InitStep::Exit(0));
            assert_eq!(end(Ended::Exited(0), true), InitStep::Exit(0));
            assert_eq!(end(FAILED, true), InitStep::Exit(125));
            assert_eq!(end(KILLED, true), InitStep::Exit(137));
        }
    }

    #[test]
    fn a_server_that_cannot_start_is_not_started_again() {
        assert_eq!(after(&mut Restarts::default(), FAILED, MOMENT, false), InitStep::Exit(125));
        // Unless an earlier one ran: its sandboxes may live.
        let mut restarts = Restarts { settled: true, short: 0 };
        let next = after(&mut restarts, FAILED, MOMENT, false);
        assert_eq!(next, InitStep::StartAgain(FIRST_PAUSE));
    }

    #[test]
    fn the_pause_doubles_up_to_a_limit_until_a_server_lives() {
        let mut restarts = Restarts::default();
        let pauses: Vec<u128> = (0..12)
            .map(|_| match after(&mut restarts, KILLED, MOMENT, false) {
                InitStep::StartAgain(pause) => pause.as_millis(),
                InitStep::Exit(code) => panic!("it exits with {code}"),
            })
            .collect();
        let expected =
            [100, 200, 400, 800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000, 30_000];
        assert_eq!(pauses, expected);
        let next = after(&mut restarts, KILLED, SETTLED, false);
        assert_eq!(next, InitStep::StartAgain(FIRST_PAUSE));
        restarts.short = u32::MAX - 1;
        assert_eq!(
            after(&mut restarts, KILLED, MOMENT, false),
            InitStep::StartAgain(LONGEST_PAUSE)
        );
    }
}
