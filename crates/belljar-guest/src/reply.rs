//! Answers to the host's requests, and the refusals that take their place.

use std::os::fd::OwnedFd;

use belljar_proto::guest::{Answer, Refusal, RefusalCode};

/// An answer, and what goes with it.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) answer: Answer,
    pub(crate) body: Vec<u8>,
    pub(crate) fds: Vec<OwnedFd>,
}

impl Reply {
    pub(crate) fn with_body(answer: Answer, body: Vec<u8>) -> Reply {
        Reply { answer, body, fds: Vec::new() }
    }

    pub(crate) fn with_fd(answer: Answer, fd: impl Into<OwnedFd>) -> Reply {
        Reply { answer, body: Vec::new(), fds: vec![fd.into()] }
    }

    /// An answer whose body is JSON.
    pub(crate) fn with_json(
        answer: Answer,
        value: &impl serde::Serialize,
    ) -> Result<Reply, Refusal> {
        let body = serde_json::to_vec(value).map_err(|error| failed(error.to_string()))?;
        Ok(Reply::with_body(answer, body))
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Reply { answer, body: Vec::new(), fds: Vec::new() }
    }
}

pub(crate) fn refuse(code: RefusalCode, message: impl Into<String>) -> Refusal {
    Refusal { code, message: message.into() }
}

pub(crate) fn failed(message: impl Into<String>) -> Refusal {
    refuse(RefusalCode::Failed, message)
}
