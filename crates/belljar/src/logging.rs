//! The log, and messages on standard error.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use belljar_engine::clock;
use serde_json::{Map, Value, json};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::settings::{LogFormat, LogSettings};

/// Libraries whose debug logs contain the input of users, code and environments. None of that may be logged, at any level.
const TALKATIVE: [&str; 4] =
    ["tungstenite=info", "tokio_tungstenite=info", "bollard=info", "hyper=info"];

/// Whether everything on standard error is a line of JSON: in a server with BELLJAR_LOG_FORMAT=json.
static ALL_JSON: AtomicBool = AtomicBool::new(false);

/// Used before the settings are read, which may fail: uses only the environment.
pub(crate) fn expect_json(is_server: bool) {
    let asked =
        std::env::var("BELLJAR_LOG_FORMAT").is_ok_and(|it| it.trim().eq_ignore_ascii_case("json"));
    ALL_JSON.store(is_server && asked, Ordering::Relaxed);
}

/// Starts the log by the settings; `default` is the level if none is set.
pub(crate) fn start(settings: &LogSettings, default: &str, is_server: bool) {
    let all_json = is_server && settings.format == LogFormat::Json;
    ALL_JSON.store(all_json, Ordering::Relaxed);
    if all_json {
        belljar_runtime::native::spawner::log_in_json();
        std::panic::set_hook(Box::new(|panic| write_json("ERROR", &panicked(panic))));
    }
    let filter = discreet(EnvFilter::new(settings.filter.as_deref().unwrap_or(default)));
    // No colours in files.
    let coloured = io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_ansi(coloured);
    match settings.format {
        LogFormat::Text => lines.with_writer(OneLine { coloured }).init(),
        LogFormat::Json => lines.json().with_writer(io::stderr).init(),
    }
}

/// Starts the log of the spawner, which reads no settings: the server passes the format.
pub(crate) fn start_spawner(json: bool) {
    let filter = EnvFilter::try_from_env("BELLJAR_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    let lines = tracing_subscriber::fmt().with_env_filter(discreet(filter)).with_ansi(false);
    if json {
        ALL_JSON.store(true, Ordering::Relaxed);
        std::panic::set_hook(Box::new(|panic| write_json("ERROR", &panicked(panic))));
        lines.json().with_writer(io::stderr).init();
    } else {
        lines.with_writer(OneLine { coloured: false }).init();
    }
}

/// Prints a message for the user who starts a server, at any log level.
pub(crate) fn announce(text: &str) {
    say("INFO", text, text);
}

/// Prints a warning, at any log level.
pub(crate) fn warn(text: &str) {
    say("WARN", text, &format!("belljar: warning: {text}"));
}

/// Prints the error that ends the program.
pub(crate) fn fail(text: &str) {
    say("ERROR", text, &format!("belljar: {text}"));
}

pub(crate) fn is_all_json() -> bool {
    ALL_JSON.load(Ordering::Relaxed)
}

fn say(level: &str, message: &str, in_words: &str) {
    if is_all_json() {
        let message = message.trim().trim_start_matches("belljar: ");
        write_json(level, &Map::from_iter([("message".to_owned(), message.into())]));
    } else {
        eprintln!("{in_words}");
    }
}

/// Writes a line in the format of the log.
fn write_json(level: &str, fields: &Map<String, Value>) {
    let line = json!({
        "timestamp": clock::rfc3339(clock::now_ms()),
        "level": level,
        "fields": fields,
        "target": "belljar",
    });
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// The fields of a panic.
fn panicked(panic: &std::panic::PanicHookInfo<'_>) -> Map<String, Value> {
    let payload = panic.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    let message = text.unwrap_or("without a message");
    let thread = std::thread::current();
    let mut fields = Map::new();
    fields.insert("message".to_owned(), format!("panicked: {message}").into());
    fields.insert("thread".to_owned(), thread.name().unwrap_or("unnamed").into());
    if let Some(location) = panic.location() {
        fields.insert("location".to_owned(), location.to_string().into());
    }
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        fields.insert("backtrace".to_owned(), backtrace.to_string().into());
    }
    fields
}

fn discreet(filter: EnvFilter) -> EnvFilter {
    let directives = TALKATIVE.iter().filter_map(|directive| directive.parse().ok());
    directives.fold(filter, EnvFilter::add_directive)
}

/// Writes one event per line to standard error: a newline in a user's text must not begin a false event.
#[derive(Debug, Clone, Copy)]
struct OneLine {
    /// Keeps escape sequences, which are our colours; those in users' text were escaped before.
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
    /// Is called with a whole event.
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
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_panic_is_told_in_fields() {
        static SEEN: Mutex<Option<Map<String, Value>>> = Mutex::new(None);
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(|panic| *SEEN.lock().unwrap() = Some(panicked(panic))));
        let thread = std::thread::Builder::new().name("worker".into());
        let ended = thread.spawn(|| panic!("of {} lines\nor more", 2)).unwrap().join();
        std::panic::set_hook(before);
        assert!(ended.is_err());
        let seen = SEEN.lock().unwrap().take().expect("it was called");
        assert_eq!(seen["message"], "panicked: of 2 lines\nor more");
        assert_eq!(seen["thread"], "worker");
        assert!(seen["location"].as_str().unwrap().contains("logging.rs:"), "{seen:?}");
    }

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
