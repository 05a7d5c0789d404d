//! Responses of the proxy itself, for requests that it refuses or cannot complete.

use http_body_util::{BodyExt as _, Full};
use hyper::ext::ReasonPhrase;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};

use super::ProxyResponse;
use crate::traffic::{OpenVisit, Outcome};

/// Why a request does not reach its host.
#[derive(Debug)]
pub(super) struct Denial {
    pub(super) status: StatusCode,
    pub(super) outcome: Outcome,
    pub(super) reason: String,
    /// A hint what to do, for the body of the response.
    pub(super) hint: String,
}

impl Denial {
    /// 403: the request is not allowed.
    pub(super) fn refused(reason: impl Into<String>) -> Denial {
        let (status, outcome) = (StatusCode::FORBIDDEN, Outcome::Refused);
        Denial { status, outcome, reason: reason.into(), hint: String::new() }
    }

    /// 400: the request is malformed or ambiguous.
    pub(super) fn malformed(reason: impl Into<String>) -> Denial {
        Denial { status: StatusCode::BAD_REQUEST, ..Denial::refused(reason) }
    }

    /// 502: the host could not be reached or answered badly.
    pub(super) fn failed(reason: impl Into<String>) -> Denial {
        let (status, outcome) = (StatusCode::BAD_GATEWAY, Outcome::Failed);
        Denial { status, outcome, reason: reason.into(), hint: String::new() }
    }

    /// 504: the host took too long.
    pub(super) fn timed_out(reason: impl Into<String>) -> Denial {
        Denial { status: StatusCode::GATEWAY_TIMEOUT, ..Denial::failed(reason) }
    }

    /// Records how the visit ended, and makes the response.
    pub(super) fn answer(self, mut visit: OpenVisit) -> ProxyResponse {
        visit.set_outcome(self.outcome, self.reason.clone());
        self.response()
    }

    pub(super) fn response(&self) -> ProxyResponse {
        let newline = if self.hint.is_empty() { "" } else { "\n" };
        let text = format!("belljar: {}\n{}{newline}", self.reason, self.hint);
        let mut response = Response::new(Full::from(text).map_err(|never| match never {}).boxed());
        *response.status_mut() = self.status;
        // Clients drop the body of a response to CONNECT, but pip, requests, urllib and httpx show this phrase.
        let phrase = self.status.canonical_reason().unwrap_or("Refused");
        let phrase = format!("{phrase} by belljar: {}", self.reason);
        if let Ok(phrase) = ReasonPhrase::try_from(phrase) {
            response.extensions_mut().insert(phrase);
        }
        let plain = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, plain);
        // This header shows clients that the response is not from the host.
        let outcome = HeaderValue::from_static(self.outcome.name());
        response.headers_mut().insert(HeaderName::from_static("x-belljar-network"), outcome);
        response
    }
}
