//! The engine: every session of this server, and what they share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use belljar_proto::exec::{Language, Status};
use belljar_proto::guest::KernelSnapshot;
use belljar_runtime::native::NativeRuntime;
use belljar_runtime::{DataMount, Handle, Sandbox, SandboxSpec};
use tokio::sync::{Semaphore, watch};

use crate::admission::{Admission, Quota, Reservation};
use crate::audit::{Audit, Entry};
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::exec::{Exec, Stage};
use crate::metrics::{Metrics, Snapshot};
use crate::pool::{self, Pool};
use crate::record::Record;
use crate::result::ExecResult;
use crate::run::{Code, Run};
use crate::session::rules::{Phase, Request};
use crate::session::{ExecAsk, Inbox, LogEntry, Origin, Session, View, drive, lock, rules};
use crate::spec::{Datasets, SessionAsk, SessionSpec, Storage};
use crate::store::{Durability, ExecFilter, ExecRow, KeyLimits, SessionFilter, SessionRow, Store};
use crate::transcript::Transcript;
use crate::usage::{self, Usage};

/// Sandboxes being made at the same time; more would only slow each other down.
const MAKING_AT_ONCE: usize = 16;

/// Sandboxes of an earlier server taken over at the same time.
const ADOPTING_AT_ONCE: usize = 64;

/// A session found after a restart lives at least this long, whatever the clock says: the time of
/// day may have jumped, and its owner may just be coming back.
const GRACE_AFTER_RESTART_MS: i64 = 60_000;

/// Ended sessions are remembered this long; those with files on disk for ever.
const REMEMBERED_MS: i64 = 7 * 86_400_000;

/// How a server is set up.
#[derive(Debug, Clone)]
pub struct EngineConfig {
    pub defaults: SessionSpec,
    pub sessions_root: PathBuf,
    /// What `LOCAL_RO` shows at `/data`.
    pub datasets_dir: Option<PathBuf>,
    /// Artifacts of ephemeral runs go below this.
    pub outputs_dir: PathBuf,
    /// Warm sandboxes to keep.
    pub pool: usize,
    pub total: Quota,
    /// How long sandboxes wait for a server to come back.
    pub alone_for_s: u64,
    /// The longest life that can be asked for.
    pub max_ttl_s: u64,
}

/// On whose behalf something is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub tenant: String,
    /// The key that was shown; none where none are needed.
    pub key_id: Option<String>,
    pub limits: KeyLimits,
}

/// The tenant of a server without keys.
pub const DEFAULT_TENANT: &str = "default";

impl Default for Principal {
    fn default() -> Self {
        let limits = KeyLimits::default();
        Principal { tenant: DEFAULT_TENANT.into(), key_id: None, limits }
    }
}

impl Principal {
    fn quota(&self) -> Quota {
        let KeyLimits { sessions, memory, pids, .. } = self.limits;
        Quota { sessions, memory, pids }
    }
}

/// How a request for a session was met.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    Created,
    /// One with this key was there.
    Found,
    /// One with this key had ended and goes on with its files.
    Restarted,
}

/// The answer to a request for a session.
#[derive(Debug)]
pub struct Created {
    pub session: SessionInfo,
    pub how: How,
    /// The session that had this key before and is gone, and why: nobody should find their
    /// variables missing without a word.
    pub replaced: Option<(String, String)>,
}

/// What to run once.
#[derive(Debug, Clone)]
pub struct RunAsk {
    pub id: String,
    /// What kind of sandbox; a key and a life have no meaning here.
    pub session: SessionAsk,
    pub code: Code,
    pub timeout_ms: u64,
    pub output_limit: u64,
}

/// Everything about a session, alive or not.
#[derive(Debug, Clone)]
pub struct SessionInfo {
    pub id: String,
    pub tenant: String,
    pub key: Option<String>,
    pub spec: SessionSpec,
    pub created_ms: i64,
    pub view: View,
    pub memory_used: Option<u64>,
    /// Where its files are on the host.
    pub directory: Option<PathBuf>,
}

/// An execution, ended or not.
#[derive(Debug)]
pub struct ExecInfo {
    pub id: String,
    pub number: u64,
    pub language: &'static str,
    pub background: bool,
    pub accepted_ms: i64,
    pub ended_ms: Option<i64>,
    pub stage: Stage,
    /// Of one that has ended.
    pub result: Option<ExecResult>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: EngineConfig,
    pub(crate) store: Store,
    pub(crate) runtime: Arc<NativeRuntime>,
    pub(crate) metrics: Metrics,
    pub(crate) usage: Usage,
    /// Becomes true when the server ends and its sessions do not.
    pub(crate) leaving: watch::Sender<bool>,
    pub(crate) admission: Admission,
    registry: Mutex<Registry>,
    making: Semaphore,
}

#[derive(Debug, Default)]
struct Registry {
    sessions: HashMap<String, Arc<Session>>,
    by_key: HashMap<(String, String), String>,
    /// Held while a session with this key is being looked for or made.
    key_locks: HashMap<(String, String), Arc<tokio::sync::Mutex<()>>>,
    closed: bool,
}

#[derive(Debug)]
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    pool: Option<Pool>,
    audit: Audit,
    /// Becomes true when everything an earlier server left is taken over or cleaned up.
    recovered: watch::Sender<bool>,
    books: tokio::task::JoinHandle<()>,
}

impl Engine {
    /// Starts with what an earlier server left: its sessions appear at once, in phase `creating`,
    /// and are ready when their sandboxes have been found.
    pub async fn start(
        config: EngineConfig,
        store: Store,
        runtime: Arc<NativeRuntime>,
        audit: Audit,
    ) -> Result<Arc<Engine>, EngineError> {
        let shared = Arc::new(Shared {
            admission: Admission::new(config.total),
            config,
            store,
            runtime,
            metrics: Metrics::default(),
            usage: Usage::default(),
            leaving: watch::Sender::new(false),
            registry: Mutex::default(),
            making: Semaphore::new(MAKING_AT_ONCE),
        });
        let left = shared.store.unended_sessions().await?;
        let keep: HashSet<String> =
            left.iter().filter_map(|row| Some(row.handle.as_ref()?.name.clone())).collect();
        let adopted = shared.take_over(left);
        let pool = (shared.config.pool > 0).then(|| {
            let next = next_warm(Arc::clone(&shared));
            Pool::start(Arc::clone(&shared.runtime), shared.config.pool, next)
        });
        let books = tokio::spawn(usage::keep_books(Arc::clone(&shared)));
        let engine =
            Arc::new(Engine { shared, pool, audit, recovered: watch::Sender::new(false), books });
        let recovering = Arc::clone(&engine);
        tokio::spawn(async move { recovering.recover(adopted, keep).await });
        Ok(engine)
    }

    async fn recover(&self, adopted: Vec<Arc<Session>>, keep: HashSet<String>) {
        let shared = Arc::clone(&self.shared);
        let reaping = tokio::task::spawn_blocking(move || {
            shared.runtime.reap(&keep);
            shared.remove_half_made_directories(&keep_ids(&shared));
        });
        for session in adopted {
            session.settled().await;
        }
        let _ = reaping.await;
        let before = clock::now_ms() - REMEMBERED_MS;
        if let Err(error) = self.shared.store.prune_sessions(before).await {
            tracing::warn!("failed to forget old sessions: {}", in_full(&error));
        }
        self.recovered.send_replace(true);
    }

    /// Whether everything an earlier server left has been dealt with.
    #[must_use]
    pub fn is_recovered(&self) -> bool {
        *self.recovered.borrow()
    }

    pub async fn recovered(&self) {
        let _ = self.recovered.subscribe().wait_for(|done| *done).await;
    }

    #[must_use]
    pub fn store(&self) -> &Store {
        &self.shared.store
    }

    #[must_use]
    pub fn runtime(&self) -> &Arc<NativeRuntime> {
        &self.shared.runtime
    }

    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    #[must_use]
    pub fn audit(&self) -> &Audit {
        &self.audit
    }

    /// The session with this key, or a new one.
    pub async fn create(&self, who: &Principal, ask: SessionAsk) -> Result<Created, EngineError> {
        let created = self.create_unnoted(who, ask).await;
        let outcome = match &created {
            Ok(Created { how: How::Created, .. }) => "created".to_owned(),
            Ok(Created { how: How::Found, .. }) => "found".to_owned(),
            Ok(Created { how: How::Restarted, .. }) => "restarted".to_owned(),
            Err(error) => in_full(error),
        };
        if let Err(error) = &created {
            let how = if matches!(error, EngineError::Full(_)) { "refused" } else { "failed" };
            self.shared.metrics.created(how);
        }
        let session = created.as_ref().ok().map(|created| created.session.id.as_str());
        self.audit
            .note(who, &Entry { action: "create", outcome: &outcome, session, ..Entry::default() });
        created
    }

    async fn create_unnoted(
        &self,
        who: &Principal,
        ask: SessionAsk,
    ) -> Result<Created, EngineError> {
        let begun = Instant::now();
        self.check(&ask)?;
        let Some(key) = ask.key.clone() else {
            let spec = ask.with_defaults(&self.shared.config.defaults);
            let session = self.make(who, None, spec, begun).await?;
            return Ok(Created { session, how: How::Created, replaced: None });
        };
        let full_key = (who.tenant.clone(), key);
        let guard = self.shared.lock_key(&full_key);
        let _guard = guard.lock().await;
        if let Some(session) = self.shared.find_by_key(&full_key) {
            match self.found(&session, &ask).await {
                // It is on its way out, or was when we looked.
                Err(EngineError::NotNow { .. }) => drop(session.ended().await),
                found => return found,
            }
        }
        let before = self.shared.store.session_by_key(&full_key.0, &full_key.1).await?;
        if let Some(row) = &before
            && row.spec.storage == Storage::Bind
            && ask.storage != Some(Storage::Tmpfs)
        {
            refuse_differences(&ask, &row.id, &row.spec)?;
            let session = self.restart(who, row.clone(), begun).await?;
            return Ok(Created { session, how: How::Restarted, replaced: None });
        }
        let replaced = before.map(|row| {
            let because = row.ended_because.unwrap_or_else(|| "it ended".into());
            (row.id, because)
        });
        let spec = ask.with_defaults(&self.shared.config.defaults);
        let session = self.make(who, Some(full_key.1), spec, begun).await?;
        Ok(Created { session, how: How::Created, replaced })
    }

    async fn found(&self, session: &Session, ask: &SessionAsk) -> Result<Created, EngineError> {
        session.settled().await;
        rules::allows(session.phase(), Request::Extend)
            .map_err(|refusal| EngineError::not_now(&session.id, refusal, None))?;
        refuse_differences(ask, &session.id, &session.spec)?;
        session.extend(ask.ttl_s.unwrap_or(session.spec.ttl_s)).await?;
        self.shared.metrics.created("found");
        Ok(Created { session: self.info(session), how: How::Found, replaced: None })
    }

    /// Starts a session again that has ended and whose files are still there.
    pub async fn start_again(&self, who: &Principal, id: &str) -> Result<SessionInfo, EngineError> {
        let restarted = self.start_again_unnoted(who, id).await;
        let outcome =
            restarted.as_ref().map_or_else(|error| in_full(error), |_| "restarted".into());
        self.audit.note(
            who,
            &Entry { action: "start", outcome: &outcome, session: Some(id), ..Entry::default() },
        );
        restarted
    }

    async fn start_again_unnoted(
        &self,
        who: &Principal,
        id: &str,
    ) -> Result<SessionInfo, EngineError> {
        let key = self.row(who, id).await?.key;
        // No key has a NUL in it, so this is the lock of the session itself.
        let name = key.clone().unwrap_or_else(|| format!("\0{id}"));
        let full_key = (who.tenant.clone(), name);
        let guard = self.shared.lock_key(&full_key);
        let _guard = guard.lock().await;
        if let Ok(session) = self.session(who, id) {
            // It may be on its way out; then its files are free in a moment.
            if session.phase() == Phase::Stopping {
                session.ended().await;
            }
            rules::allows(session.phase(), Request::Start)
                .map_err(|refusal| EngineError::not_now(id, refusal, None))?;
        }
        if let Some(other) = key.and_then(|_| self.shared.find_by_key(&full_key))
            && !other.phase().is_over()
        {
            return Err(EngineError::KeyTaken { session: other.id.clone() });
        }
        let row = self.row(who, id).await?;
        if row.spec.storage != Storage::Bind {
            return Err(EngineError::Invalid(format!(
                "session `{id}` kept its files in memory, and they are gone; only one with \
                 storage BIND can be started again"
            )));
        }
        self.restart(who, row, Instant::now()).await
    }

    async fn restart(
        &self,
        who: &Principal,
        row: SessionRow,
        begun: Instant,
    ) -> Result<SessionInfo, EngineError> {
        let reservation = self.shared.reserve(who, &row.spec)?;
        let now = clock::now_ms();
        let row = SessionRow {
            phase: Phase::Creating,
            handle: None,
            used_ms: now,
            expires_ms: expiry(now, row.spec.ttl_s),
            ended_ms: None,
            ended_because: None,
            ..row
        };
        let session = self.settle_in(row, reservation, Origin::Cold).await?;
        self.shared.metrics.created("restarted");
        self.shared.metrics.create_seconds.observe(begun.elapsed().as_secs_f64());
        Ok(session)
    }

    async fn make(
        &self,
        who: &Principal,
        key: Option<String>,
        spec: SessionSpec,
        begun: Instant,
    ) -> Result<SessionInfo, EngineError> {
        let reservation = self.shared.reserve(who, &spec)?;
        let now = clock::now_ms();
        let mut row = SessionRow {
            id: String::new(),
            tenant: who.tenant.clone(),
            key,
            phase: Phase::Creating,
            handle: None,
            created_ms: now,
            used_ms: now,
            expires_ms: expiry(now, spec.ttl_s),
            ended_ms: None,
            ended_because: None,
            execs: 0,
            spec,
        };
        let pool = self.pool.as_ref().filter(|_| self.shared.fits_pool(&row.spec));
        let (origin, how) = match pool.and_then(Pool::take_ready) {
            Some(warm) => {
                row.id = warm.id;
                row.handle = Some(warm.sandbox.handle().clone());
                let alone_for_s = self.shared.config.alone_for_s;
                let told = warm.sandbox.outlive_host(alone_for_s).await;
                told.map_err(EngineError::Create)?;
                (Origin::Pool(Box::new(warm.sandbox)), "pool")
            }
            None => {
                row.id = crate::new_id("ses");
                (Origin::Cold, "cold")
            }
        };
        let session = self.settle_in(row, reservation, origin).await?;
        self.shared.metrics.created(how);
        self.shared.metrics.create_seconds.observe(begun.elapsed().as_secs_f64());
        self.shared.usage.add(&who.tenant, |delta| delta.sessions += 1);
        Ok(session)
    }

    /// Writes a session down, hands it to its driver and waits until it is ready.
    async fn settle_in(
        &self,
        mut row: SessionRow,
        reservation: Reservation,
        origin: Origin,
    ) -> Result<SessionInfo, EngineError> {
        if row.handle.is_some() {
            row.phase = Phase::Ready;
        }
        let shared = Arc::clone(&self.shared);
        // A task of its own: whoever asked may go away at any moment, and what is written down must
        // have an owner.
        let entering = tokio::spawn(async move {
            shared.store.put_session(row.clone(), durability(&row.spec)).await?;
            shared.enter(row, reservation, origin)
        });
        let session = entering.await.map_err(|_| EngineError::Stopping)??;
        let view = session.settled().await;
        match view.phase {
            Phase::Failed | Phase::Stopped | Phase::Stopping => {
                let failure = lock(&session.failure).take();
                Err(failure.unwrap_or_else(|| {
                    EngineError::not_now(&session.id, rules::Refusal::Ended, view.ended_because)
                }))
            }
            _ => Ok(self.info(&session)),
        }
    }

    fn check(&self, ask: &SessionAsk) -> Result<(), EngineError> {
        let config = &self.shared.config;
        if let Some(image) = &ask.image
            && *image != config.defaults.image
        {
            return Err(EngineError::Invalid(format!(
                "there is no image `{image}`; this server has `{}`",
                config.defaults.image
            )));
        }
        if ask.ttl_s.is_some_and(|ttl| ttl == 0 || ttl > config.max_ttl_s) {
            return Err(EngineError::Invalid(format!(
                "ttl must be 1 to {} seconds",
                config.max_ttl_s
            )));
        }
        if ask.datasets == Some(Datasets::LocalRo) && config.datasets_dir.is_none() {
            return Err(EngineError::Invalid(
                "this server has no datasets directory; set DATASETS_HOST_RO to use LOCAL_RO"
                    .into(),
            ));
        }
        Ok(())
    }

    /// A live session of this tenant.
    pub fn session(&self, who: &Principal, id: &str) -> Result<Arc<Session>, EngineError> {
        let found = lock(&self.shared.registry).sessions.get(id).cloned();
        found
            .filter(|session| session.tenant == who.tenant)
            .ok_or_else(|| EngineError::NoSession(id.to_owned()))
    }

    /// A live session; one that has ended is refused with the reason.
    async fn live_session(&self, who: &Principal, id: &str) -> Result<Arc<Session>, EngineError> {
        match self.session(who, id) {
            Ok(session) => Ok(session),
            Err(_) => {
                let row = self.row(who, id).await?;
                Err(EngineError::not_now(id, rules::Refusal::Ended, row.ended_because))
            }
        }
    }

    async fn row(&self, who: &Principal, id: &str) -> Result<SessionRow, EngineError> {
        let row = self.shared.store.session(id).await?;
        row.filter(|row| row.tenant == who.tenant)
            .ok_or_else(|| EngineError::NoSession(id.to_owned()))
    }

    /// A session, alive or not.
    pub async fn describe(&self, who: &Principal, id: &str) -> Result<SessionInfo, EngineError> {
        match self.session(who, id) {
            Ok(session) => Ok(self.info(&session)),
            Err(_) => Ok(self.info_of_row(self.row(who, id).await?)),
        }
    }

    /// Sessions of this tenant, the newest first.
    pub async fn list(
        &self,
        who: &Principal,
        filter: SessionFilter,
    ) -> Result<Vec<SessionInfo>, EngineError> {
        // The database knows `ready`; that one of them is busy only we know.
        let wanted = filter.phase;
        let stored = match wanted {
            Some(Phase::Busy) => Some(Phase::Ready),
            other => other,
        };
        let tenant = Some(who.tenant.clone());
        let limit = filter.limit as usize;
        let mut filter = SessionFilter { tenant, phase: stored, ..filter };
        let mut found = Vec::new();
        // A page of the database may have fewer of them than were asked for.
        loop {
            let rows = self.shared.store.sessions(filter.clone()).await?;
            let is_last = rows.len() < limit;
            filter.before = rows.last().map(|row| row.id.clone());
            let infos = rows.into_iter().map(|row| {
                let live = lock(&self.shared.registry).sessions.get(&row.id).cloned();
                live.map_or_else(|| self.info_of_row(row), |session| self.info(&session))
            });
            found.extend(infos.filter(|info| wanted.is_none_or(|phase| info.view.phase == phase)));
            if is_last || found.len() >= limit {
                found.truncate(limit);
                return Ok(found);
            }
        }
    }

    fn info(&self, session: &Session) -> SessionInfo {
        SessionInfo {
            id: session.id.clone(),
            tenant: session.tenant.clone(),
            key: session.key.clone(),
            spec: session.spec.clone(),
            created_ms: session.created_ms,
            view: session.view(),
            memory_used: session.consumption().0,
            directory: session.record.as_ref().map(|record| record.directory().to_owned()),
        }
    }

    fn info_of_row(&self, row: SessionRow) -> SessionInfo {
        let record = Record::of(&self.shared.config.sessions_root, &row.id);
        let directory = (row.spec.storage == Storage::Bind).then(|| record.directory().to_owned());
        SessionInfo {
            view: view_of(&row),
            id: row.id,
            tenant: row.tenant,
            key: row.key,
            spec: row.spec,
            created_ms: row.created_ms,
            memory_used: None,
            directory,
        }
    }

    /// Executes something in a session; it has been written down when this returns.
    pub async fn exec(
        &self,
        who: &Principal,
        id: &str,
        ask: ExecAsk,
    ) -> Result<Arc<Exec>, EngineError> {
        let code = Arc::clone(&ask.code);
        let accepted = match self.live_session(who, id).await {
            Ok(session) => session.exec(ask).await,
            Err(error) => Err(error),
        };
        let outcome = accepted.as_ref().map_or_else(|error| in_full(error), |_| "accepted".into());
        let exec = accepted.as_ref().ok().map(|exec| exec.id.as_str());
        self.audit.note(
            who,
            &Entry {
                action: "exec",
                outcome: &outcome,
                session: Some(id),
                exec,
                code: Some(&code),
                detail: None,
            },
        );
        accepted
    }

    /// An execution that is not yet safe in the database. A session that is being taken over knows
    /// its own only when it has been found, and whoever asks for one then waits for that.
    async fn live_exec(&self, who: &Principal, id: &str, exec_id: &str) -> Option<Arc<Exec>> {
        let session = self.session(who, id).ok()?;
        session.settled().await;
        // One that the database knew already is not it.
        session.live_exec(exec_id)?.once_accepted().await.ok()
    }

    /// An execution, ended or not.
    pub async fn exec_info(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
    ) -> Result<ExecInfo, EngineError> {
        if let Some(exec) = self.live_exec(who, id, exec_id).await {
            return Ok(info_of_live(&exec));
        }
        self.row(who, id).await?;
        let row = self.shared.store.exec(id, exec_id).await?;
        row.map(info_of_exec_row).ok_or_else(|| EngineError::NoExec(exec_id.to_owned()))
    }

    /// Executions of a session, the newest first.
    pub async fn execs(
        &self,
        who: &Principal,
        id: &str,
        before: Option<u64>,
        limit: u32,
    ) -> Result<Vec<ExecInfo>, EngineError> {
        self.row(who, id).await?;
        let live = self.session(who, id).ok();
        let filter = ExecFilter { newest_first: true, beyond: before, finished: false, limit };
        let rows = self.shared.store.execs(id, filter).await?;
        let infos = rows.into_iter().map(|row| {
            let live = live.as_ref().and_then(|session| session.live_exec(&row.id));
            let live = live.filter(|exec| exec.is_accepted());
            live.map_or_else(|| info_of_exec_row(row), |exec| info_of_live(&exec))
        });
        Ok(infos.collect())
    }

    /// What an execution has said so far.
    pub async fn transcript(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
    ) -> Result<Arc<Transcript>, EngineError> {
        if let Some(exec) = self.live_exec(who, id, exec_id).await {
            return Ok(Arc::clone(&exec.transcript));
        }
        self.row(who, id).await?;
        let row = self.shared.store.exec(id, exec_id).await?;
        let bytes = row.and_then(|row| row.transcript);
        bytes
            .and_then(|bytes| Transcript::decode(&bytes))
            .map(Arc::new)
            .ok_or_else(|| EngineError::NoExec(exec_id.to_owned()))
    }

    pub async fn interrupt(
        &self,
        who: &Principal,
        id: &str,
        exec_id: Option<String>,
    ) -> Result<usize, EngineError> {
        let session = self.live_session(who, id).await?;
        let interrupted = session.interrupt(exec_id.clone()).await;
        match (interrupted, exec_id) {
            // Not alive; if it was once, there is nothing left to interrupt.
            (Err(EngineError::NoExec(_)), Some(exec_id)) => {
                self.exec_info(who, id, &exec_id).await.map(|_| 0)
            }
            (interrupted, _) => interrupted,
        }
    }

    pub async fn stdin(
        &self,
        who: &Principal,
        id: &str,
        exec_id: &str,
        bytes: &[u8],
        close: bool,
    ) -> Result<(), EngineError> {
        let session = self.live_session(who, id).await?;
        let exec = self.live_exec(who, id, exec_id).await;
        let Some(exec) = exec.filter(|exec| exec.stage() != Stage::Finished) else {
            self.exec_info(who, id, exec_id).await?;
            return Err(EngineError::Invalid(format!("execution `{exec_id}` is over")));
        };
        if !exec.request.stdin {
            return Err(EngineError::Invalid(format!(
                "execution `{exec_id}` takes no input: it was not started with \"stdin\": true"
            )));
        }
        let mut stage = exec.stage.subscribe();
        // Input for one that waits in the queue waits with it.
        let _ = stage.wait_for(|stage| !matches!(stage, Stage::Queued { .. })).await;
        session.stdin(exec_id, bytes, close).await
    }

    pub async fn state(
        &self,
        who: &Principal,
        id: &str,
        language: Language,
    ) -> Result<KernelSnapshot, EngineError> {
        self.live_session(who, id).await?.state(language).await
    }

    /// What was executed in a session, the oldest first.
    pub async fn log(
        &self,
        who: &Principal,
        id: &str,
        after: Option<u64>,
        limit: u32,
    ) -> Result<Vec<LogEntry>, EngineError> {
        self.row(who, id).await?;
        // Those on their way to the database first: they may arrive there while we read it.
        let live = self.session(who, id).map(|session| session.live_execs()).unwrap_or_default();
        let ended = live.iter().filter(|exec| exec.transcript.outcome().is_some());
        let newest = after.is_none();
        let filter = ExecFilter { newest_first: newest, beyond: after, finished: true, limit };
        let rows = self.shared.store.execs(id, filter).await?;
        let mut entries: BTreeMap<u64, LogEntry> = ended
            .filter(|exec| after.is_none_or(|after| exec.number > after))
            .map(|exec| (exec.number, log_entry_of_live(exec)))
            .collect();
        entries.extend(rows.into_iter().filter_map(log_entry).map(|entry| (entry.number, entry)));
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let skipped = if newest { entries.len().saturating_sub(limit) } else { 0 };
        Ok(entries.into_values().skip(skipped).take(limit).collect())
    }

    /// Lets a session live longer.
    pub async fn extend(
        &self,
        who: &Principal,
        id: &str,
        ttl_s: u64,
    ) -> Result<SessionInfo, EngineError> {
        self.check(&SessionAsk { ttl_s: Some(ttl_s), ..SessionAsk::default() })?;
        let session = self.live_session(who, id).await?;
        session.extend(ttl_s).await?;
        Ok(self.info(&session))
    }

    /// Ends a session and waits until it is gone. One that has ended already stays as it is.
    pub async fn stop(&self, who: &Principal, id: &str) -> Result<SessionInfo, EngineError> {
        let stopped = match self.session(who, id) {
            Ok(session) => {
                session.stop("it was stopped");
                session.ended().await;
                Ok(self.info(&session))
            }
            Err(_) => self.row(who, id).await.map(|row| self.info_of_row(row)),
        };
        let outcome = stopped.as_ref().map_or_else(|error| in_full(error), |_| "stopped".into());
        self.audit.note(
            who,
            &Entry { action: "stop", outcome: &outcome, session: Some(id), ..Entry::default() },
        );
        stopped
    }

    /// One run in a sandbox of its own, which is gone afterwards; dropped half-way, it ends.
    pub async fn run(
        &self,
        who: &Principal,
        ask: RunAsk,
        transcript: &Transcript,
    ) -> Result<ExecResult, EngineError> {
        let mut noted = Noted {
            engine: self,
            who,
            id: ask.id.clone(),
            code: ask.code.bytes().to_vec(),
            status: Some(Status::Interrupted),
            bytes_out: 0,
            said: "its caller went away".into(),
        };
        let outcome = self.run_unnoted(who, ask, transcript).await;
        match &outcome {
            Ok(result) => {
                noted.status = Some(result.status);
                noted.bytes_out = (result.stdout.len() + result.stderr.len()) as u64;
                noted.said = "done".into();
            }
            Err(error) => {
                noted.status = None;
                noted.said = in_full(error);
            }
        }
        outcome
    }

    async fn run_unnoted(
        &self,
        who: &Principal,
        ask: RunAsk,
        transcript: &Transcript,
    ) -> Result<ExecResult, EngineError> {
        self.check(&ask.session)?;
        let mut spec = ask.session.with_defaults(&self.shared.config.defaults);
        spec.storage = Storage::Tmpfs;
        let _reservation = self.shared.reserve(who, &spec)?;
        let sandbox = self.sandbox_for_run(&spec).await?;
        let sandbox = Metered { shared: &self.shared, tenant: &who.tenant, sandbox: Some(sandbox) };
        let sandbox_spec = self.shared.sandbox_spec(&spec, "")?;
        let mut run = Run::new(ask.id, ask.code, sandbox_spec);
        run.timeout_ms = ask.timeout_ms;
        run.output_limit = ask.output_limit;
        run.outputs.clone_from(&self.shared.config.outputs_dir);
        // Nobody can interrupt a run but by going away.
        let (_nobody, interrupt) = watch::channel(false);
        let outcome = run.execute_in(sandbox.get(), transcript, interrupt, |_| {}).await;
        sandbox.destroy().await;
        outcome
    }

    /// A warm sandbox for one run, or a cold one where the pool's are not what is asked for.
    async fn sandbox_for_run(&self, spec: &SessionSpec) -> Result<Sandbox, EngineError> {
        // One whose files would stay on disk does not fit: a run's are in memory.
        let pool = self.pool.as_ref().filter(|_| self.shared.fits_pool(spec));
        match pool.and_then(Pool::take_ready) {
            Some(warm) => Ok(warm.sandbox),
            None => {
                let _permit = self.shared.making.acquire().await;
                let sandbox_spec = SandboxSpec {
                    session_dir: None,
                    alone_for_s: 0,
                    ..self.shared.sandbox_spec(spec, "")?
                };
                self.shared.runtime.create(&sandbox_spec).await.map_err(EngineError::Create)
            }
        }
    }

    /// Waits until the pool is full; for benchmarks.
    pub async fn pool_full(&self) {
        if let Some(pool) = &self.pool {
            pool.full().await;
        }
    }

    /// Everything there is to know, for Prometheus.
    #[must_use]
    pub fn render_metrics(&self) -> String {
        let mut now = Snapshot::default();
        for session in self.shared.live() {
            let view = session.view();
            if let Some(index) = Phase::ALL.iter().position(|phase| *phase == view.phase) {
                now.sessions[index] += 1;
            }
            now.queued += i64::try_from(view.queued).unwrap_or(i64::MAX);
        }
        if let Some(pool) = &self.pool {
            now.pool_ready = i64::try_from(pool.ready()).unwrap_or(i64::MAX);
            (now.pool_hits, now.pool_misses) = pool.hits_and_misses();
        }
        self.shared.metrics.render(now)
    }

    #[must_use]
    pub fn live_sessions(&self) -> usize {
        lock(&self.shared.registry).sessions.len()
    }

    /// Writes down what has come together since the last time.
    pub async fn flush_usage(&self) -> Result<(), EngineError> {
        Ok(self.shared.usage.flush(&self.shared.store).await?)
    }

    /// Ends the server's work: sessions are stopped, or left to the next server.
    pub async fn close(&self, stop_sessions: bool) {
        lock(&self.shared.registry).closed = true;
        self.books.abort();
        if let Some(pool) = &self.pool {
            for id in pool.drain().await {
                let _ = Record::of(&self.shared.config.sessions_root, &id).remove();
            }
        }
        let sessions = self.shared.live();
        if stop_sessions {
            for session in &sessions {
                session.stop("the server was stopped");
            }
        } else {
            self.shared.leaving.send_replace(true);
        }
        drop(sessions);
        self.shared.empty().await;
        if let Err(error) = self.shared.usage.flush(&self.shared.store).await {
            tracing::error!("failed to write down usage: {}", in_full(&error));
        }
        self.shared.store.close().await;
    }
}

impl Shared {
    /// Makes the sessions of an earlier server known, and begins to look for their sandboxes.
    fn take_over(self: &Arc<Self>, left: Vec<SessionRow>) -> Vec<Arc<Session>> {
        let patience = Arc::new(Semaphore::new(ADOPTING_AT_ONCE));
        let now = clock::now_ms();
        let mut adopted = Vec::new();
        for mut row in left {
            row.expires_ms = sane_expiry(row.expires_ms, now, &row.spec, &self.config);
            let was_stopping = row.phase == Phase::Stopping;
            row.phase = Phase::Creating;
            let reservation = self.admission.admit(&row.tenant, &row.spec.limits);
            // Half-made: there is no handle, so there is nothing to find.
            let origin = match row.handle.take() {
                Some(handle) => Origin::Adopted(Box::new(handle)),
                None => Origin::Lost,
            };
            let (session, inbox) = self.register(row);
            if was_stopping {
                session.stop("it was being stopped when the server ended");
            }
            let (shared, driven) = (Arc::clone(self), Arc::clone(&session));
            let patience = Arc::clone(&patience);
            tokio::spawn(async move {
                // Never closed.
                let permit = patience.acquire_owned().await.ok();
                drive(shared, driven, inbox, reservation, origin, permit).await;
            });
            adopted.push(session);
        }
        adopted
    }

    /// Makes a session known and starts its driver.
    fn enter(
        self: &Arc<Self>,
        row: SessionRow,
        reservation: Reservation,
        origin: Origin,
    ) -> Result<Arc<Session>, EngineError> {
        if lock(&self.registry).closed {
            return Err(EngineError::Stopping);
        }
        let (session, inbox) = self.register(row);
        let (shared, driven) = (Arc::clone(self), Arc::clone(&session));
        tokio::spawn(drive(shared, driven, inbox, reservation, origin, None));
        Ok(session)
    }

    fn register(&self, row: SessionRow) -> (Arc<Session>, Inbox) {
        let view = View { phase: Phase::Creating, ..view_of(&row) };
        let (session, inbox) = Session::new(
            row.id,
            row.tenant,
            row.key,
            row.spec,
            row.created_ms,
            view,
            &self.config.sessions_root,
        );
        let mut registry = lock(&self.registry);
        registry.sessions.insert(session.id.clone(), Arc::clone(&session));
        if let Some(key) = &session.key {
            let full_key = (session.tenant.clone(), key.clone());
            registry.by_key.insert(full_key, session.id.clone());
        }
        (session, inbox)
    }

    /// Makes the sandbox of a session and writes down how to find it, before anybody may use it.
    pub(crate) async fn make_sandbox(&self, session: &Session) -> Result<Sandbox, EngineError> {
        let _permit = self.making.acquire().await;
        if let Some(record) = &session.record {
            prepare_record(record).await?;
        }
        let spec = self.sandbox_spec(&session.spec, &session.id)?;
        let sandbox = pool::warm_sandbox(&self.runtime, &spec).await?;
        let view = session.view();
        let row = SessionRow {
            id: session.id.clone(),
            tenant: session.tenant.clone(),
            key: session.key.clone(),
            phase: Phase::Ready,
            spec: session.spec.clone(),
            handle: Some(sandbox.handle().clone()),
            created_ms: session.created_ms,
            used_ms: view.used_ms,
            expires_ms: view.expires_ms,
            ended_ms: None,
            ended_because: None,
            execs: view.execs,
        };
        let durability = durability(&session.spec);
        match self.store.put_session(row, durability).await {
            Ok(()) => Ok(sandbox),
            Err(error) => {
                sandbox.destroy().await;
                Err(error.into())
            }
        }
    }

    pub(crate) async fn adopt(
        &self,
        session: &Session,
        handle: Handle,
    ) -> Result<Sandbox, EngineError> {
        let spec = self.sandbox_spec(&session.spec, &session.id)?;
        match self.runtime.adopt(handle.clone(), spec).await {
            Ok(sandbox) => {
                self.usage.open(&session.id, &sandbox);
                self.metrics.adopted("adopted");
                Ok(sandbox)
            }
            Err(error) => {
                self.metrics.adopted("lost");
                let runtime = Arc::clone(&self.runtime);
                let _ = tokio::task::spawn_blocking(move || runtime.discard(&handle)).await;
                Err(EngineError::Adopt(error))
            }
        }
    }

    /// The sandbox that a session of this kind runs in.
    fn sandbox_spec(&self, spec: &SessionSpec, id: &str) -> Result<SandboxSpec, EngineError> {
        let data = match spec.datasets {
            Datasets::LocalRo => {
                let host_path = self.config.datasets_dir.clone().ok_or_else(|| {
                    EngineError::Invalid("this server has no datasets directory".into())
                })?;
                Some(DataMount { host_path })
            }
            Datasets::None | Datasets::Api => None,
        };
        let session_dir = (spec.storage == Storage::Bind)
            .then(|| Record::of(&self.config.sessions_root, id).files());
        Ok(SandboxSpec {
            limits: spec.limits,
            env: spec.env.clone().into_iter().collect(),
            data,
            session_dir,
            alone_for_s: self.config.alone_for_s,
        })
    }

    /// Whether a warm sandbox of the pool is what this asks for. The environment is no matter: it
    /// is handed to every execution.
    fn fits_pool(&self, spec: &SessionSpec) -> bool {
        let own = &self.config.defaults;
        (spec.storage, spec.datasets, spec.limits) == (own.storage, own.datasets, own.limits)
            && spec.image == own.image
    }

    fn reserve(&self, who: &Principal, spec: &SessionSpec) -> Result<Reservation, EngineError> {
        if lock(&self.registry).closed {
            return Err(EngineError::Stopping);
        }
        Ok(self.admission.reserve(&who.tenant, who.quota(), &spec.limits)?)
    }

    fn lock_key(&self, key: &(String, String)) -> Arc<tokio::sync::Mutex<()>> {
        let mut registry = lock(&self.registry);
        // Locks nobody holds are of no use any more.
        registry.key_locks.retain(|known, guard| known == key || Arc::strong_count(guard) > 1);
        Arc::clone(registry.key_locks.entry(key.clone()).or_default())
    }

    fn find_by_key(&self, key: &(String, String)) -> Option<Arc<Session>> {
        let registry = lock(&self.registry);
        registry.sessions.get(registry.by_key.get(key)?).cloned()
    }

    pub(crate) fn live(&self) -> Vec<Arc<Session>> {
        lock(&self.registry).sessions.values().cloned().collect()
    }

    /// The session has ended, or was left: it is the database's now.
    pub(crate) fn forget(&self, session: &Arc<Session>) {
        let mut registry = lock(&self.registry);
        let is_it = |known: &Arc<Session>| Arc::ptr_eq(known, session);
        if registry.sessions.get(&session.id).is_some_and(is_it) {
            registry.sessions.remove(&session.id);
        }
        if let Some(key) = &session.key {
            let full_key = (session.tenant.clone(), key.clone());
            if registry.by_key.get(&full_key) == Some(&session.id) {
                registry.by_key.remove(&full_key);
            }
        }
    }

    /// Waits until no session is alive here.
    async fn empty(&self) {
        const LOOK: Duration = Duration::from_millis(5);
        const PATIENCE: Duration = Duration::from_secs(30);
        let begun = Instant::now();
        while !lock(&self.registry).sessions.is_empty() {
            if begun.elapsed() > PATIENCE {
                tracing::error!("some sessions did not end in time; the next start cleans up");
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Directories that were made for a sandbox of the pool, and never became a session's.
    fn remove_half_made_directories(&self, keep: &dyn Fn(&str) -> bool) {
        let Ok(entries) = std::fs::read_dir(&self.config.sessions_root) else { return };
        for entry in entries.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            if name.starts_with("ses_") && !keep(&name) {
                let _ = Record::of(&self.config.sessions_root, &name).remove_if_unused();
            }
        }
    }
}

/// Writes a run down however it ends, also if its caller went away and its future was dropped.
struct Noted<'a> {
    engine: &'a Engine,
    who: &'a Principal,
    id: String,
    code: Vec<u8>,
    /// None if it never began.
    status: Option<Status>,
    bytes_out: u64,
    said: String,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if let Some(status) = self.status {
            self.engine.shared.metrics.runs.inc();
            self.engine.shared.usage.add(&self.who.tenant, |delta| {
                delta.runs += 1;
                delta.count(status);
                delta.bytes_in += self.code.len() as u64;
                delta.bytes_out += self.bytes_out;
            });
        }
        let entry = Entry {
            action: "run",
            outcome: &self.said,
            exec: Some(&self.id),
            code: Some(&self.code),
            ..Entry::default()
        };
        self.engine.audit.note(self.who, &entry);
    }
}

/// The sandbox of a run, whose processor time is charged however it ends.
struct Metered<'a> {
    shared: &'a Shared,
    tenant: &'a str,
    /// Until it is destroyed.
    sandbox: Option<Sandbox>,
}

impl Metered<'_> {
    fn get(&self) -> &Sandbox {
        self.sandbox.as_ref().expect("taken only where this is consumed")
    }

    async fn destroy(mut self) {
        self.charge();
        if let Some(sandbox) = self.sandbox.take() {
            sandbox.destroy().await;
        }
    }

    fn charge(&self) {
        let cpu_us = self.sandbox.as_ref().and_then(Sandbox::cpu_used_us).unwrap_or(0);
        self.shared.usage.add(self.tenant, |delta| delta.cpu_us += cpu_us);
    }
}

impl Drop for Metered<'_> {
    fn drop(&mut self) {
        if self.sandbox.is_some() {
            self.charge();
        }
    }
}

/// Whether a directory belongs to a session that is alive.
fn keep_ids(shared: &Shared) -> impl Fn(&str) -> bool {
    let live: HashSet<String> = shared.live().iter().map(|session| session.id.clone()).collect();
    move |id| live.contains(id)
}

/// What the pool makes next.
fn next_warm(shared: Arc<Shared>) -> pool::Next {
    Box::new(move || {
        let id = crate::new_id("ses");
        let defaults = &shared.config.defaults;
        if defaults.storage == Storage::Bind {
            let record = Record::of(&shared.config.sessions_root, &id);
            let path = record.directory().to_owned();
            record.prepare().map_err(|cause| EngineError::Directory { path, cause })?;
        }
        // It ends with us, unless somebody takes it.
        let spec = SandboxSpec { alone_for_s: 0, ..shared.sandbox_spec(defaults, &id)? };
        Ok((id, spec))
    })
}

async fn prepare_record(record: &Record) -> Result<(), EngineError> {
    let path = record.directory().to_owned();
    let record = record.clone();
    tokio::task::spawn_blocking(move || record.prepare())
        .await
        .unwrap_or_else(|panic| Err(std::io::Error::other(panic)))
        .map_err(|cause| EngineError::Directory { path, cause })
}

fn refuse_differences(ask: &SessionAsk, id: &str, spec: &SessionSpec) -> Result<(), EngineError> {
    let differences = ask.differences(spec);
    if differences.is_empty() {
        return Ok(());
    }
    Err(EngineError::Different { session: id.to_owned(), differences })
}

fn durability(spec: &SessionSpec) -> Durability {
    // A power cut takes what is in memory with it; files on disk stay and must be found again.
    match spec.storage {
        Storage::Bind => Durability::Power,
        Storage::Tmpfs => Durability::Process,
    }
}

/// When a session found after a restart is to expire: as it was written down, unless the time of
/// day has jumped since.
fn sane_expiry(written_ms: i64, now: i64, spec: &SessionSpec, config: &EngineConfig) -> i64 {
    let least = GRACE_AFTER_RESTART_MS.min(seconds_to_ms(spec.ttl_s));
    let most = seconds_to_ms(config.max_ttl_s.max(spec.ttl_s)).max(least);
    written_ms.clamp(now.saturating_add(least), now.saturating_add(most))
}

fn seconds_to_ms(seconds: u64) -> i64 {
    i64::try_from(seconds).unwrap_or(i64::MAX / 1000).saturating_mul(1000)
}

fn expiry(now_ms: i64, ttl_s: u64) -> i64 {
    now_ms.saturating_add(seconds_to_ms(ttl_s))
}

fn view_of(row: &SessionRow) -> View {
    View {
        phase: row.phase,
        used_ms: row.used_ms,
        expires_ms: row.expires_ms,
        ended_ms: row.ended_ms,
        ended_because: row.ended_because.clone(),
        running: 0,
        queued: 0,
        execs: row.execs,
        warnings: Vec::new(),
    }
}

fn info_of_live(exec: &Exec) -> ExecInfo {
    let finished = exec.stage() == Stage::Finished;
    ExecInfo {
        id: exec.id.clone(),
        number: exec.number,
        language: exec.request.language(),
        background: exec.request.background,
        accepted_ms: exec.accepted_ms,
        ended_ms: None,
        stage: exec.stage(),
        result: finished.then(|| ExecResult::of(exec.id.clone(), &exec.transcript)),
    }
}

fn info_of_exec_row(row: ExecRow) -> ExecInfo {
    let transcript = row.transcript.as_deref().and_then(Transcript::decode);
    ExecInfo {
        number: row.number,
        language: row.request.language(),
        background: row.request.background,
        accepted_ms: row.accepted_ms,
        ended_ms: row.ended_ms,
        stage: if row.ended_ms.is_some() { Stage::Finished } else { Stage::Queued { position: 0 } },
        result: transcript.map(|transcript| ExecResult::of(row.id.clone(), &transcript)),
        id: row.id,
    }
}

fn log_entry_of_live(exec: &Exec) -> LogEntry {
    let result = ExecResult::of(exec.id.clone(), &exec.transcript);
    LogEntry::new(exec.number, exec.accepted_ms, &exec.request, &exec.code, result)
}

fn log_entry(row: ExecRow) -> Option<LogEntry> {
    let transcript = Transcript::decode(row.transcript.as_deref()?)?;
    let result = ExecResult::of(row.id, &transcript);
    Some(LogEntry::new(row.number, row.accepted_ms, &row.request, &row.code, result))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_jumped_neither_ends_sessions_nor_keeps_them_for_ever() {
        let spec = SessionSpec {
            image: "host".into(),
            storage: Storage::Tmpfs,
            datasets: Datasets::None,
            limits: belljar_runtime::Limits::default(),
            env: BTreeMap::new(),
            ttl_s: 3600,
            idle_s: None,
            metadata: serde_json::Map::new(),
        };
        let config = EngineConfig {
            defaults: spec.clone(),
            sessions_root: PathBuf::new(),
            datasets_dir: None,
            outputs_dir: PathBuf::new(),
            pool: 0,
            total: Quota::default(),
            alone_for_s: 0,
            max_ttl_s: 86_400,
        };
        let now = 1_000_000_000;
        let expiry = |written| sane_expiry(written, now, &spec, &config) - now;
        assert_eq!(expiry(now + 1_800_000), 1_800_000, "as it was written");
        assert_eq!(expiry(now + 7_200_000), 7_200_000, "prolonged by a call");
        assert_eq!(expiry(now - 10 * 86_400_000), 60_000, "the clock went ahead");
        assert_eq!(expiry(now + 3000 * 86_400_000), 86_400_000, "the clock went back");
        assert_eq!(expiry(i64::MIN), 60_000);
        assert_eq!(expiry(i64::MAX), 86_400_000);
    }
}
