//! Errors of requests to a server, each with advice for the user.

use std::error::Error;
use std::io;
use std::path::PathBuf;

use reqwest::StatusCode;
use tokio_rustls::rustls;

use super::CONNECT_TIMEOUT;
use super::server::Server;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error(
        "nothing listens at {url}; start a server with `belljar serve`, or name its URL with \
         --url or BELLJAR_URL"
    )]
    NotListening { url: String },
    #[error("failed to connect to {url}: {cause}")]
    Connect { url: String, cause: String },
    #[error("{url} did not answer within {seconds} seconds; is the address right?")]
    Unreachable { url: String, seconds: u64 },
    #[error("you may not use the socket `{path}`; it belongs to the user who started the server")]
    ForeignSocket { path: PathBuf },
    #[error(
        "the certificate of {url} is not trusted: {cause}; SSL_CERT_FILE names certificates to trust"
    )]
    Untrusted { url: String, cause: String },
    #[error("the connection to {url} was lost: {cause}")]
    Lost { url: String, cause: String },
    #[error("the connection to {url} ended too early")]
    CutOff { url: String },
    #[error("{url} has sent nothing for {seconds} seconds")]
    Silent { url: String, seconds: u64 },
    #[error("{url} is behind a proxy that cannot reach it and answers `{status}`")]
    Proxy { url: String, status: StatusCode },
    #[error("what listens at {url} is not a belljar server: {why}")]
    NotBelljar { url: String, why: String },
    #[error("`{path}` cannot be requested: a name in it is `.` or `..`")]
    Path { path: String },
    /// The server's own error.
    #[error("{message}{}", hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default())]
    Refused { status: StatusCode, code: String, message: String, hint: Option<String> },
}

impl ClientError {
    /// Whether the server may be stopping or starting: the same request can succeed later.
    pub(crate) fn is_outage(&self) -> bool {
        match self {
            ClientError::NotListening { .. }
            | ClientError::Connect { .. }
            | ClientError::Unreachable { .. }
            | ClientError::Lost { .. }
            | ClientError::CutOff { .. }
            | ClientError::Silent { .. }
            | ClientError::Proxy { .. } => true,
            ClientError::Refused { status, .. } => *status == StatusCode::SERVICE_UNAVAILABLE,
            ClientError::ForeignSocket { .. }
            | ClientError::Untrusted { .. }
            | ClientError::NotBelljar { .. }
            | ClientError::Path { .. } => false,
        }
    }

    /// Whether the server refused the request with this code.
    pub(crate) fn is(&self, expected: &str) -> bool {
        matches!(self, ClientError::Refused { code, .. } if code == expected)
    }

    /// The error of a server that is stopping.
    pub(crate) fn stopping() -> ClientError {
        ClientError::Refused {
            status: StatusCode::SERVICE_UNAVAILABLE,
            code: "stopping".into(),
            message: "the server is stopping".into(),
            hint: None,
        }
    }

    /// The error of a request that failed before or during its response.
    pub(super) fn of_request(error: &reqwest::Error, server: &Server) -> ClientError {
        let url = server.shown().to_owned();
        if causes(error)
            .any(|cause| cause.downcast_ref::<hyper::Error>().is_some_and(hyper::Error::is_parse))
        {
            return ClientError::NotBelljar { url, why: "it does not speak HTTP".into() };
        }
        if !error.is_connect() {
            return ClientError::lost(&url, error);
        }
        if let Some(tls) = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
            return match tls {
                rustls::Error::InvalidCertificate(_) => {
                    ClientError::Untrusted { url, cause: tls.to_string() }
                }
                _ => ClientError::NotBelljar { url, why: "it does not speak TLS".into() },
            };
        }
        if error.is_timeout() {
            return ClientError::Unreachable { url, seconds: CONNECT_TIMEOUT.as_secs() };
        }
        match causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>()).last() {
            Some(cause) => ClientError::of_io(cause, server),
            None => ClientError::Connect { url, cause: root_cause(error) },
        }
    }

    /// The error of a connection that could not be made.
    pub(super) fn of_io(cause: &io::Error, server: &Server) -> ClientError {
        let url = server.shown().to_owned();
        match (cause.kind(), server.socket()) {
            (io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound, _) => {
                ClientError::NotListening { url }
            }
            (io::ErrorKind::PermissionDenied, Some(path)) => {
                ClientError::ForeignSocket { path: path.to_owned() }
            }
            _ => ClientError::Connect { url, cause: cause.to_string() },
        }
    }

    /// The error of a connection that was lost.
    pub(super) fn lost(url: &str, error: &reqwest::Error) -> ClientError {
        ClientError::Lost { url: url.to_owned(), cause: root_cause(error) }
    }
}

/// An error and its causes. The `source` of an [`io::Error`] skips the error that it wraps.
fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        inner.map(|inner| inner as &(dyn Error + 'static)).or_else(|| error.source())
    })
}

fn root_cause(error: &reqwest::Error) -> String {
    causes(error).last().map(ToString::to_string).unwrap_or_default()
}
