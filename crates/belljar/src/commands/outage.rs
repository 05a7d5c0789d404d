//! Waits for a lost server.

use std::time::Instant;

use crate::client::{ClientError, OUTAGE_PAUSE, OUTAGE_TIMEOUT};

#[derive(Debug, Default)]
pub(super) struct Outage {
    /// When the server was lost.
    since: Option<Instant>,
}

impl Outage {
    /// Pauses before the next attempt to reach the server. Fails after the timeout, or if the error is not an outage.
    pub(super) async fn endure(
        &mut self,
        error: ClientError,
        say: impl FnOnce(&str),
    ) -> Result<(), ClientError> {
        if !error.is_outage() {
            return Err(error);
        }
        let since = match self.since {
            Some(since) => since,
            None => {
                let timeout = OUTAGE_TIMEOUT.as_secs();
                say(&format!("lost the server; waiting for it for {timeout} seconds"));
                *self.since.insert(Instant::now())
            }
        };
        if since.elapsed() >= OUTAGE_TIMEOUT {
            return Err(error);
        }
        tokio::time::sleep(OUTAGE_PAUSE).await;
        Ok(())
    }

    /// Called when the server answers again.
    pub(super) fn is_over(&mut self, say: impl FnOnce(&str)) {
        if self.since.take().is_some() {
            say("the server is back");
        }
    }
}
