//! Errors of a source. Messages name only its origin: paths and queries may hold secrets, and those of a redirect
//! usually do.

use std::io;

use belljar_network::outbound::TlsError;

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(
        "there is no source for dataset `{id}`; add an entry with its name or a prefix of it to \
         BELLJAR_DATASET_SOURCES"
    )]
    NoSource { id: String },
    #[error("`{id}` cannot be the name of a dataset to fetch: {why}")]
    InvalidId { id: String, why: String },
    #[error("failed to find the address of `{host}`; check the name and this machine's DNS")]
    Resolve {
        host: String,
        #[source]
        cause: io::Error,
    },
    /// Without the address: a server that redirects us must not learn the answers of our DNS.
    #[error(
        "`{host}` has {kind} address, and datasets are fetched from public addresses only{}",
        if *can_be_allowed { "; `allow` of the source can name it as an exception" } else { "" }
    )]
    RefusedAddress { host: String, kind: &'static str, can_be_allowed: bool },
    #[error("failed to connect to {origin}; is it up, and may this machine reach it?")]
    Connect {
        origin: String,
        #[source]
        cause: io::Error,
    },
    #[error(
        "the certificate of {origin} is not trusted; add its authority to this machine's \
         certificates, or name a file with it in SSL_CERT_FILE"
    )]
    Untrusted {
        origin: String,
        #[source]
        cause: io::Error,
    },
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the connection to {origin} was lost before it answered; try again")]
    Lost {
        origin: String,
        #[source]
        cause: hyper::Error,
    },
    #[error("the answer of {origin} is not HTTP, or its headers are too large")]
    NotHttp {
        origin: String,
        #[source]
        cause: hyper::Error,
    },
    #[error("{origin} closed the connection after {received}{} bytes; try again", of(*expected))]
    CutOff {
        origin: String,
        received: u64,
        expected: Option<u64>,
        #[source]
        cause: Option<hyper::Error>,
    },
    #[error(
        "the dataset is larger than the {limit} bytes that `max_bytes` of its source allows{}",
        size.map(|size| format!(": it has {size}")).unwrap_or_default()
    )]
    TooLarge { limit: u64, size: Option<u64> },
    #[error("failed to connect to {origin} within {seconds} seconds; is the address right?")]
    ConnectTimeout { origin: String, seconds: u64 },
    #[error("{origin} sent nothing for {seconds} seconds; try again")]
    Silent { origin: String, seconds: u64 },
    #[error(
        "{origin} did not finish within {seconds} seconds; `timeout_s` of the source can be raised"
    )]
    Timeout { origin: String, seconds: u64 },
    #[error("{origin} answers {status}{}", if line.is_empty() { String::new() } else { format!(": {line}") })]
    Status {
        origin: String,
        status: u16,
        /// The first line of its answer, without control characters and our secrets.
        line: String,
    },
    #[error("a redirect of {origin} cannot be followed: {why}")]
    Redirect { origin: String, why: String },
    #[error(
        "{origin} sends the dataset encoded as `{encoding}`, although the request forbids that"
    )]
    Encoded { origin: String, encoding: String },
    /// It answered 304, although the request had no ETag.
    #[error("{origin} answered 304 to a request without an ETag")]
    Unconditional304 { origin: String },
    #[error("the transfer was cancelled")]
    Abandoned,
}

impl SourceError {
    /// A stable code for programs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            SourceError::NoSource { .. } => "no_source",
            SourceError::InvalidId { .. } => "invalid_dataset",
            SourceError::Resolve { .. }
            | SourceError::Connect { .. }
            | SourceError::Lost { .. } => "source_unreachable",
            SourceError::RefusedAddress { .. } => "source_refused_address",
            SourceError::Untrusted { .. } | SourceError::Tls(_) => "source_untrusted",
            SourceError::NotHttp { .. } | SourceError::Encoded { .. } => "source_protocol",
            SourceError::CutOff { .. } => "source_cut_off",
            SourceError::TooLarge { .. } => "source_too_large",
            SourceError::ConnectTimeout { .. }
            | SourceError::Silent { .. }
            | SourceError::Timeout { .. } => "source_timeout",
            SourceError::Status { .. } | SourceError::Unconditional304 { .. } => "source_status",
            SourceError::Redirect { .. } => "source_redirect",
            SourceError::Abandoned => "source_abandoned",
        }
    }
}

fn of(expected: Option<u64>) -> String {
    expected.map(|expected| format!(" of {expected}")).unwrap_or_default()
}
