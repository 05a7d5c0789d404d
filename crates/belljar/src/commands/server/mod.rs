//! What `belljar serve` and `belljar node` have in common: the engine and the API, made from the settings. `belljar
//! gateway` uses the listener and the signals.

mod config;
pub(crate) mod health;
pub(crate) mod public;
pub(crate) mod stop;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use belljar_api::{App, GuardConfig};
use belljar_engine::artifacts::ClaimError;
use belljar_engine::audit::Audit;
use belljar_engine::keys::KeyRing;
use belljar_engine::network::AuthoritySource;
use belljar_engine::store::{ArtifactCatalog, Store};
use belljar_engine::{Engine, NodeConfig, in_full, shared_secrets};
use belljar_runtime::Runtime;
use belljar_runtime::selftest::Verdict;

use super::limits;
use crate::home;
use crate::settings::{DEFAULT_MODEL, Settings};

/// How often the database is checked for new and revoked keys.
const KEYS_PACE: Duration = Duration::from_secs(1);

/// How long a stopping server waits until the cgroups of its last sandboxes are empty. The next server removes the
/// rest.
const CGROUP_REMOVAL: Duration = Duration::from_secs(10);

/// How long a start waits for S3.
const OBJECTS_PATIENCE: Duration = Duration::from_secs(5);

/// Runs `work` on an event loop with as many threads as the settings say.
pub(crate) fn on_event_loop(
    settings: &Settings,
    work: impl Future<Output = Result<()>>,
) -> Result<()> {
    let mut builder = match settings.server.threads {
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads.unwrap_or_else(default_threads));
            builder
        }
    };
    builder.enable_all().build().context("failed to start the event loop")?.block_on(work)
}

/// Exits without cleanup: what still runs belongs to sandboxes that outlive the server.
pub(crate) fn exit() -> ! {
    belljar_sys::cgroup::wait_for_removals(CGROUP_REMOVAL);
    std::process::exit(0);
}

/// Few threads, because sandboxes need the processors more than the server does.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(4)).min(8)
}

/// What differs between servers.
pub(crate) struct Setup {
    pub(crate) store: Arc<dyn Store>,
    /// The catalog of artifacts, if it is not a SQLite file.
    pub(crate) catalog: Option<Arc<dyn ArtifactCatalog>>,
    pub(crate) keys: KeyRing,
    pub(crate) runtime: Arc<dyn Runtime>,
    /// The default image of sandboxes.
    pub(crate) image: String,
    pub(crate) guard: GuardConfig,
    /// The prefix of links; if it is empty, links are paths.
    pub(crate) public_url: String,
    /// Only the user of this machine can use the server.
    pub(crate) is_private: bool,
    /// For a node of a cluster.
    pub(crate) node: Option<NodeConfig>,
}

/// Starts the engine, and makes the API for it.
pub(crate) async fn start(settings: &Settings, setup: Setup) -> Result<(Arc<Engine>, Arc<App>)> {
    let server = &settings.server;
    let Setup { store, catalog, keys, runtime, image, guard, public_url, is_private, node } = setup;
    let audit = Audit::open(&settings.state_dir.join("audit.log"), server.audit_code)
        .context("failed to open the audit log")?;
    let enforced = enforced(&runtime, settings).await?;
    config::insist_on_disk(settings)?;
    // Tenants must not use the operator's key. The only user of a local server may use it.
    let model = settings.openai.as_ref().unwrap_or_else(|why| {
        tracing::warn!("browser tasks have no model: {why}");
        &None
    });
    let model = model.as_ref().filter(|_| is_private && keys.is_empty());
    let authority = network_authority(settings, &*store, node.is_some()).await?;
    let network = settings.network.of_server(authority, model)?;
    let mut config =
        config::engine_config(settings, image, server.dataset_sources()?, network, node);
    config.artifact_store.catalog = catalog;
    let engine = Engine::start(config, store, runtime, audit).await?;
    check_objects(&engine).await?;
    let max_body = usize::try_from(server.max_body).unwrap_or(usize::MAX);
    let app = App::new(Arc::clone(&engine), keys, guard, max_body, public_url);
    let mut browser = settings.browser.clone();
    if let Some(openai) = model.filter(|_| browser.model.is_none() && browser.model_url.is_none()) {
        browser.model = Some(DEFAULT_MODEL.to_owned());
        browser.model_url = Some(openai.url.clone());
    }
    app.set_browser(browser);
    app.set_about(config::about(settings));
    app.set_stall(stall(settings));
    if let Some(verdicts) = enforced {
        app.set_enforced(named(&verdicts));
    } else {
        tokio::spawn(test_limits(Arc::clone(&app), Arc::clone(&engine), settings.clone()));
    }
    tokio::spawn(refresh_keys(Arc::clone(&app)));
    Ok((engine, app))
}

/// How long a client may stall.
pub(crate) fn stall(settings: &Settings) -> Duration {
    Duration::from_secs(settings.server.stall_s)
}

/// How long a stopping server waits for requests in progress.
pub(crate) fn drain(settings: &Settings) -> Duration {
    Duration::from_secs(settings.server.drain_s)
}

/// Which limits the self-test showed to be enforced, in words.
pub(crate) fn enforced_limits(app: &App) -> String {
    match app.enforced() {
        Some(enforced) => {
            let held: Vec<&str> =
                enforced.iter().filter(|(_, held)| **held).map(|(name, _)| name.as_str()).collect();
            format!("enforced: {}", held.join(", "))
        }
        None => "limits are being tested".to_owned(),
    }
}

/// Whether clients need keys, in words.
pub(crate) fn keys_needed(wants_keys: bool) -> &'static str {
    if wants_keys { "API keys are needed" } else { "no API keys: local use only" }
}

pub(crate) fn spoken(seconds: u64) -> String {
    match seconds {
        s if s >= 7200 => format!("{} hours", s / 3600),
        s if s >= 120 => format!("{} minutes", s / 60),
        s => format!("{s} seconds"),
    }
}

/// The verdicts on limits, if they are stored, or if they must be known before the first session.
async fn enforced(runtime: &Arc<dyn Runtime>, settings: &Settings) -> Result<Option<Vec<Verdict>>> {
    let verdicts = match limits::remembered(&**runtime, settings) {
        Some(verdicts) => verdicts,
        // Without any limits some are certainly not enforced, and the first session must report that.
        None if settings.strict || !runtime.sets_limits() => {
            limits::test(runtime, settings).await?
        }
        None => return Ok(None),
    };
    limits::insist(&verdicts, settings)?;
    Ok(Some(verdicts))
}

/// Tests the limits while the server already runs, and warns about those that are not enforced.
async fn test_limits(app: Arc<App>, engine: Arc<Engine>, settings: Settings) {
    let tested = limits::test(engine.runtime(), &settings).await;
    match tested {
        Ok(verdicts) => {
            // It fails only with BELLJAR_STRICT, and then the limits were tested before.
            let _ = limits::insist(&verdicts, &settings);
            app.set_enforced(named(&verdicts));
        }
        Err(error) => tracing::error!("{error:#}"),
    }
}

fn named(verdicts: &[Verdict]) -> BTreeMap<String, bool> {
    verdicts.iter().map(|verdict| (verdict.limit.name().to_owned(), verdict.enforced)).collect()
}

/// The authority that sandboxes trust. All nodes of a cluster have the same one, because sessions move.
async fn network_authority(
    settings: &Settings,
    store: &dyn Store,
    is_node: bool,
) -> Result<AuthoritySource> {
    let path = home::network_authority(settings);
    match store.cluster().filter(|_| is_node) {
        Some(cluster) => {
            let pem = shared_secrets::network_authority(cluster, &path).await;
            Ok(AuthoritySource::Pem(pem.context("failed to get the authority of the cluster")?))
        }
        None => Ok(AuthoritySource::File(path)),
    }
}

/// Fails if the content of artifacts is in S3 and belongs to another installation, which would remove ours. If S3 cannot
/// be reached, the server runs without it.
async fn check_objects(engine: &Arc<Engine>) -> Result<()> {
    let checked = tokio::time::timeout(OBJECTS_PATIENCE, engine.artifact_store().check()).await;
    match checked {
        Ok(Ok(())) => {}
        Ok(Err(foreign @ ClaimError::Foreign { .. })) => return Err(foreign.into()),
        Ok(Err(error)) => tracing::error!("artifacts cannot be stored: {}", in_full(&error)),
        Err(_) => tracing::error!("artifacts cannot be stored: S3 does not answer"),
    }
    Ok(())
}

async fn refresh_keys(app: Arc<App>) {
    loop {
        tokio::time::sleep(KEYS_PACE).await;
        app.refresh_keys().await;
    }
}
