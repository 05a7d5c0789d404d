//! `belljar node`: runs the sessions that gateways send to this machine.
//!
//! ```text
//!   register ─▶ keep the lease ─▶ engine, listener ─▶ SIGTERM: draining ─▶ sessions hibernate ─▶ gone
//!                    └ watchdog: freezes the sandboxes when the lease ends
//! ```

mod identity;
mod metrics;
mod sandboxes;
mod watchdog;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use belljar_api::listen::{self, Listener, Tls};
use belljar_api::{App, GuardConfig};
use belljar_cluster::lease::Keeper;
use belljar_cluster::tls::Role;
use belljar_cluster::watchdog::Watchdog;
use belljar_engine::keys::KeyRing;
use belljar_engine::store::{NewNode, NodeState, StateLock, Store};
use belljar_engine::{Engine, NodeConfig, in_full};
use belljar_sys::privileges;
use belljar_sys::wake_class::NodeClass;
use clap::Args;
use tokio::sync::watch;
use tokio::time::Instant;

use super::server::{self, Setup, health, stop};
use crate::backend::Prepared;
use crate::settings::Settings;
use crate::{logging, records};
use sandboxes::NodeSandboxes;
pub(crate) use watchdog::{LeaseWatchdogArgs, lease_watchdog};

#[derive(Debug, Args)]
#[command(after_help = "\
A node runs sessions of a cluster. Gateways (`belljar gateway`) connect to it with certificates of
BELLJAR_CLUSTER_CA; clients do not. It needs BELLJAR_DATABASE_URL, and BELLJAR_BLOBS_URL for sessions
to move to other nodes. On SIGTERM its sessions hibernate, and other nodes wake them when they are
used. Settings are variables of the environment or of .env; see docs/settings.md.")]
pub(crate) struct NodeArgs {
    /// Address to listen on for gateways [default: 0.0.0.0:8444]
    #[arg(long, value_name = "ADDRESS:PORT")]
    node_listen: Option<String>,
    /// Address at which gateways reach this node
    #[arg(long, value_name = "HOST:PORT")]
    node_address: Option<String>,
}

impl NodeArgs {
    pub(crate) fn settings(&self) -> Vec<(&'static str, String)> {
        let flags = [
            ("BELLJAR_NODE_LISTEN", &self.node_listen),
            ("BELLJAR_NODE_ADDRESS", &self.node_address),
        ];
        flags.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))).collect()
    }
}

pub(crate) fn node(settings: &Settings) -> Result<ExitCode> {
    settings.server.check()?;
    privileges::raise_open_files();
    let _lock = StateLock::take(&settings.state_dir)?;
    // Started before any thread, because the spawner is forked.
    let prepared = Prepared::start(settings)?;
    server::on_event_loop(settings, run(settings, prepared))?;
    server::exit()
}

async fn run(settings: &Settings, prepared: Prepared) -> Result<()> {
    let image = prepared.default_image(settings);
    let stop = stop::on_signals()?;
    let Some(joined) = join(settings, &image, stop.subscribe()).await? else { return Ok(()) };
    let Joined { node, store, listener, keeper, watchdog } = joined;
    let status = keeper.status();
    let runtime = prepared.launch(Some(store.owner())).await?;
    // The lease is kept from now on: the start of the engine may take longer than a lease.
    let sandboxes = Arc::new(NodeSandboxes::new(Arc::clone(&runtime)));
    let keeping = tokio::spawn(keeper.keep(Arc::clone(&sandboxes) as _));
    let setup = Setup {
        store: Arc::clone(&store),
        catalog: Some(records::open_shared_catalog(records::shared_url(settings)?).await?),
        keys: KeyRing::open(Arc::clone(&store)).await?,
        runtime,
        image,
        guard: GuardConfig { behind_gateway: true, ..GuardConfig::default() },
        public_url: settings.artifacts.public_url.clone().unwrap_or_default(),
        is_private: false,
        node: Some(NodeConfig { id: node.id.clone(), class: node.class.clone() }),
    };
    let (engine, app) = server::start(settings, setup).await?;
    sandboxes.set_engine(&engine);
    // Gateways prefer a node with few sessions, so one that fails to build sandboxes would get all new ones.
    if engine.live_sessions() == 0
        && let Err(error) = engine.try_sandbox().await
    {
        keeping.abort();
        let _ = keeping.await;
        set_state(&*store, NodeState::Gone).await;
        return Err(error).context("this machine cannot run sandboxes; `belljar doctor` explains");
    }
    let draining = Arc::new(AtomicBool::new(false));
    app.set_more_metrics(metrics::of(status, &engine, node.capacity, Arc::clone(&draining)));
    announce(&listener, &node, &app, &engine);
    health::listen(settings, belljar_api::health_router(&app)).await?;

    let serving = serve_until(stop.subscribe(), &draining, listener, &app, settings, async || {
        set_state(&*store, NodeState::Draining).await;
        drain_sessions(&engine, settings.cluster.node_drain).await
    });
    let left = serving.await;
    if left == 0 {
        // Otherwise the keeper would register the node again.
        keeping.abort();
        let _ = keeping.await;
        set_state(&*store, NodeState::Gone).await;
    }
    engine.close(false).await;
    engine.audit().flush();
    match left {
        0 => {
            if let Some(watchdog) = &watchdog {
                watchdog.end();
            }
            logging::announce("belljar: stopped; no session is left on this node");
        }
        // The watchdog freezes them when the lease ends.
        left => logging::announce(&format!(
            "belljar: stopped; {left} session(s) are left and wait for this node to come back"
        )),
    }
    Ok(())
}

/// A node that holds a lease.
struct Joined {
    node: NewNode,
    store: Arc<dyn Store>,
    listener: Listener,
    keeper: Keeper,
    watchdog: Option<Watchdog>,
}

/// `None` if the process got a signal to stop while it waited for the database.
async fn join(
    settings: &Settings,
    image: &str,
    mut stop: watch::Receiver<bool>,
) -> Result<Option<Joined>> {
    let id = identity::node_id(settings)?;
    let tls = settings.cluster.tls(&Role::Node(id.clone()))?;
    let store = tokio::select! {
        store = records::join_shared(records::shared_url(settings)?, &id) => store?,
        _ = stop.wait_for(|stop| *stop) => return Ok(None),
    };
    let listen = settings.cluster.node_listen.to_string();
    let listener = Listener::tcp(&listen, Some(Tls::new(tls.server))).await;
    let listener = listener.context("BELLJAR_NODE_LISTEN")?;
    let node = NewNode {
        id,
        address: identity::address(settings, listener.local_addr())?,
        class: NodeClass::here(image).to_string(),
        capacity: identity::capacity(settings),
    };
    let (lease, watchdog) = (settings.cluster.lease, watchdog::start(settings));
    let registering = Keeper::register(Arc::clone(&store), node.clone(), lease, watchdog.clone());
    let keeper = registering.await?;
    Ok(Some(Joined { node, store, listener, keeper, watchdog }))
}

/// Serves until `stop` becomes true, and then until `drain` has given the sessions away. Returns how many are left.
async fn serve_until(
    mut stop: watch::Receiver<bool>,
    draining: &AtomicBool,
    listener: Listener,
    app: &Arc<App>,
    settings: &Settings,
    drain: impl AsyncFnOnce() -> usize,
) -> usize {
    let (closing, closed) = watch::channel(false);
    let (patience, stall) = (server::drain(settings), server::stall(settings));
    let serving = listen::serve(listener, belljar_api::router(app), closed, patience, stall);
    let serving = tokio::spawn(serving);
    let _ = stop.wait_for(|stop| *stop).await;
    logging::announce("belljar: draining; sessions hibernate, and other nodes wake them");
    draining.store(true, Ordering::Relaxed);
    let left = drain().await;
    app.drain();
    closing.send_replace(true);
    let _ = serving.await;
    left
}

/// Hibernates all sessions, so that other nodes can wake them. Busy ones are interrupted after `limit`. Returns how many
/// are left.
async fn drain_sessions(engine: &Engine, limit: Duration) -> usize {
    let drained = engine.drain(Instant::now() + limit).await;
    for (session, lost) in &drained.lost {
        tracing::warn!(session.id = %session, "session {session} moves without: {}", lost.join("; "));
    }
    for (session, why) in &drained.kept {
        tracing::warn!(session.id = %session, "session {session} stays on this node: {why}");
    }
    logging::announce(&format!(
        "belljar: {} session(s) can go on elsewhere",
        drained.released.len()
    ));
    engine.live_sessions()
}

async fn set_state(store: &dyn Store, state: NodeState) {
    let Some(records) = store.cluster() else { return };
    if let Err(error) = records.set_node_state(state).await {
        let name = state.name();
        tracing::warn!("failed to set the state of this node to {name}: {}", in_full(&error));
    }
}

fn announce(listener: &Listener, node: &NewNode, app: &App, engine: &Engine) {
    let (version, url) = (env!("CARGO_PKG_VERSION"), listener.url());
    logging::announce(&format!("belljar {version}: node {} listens on {url}", node.id));
    let enforced = server::enforced_limits(app);
    logging::announce(&format!("  {} backend; {enforced}", engine.runtime().backend()));
    let class = node.class.parse().map_or_else(|_| node.class.clone(), |it: NodeClass| it.name());
    logging::announce(&format!("  gateways reach it at {}; class {class}", node.address));
    let left = engine.live_sessions();
    if left > 0 {
        logging::announce(&format!("  taking over {left} session(s) of an earlier server"));
    }
}
