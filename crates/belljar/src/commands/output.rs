//! What an execution says and how it ended, shown to whoever started it.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::artifacts::{Artifacts, RefusedArtifact};
use belljar_proto::exec::{Dropped, ErrorReport, Event, MimeBundle, Status};
use serde_json::Value;

/// Output goes through as it comes, byte for byte.
pub(super) fn pass_through(event: &Event, body: &[u8]) {
    match event {
        Event::Stdout => write_all(&mut io::stdout(), body),
        Event::Stderr => write_all(&mut io::stderr(), body),
        Event::Display | Event::Result => {
            let bundle = serde_json::from_slice::<MimeBundle>(body).ok();
            if let Some(text) = bundle.as_ref().and_then(MimeBundle::text) {
                write_all(&mut io::stdout(), format!("{text}\n").as_bytes());
            }
        }
        Event::Error => {
            if let Ok(report) = serde_json::from_slice::<ErrorReport>(body) {
                let text = report.traceback.trim_end().to_owned() + "\n";
                write_all(&mut io::stderr(), text.as_bytes());
            }
        }
        // Input is not taken while it goes on. How artifacts can be had, the caller knows.
        Event::Input | Event::Artifacts | Event::Done(_) => {}
    }
}

/// Where the files are that a run left.
pub(super) fn report_artifacts(artifacts: &Artifacts) {
    for artifact in &artifacts.artifacts {
        say(&format!("{} -> {}", plain(&artifact.path), artifact.host_path.display()));
    }
    report_refused("taken", &artifacts.artifacts_refused);
}

/// What was not `done` with, and why.
pub(super) fn report_refused(done: &str, refused: &[RefusedArtifact]) {
    for RefusedArtifact { path, reason } in refused {
        say(&format!("not {done}: {} ({})", plain(path), plain(reason)));
    }
}

/// How an execution ended, as far as its output does not say.
pub(super) struct Ending<'a> {
    pub(super) status: Status,
    pub(super) reason: Option<&'a str>,
    pub(super) dropped: Dropped,
    pub(super) pictures: usize,
}

impl Ending<'_> {
    pub(super) fn report(&self) {
        let state = match self.status {
            Status::Timeout => Some("timed out"),
            Status::Oom => Some("out of memory"),
            Status::Crashed => Some("crashed"),
            Status::Interrupted => Some("interrupted"),
            Status::Ok | Status::Error => None,
        };
        match (state, self.reason) {
            (Some(state), Some(reason)) => say(&format!("{state}: {reason}")),
            (Some(words), None) | (None, Some(words)) => say(words),
            (None, None) => {}
        }
        let Dropped { stdout_bytes, stderr_bytes, .. } = self.dropped;
        for (stream, bytes) in [("stdout", stdout_bytes), ("stderr", stderr_bytes)] {
            if bytes > 0 {
                say(&format!("{bytes} bytes of {stream} exceeded --max-output and were dropped"));
            }
        }
        if self.pictures > 0 {
            // Of sessions; a run saves them.
            say(&format!("{} picture(s) were shown; --json has them", self.pictures));
        }
    }
}

/// Whether a display has a picture, which a terminal does not show.
pub(super) fn is_picture(bundle: &MimeBundle) -> bool {
    bundle.data.contains_key("image/png")
}

/// Our own words, told from the code's.
pub(super) fn say(text: &str) {
    let text = without_escapes(text);
    write_all(&mut io::stderr(), format!("belljar: {text}\n").as_bytes());
}

/// Prints data; who reads only the beginning has what they wanted.
pub(super) fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("failed to print"),
    }
}

pub(super) fn print_json(value: &Value) -> Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Text that others chose, without what a terminal would obey or what turns lines around.
pub(super) fn plain(text: &str) -> String {
    escaped(text, |_| false)
}

/// The same for words of ours, which may have several lines, with such text in them.
pub(crate) fn without_escapes(text: &str) -> String {
    escaped(text, |c| c == '\n')
}

fn escaped(text: &str, is_kept: impl Fn(char) -> bool) -> String {
    let obeyed =
        |c: char| c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        if obeyed(c) && !is_kept(c) { plain.extend(c.escape_default()) } else { plain.push(c) }
    }
    plain
}

/// The code's exit status as our own.
pub(super) fn exit_code(exit_code: i32) -> ExitCode {
    // Statuses are small numbers; anything else a process could not have returned anyway.
    ExitCode::from(u8::try_from(exit_code & 0xff).unwrap_or(1))
}

/// A reader that went away is no reason to stop the code; there is just nobody to tell.
fn write_all(to: &mut impl Write, bytes: &[u8]) {
    let _ = to.write_all(bytes).and_then(|()| to.flush());
}
