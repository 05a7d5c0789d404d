//! What can be wrong with a server, in one sentence, and what to do about it.

use std::io;
use std::path::PathBuf;

use hyper::StatusCode;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(
        "nothing listens at {url}; start a server with `belljar serve`, or say where it is with \
         --url or BELLJAR_URL"
    )]
    NobodyThere { url: String },
    #[error("failed to connect to {url}")]
    Connect {
        url: String,
        #[source]
        cause: io::Error,
    },
    #[error("{url} did not answer within {seconds} seconds; is the address right?")]
    Unreachable { url: String, seconds: u64 },
    #[error("the socket `{path}` is not yours to use; it belongs to whoever started the server")]
    NotYours { path: PathBuf },
    #[error(
        "{url} cannot show that it is who it says; SSL_CERT_FILE names certificates to believe in"
    )]
    Untrusted {
        url: String,
        #[source]
        cause: io::Error,
    },
    #[error("the connection to {url} was lost")]
    Lost {
        url: String,
        #[source]
        cause: hyper::Error,
    },
    #[error("the connection to {url} ended too early")]
    CutOff { url: String },
    #[error("{url} has not said a word for {seconds} seconds")]
    Silent { url: String, seconds: u64 },
    #[error("{url} is behind a proxy that cannot reach it, and answers `{status}`")]
    Proxy { url: String, status: StatusCode },
    #[error("what listens at {url} is not a belljar server: {why}")]
    Stranger { url: String, why: String },
    /// In the server's own words.
    #[error("{message}{}", hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Refused { status: StatusCode, code: String, message: String, hint: Option<String> },
}

impl ClientError {
    /// Whether the server may just be on its way out, or back: the same request can succeed later.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            ClientError::NobodyThere { .. }
            | ClientError::Connect { .. }
            | ClientError::Unreachable { .. }
            | ClientError::Lost { .. }
            | ClientError::CutOff { .. }
            | ClientError::Silent { .. }
            | ClientError::Proxy { .. } => true,
            ClientError::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
            ClientError::NotYours { .. }
            | ClientError::Untrusted { .. }
            | ClientError::Stranger { .. } => false,
        }
    }

    /// Whether the server said no with this code.
    pub(crate) fn is(&self, expected: &str) -> bool {
        matches!(self, ClientError::Refused { code, .. } if code == expected)
    }
}
