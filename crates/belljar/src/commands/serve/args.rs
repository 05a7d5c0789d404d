//! The command line of `belljar serve`.

use clap::Args;

#[derive(Debug, Args)]
#[command(after_help = "\
Sessions survive the server: after it was stopped or killed, the next server continues them with their
variables and processes. All other settings are variables of the environment or of .env; see
docs/settings.md.")]
pub(crate) struct ServeArgs {
    /// Address to listen on [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS:PORT", conflicts_with = "unix")]
    listen: Option<String>,
    /// Listen on a UNIX socket instead; only your own user can use it
    #[arg(long, value_name = "PATH")]
    unix: Option<String>,
    /// Certificate chain, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// Private key, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
    /// Stop all sessions when the server stops, instead of leaving them to the next server
    #[arg(long)]
    pub(crate) stop_sessions: bool,
    /// Exit after this time without requests, if no session is alive
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) idle_exit: Option<u64>,
}

impl ServeArgs {
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings: Vec<(&'static str, String)> = [
            ("BELLJAR_LISTEN", &self.listen),
            ("BELLJAR_UNIX", &self.unix),
            ("BELLJAR_TLS_CERT", &self.tls_cert),
            ("BELLJAR_TLS_KEY", &self.tls_key),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value.clone()?)))
        .collect();
        if self.listen.is_some() {
            // The flag overrides a socket in the environment.
            settings.push(("BELLJAR_UNIX", String::new()));
        }
        settings
    }
}
