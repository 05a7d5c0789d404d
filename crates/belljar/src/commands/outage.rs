//! A server that has gone and is waited for.

use std::time::Instant;

use crate::client::{ClientError, OUTAGE_PAUSE, OUTAGE_TIMEOUT};

#[derive(Debug, Default)]
pub(super) struct Outage {
    /// Since when there is no server.
    since: Option<Instant>,
}

impl Outage {
    /// Waits a moment for the server to come back, or gives up; what is no outage is not endured.
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
                let patience = OUTAGE_TIMEOUT.as_secs();
                say(&format!("lost the server; looking for it for {patience} seconds"));
                *self.since.insert(Instant::now())
            }
        };
        if since.elapsed() >= OUTAGE_TIMEOUT {
            return Err(error);
        }
        tokio::time::sleep(OUTAGE_PAUSE).await;
        Ok(())
    }

    /// The server has said something.
    pub(super) fn is_over(&mut self, say: impl FnOnce(&str)) {
        if self.since.take().is_some() {
            say("the server is back");
        }
    }
}
