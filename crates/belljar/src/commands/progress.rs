//! Progress bars on a terminal.

use std::io::{self, IsTerminal};
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::output;

/// A bar is shown only after this time.
const WORTH_SHOWING: Duration = Duration::from_secs(1);

const TICK: Duration = Duration::from_millis(120);

/// A progress bar, removed from the terminal when it is dropped.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    begun: Instant,
    shown: bool,
}

impl Progress {
    /// A bar for bytes, whose total may be known.
    pub(super) fn of_bytes(what: impl Into<String>, total: Option<u64>) -> Progress {
        let template = match total {
            Some(_) => "{bar:24} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left, {msg}",
            None => "{spinner} {bytes}, {bytes_per_sec}, {msg}",
        };
        Progress::new(total, template, what.into())
    }

    /// A spinner, for work without measurable progress.
    fn of_waiting(what: &str) -> Progress {
        Progress::new(None, "{spinner} {msg} ({elapsed})", what.to_owned())
    }

    fn new(total: Option<u64>, template: &str, what: String) -> Progress {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::hidden());
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_message(what);
        Progress { bar, begun: Instant::now(), shown: false }
    }

    pub(super) fn set(&mut self, position: u64) {
        self.bar.set_position(position);
        if !self.shown && self.begun.elapsed() >= WORTH_SHOWING {
            self.show();
        }
    }

    pub(super) fn set_message(&self, what: String) {
        self.bar.set_message(what);
    }

    fn show(&mut self) {
        self.shown = true;
        if io::stderr().is_terminal() {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
            self.bar.enable_steady_tick(TICK);
        }
    }

    /// Ends a transfer; on a terminal, one line remains with its size and duration.
    pub(super) fn done(self, what: &str, bytes: u64) {
        if io::stderr().is_terminal() {
            let seconds = self.begun.elapsed().as_secs_f64();
            self.say(&format!("{what}: {} in {seconds:.1} s", HumanBytes(bytes)));
        }
    }

    /// Prints a message above the bar.
    pub(super) fn say(&self, text: &str) {
        self.bar.suspend(|| output::say(text));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Waits for work without measurable progress, with a spinner if it takes long.
pub(super) async fn while_waiting<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    if let Ok(done) = tokio::time::timeout(WORTH_SHOWING, work.as_mut()).await {
        return done;
    }
    let mut progress = Progress::of_waiting(what);
    progress.show();
    work.await
}
