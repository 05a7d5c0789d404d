//! The listener for health checks and metrics.

use anyhow::{Context, Result};
use axum::Router;
use belljar_api::listen::{self, Listener};
use tokio::sync::watch;

use crate::logging;
use crate::settings::Settings;

/// Serves `router` on BELLJAR_HEALTH_LISTEN, if that is set, until the process ends.
pub(crate) async fn listen(settings: &Settings, router: Router) -> Result<()> {
    let Some(address) = settings.cluster.health_listen else { return Ok(()) };
    let listener = Listener::tcp(&address.to_string(), None).await;
    let listener = listener.context("BELLJAR_HEALTH_LISTEN")?;
    logging::announce(&format!("  health checks and metrics on {}", listener.url()));
    let (drain, stall) = (super::drain(settings), super::stall(settings));
    tokio::spawn(async move {
        // It answers also while the server stops.
        let (_sender, never) = watch::channel(false);
        listen::serve(listener, router, never, drain, stall).await;
    });
    Ok(())
}
