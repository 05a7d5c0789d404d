//! The progress of builds and pulls: a bar on a terminal, lines elsewhere.

use std::cell::RefCell;
use std::io::{self, IsTerminal};
use std::time::Duration;

use belljar_image::Progress;
use indicatif::{ProgressBar, ProgressStyle};

use crate::commands::output;

const TICK: Duration = Duration::from_millis(120);

/// One bar at a time.
#[derive(Debug)]
pub(super) struct Watched {
    on_terminal: bool,
    bar: RefCell<ProgressBar>,
}

impl Watched {
    pub(super) fn new() -> Watched {
        let on_terminal = io::stderr().is_terminal();
        Watched { on_terminal, bar: RefCell::new(ProgressBar::hidden()) }
    }
}

impl Progress for Watched {
    fn begin(&self, what: &str, total: Option<u64>) {
        self.bar.borrow().finish_and_clear();
        if !self.on_terminal {
            eprintln!("{what}");
            return;
        }
        let template = match total {
            Some(_) => "{spinner} {prefix} {bar:24} {bytes} of {total_bytes} {wide_msg:.dim}",
            None => "{spinner} {prefix} ({elapsed}) {wide_msg:.dim}",
        };
        let bar = match total {
            Some(total) => ProgressBar::new(total),
            None => ProgressBar::new_spinner(),
        };
        bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
        bar.set_prefix(what.to_owned());
        bar.enable_steady_tick(TICK);
        *self.bar.borrow_mut() = bar;
    }

    fn at(&self, bytes: u64) {
        self.bar.borrow().set_position(bytes);
    }

    fn detail(&self, line: &str) {
        self.bar.borrow().set_message(line.to_owned());
    }

    fn say(&self, text: &str) {
        self.bar.borrow().suspend(|| output::say(text));
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.bar.borrow().finish_and_clear();
    }
}
