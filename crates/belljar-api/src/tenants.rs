//! Limits per tenant: requests in progress, and memory for the bodies of requests and responses.
//!
//! A client that sends slowly, or reads nothing, holds its permits until it is disconnected (see [`crate::input`] and
//! [`crate::listen`]). Until then it uses only the share of its own tenant.

use std::any::Any;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use belljar_engine::shares::Shares;
use hyper::body::{Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::ApiError;

/// The most requests of one tenant in progress, streams included: a quarter of all connections.
const REQUESTS: usize = 4096;

/// Bytes of memory for the bodies of one tenant.
const MEMORY: u64 = 256 << 20;

/// Bodies up to this size are not counted: [`REQUESTS`] of them take no more than [`MEMORY`].
pub(crate) const SMALL: u64 = 64 * 1024;

/// How many bytes one permit for memory counts for.
const PAGE: u64 = 4096;

/// How many large responses of one tenant are read from the database at the same time: half of its readers.
const LOADS: usize = 2;

/// How long a response waits for memory. Clients that read their responses free memory all the time.
const PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) struct Tenants {
    requests: Shares,
    memory: Shares,
    loads: Shares,
}

impl Default for Tenants {
    fn default() -> Self {
        Tenants {
            requests: Shares::new(REQUESTS),
            memory: Shares::new(pages(MEMORY) as usize),
            loads: Shares::new(LOADS),
        }
    }
}

impl Tenants {
    pub(crate) fn of(&self, tenant: &str) -> Share {
        Share {
            requests: self.requests.of(tenant),
            memory: self.memory.of(tenant),
            loads: self.loads.of(tenant),
        }
    }
}

/// The share of one tenant; the guard adds it to every request.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    requests: Arc<Semaphore>,
    memory: Arc<Semaphore>,
    loads: Arc<Semaphore>,
}

/// A part of a share; returned when dropped.
#[derive(Debug, Default)]
pub(crate) struct SharePermit(Vec<OwnedSemaphorePermit>);

impl Share {
    /// Begins a request.
    pub(crate) fn enter(&self) -> Result<SharePermit, ApiError> {
        let permit = Arc::clone(&self.requests).try_acquire_owned();
        permit.map(|permit| SharePermit(vec![permit])).map_err(|_| {
            ApiError::too_many(format!("{REQUESTS} requests of yours are in progress already"), 5)
        })
    }

    /// Reserves memory for a body, as soon as there is some. A body larger than the whole share takes all of it.
    pub(crate) async fn reserve(&self, bytes: u64) -> Result<SharePermit, ApiError> {
        if bytes <= SMALL {
            return Ok(SharePermit::default());
        }
        let memory = Arc::clone(&self.memory).acquire_many_owned(pages(bytes.min(MEMORY)));
        // The semaphore is never closed.
        let permit = timeout(PATIENCE, memory).await.ok().and_then(Result::ok);
        permit.map(|permit| SharePermit(vec![permit])).ok_or_else(too_much_unread)
    }

    /// Reserves memory for a response whose body is complete. The response holds `entered` until it is sent.
    pub(crate) async fn charge(&self, response: Response, entered: SharePermit) -> Response {
        // The length of a stream is unknown; its handler has reserved the memory.
        let size = response.body().size_hint().exact().unwrap_or(0);
        match self.reserve(size).await {
            Ok(permit) => keeping(response, entered.and(permit)),
            Err(error) => error.into_response(),
        }
    }

    /// Reserves memory for a response that is read from the database, and a permit to read it.
    pub(crate) async fn load(&self, bytes: u64) -> Result<(SharePermit, SharePermit), ApiError> {
        let permit = self.reserve(bytes).await?;
        if bytes <= SMALL {
            return Ok((permit, SharePermit::default()));
        }
        // The semaphore is never closed.
        let loading = Arc::clone(&self.loads).acquire_owned().await.ok();
        Ok((permit, SharePermit(loading.into_iter().collect())))
    }
}

impl SharePermit {
    /// Both permits together.
    pub(crate) fn and(mut self, other: SharePermit) -> SharePermit {
        self.0.extend(other.0);
        self
    }
}

pub(crate) fn too_much_unread() -> ApiError {
    let message = format!(
        "bodies of your other requests take the {} MiB of memory that you have for them",
        MEMORY >> 20
    );
    ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_much_unread", message)
        .retry_after(5)
        .hint("read the answers that you asked for, or close their connections")
}

fn pages(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(PAGE)).unwrap_or(u32::MAX)
}

/// The response, which holds a value until it is sent or the client has disconnected.
pub(crate) fn keeping(response: Response, kept: impl Any + Send) -> Response {
    response.map(|body| Body::new(Keeping { body, _kept: Box::new(kept) }))
}

struct Keeping {
    body: Body,
    _kept: Box<dyn Any + Send>,
}

impl HttpBody for Keeping {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The clock is paused: it jumps to the next timer.
    #[tokio::test(start_paused = true)]
    async fn one_tenant_cannot_take_the_memory_of_another() {
        let tenants = Tenants::default();
        let greedy = tenants.of("a");
        let permit = greedy.reserve(10 * MEMORY).await.unwrap();
        let refused = greedy.reserve(SMALL + 1).await.unwrap_err();
        assert_eq!((refused.status.as_u16(), refused.code), (429, "too_much_unread"));
        greedy.reserve(SMALL).await.unwrap();
        tenants.of("b").reserve(MEMORY).await.unwrap();
        drop(permit);
        tenants.of("a").reserve(MEMORY).await.unwrap();
    }

    #[tokio::test]
    async fn what_an_answer_keeps_is_kept_until_it_is_sent() {
        use http_body_util::BodyExt as _;
        let tenants = Tenants::default();
        let share = tenants.of("a");
        let permit = share.enter().unwrap();
        let answer = keeping(Response::new(Body::from("hello")), permit);
        assert_eq!(answer.body().size_hint().exact(), Some(5));
        assert_eq!(share.requests.available_permits(), REQUESTS - 1);
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        assert_eq!((&body[..], share.requests.available_permits()), (&b"hello"[..], REQUESTS));
    }
}
