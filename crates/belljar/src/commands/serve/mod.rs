//! `belljar serve`: runs the server until a signal stops it.

mod args;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use belljar_api::App;
use belljar_api::listen::{self, Listener};
use belljar_engine::Engine;
use belljar_engine::keys::KeyRing;
use belljar_engine::store::StateLock;
use belljar_sys::privileges;
use tokio::sync::watch;

use super::server::{self, Setup, public, stop};
use crate::backend::Prepared;
use crate::logging;
use crate::records;
pub(crate) use args::ServeArgs;

use crate::settings::Settings;

pub(crate) fn serve(args: &ServeArgs, settings: &Settings) -> Result<ExitCode> {
    settings.server.check()?;
    // A session needs several descriptors, a client one.
    privileges::raise_open_files();
    let _lock = StateLock::take(&settings.state_dir)?;
    // Started before any thread, because the spawner is forked.
    let prepared = Prepared::start(settings)?;
    server::on_event_loop(settings, run(args, settings, prepared))?;
    server::exit()
}

async fn run(args: &ServeArgs, settings: &Settings, prepared: Prepared) -> Result<()> {
    let (store, catalog) = records::open(settings).await?;
    let keys = KeyRing::open(Arc::clone(&store)).await?;
    let listener = public::bind(&settings.server, &keys).await?;
    let image = prepared.default_image(settings);
    let setup = Setup {
        runtime: prepared.launch(Some(store.owner())).await?,
        store,
        catalog,
        keys,
        image,
        guard: public::guard(&settings.server, &listener),
        public_url: public::url(settings, &listener),
        is_private: public::listens_privately(&listener),
        node: None,
    };
    let (engine, app) = server::start(settings, setup).await?;
    // Before the server announces that it listens: a signal right after that must be handled.
    let stop = stop::on_signals()?;
    if let Some(seconds) = args.idle_exit {
        stop::when_idle(Duration::from_secs(seconds), &app, &stop);
    }
    announce(&listener, &app, &engine).await;
    mention_local(settings, &listener.url());
    serve_until(stop.subscribe(), listener, &app, settings).await;
    let left = engine.live_sessions();
    engine.close(args.stop_sessions).await;
    engine.audit().flush();
    match (args.stop_sessions, left) {
        (_, 0) => logging::announce("belljar: stopped"),
        (true, n) => logging::announce(&format!("belljar: stopped, with {n} session(s)")),
        (false, n) => logging::announce(&format!(
            "belljar: stopped; {n} session(s) go on and wait {} for a server to come back",
            server::spoken(settings.server.alone_for_s)
        )),
    }
    Ok(())
}

/// Serves until `stop` becomes true, and then until requests in progress have ended.
async fn serve_until(
    stop: watch::Receiver<bool>,
    listener: Listener,
    app: &Arc<App>,
    settings: &Settings,
) {
    let stopping = {
        let (app, mut stop) = (Arc::clone(app), stop.clone());
        tokio::spawn(async move {
            let _ = stop.wait_for(|stop| *stop).await;
            app.drain();
            logging::announce("belljar: stopping; requests in progress may finish");
        })
    };
    let (drain, stall) = (server::drain(settings), server::stall(settings));
    listen::serve(listener, belljar_api::router(app), stop, drain, stall).await;
    let _ = stopping.await;
}

async fn announce(listener: &Listener, app: &App, engine: &Engine) {
    let url = listener.url();
    logging::announce(&format!("belljar {} listens on {url}", env!("CARGO_PKG_VERSION")));
    let enforced = server::enforced_limits(app);
    logging::announce(&format!("  {} backend; {enforced}", engine.runtime().backend()));
    logging::announce(&format!("  {}", server::keys_needed(app.wants_keys())));
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
