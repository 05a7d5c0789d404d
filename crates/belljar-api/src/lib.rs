//! The HTTP API of Belljar.
//!
//! ```text
//!   listen ──▶ guard (Host, Origin, key, rate) ──▶ sessions, execs, artifacts, runs, ... ──▶ engine
//!                                             └──▶ compat (other systems' calls)      ──▶ engine
//! ```
//!
//! Handlers translate JSON to engine calls and back. They contain no Linux code, check nothing that the engine can
//! check, and keep no state. [`error`] maps the engine's errors to HTTP statuses.

#![forbid(unsafe_code)]

mod artifacts;
mod browser;
mod compat;
pub mod cors;
mod datasets;
mod document;
pub mod error;
mod exec_socket;
mod execs;
mod fields;
mod files;
pub mod gateway_errors;
pub mod guard;
mod health;
mod input;
mod large;
pub mod listen;
mod network;
mod rate;
mod runs;
mod sessions;
mod snapshots;
mod socket;
mod stream;
mod tenants;
mod terminals;
mod tickets;
mod usage;
mod volumes;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Router, middleware};
use belljar_engine::keys::KeyRing;
use belljar_engine::tickets::Tickets;
use belljar_engine::{Engine, Principal};
use tokio::sync::watch;
use utoipa::OpenApi;
use utoipa_axum::router::{OpenApiRouter, UtoipaMethodRouter};
use utoipa_axum::routes;

pub use artifacts::PUBLIC_URL;
pub use browser::BrowserConfig;
pub use guard::GuardConfig;
pub use input::too_large as input_too_large;

use crate::error::ApiError;
use crate::health::Wellness;
use crate::rate::RateLimits;
use crate::tenants::Tenants;

/// The state that all handlers share.
#[derive(Debug)]
pub struct App {
    pub(crate) engine: Arc<Engine>,
    pub(crate) keys: KeyRing,
    pub(crate) tickets: Tickets,
    pub(crate) guard: GuardConfig,
    pub(crate) rates: RateLimits,
    pub(crate) tenants: Tenants,
    pub(crate) wellness: Wellness,
    stall: OnceLock<Duration>,
    /// For each limit, whether a test showed that it is enforced. Set when the test has run.
    enforced: OnceLock<BTreeMap<String, bool>>,
    pub(crate) max_body: usize,
    /// The prefix of links. If it is empty, links are paths.
    pub(crate) public_url: String,
    browser: OnceLock<BrowserConfig>,
    about: OnceLock<About>,
    more_metrics: OnceLock<MoreMetrics>,
    draining: watch::Sender<bool>,
    /// The time of the last request.
    asked: Mutex<Instant>,
}

/// Metrics besides those of the engine, as lines of the text format of OpenMetrics.
pub struct MoreMetrics(pub Box<dyn Fn() -> String + Send + Sync>);

impl std::fmt::Debug for MoreMetrics {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MoreMetrics")
    }
}

/// Information about this process and its directories, for operators.
#[derive(Debug, Clone)]
pub struct About {
    pub started_ms: i64,
    /// The directories by their content, such as `state`.
    pub directories: BTreeMap<&'static str, PathBuf>,
    /// Returns the bytes of memory that the process uses.
    pub memory: fn() -> Option<u64>,
}

impl App {
    /// `public_url` is the prefix of links; if it is empty, links are paths.
    #[must_use]
    pub fn new(
        engine: Arc<Engine>,
        keys: KeyRing,
        guard: GuardConfig,
        max_body: usize,
        public_url: String,
    ) -> Arc<App> {
        Arc::new(App {
            engine,
            keys,
            tickets: Tickets::default(),
            guard,
            rates: RateLimits::default(),
            tenants: Tenants::default(),
            wellness: Wellness::default(),
            stall: OnceLock::new(),
            enforced: OnceLock::new(),
            max_body,
            public_url,
            browser: OnceLock::new(),
            about: OnceLock::new(),
            more_metrics: OnceLock::new(),
            draining: watch::Sender::new(false),
            asked: Mutex::new(Instant::now()),
        })
    }

    /// Sets the result of the self-test of the limits.
    pub fn set_enforced(&self, enforced: BTreeMap<String, bool>) {
        let _ = self.enforced.set(enforced);
    }

    #[must_use]
    pub fn enforced(&self) -> Option<&BTreeMap<String, bool>> {
        self.enforced.get()
    }

    /// A warning for each limit that this machine does not enforce, according to the self-test.
    pub(crate) fn limit_warnings(&self) -> Vec<String> {
        let void = self.enforced().into_iter().flatten().filter(|(_, enforced)| !**enforced);
        let warning = |(limit, _): (&String, &bool)| {
            format!("not enforced on the server's machine: {limit}; `belljar doctor` says why")
        };
        void.map(warning).collect()
    }

    /// Sets the settings of browsers, once.
    pub fn set_browser(&self, config: BrowserConfig) {
        let _ = self.browser.set(config);
    }

    /// Sets the information about this process for operators, once.
    pub fn set_about(&self, about: About) {
        let _ = self.about.set(about);
    }

    /// Adds metrics to those of the engine, once.
    pub fn set_more_metrics(&self, metrics: MoreMetrics) {
        let _ = self.more_metrics.set(metrics);
    }

    /// All metrics, in the text format of OpenMetrics.
    pub(crate) fn render_metrics(&self) -> String {
        const END: &str = "# EOF\n";
        let text = self.engine.render_metrics();
        match self.more_metrics.get() {
            Some(MoreMetrics(more)) => {
                format!("{}{}{END}", text.strip_suffix(END).unwrap_or(&text), more())
            }
            None => text,
        }
    }

    pub(crate) fn about(&self) -> Option<&About> {
        self.about.get()
    }

    pub(crate) fn browser(&self) -> &BrowserConfig {
        self.browser.get_or_init(BrowserConfig::default)
    }

    /// Sets how long a client may stall before it is disconnected, once.
    pub fn set_stall(&self, stall: Duration) {
        let _ = self.stall.set(stall);
    }

    pub(crate) fn stall(&self) -> Duration {
        *self.stall.get_or_init(|| listen::STALL)
    }

    /// Whether clients need a key.
    #[must_use]
    pub fn wants_keys(&self) -> bool {
        self.guard.wants_keys(&self.keys)
    }

    /// Marks the server as stopping: streams end, and health checks report it.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    /// The time since the last request; `None` if a session or run is alive.
    #[must_use]
    pub fn idle(&self) -> Option<Duration> {
        let asked = *self.asked.lock().unwrap_or_else(PoisonError::into_inner);
        (!self.engine.is_in_use()).then(|| asked.elapsed())
    }

    pub(crate) fn note_request(&self) {
        *self.asked.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Resolves when the server is stopping.
    pub(crate) async fn drained(&self) {
        // The sender is in `self`, so waiting cannot fail.
        let _ = self.draining.subscribe().wait_for(|draining| *draining).await;
    }

    pub(crate) fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// Reads keys that were created or revoked by other processes.
    pub async fn refresh_keys(&self) {
        if let Err(error) = self.keys.refresh().await {
            tracing::error!("failed to read the keys: {}", belljar_engine::in_full(&error));
        }
    }
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Belljar",
        description = "Sealed computers for AI agents, on your own machine.",
        license(name = "Apache-2.0")
    ),
    components(schemas(error::ErrorBody, files::FilesBody, files::UnpackedBody))
)]
struct Description;

fn described() -> OpenApiRouter<Arc<App>> {
    let files = routes!(files::read, files::write, files::remove, files::rename);
    let router = OpenApiRouter::with_openapi(Description::openapi());
    let router = with_slashes(router, "/v1/sessions/{id}/files/{*path}", files);
    let dataset = routes!(datasets::put);
    with_slashes(router, "/v1/sessions/{id}/datasets/{*dataset}", dataset)
        .routes(routes!(sessions::create, sessions::list))
        .routes(routes!(sessions::show, sessions::extend, sessions::stop))
        .routes(routes!(sessions::start))
        .routes(routes!(snapshots::hibernate))
        .routes(routes!(snapshots::fork))
        .routes(routes!(snapshots::checkpoints))
        .routes(routes!(snapshots::restore))
        .routes(routes!(sessions::state))
        .routes(routes!(sessions::log))
        .routes(routes!(network::network))
        .routes(routes!(execs::exec, exec_socket::open))
        .routes(routes!(execs::list))
        .routes(routes!(execs::show))
        .routes(routes!(execs::events))
        .routes(routes!(execs::interrupt))
        .routes(routes!(execs::interrupt_all))
        .routes(routes!(execs::stdin))
        .routes(routes!(terminals::open))
        .routes(routes!(tickets::ticket))
        .routes(routes!(terminals::list))
        .routes(routes!(terminals::close))
        .merge(browsing())
        .routes(routes!(artifacts::list_of_session))
        .routes(routes!(artifacts::list))
        .routes(routes!(artifacts::show, artifacts::remove))
        .routes(routes!(artifacts::url))
        .routes(routes!(artifacts::download))
        .routes(routes!(datasets::list, datasets::stage))
        .routes(routes!(datasets::export, datasets::put_named_export))
        .routes(routes!(volumes::create, volumes::list))
        .routes(routes!(volumes::show, volumes::remove))
        .routes(routes!(runs::run))
        .routes(routes!(usage::usage))
        .routes(routes!(health::healthz))
        .routes(routes!(health::readyz))
        .routes(routes!(health::metrics))
        .routes(routes!(compat::simple_sandbox::create_session))
        .routes(routes!(compat::simple_sandbox::execute))
        .routes(routes!(compat::simple_sandbox::cleanup))
}

fn browsing() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new()
        .routes(routes!(browser::status))
        .routes(routes!(browser::goto))
        .routes(routes!(browser::click))
        .routes(routes!(browser::type_text))
        .routes(routes!(browser::press))
        .routes(routes!(browser::scroll))
        .routes(routes!(browser::upload))
        .routes(routes!(browser::back))
        .routes(routes!(browser::forward))
        .routes(routes!(browser::reload))
        .routes(routes!(browser::wait))
        .routes(routes!(browser::text))
        .routes(routes!(browser::snapshot))
        .routes(routes!(browser::evaluate))
        .routes(routes!(browser::screenshot))
        .routes(routes!(browser::download))
        .routes(routes!(browser::task))
        .routes(routes!(browser::close))
}

/// Adds calls whose last parameter may contain slashes, which OpenAPI cannot express.
fn with_slashes(
    mut router: OpenApiRouter<Arc<App>>,
    path: &str,
    (schemas, paths, handlers): UtoipaMethodRouter<Arc<App>>,
) -> OpenApiRouter<Arc<App>> {
    let document = router.get_openapi_mut();
    document.paths.paths.extend(paths.paths);
    document.components.get_or_insert_default().schemas.extend(schemas);
    router.route(path, handlers)
}

/// The OpenAPI document, as in `openapi/belljar.json`.
#[must_use]
pub fn openapi() -> serde_json::Value {
    document::complete(&described().into_openapi())
}

/// All routes, guarded.
pub fn router(app: &Arc<App>) -> Router {
    let (router, described) = described().split_for_parts();
    // Serialized once, and shared by all requests for it.
    let document = Bytes::from(document::complete(&described).to_string());
    router
        .route(
            "/openapi.json",
            axum::routing::get(move || {
                let document = document.clone();
                async move { ([(header::CONTENT_TYPE, "application/json")], document) }
            }),
        )
        .fallback(nothing_here)
        .method_not_allowed_fallback(not_so)
        .layer(middleware::from_fn_with_state(Arc::clone(app), guard::guard))
        .with_state(Arc::clone(app))
}

/// Health checks and metrics without a key, for a listener that only monitoring can reach.
pub fn health_router(app: &Arc<App>) -> Router {
    Router::new()
        .route("/healthz", axum::routing::get(health::healthz))
        .route("/readyz", axum::routing::get(health::readyz))
        .route("/metrics", axum::routing::get(health::metrics))
        .layer(axum::Extension(Principal::default()))
        .with_state(Arc::clone(app))
}

async fn nothing_here(uri: axum::http::Uri) -> Response {
    let message = format!("there is nothing at `{}`", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", message)
        .hint("GET /openapi.json lists all paths")
        .into_response()
}

async fn not_so(method: axum::http::Method, uri: axum::http::Uri) -> Response {
    let message = format!("`{}` does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message).into_response()
}
