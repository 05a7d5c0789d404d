//! `belljar gateway`: the address of a cluster for clients; passes requests on to nodes.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result};
use belljar_api::listen;
use belljar_cluster::gateway::{Gateway, GatewayConfig, PodWatch};
use belljar_cluster::tls::Role;
use belljar_engine::keys::KeyRing;
use belljar_sys::privileges;
use clap::Args;

use super::server::{self, health, public, stop};
use crate::settings::Settings;
use crate::{logging, records};

#[derive(Debug, Args)]
#[command(after_help = "\
A gateway has no state of its own: run two or more behind a load balancer. It needs
BELLJAR_DATABASE_URL, BELLJAR_CLUSTER_CA and BELLJAR_CLUSTER_CA_KEY. All other settings are variables
of the environment or of .env; see docs/settings.md.")]
pub(crate) struct GatewayArgs {
    /// Address to listen on [default: 127.0.0.1:8000]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Certificate chain for clients, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<String>,
    /// Private key for clients, in PEM
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<String>,
}

impl GatewayArgs {
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let flags = [
            ("BELLJAR_LISTEN", &self.listen),
            ("BELLJAR_TLS_CERT", &self.tls_cert),
            ("BELLJAR_TLS_KEY", &self.tls_key),
        ];
        flags.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
    }
}

pub(crate) fn gateway(settings: &Settings) -> Result<ExitCode> {
    settings.server.check()?;
    // Each client needs a descriptor, and mostly another one for its node.
    privileges::raise_open_files();
    server::on_event_loop(settings, run(settings))?;
    Ok(ExitCode::SUCCESS)
}

async fn run(settings: &Settings) -> Result<()> {
    let tls = settings.cluster.tls(&Role::Gateway)?;
    let store = records::join_shared(records::shared_url(settings)?, "").await?;
    let keys = KeyRing::open(Arc::clone(&store)).await?;
    let listener = public::bind(&settings.server, &keys).await?;
    let config = GatewayConfig {
        guard: public::guard(&settings.server, &listener),
        tls,
        max_body: usize::try_from(settings.server.max_body).unwrap_or(usize::MAX),
        stall: server::stall(settings),
        pods: settings.cluster.pod_selector.clone().map(PodWatch::in_cluster).transpose()?,
        public_url: public::url(settings, &listener),
    };
    let gateway = Gateway::start(Arc::clone(&store), keys, config).await;
    let gateway = gateway.context("BELLJAR_DATABASE_URL")?;
    let stop = stop::on_signals()?.subscribe();
    let (version, url) = (env!("CARGO_PKG_VERSION"), listener.url());
    logging::announce(&format!("belljar {version}: gateway listens on {url}"));
    let nodes = gateway.nodes_alive();
    logging::announce(&format!("  {nodes} node(s); {}", server::keys_needed(gateway.wants_keys())));
    health::listen(settings, gateway.health_router()).await?;

    let stopping = {
        let (gateway, mut stop) = (Arc::clone(&gateway), stop.clone());
        tokio::spawn(async move {
            let _ = stop.wait_for(|stop| *stop).await;
            gateway.drain();
            logging::announce("belljar: stopping; requests in progress may finish");
        })
    };
    let (drain, stall) = (server::drain(settings), server::stall(settings));
    listen::serve(listener, gateway.router(), stop, drain, stall).await;
    let _ = stopping.await;
    store.close().await;
    logging::announce("belljar: stopped");
    Ok(())
}
