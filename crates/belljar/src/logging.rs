//! What goes to standard error while we work.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::settings::{LogFormat, LogSettings};

/// Logs as the settings say, or from `default` on where they say nothing.
pub(crate) fn start(settings: &LogSettings, default: &str) {
    let filter = EnvFilter::new(settings.filter.as_deref().unwrap_or(default));
    let lines = tracing_subscriber::fmt()
        .with_env_filter(filter)
        // Colours are for people, not for files.
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr);
    match settings.format {
        LogFormat::Text => lines.init(),
        LogFormat::Json => lines.json().init(),
    }
}

/// For the spawner, which is told everything by whoever started it and reads no settings.
pub(crate) fn start_by_environment() {
    let filter = EnvFilter::try_from_env("BELLJAR_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
}
