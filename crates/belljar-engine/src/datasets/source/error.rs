//! What can go wrong with a source, one sentence each. A source is named by its origin alone: paths
//! and queries may hold secrets, and those of a redirect usually do.

use std::io;

use belljar_network::outbound::TlsError;

#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    #[error(
        "there is no source for dataset `{id}`; BELLJAR_DATASET_SOURCES needs an entry with its \
         name or a prefix of it"
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
    /// The address itself is left out: whoever redirects us would learn what our DNS knows.
    #[error(
        "`{host}` has {kind} address, and datasets are not fetched from there{}",
        if *can_be_allowed { "; `allow` of the source can make an exception for the name" } else { "" }
    )]
    RefusedAddress { host: String, kind: &'static str, can_be_allowed: bool },
    #[error("failed to connect to {origin}; is it up, and may this machine reach it?")]
    Connect {
        origin: String,
        #[source]
        cause: io::Error,
    },
    #[error(
        "{origin} cannot show that it is who it says; add its authority to this machine's \
         certificates, or name a file with it in SSL_CERT_FILE"
    )]
    Untrusted {
        origin: String,
        #[source]
        cause: io::Error,
    },
    #[error("this machine has no certificates to believe in; SSL_CERT_FILE names a file with some")]
    NoCertificates {
        #[source]
        cause: Option<rustls_native_certs::Error>,
    },
    #[error("failed to set up TLS")]
    Tls(#[source] tokio_rustls::rustls::Error),
    #[error("the connection to {origin} was lost before it answered; try again")]
    Lost {
        origin: String,
        #[source]
        cause: hyper::Error,
    },
    #[error("what {origin} answers is not HTTP, or its headers are too large")]
    NotHttp {
        origin: String,
        #[source]
        cause: hyper::Error,
    },
    #[error("{origin} broke off after {received}{} bytes; try again", of(*expected))]
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
    #[error("{origin} was not reached within {seconds} seconds; is the address right?")]
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
        /// The first line of what it says, without control characters and without our secrets.
        line: String,
    },
    #[error("{origin} redirects to where we do not follow: {why}")]
    Redirect { origin: String, why: String },
    #[error("{origin} sends the dataset encoded as `{encoding}` though it was asked not to")]
    Encoded { origin: String, encoding: String },
    #[error("nobody waits for the dataset any more")]
    Abandoned,
}

impl From<TlsError> for SourceError {
    fn from(error: TlsError) -> SourceError {
        match error {
            TlsError::NoCertificates(cause) => SourceError::NoCertificates { cause },
            TlsError::Tls(cause) => SourceError::Tls(cause),
        }
    }
}

impl SourceError {
    /// The same for ever, for programs to go by.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            SourceError::NoSource { .. } => "no_source",
            SourceError::InvalidId { .. } => "invalid_dataset",
            SourceError::Resolve { .. }
            | SourceError::Connect { .. }
            | SourceError::Lost { .. } => "source_unreachable",
            SourceError::RefusedAddress { .. } => "source_refused_address",
            SourceError::Untrusted { .. }
            | SourceError::NoCertificates { .. }
            | SourceError::Tls(_) => "source_untrusted",
            SourceError::NotHttp { .. } | SourceError::Encoded { .. } => "source_protocol",
            SourceError::CutOff { .. } => "source_cut_off",
            SourceError::TooLarge { .. } => "source_too_large",
            SourceError::ConnectTimeout { .. }
            | SourceError::Silent { .. }
            | SourceError::Timeout { .. } => "source_timeout",
            SourceError::Status { .. } => "source_status",
            SourceError::Redirect { .. } => "source_redirect",
            SourceError::Abandoned => "source_abandoned",
        }
    }
}

fn of(expected: Option<u64>) -> String {
    expected.map(|expected| format!(" of {expected}")).unwrap_or_default()
}
