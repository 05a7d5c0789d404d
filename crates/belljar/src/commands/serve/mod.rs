//! `belljar serve`: runs the server until a signal stops it.

mod args;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use belljar_api::listen::{self, Listener};
use belljar_api::{About, App, GuardConfig};
use belljar_engine::artifacts::ArtifactStoreConfig;
use belljar_engine::audit::Audit;
use belljar_engine::datasets::source::Sources;
use belljar_engine::keys::KeyRing;
use belljar_engine::network::Network;
use belljar_engine::spec::{SessionSpec, Storage};
use belljar_engine::store::StateLock;
use belljar_engine::workspaces::WorkspacesConfig;
use belljar_engine::{Engine, EngineConfig, clock};
use belljar_runtime::selftest::Verdict;
use belljar_runtime::{Runtime, VolumeKind};
use belljar_sys::{privileges, procfs};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use super::limits;
use crate::backend::Prepared;
use crate::logging;
use crate::records;
pub(crate) use args::ServeArgs;

use crate::settings::{DEFAULT_MODEL, Listen, ServerSettings, Settings};

/// How often the database is checked for new and revoked keys.
const KEYS_PACE: Duration = Duration::from_secs(1);

/// How long a stopping server waits until the cgroups of its last sandboxes are empty. The next server removes the
/// rest.
const CGROUP_REMOVAL: Duration = Duration::from_secs(10);

/// How often a server with `--idle-exit` checks whether it is idle.
const IDLE_PACE: Duration = Duration::from_secs(1);

pub(crate) fn serve(args: &ServeArgs, settings: &Settings) -> Result<ExitCode> {
    settings.server.check()?;
    // A session needs several descriptors, a client one.
    privileges::raise_open_files();
    let _lock = StateLock::take(&settings.state_dir)?;
    // Started before any thread, because the spawner is forked.
    let prepared = Prepared::start(settings)?;
    let mut builder = match settings.server.threads {
        Some(1) => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads.unwrap_or_else(default_threads));
            builder
        }
    };
    let runtime = builder.enable_all().build().context("failed to start the event loop")?;
    runtime.block_on(run(args, settings, prepared))?;
    belljar_sys::cgroup::wait_for_removals(CGROUP_REMOVAL);
    // Exits without cleanup: what still runs belongs to sandboxes that outlive the server.
    std::process::exit(0);
}

/// Few threads, because sandboxes need the processors more than the server does.
fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(4)).min(8)
}

async fn run(args: &ServeArgs, settings: &Settings, prepared: Prepared) -> Result<()> {
    let server = &settings.server;
    let (store, catalog) = records::open(settings).await?;
    let keys = KeyRing::open(Arc::clone(&store)).await?;
    let listener = bind(server, &keys).await?;
    let image = prepared.default_image(settings);
    let runtime = prepared.launch(Some(store.owner())).await?;
    let audit = Audit::open(&settings.state_dir.join("audit.log"), server.audit_code)
        .context("failed to open the audit log")?;
    let enforced = enforced(&runtime, settings).await?;
    insist_on_disk(settings)?;
    // Tenants must not use the operator's key. The only user of a local server may use it.
    let model = settings.openai.as_ref().unwrap_or_else(|why| {
        tracing::warn!("browser tasks have no model: {why}");
        &None
    });
    let model = model.as_ref().filter(|_| listens_privately(&listener) && keys.is_empty());
    let authority = settings.state_dir.join("network-authority.pem");
    let network = settings.network.of_server(authority, model)?;
    let mut config = engine_config(settings, image, server.dataset_sources()?, network);
    config.artifact_store.catalog = catalog;
    let engine = Engine::start(config, store, runtime, audit).await?;
    let guard = GuardConfig {
        hosts: own_hosts(server, listener.local_addr()),
        origins: server.allowed_origins.clone(),
        keys_required: !listens_privately(&listener),
        local_socket: matches!(server.listen, Listen::Unix(_)),
    };
    let max_body = usize::try_from(server.max_body).unwrap_or(usize::MAX);
    let public_url = settings.artifacts.public_url.clone();
    // Behind a socket, or with several addresses, the server does not know its URL. Links are paths then.
    let is_one_place = listener.local_addr().is_some_and(|address| !address.ip().is_unspecified());
    let public_url = public_url.unwrap_or_else(|| match is_one_place {
        true => listener.url(),
        false => String::new(),
    });
    let app = App::new(Arc::clone(&engine), keys, guard, max_body, public_url);
    let mut browser = settings.browser.clone();
    if let Some(openai) = model.filter(|_| browser.model.is_none() && browser.model_url.is_none()) {
        browser.model = Some(DEFAULT_MODEL.to_owned());
        browser.model_url = Some(openai.url.clone());
    }
    app.set_browser(browser);
    app.set_about(about(settings));
    let stall = Duration::from_secs(server.stall_s);
    app.set_stall(stall);
    if let Some(verdicts) = enforced {
        app.set_enforced(named(&verdicts));
    } else {
        tokio::spawn(test_limits(Arc::clone(&app), Arc::clone(&engine), settings.clone()));
    }
    tokio::spawn(refresh_keys(Arc::clone(&app)));
    // Before the server announces that it listens: a signal right after that must be handled.
    let stop = stop_asked(args.idle_exit.map(Duration::from_secs), &app)?;
    announce(&listener, &app, &engine).await;
    mention_local(settings, &listener.url());

    let stopping = {
        let (app, mut stop) = (Arc::clone(&app), stop.clone());
        tokio::spawn(async move {
            let _ = stop.wait_for(|stop| *stop).await;
            app.drain();
            logging::announce("belljar: stopping; requests in progress may finish");
        })
    };
    let drain = Duration::from_secs(server.drain_s);
    listen::serve(listener, belljar_api::router(&app), stop, drain, stall).await;
    let _ = stopping.await;
    let left = engine.live_sessions();
    engine.close(args.stop_sessions).await;
    engine.audit().flush();
    match (args.stop_sessions, left) {
        (_, 0) => logging::announce("belljar: stopped"),
        (true, n) => logging::announce(&format!("belljar: stopped, with {n} session(s)")),
        (false, n) => logging::announce(&format!(
            "belljar: stopped; {n} session(s) go on and wait {} for a server to come back",
            spoken(server.alone_for_s)
        )),
    }
    Ok(())
}

fn spoken(seconds: u64) -> String {
    match seconds {
        s if s >= 7200 => format!("{} hours", s / 3600),
        s if s >= 120 => format!("{} minutes", s / 60),
        s => format!("{s} seconds"),
    }
}

async fn bind(server: &ServerSettings, keys: &KeyRing) -> Result<Listener> {
    let tls = server.tls.as_ref().map(|tls| listen::Tls::load(&tls.cert, &tls.key)).transpose()?;
    match &server.listen {
        Listen::Unix(path) if tls.is_some() => {
            bail!("the socket `{}` cannot use TLS; leave out --tls-cert", path.display())
        }
        Listen::Unix(path) => Ok(Listener::unix(path).await?),
        Listen::Tcp(address) => {
            if !address.ip().is_loopback() && keys.is_empty() {
                bail!(
                    "everyone who can reach {address} could run code here; create an API key \
                     first (`belljar key create --name NAME`), or listen on 127.0.0.1 or a UNIX \
                     socket"
                );
            }
            Ok(Listener::tcp(&address.to_string(), tls).await?)
        }
    }
}

fn listens_privately(listener: &Listener) -> bool {
    listener.local_addr().is_none_or(|address| address.ip().is_loopback())
}

/// Host names that are accepted without a key.
fn own_hosts(server: &ServerSettings, address: Option<SocketAddr>) -> Vec<String> {
    let mut hosts: Vec<String> =
        server.allowed_hosts.iter().map(|host| host.trim_matches(['[', ']']).to_owned()).collect();
    hosts.extend(address.map(|address| address.ip().to_string()));
    hosts
}

fn engine_config(
    settings: &Settings,
    image: String,
    dataset_sources: Arc<Sources>,
    network: Arc<Network>,
) -> EngineConfig {
    let server = &settings.server;
    EngineConfig {
        defaults: SessionSpec {
            image,
            storage: server.storage,
            datasets: server.datasets,
            limits: settings.limits,
            network: settings.network.default.clone(),
            volumes: BTreeMap::new(),
            workspace: None,
            env: BTreeMap::new(),
            ttl_s: server.ttl_s,
            idle_s: server.idle_s,
            spill_s: None,
            checkpoints: None,
            metadata: serde_json::Map::new(),
        },
        images: settings.backend.images.clone(),
        sessions_root: server.sessions_root.clone(),
        datasets_dir: server.datasets_dir.clone(),
        dataset_sources,
        dataset_cache: server.dataset_cache.clone(),
        dataset_cache_bytes: server.dataset_cache_bytes,
        dataset_bytes: server.dataset_bytes,
        network,
        disk: server.disk(settings.strict),
        volumes: settings.volumes.config(settings.strict),
        workspaces: workspaces(settings),
        artifact_store: artifact_store_config(settings),
        pool: server.pool,
        total: server.total,
        alone_for_s: server.alone_for_s,
        spill: server.spill,
        snapshots: server.snapshots.clone(),
        max_ttl_s: server.max_ttl_s,
    }
}

/// Directories that sessions may mount at `/workspace`, and the server's own, which they may not.
fn workspaces(settings: &Settings) -> WorkspacesConfig {
    let (server, artifacts) = (&settings.server, &settings.artifacts);
    let own = [
        &settings.home,
        &settings.state_dir,
        &settings.run_dir,
        &server.sessions_root,
        &server.dataset_cache,
        &server.snapshots.directory,
        &settings.volumes.root,
        &artifacts.blobs_dir,
        &artifacts.database,
        &settings.backend.socket_dir,
    ];
    WorkspacesConfig {
        allowed: settings.workspaces.clone(),
        own: own.into_iter().cloned().collect(),
    }
}

fn about(settings: &Settings) -> About {
    let directories = [
        ("state", &settings.state_dir),
        ("home", &settings.home),
        ("files", &settings.server.sessions_root),
        ("artifacts", &settings.artifacts.blobs_dir),
        ("volumes", &settings.volumes.root),
        ("run", &settings.run_dir),
    ];
    let own_memory = || {
        let kib = procfs::status_field(std::process::id(), "VmRSS")?;
        Some(kib * 1024)
    };
    About {
        started_ms: clock::now_ms(),
        directories: directories.map(|(name, path)| (name, path.clone())).into(),
        memory: own_memory,
    }
}

fn artifact_store_config(settings: &Settings) -> ArtifactStoreConfig {
    let artifacts = &settings.artifacts;
    ArtifactStoreConfig {
        blobs_dir: artifacts.blobs_dir.clone(),
        database: artifacts.database.clone(),
        catalog: None,
        key_file: settings.state_dir.join("links.key"),
        sessions_root: settings.server.sessions_root.clone(),
        outputs_dir: settings.outputs_dir.clone(),
        exports_dir: artifacts.exports_dir.clone(),
        // Behind a socket, links are paths, which no other program can open.
        show_all: matches!(settings.server.listen, Listen::Unix(_))
            && artifacts.public_url.is_none(),
        quotas: artifacts.quotas,
        retention_s: artifacts.retention_s,
        keep_originals: artifacts.keep_originals,
        link_ttl_s: artifacts.link_ttl_s,
    }
}

/// With BELLJAR_STRICT, fails if the size of sessions' files on disk is not enforced: every session would be refused.
fn insist_on_disk(settings: &Settings) -> Result<()> {
    let disk = settings.server.disk(settings.strict);
    if settings.strict
        && settings.server.storage == Storage::Bind
        && disk.new_kind().0 == VolumeKind::Directory
    {
        bail!("{}; BELLJAR_STRICT=1 forbids that", disk.why_not_enforced());
    }
    Ok(())
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

async fn refresh_keys(app: Arc<App>) {
    loop {
        tokio::time::sleep(KEYS_PACE).await;
        app.refresh_keys().await;
    }
}

async fn announce(listener: &Listener, app: &App, engine: &Engine) {
    let url = listener.url();
    logging::announce(&format!("belljar {} listens on {url}", env!("CARGO_PKG_VERSION")));
    let enforced = match app.enforced() {
        Some(enforced) => {
            let held: Vec<&str> =
                enforced.iter().filter(|(_, held)| **held).map(|(name, _)| name.as_str()).collect();
            format!("enforced: {}", held.join(", "))
        }
        None => "limits are being tested".to_owned(),
    };
    logging::announce(&format!("  {} backend; {enforced}", engine.runtime().backend()));
    let keys = if app.wants_keys() { "API keys are needed" } else { "no API keys: local use only" };
    logging::announce(&format!("  {keys}"));
    let left = engine.live_sessions();
    if left > 0 {
        logging::announce(&format!("  taking over {left} session(s) of an earlier server"));
    }
    if let Some(rest) =
        url.strip_prefix("http://").filter(|_| !app.wants_keys() && !logging::is_all_json())
    {
        eprintln!("  try: curl -s http://{rest}/v1/run -H 'content-type: application/json' \\");
        eprintln!("            -d '{{\"code\": \"6 * 7\"}}'");
    }
}

/// Warns that client commands prefer the local server of Python programs to this one.
fn mention_local(settings: &Settings, url: &str) {
    let local = &settings.client.local;
    let is_ours = url == format!("unix:{}", local.socket().display());
    if settings.client.url.is_none() && !is_ours && local.is_running() {
        let socket = local.socket().display();
        logging::announce(&format!(
            "  Python programs have a local server at unix:{socket}, and commands use that one;"
        ));
        logging::announce(&format!("  for this one: BELLJAR_URL={url}"));
    }
}

/// Becomes true on the first SIGTERM or SIGINT, or after the idle time. A second signal ends the process at once;
/// sessions survive that.
fn stop_asked(idle_exit: Option<Duration>, app: &Arc<App>) -> Result<watch::Receiver<bool>> {
    let (sender, receiver) = watch::channel(false);
    if let Some(patience) = idle_exit {
        let (sender, app) = (sender.clone(), Arc::clone(app));
        tokio::spawn(async move {
            while app.idle().is_none_or(|idle| idle < patience) {
                tokio::time::sleep(patience.min(IDLE_PACE)).await;
            }
            logging::announce("belljar: nobody needs this server any more");
            sender.send_replace(true);
        });
    }
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        let mut signals = signal(kind).context("failed to listen for signals")?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if sender.send_replace(true) {
                    std::process::exit(super::EXIT_FAILED.into());
                }
            }
        });
    }
    Ok(receiver)
}
