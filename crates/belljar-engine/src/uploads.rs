//! Limits the concurrent uploads of each session and of each tenant.

use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::error::EngineError;
use crate::shares::Shares;

/// Concurrent uploads. Each holds some chunks in memory and a file in the session.
const PER_SESSION: usize = 16;
const PER_TENANT: usize = 64;

/// How long an upload waits for a permit.
const WAIT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Uploads {
    sessions: Shares,
    tenants: Shares,
}

/// Held until an upload ends.
#[derive(Debug)]
pub(crate) struct UploadPermit {
    _session: OwnedSemaphorePermit,
    _tenant: OwnedSemaphorePermit,
}

impl Default for Uploads {
    fn default() -> Self {
        Uploads { sessions: Shares::new(PER_SESSION), tenants: Shares::new(PER_TENANT) }
    }
}

impl Uploads {
    /// Permits one more upload. The permit of the session is always taken before that of its tenant, so that two
    /// uploads cannot wait for each other.
    pub(crate) async fn permit(
        &self,
        tenant: &str,
        session: &str,
    ) -> Result<UploadPermit, EngineError> {
        Ok(UploadPermit {
            _session: acquire(&self.sessions, session, "session").await?,
            _tenant: acquire(&self.tenants, tenant, "tenant").await?,
        })
    }
}

async fn acquire(
    shares: &Shares,
    name: &str,
    whose: &'static str,
) -> Result<OwnedSemaphorePermit, EngineError> {
    let permit = timeout(WAIT, shares.of(name).acquire_owned()).await;
    let full = EngineError::TooManyUploads { whose, most: shares.most() };
    // The semaphore is never closed.
    permit.ok().and_then(Result::ok).ok_or(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time is paused: it jumps to the next timer.
    #[tokio::test(start_paused = true)]
    async fn a_tenant_with_many_uploads_does_not_delay_others() {
        let uploads = Uploads::default();
        let mut held = Vec::new();
        for _ in 0..PER_SESSION {
            held.push(uploads.permit("a", "s1").await.unwrap());
        }
        let refused = uploads.permit("a", "s1").await.unwrap_err().to_string();
        assert_eq!(refused, "this session has 16 uploads in progress already");
        for session in ["s2", "s3", "s4"] {
            for _ in 0..PER_SESSION {
                held.push(uploads.permit("a", session).await.unwrap());
            }
        }
        let refused = uploads.permit("a", "s5").await.unwrap_err().to_string();
        assert_eq!(refused, "this tenant has 64 uploads in progress already");
        uploads.permit("b", "s6").await.unwrap();
        held.pop();
        uploads.permit("a", "s5").await.unwrap();
    }
}
