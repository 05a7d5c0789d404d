//! Errors of the store.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("failed to open the database `{path}`")]
    Open {
        path: PathBuf,
        #[source]
        cause: BackendError,
    },
    #[error(
        "the database `{path}` is damaged ({detail}); restore it from a copy, or move it away to \
         begin anew without the {holds} in it"
    )]
    Damaged { path: PathBuf, detail: String, holds: &'static str },
    #[error(
        "the database `{path}` was written by a newer belljar (schema {found}, this one knows \
         {known})"
    )]
    Newer { path: PathBuf, found: i64, known: i64 },
    #[error("failed to write to the database")]
    Write(#[source] BackendError),
    #[error("failed to read from the database")]
    Read(#[source] BackendError),
    #[error("the database is closed")]
    Closed,
    #[error("the database cannot be reached at present")]
    Unavailable(#[source] BackendError),
    /// Another node owns the session, or this node owned it in an earlier epoch.
    #[error("this node no longer owns the session {session}")]
    Fenced { session: String },
    #[error("failed to use the state directory `{path}`")]
    StateDir {
        path: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error(
        "another belljar server{holder} uses the state directory `{path}`; stop it first, or give this one another with BELLJAR_STATE_DIR"
    )]
    Locked { path: PathBuf, holder: String },
}

impl StoreError {
    /// Whether the disk is full, or cannot be written to.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self, StoreError::Write(cause) if cause.failure == BackendFailure::Full)
    }

    /// Whether another row has the same key.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        matches!(self, StoreError::Write(cause) if cause.failure == BackendFailure::Conflict)
    }

    /// Whether the database cannot be reached at present, also when it is opened.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        match self {
            StoreError::Unavailable(_) => true,
            StoreError::Open { cause, .. } => cause.failure == BackendFailure::Unavailable,
            _ => false,
        }
    }

    /// Whether another process has locked the database at present.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        match self {
            StoreError::Write(cause) | StoreError::Read(cause) => {
                cause.failure == BackendFailure::Busy
            }
            _ => false,
        }
    }
}

/// An error of the database itself, with its kind as far as callers need it.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{error}")]
pub struct BackendError {
    pub failure: BackendFailure,
    error: Arc<dyn Error + Send + Sync>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackendFailure {
    /// The disk is full, or cannot be written to.
    Full,
    /// Another process has locked the database.
    Busy,
    /// Another row has the same key.
    Conflict,
    /// The database cannot be reached at present.
    Unavailable,
    Other,
}

impl BackendError {
    pub fn new(failure: BackendFailure, error: impl Error + Send + Sync + 'static) -> BackendError {
        BackendError { failure, error: Arc::new(error) }
    }
}
