//! The gateway: checks requests, finds the node for each and passes it on. It keeps no state that another gateway lacks.
//!
//! ```text
//!   client ──▶ guard (Host, Origin, key, rate) ──▶ routes ──▶ placement ──▶ proxy ──▶ node
//!                     keys, rates: Postgres          └ route of a session: cache, Postgres
//! ```
//!
//! A request is sent to a second node only if the first one certainly did nothing: it could not be reached, it answered 421
//! because another node owns the session, or it had no room for a new session. After any other failure the client gets an
//! error and decides itself.

mod body;
mod connect;
mod headers;
mod metrics;
mod nodes;
mod own;
mod placement;
mod pods;
mod proxy;
mod rates;
mod routes;
mod sessions;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use axum::Router;
use axum::body::Bytes;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Uri};
use axum::response::{IntoResponse as _, Response};
use belljar_api::cors;
use belljar_api::error::ApiError;
use belljar_api::guard::{self, GuardConfig, Identity};
use belljar_engine::keys::KeyRing;
use belljar_engine::store::{ClusterRecords, Store, StoreError};
use belljar_engine::{Principal, in_full};

use crate::tls::ClusterTls;
use body::Buffers;
use connect::Clients;
use metrics::GatewayMetrics;
use nodes::{Nodes, Routes};
pub use pods::{PodWatch, PodWatchError};
use rates::{Budget, Rates};
use routes::Target;

/// How often the keys are read again.
const KEYS_PACE: Duration = Duration::from_secs(1);

/// The state that all requests share.
#[derive(Debug)]
pub struct Gateway {
    store: Arc<dyn Store>,
    keys: KeyRing,
    guard: GuardConfig,
    rates: Rates,
    nodes: Arc<Nodes>,
    routes: Arc<Routes>,
    clients: Clients,
    buffers: Buffers,
    /// The base of links to artifacts.
    public_url: Option<HeaderValue>,
    metrics: GatewayMetrics,
    /// The OpenAPI document.
    document: Bytes,
    draining: AtomicBool,
}

/// Settings of a gateway.
#[derive(Debug)]
pub struct GatewayConfig {
    pub guard: GuardConfig,
    pub tls: ClusterTls,
    /// Bytes of a body that the gateway must read itself.
    pub max_body: usize,
    /// How long a client may take for such a body.
    pub stall: Duration,
    /// The pods of nodes, if this gateway may watch them.
    pub pods: Option<PodWatch>,
    /// The base of links to artifacts; if it is empty, links are paths. A node may have another one.
    pub public_url: String,
}

#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    #[error("this store has no records of nodes")]
    NotShared,
    #[error("failed to read the nodes")]
    Nodes(#[source] StoreError),
}

impl Gateway {
    /// Reads the nodes, and starts the tasks that keep them and the keys up to date.
    pub async fn start(
        store: Arc<dyn Store>,
        keys: KeyRing,
        config: GatewayConfig,
    ) -> Result<Arc<Gateway>, GatewayError> {
        let gateway = Arc::new(Gateway {
            store,
            keys,
            guard: config.guard,
            rates: Rates::default(),
            nodes: Arc::default(),
            routes: Arc::default(),
            clients: Clients::new(config.tls.client),
            buffers: Buffers::new(config.max_body, config.stall),
            public_url: HeaderValue::try_from(config.public_url).ok().filter(|url| !url.is_empty()),
            metrics: GatewayMetrics::default(),
            document: belljar_api::openapi().to_string().into(),
            draining: AtomicBool::new(false),
        });
        let records = gateway.store.cluster().ok_or(GatewayError::NotShared)?;
        let rows = records.nodes().await.map_err(GatewayError::Nodes)?;
        gateway.nodes.set(rows);
        let (store, nodes) = (Arc::clone(&gateway.store), Arc::clone(&gateway.nodes));
        if let Some(pods) = config.pods {
            let (store, nodes) = (Arc::clone(&store), Arc::clone(&nodes));
            tokio::spawn(pods::watch_pods(pods, store, nodes, Arc::clone(&gateway.routes)));
        }
        tokio::spawn(nodes::watch_nodes(store, nodes, Arc::clone(&gateway.routes)));
        tokio::spawn(refresh_keys(Arc::clone(&gateway)));
        Ok(gateway)
    }

    pub fn router(self: &Arc<Self>) -> Router {
        Router::new().fallback(handle).with_state(Arc::clone(self))
    }

    /// Health checks and metrics without a key, for a listener that only monitoring can reach.
    pub fn health_router(self: &Arc<Self>) -> Router {
        Router::new().fallback(handle_health).with_state(Arc::clone(self))
    }

    /// Whether clients need a key.
    #[must_use]
    pub fn wants_keys(&self) -> bool {
        self.guard.wants_keys(&self.keys)
    }

    /// How many nodes hold a lease.
    #[must_use]
    pub fn nodes_alive(&self) -> usize {
        self.nodes.alive()
    }

    /// Reports that it is not ready for requests any more.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    fn records(&self) -> Result<&dyn ClusterRecords, ApiError> {
        // It was there at the start.
        self.store.cluster().ok_or_else(|| unavailable("the store has no records of nodes"))
    }

    async fn admit(&self, uri: &Uri, headers: &HeaderMap) -> Result<Option<Principal>, ApiError> {
        let principal = match guard::identify(&self.guard, &self.keys, uri, headers).await? {
            Identity::Open(principal) => return Ok(Some(principal)),
            // The node that issued the ticket checks it.
            Identity::Ticket { .. } => return Ok(None),
            Identity::Key(principal) => principal,
        };
        if let (Some(limit), Some(key)) =
            (principal.limits.requests_per_minute, principal.key_id.as_ref())
        {
            let budget = StoredBudget { records: self.records()?, key, limit: limit.max(1) };
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let taken = self.rates.take(key, limit, now, &budget).await;
            taken.map_err(|seconds| guard::too_fast(limit, seconds))?;
        }
        guard::check_role(&principal, uri.path())?;
        Ok(Some(principal))
    }

    async fn serve(self: &Arc<Self>, request: Request) -> Response {
        let who = match self.admit(request.uri(), request.headers()).await {
            Ok(who) => who,
            Err(error) => {
                tracing::info!("refused a request: {}", error.message);
                return error.into_response();
            }
        };
        let target = routes::target(request.method(), request.uri().path());
        match target {
            Target::Own(own) => self.answer_itself(own, &request, who.as_ref()),
            target => match self.pass_on(target, request, who.as_ref()).await {
                Ok(response) => response,
                Err(error) => error.into_response(),
            },
        }
    }
}

struct StoredBudget<'a> {
    records: &'a dyn ClusterRecords,
    key: &'a str,
    limit: u32,
}

#[async_trait]
impl Budget for StoredBudget<'_> {
    async fn spend(&self, window: i64, amount: u32) -> Result<bool, StoreError> {
        self.records.spend_rate(self.key, window, amount, self.limit).await
    }
}

async fn handle(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    let begun = std::time::Instant::now();
    let config = &gateway.guard;
    let page = cors::allowed_page(request.headers(), &config.origins);
    let mut response = match page.is_some() && cors::is_preflight(&request) {
        // A preflight request has no key.
        true => guard::answer_preflight(config, &gateway.keys, request.uri(), request.headers())
            .unwrap_or_else(ApiError::into_response),
        false => gateway.serve(request).await,
    };
    if !config.origins.is_empty() {
        cors::add_headers(page.as_ref(), response.headers_mut());
    }
    gateway.metrics.answered(response.status(), begun.elapsed());
    response
}

async fn handle_health(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    match routes::target(request.method(), request.uri().path()) {
        Target::Own(own) => gateway.answer_itself(own, &request, None),
        _ => axum::http::StatusCode::NOT_FOUND.into_response(),
    }
}

async fn refresh_keys(gateway: Arc<Gateway>) {
    loop {
        tokio::time::sleep(KEYS_PACE).await;
        if let Err(error) = gateway.keys.refresh().await {
            tracing::warn!("failed to read the keys: {}", in_full(&error));
        }
    }
}

/// The error while the database cannot be reached.
fn unavailable(message: &str) -> ApiError {
    ApiError::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, "unavailable", message)
        .retry_after(1)
}
