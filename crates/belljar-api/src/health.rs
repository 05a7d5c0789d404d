//! Health checks and metrics.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use belljar_engine::{Principal, clock};
use belljar_runtime::ZygoteState;
use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::timeout;
use utoipa::ToSchema;

use crate::App;
use crate::error::ErrorBody;

/// The time limit of each part of a health check.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long a result is reused for other requests. The database is written to no more often than this, however many
/// requests come.
const FRESH: Duration = Duration::from_millis(200);

/// The same for the question whether S3 can be reached, because each costs a request.
const OBJECTS_FRESH: Duration = Duration::from_secs(10);

/// The result of the last health check, which is reused for a while.
#[derive(Debug, Default)]
pub(crate) struct Wellness {
    last: Mutex<Option<(Instant, Option<Trouble>)>>,
    /// Whether S3 could be reached.
    objects: Mutex<Option<(Instant, bool)>>,
}

/// Why the server is unhealthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trouble {
    Database,
    FullDisk,
}

impl Trouble {
    fn describe(self) -> &'static str {
        match self {
            Trouble::Database => "database cannot be written to",
            Trouble::FullDisk => "no room on the server's disk",
        }
    }
}

impl Wellness {
    /// The present problem, if any. One check runs at a time; other callers wait for its result.
    async fn trouble(&self, app: &App) -> Option<Trouble> {
        let mut last = self.last.lock().await;
        match *last {
            Some((found, trouble)) if found.elapsed() < FRESH => trouble,
            _ => {
                let trouble = look(app).await;
                *last = Some((Instant::now(), trouble));
                trouble
            }
        }
    }
}

impl Wellness {
    /// Whether the content of artifacts can be reached, if it is in S3.
    async fn objects(&self, app: &App) -> Option<&'static str> {
        let store = app.engine.artifact_store();
        store.objects_place()?;
        let mut last = self.objects.lock().await;
        let reached = match *last {
            Some((asked, reached)) if asked.elapsed() < OBJECTS_FRESH => reached,
            _ => {
                let answer = timeout(PATIENCE, store.check()).await;
                match &answer {
                    Ok(Ok(())) => {}
                    Ok(Err(error)) => tracing::error!("{}", belljar_engine::in_full(error)),
                    Err(_) => {
                        tracing::error!("S3 (BELLJAR_BLOBS_URL) did not answer in {PATIENCE:?}");
                    }
                }
                let reached = matches!(answer, Ok(Ok(())));
                *last = Some((Instant::now(), reached));
                reached
            }
        };
        Some(if reached { "ok" } else { "cannot be reached" })
    }
}

async fn look(app: &App) -> Option<Trouble> {
    match timeout(PATIENCE, app.engine.store().check()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            let error = belljar_engine::in_full(&error);
            tracing::error!("the database cannot be written to: {error}");
            return Some(Trouble::Database);
        }
        Err(_) => {
            tracing::error!("the database could not be written to within {PATIENCE:?}");
            return Some(Trouble::Database);
        }
    }
    let engine = Arc::clone(&app.engine);
    let looking = tokio::task::spawn_blocking(move || engine.full_disk().map(Path::to_owned));
    match timeout(PATIENCE, looking).await {
        Ok(Ok(None)) => None,
        Ok(Ok(Some(directory))) => {
            tracing::error!("there is no room on the disk of `{}`", directory.display());
            Some(Trouble::FullDisk)
        }
        Ok(Err(_)) | Err(_) => {
            tracing::error!("the server's disks do not tell how full they are");
            Some(Trouble::FullDisk)
        }
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthBody {
    pub status: &'static str,
    /// This and the following fields: only for requests with a key, if the server needs keys.
    #[serde(flatten)]
    pub detail: Option<HealthDetail>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct HealthDetail {
    pub version: &'static str,
    pub backend: String,
    /// Which limits this machine was seen to enforce.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enforced: Option<BTreeMap<String, bool>>,
    /// Whether new kernels are forked from a warm interpreter: warming, warm or failed.
    pub zygote: String,
    /// `ok`, or `cannot be reached`: the S3 server of BELLJAR_BLOBS_URL, if there is one. Sessions run without it, but
    /// their artifacts cannot be stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blobs: Option<&'static str>,
    /// Of all tenants: only for operators, or if the server needs no keys.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<usize>,
    /// This and the following fields: as `sessions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started: Option<String>,
    /// Bytes of memory of the server itself, without its sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_used: Option<u64>,
    /// Where it keeps things on its machine, by what they are, such as `state`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directories: Option<BTreeMap<String, String>>,
}

/// The process lives and can write to its database.
#[utoipa::path(get, path = "/healthz", tag = "server",
    responses((status = 200, body = HealthBody), (status = 503, body = HealthBody)))]
pub(crate) async fn healthz(
    State(app): State<Arc<App>>,
    Extension(who): Extension<Principal>,
) -> Response {
    let (status, word) = match app.wellness.trouble(&app).await {
        Some(Trouble::Database) => (StatusCode::SERVICE_UNAVAILABLE, Trouble::Database.describe()),
        // Still healthy, because a restart of the server would not free disk space.
        Some(Trouble::FullDisk) | None => (StatusCode::OK, "ok"),
    };
    let is_stranger = app.wants_keys() && who.key_id.is_none();
    let sees_all = !app.wants_keys() || who.limits.operator;
    let detail = match is_stranger {
        true => None,
        false => Some(detail(&app, sees_all, app.wellness.objects(&app).await)),
    };
    let body = HealthBody { status: word, detail };
    (status, Json(body)).into_response()
}

fn detail(app: &App, sees_all: bool, blobs: Option<&'static str>) -> HealthDetail {
    let zygote = match app.engine.runtime().zygote_state() {
        None => "absent".into(),
        Some(ZygoteState::Warming) => "warming".into(),
        Some(ZygoteState::Warm(_)) => "warm".into(),
        Some(ZygoteState::Failed(why)) => format!("failed: {why}"),
    };
    let about = app.about().filter(|_| sees_all);
    HealthDetail {
        version: env!("CARGO_PKG_VERSION"),
        backend: app.engine.runtime().backend(),
        enforced: app.enforced().cloned(),
        zygote,
        blobs,
        sessions: sees_all.then(|| app.engine.live_sessions()),
        pid: about.map(|_| std::process::id()),
        started: about.map(|about| clock::rfc3339(about.started_ms)),
        memory_used: about.and_then(|about| (about.memory)()),
        directories: about.map(|about| {
            let paths = about.directories.iter();
            paths.map(|(name, path)| ((*name).to_owned(), path.display().to_string())).collect()
        }),
    }
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ReadyBody {
    pub ready: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<&'static str>,
}

/// Everything an earlier server left has been taken over, the database can be written to, there is
/// room on the disk, and requests are welcome.
#[utoipa::path(get, path = "/readyz", tag = "server",
    responses((status = 200, body = ReadyBody), (status = 503, body = ReadyBody)))]
pub(crate) async fn readyz(State(app): State<Arc<App>>) -> Response {
    let reason = if app.is_draining() {
        Some("the server is stopping")
    } else if !app.engine.is_recovered() {
        Some("sessions of an earlier server are being taken over")
    } else {
        app.wellness.trouble(&app).await.map(Trouble::describe)
    };
    let ready = reason.is_none();
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(ReadyBody { ready, reason })).into_response()
}

/// Metrics in the text format of Prometheus. They cover all tenants: if the server needs keys, this is
/// for an operator's key.
#[utoipa::path(get, path = "/metrics", tag = "server",
    responses((status = 200, content_type = "application/openmetrics-text", body = String),
        (status = 403, body = ErrorBody)))]
pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], app.render_metrics()).into_response()
}
