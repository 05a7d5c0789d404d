//! What goes to standard error while we work.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::settings::{LogFormat, LogSettings};

/// Libraries that log what goes through them: what people type, code, environments. None of that
/// belongs into a log, however much is asked for.
const TALKATIVE: [&str; 4] =
    ["tungstenite=info", "tokio_tungstenite=info", "bollard=info", "hyper=info"];

/// Logs as the settings say, or from `default` on where they say nothing.
pub(crate) fn start(settings: &LogSettings, default: &str) {
    let filter = discreet(EnvFilter::new(settings.filter.as_deref().unwrap_or(default)));
    // Colours are for people, not for files.
    let coloured = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(coloured);
    match settings.format {
        LogFormat::Text => lines.with_writer(OneLine { coloured }).init(),
        LogFormat::Json => lines.json().with_writer(io::stderr).init(),
    }
}

/// For the spawner, which is told everything by whoever started it and reads no settings.
pub(crate) fn start_by_environment() {
    let filter = EnvFilter::try_from_env("BELLJAR_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let lines = tracing_subscriber::fmt().with_env_filter(discreet(filter)).with_ansi(false);
    lines.with_writer(OneLine { coloured: false }).init();
}

fn discreet(filter: EnvFilter) -> EnvFilter {
    let directives = TALKATIVE.iter().filter_map(|directive| directive.parse().ok());
    directives.fold(filter, EnvFilter::add_directive)
}

/// Standard error, an event a line: a name that somebody chose, with a newline in it, must not look
/// like another event.
#[derive(Debug, Clone, Copy)]
struct OneLine {
    /// Colours are escape sequences too, and stay. Those of others were escaped before.
    coloured: bool,
}

impl<'a> MakeWriter<'a> for OneLine {
    type Writer = OneLine;

    fn make_writer(&'a self) -> OneLine {
        *self
    }
}

impl OneLine {
    fn of(self, event: &str) -> String {
        let (event, end) = event.strip_suffix('\n').map_or((event, ""), |event| (event, "\n"));
        let mut line = String::with_capacity(event.len() + end.len());
        for c in event.chars() {
            match c {
                '\u{1b}' if self.coloured => line.push(c),
                c if c.is_control() => line.extend(c.escape_default()),
                c => line.push(c),
            }
        }
        line + end
    }
}

impl Write for OneLine {
    /// Called with a whole event.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let line = self.of(&String::from_utf8_lossy(event));
        io::stderr().write_all(line.as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_whatever_is_in_it() {
        let plain = OneLine { coloured: false };
        assert_eq!(
            plain.of("INFO a\nERROR b\r\t\u{1b}[2J\u{9b}ü\n"),
            "INFO a\\nERROR b\\r\\t\\u{1b}[2J\\u{9b}ü\n"
        );
        assert_eq!(
            OneLine { coloured: true }.of("\u{1b}[32mINFO\u{1b}[0m a\nb\n"),
            "\u{1b}[32mINFO\u{1b}[0m a\\nb\n"
        );
    }

    #[test]
    fn what_goes_through_is_not_logged_however_much_is_asked_for() {
        for asked in ["trace", "tungstenite=trace", "trace,bollard=debug"] {
            let filter = discreet(EnvFilter::new(asked)).to_string();
            for directive in TALKATIVE {
                assert!(filter.contains(directive), "{asked}: {filter}");
            }
        }
    }
}
