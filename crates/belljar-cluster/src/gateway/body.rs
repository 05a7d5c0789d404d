//! Bodies that the gateway reads before it passes them on: small ones, so that a request can be sent to a second node, and
//! those that say which session they are for. All others are streamed.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::StatusCode;
use belljar_api::error::ApiError;
use belljar_api::input_too_large;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::proxy::Payload;

/// Bodies up to this size are kept.
const SMALL: u64 = 64 * 1024;

/// Memory for all bodies that are kept, in units of [`SMALL`]: 256 MiB.
const UNITS: u32 = 4096;

#[derive(Debug)]
pub(super) struct Buffers {
    units: Arc<Semaphore>,
    max_body: usize,
    /// Time limit for reading one body.
    stall: Duration,
}

impl Buffers {
    #[must_use]
    pub(super) fn new(max_body: usize, stall: Duration) -> Buffers {
        Buffers { units: Arc::new(Semaphore::new(UNITS as usize)), max_body, stall }
    }

    /// Keeps the body if it is small.
    pub(super) async fn keep_small(
        &self,
        body: Body,
    ) -> Result<(Payload, Option<Permit>), ApiError> {
        match body.size_hint().exact() {
            Some(size) if size <= SMALL => {
                let (payload, permit) = self.keep(body).await?;
                Ok((payload, Some(permit)))
            }
            _ => Ok((Payload::Stream(Some(body)), None)),
        }
    }

    /// Keeps the whole body. The permit is for its memory.
    pub(super) async fn keep(&self, body: Body) -> Result<(Payload, Permit), ApiError> {
        let too_large = || input_too_large(self.max_body);
        let limit = u64::try_from(self.max_body).unwrap_or(u64::MAX);
        let size = body.size_hint().exact().unwrap_or(limit);
        if size > limit {
            return Err(too_large());
        }
        let units = units_of(size);
        let Ok(mut permit) = Arc::clone(&self.units).acquire_many_owned(units).await else {
            // The semaphore is never closed.
            return Err(super::unavailable("the gateway ends"));
        };
        let reading = Limited::new(body, self.max_body).collect();
        match tokio::time::timeout(self.stall, reading).await {
            Ok(Ok(bytes)) => {
                let bytes = bytes.to_bytes();
                // A body of unknown length is mostly much smaller than the limit.
                let surplus = units.saturating_sub(units_of(bytes.len() as u64));
                drop(permit.split(surplus as usize));
                Ok((Payload::Kept(bytes), Permit(permit)))
            }
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
            Ok(Err(_)) => {
                let message = "the request ended before its body was complete";
                Err(ApiError::new(StatusCode::BAD_REQUEST, "malformed", message))
            }
            Err(_) => {
                let message = "the body of the request came too slowly";
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message))
            }
        }
    }
}

fn units_of(size: u64) -> u32 {
    u32::try_from(size.div_ceil(SMALL)).unwrap_or(UNITS).clamp(1, UNITS)
}

/// Memory for a kept body; returned when dropped.
#[derive(Debug)]
pub(super) struct Permit(#[expect(dead_code, reason = "held for its drop")] OwnedSemaphorePermit);
