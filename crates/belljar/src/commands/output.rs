//! Shows the output and the end of an execution, and our own messages.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::artifacts::{Artifacts, RefusedArtifact};
use belljar_proto::exec::{Dropped, ErrorReport, Event, MimeBundle, Status};
use serde_json::Value;

/// Writes output as it arrives, byte for byte.
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
        // The caller handles input and artifacts.
        Event::Input | Event::Artifacts | Event::Done(_) => {}
    }
}

/// Lists the paths of a run's artifacts.
pub(super) fn report_artifacts(artifacts: &Artifacts) {
    for artifact in &artifacts.artifacts {
        say(&format!("{} -> {}", plain(&artifact.path), artifact.host_path.display()));
    }
    report_refused("taken", &artifacts.artifacts_refused);
}

/// Lists files that were refused, and why; `done` is the verb.
pub(super) fn report_refused(done: &str, refused: &[RefusedArtifact]) {
    for RefusedArtifact { path, reason } in refused {
        say(&format!("not {done}: {} ({})", plain(path), plain(reason)));
    }
}

/// The parts of an execution's end that its output does not show.
pub(super) struct Ending<'a> {
    pub(super) status: Status,
    pub(super) reason: Option<&'a str>,
    pub(super) dropped: Dropped,
    pub(super) images: usize,
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
        if self.images > 0 {
            // Only for sessions; a run saves images as files.
            say(&format!("{} image(s) were shown; --json contains them", self.images));
        }
    }
}

/// Whether a display contains an image, which a terminal does not show.
pub(super) fn is_image(bundle: &MimeBundle) -> bool {
    bundle.data.contains_key("image/png")
}

/// Prints a message of our own to standard error.
pub(super) fn say(text: &str) {
    let text = without_escapes(text);
    write_all(&mut io::stderr(), format!("belljar: {text}\n").as_bytes());
}

/// Prints to standard output. A closed pipe is not an error: the reader wanted only the beginning.
pub(super) fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("failed to print"),
    }
}

pub(super) fn print_json(value: &Value) -> Result<()> {
    print(&(serde_json::to_string_pretty(value)? + "\n"))
}

/// Escapes control characters and characters that reverse text, in text that code in a sandbox chose.
pub(super) fn plain(text: &str) -> String {
    escaped(text, |_| false)
}

/// The same for our own messages, which may have several lines and contain such text.
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

/// Our exit status, from that of the code.
pub(super) fn exit_code(exit_code: i32) -> ExitCode {
    // An exit status has 8 bits.
    ExitCode::from(u8::try_from(exit_code & 0xff).unwrap_or(1))
}

/// Ignores errors: the code continues even if our output is closed.
fn write_all(to: &mut impl Write, bytes: &[u8]) {
    let _ = to.write_all(bytes).and_then(|()| to.flush());
}
