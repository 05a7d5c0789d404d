//! Errors of this crate that its callers handle.

use std::io;

#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    #[error(
        "network: this server does not allow `{rule}`; its operator can, with BELLJAR_MAX_NETWORK"
    )]
    NotAllowed { rule: String },
    /// The same error for a secret that does not exist and for one that may not be sent to this origin: only the
    /// operator may know which of the two it is.
    #[error("network.inject: this server has no secret `{secret}` for {origin}")]
    NoSecret { secret: String, origin: String },
    #[error("failed to prepare the certificate authority of this server")]
    Authority(#[source] io::Error),
}
