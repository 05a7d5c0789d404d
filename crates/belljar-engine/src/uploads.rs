//! How many uploads may be under way at the same time, of each session and of each tenant.

use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use crate::error::EngineError;
use crate::shares::Shares;

/// Uploads into one session, and of one tenant. Each holds some pieces in memory and a file inside.
const OF_SESSION: usize = 16;
const OF_TENANT: usize = 64;

/// How long an upload waits for earlier ones to end. One that its client does not go on with is given
/// up after a while, so waiting longer than a moment helps nobody.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Uploads {
    sessions: Shares,
    tenants: Shares,
}

/// The place that an upload takes until it ends.
#[derive(Debug)]
pub(crate) struct UploadPermit {
    _session: OwnedSemaphorePermit,
    _tenant: OwnedSemaphorePermit,
}

impl Default for Uploads {
    fn default() -> Self {
        Uploads { sessions: Shares::new(OF_SESSION), tenants: Shares::new(OF_TENANT) }
    }
}

impl Uploads {
    /// A place for one more upload, if there is one soon. A session's is taken before its tenant's, so
    /// that two who wait never wait for each other.
    pub(crate) async fn place(
        &self,
        tenant: &str,
        session: &str,
    ) -> Result<UploadPermit, EngineError> {
        Ok(UploadPermit {
            _session: soon(&self.sessions, session, "session").await?,
            _tenant: soon(&self.tenants, tenant, "tenant").await?,
        })
    }
}

async fn soon(
    shares: &Shares,
    name: &str,
    whose: &'static str,
) -> Result<OwnedSemaphorePermit, EngineError> {
    let permit = timeout(PATIENCE, shares.of(name).acquire_owned()).await;
    let full = EngineError::TooManyUploads { whose, most: shares.most() };
    // The semaphore is never closed.
    permit.ok().and_then(Result::ok).ok_or(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time does not pass: it jumps to whatever is waited for.
    #[tokio::test(start_paused = true)]
    async fn a_tenant_with_many_uploads_waits_and_keeps_nobody_else_waiting() {
        let uploads = Uploads::default();
        let mut held = Vec::new();
        for _ in 0..OF_SESSION {
            held.push(uploads.place("a", "s1").await.unwrap());
        }
        let refused = uploads.place("a", "s1").await.unwrap_err().to_string();
        assert_eq!(refused, "16 uploads of this session are in progress already");
        for session in ["s2", "s3", "s4"] {
            for _ in 0..OF_SESSION {
                held.push(uploads.place("a", session).await.unwrap());
            }
        }
        let refused = uploads.place("a", "s5").await.unwrap_err().to_string();
        assert_eq!(refused, "64 uploads of this tenant are in progress already");
        uploads.place("b", "s6").await.unwrap();
        held.pop();
        uploads.place("a", "s5").await.unwrap();
    }
}
