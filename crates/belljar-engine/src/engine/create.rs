//! Creates a session, or finds the one that has the caller's key already.

use std::sync::Arc;
use std::time::Instant;

use belljar_runtime::{Limits, RuntimeError};

use super::registry::Entered;
use super::{Engine, Principal, SessionInfo};
use crate::admission::Reservation;
use crate::audit::AuditEntry;
use crate::checks::check_session;
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::pool::Pool;
use crate::rules::{self, Phase, Request};
use crate::session::{Origin, Session};
use crate::spec::{Datasets, SessionAsk, SessionSpec, Storage};
use crate::state::durability;
use crate::store::SessionRow;

/// How a request for a session was served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreatedHow {
    Created,
    /// A session with this key exists.
    Found,
    /// A session with this key had ended and was started again with its files.
    Restarted,
}

/// The result of a request for a session.
#[derive(Debug)]
pub struct Created {
    pub session: SessionInfo,
    pub how: CreatedHow,
    /// The session that had this key before and is gone, and why. The caller needs this to know that its variables are
    /// lost.
    pub replaced: Option<(String, String)>,
}

impl Engine {
    /// The session with this key, or a new one.
    pub async fn create(&self, who: &Principal, ask: SessionAsk) -> Result<Created, EngineError> {
        let created = self.create_unnoted(who, ask).await;
        let outcome = match &created {
            Ok(Created { how: CreatedHow::Created, .. }) => "created".to_owned(),
            Ok(Created { how: CreatedHow::Found, .. }) => "found".to_owned(),
            Ok(Created { how: CreatedHow::Restarted, .. }) => "restarted".to_owned(),
            Err(error) => in_full(error),
        };
        if let Err(error) = &created {
            let how = if matches!(error, EngineError::Full(_)) { "refused" } else { "failed" };
            self.state.metrics.created(how);
        }
        let session = created.as_ref().ok().map(|created| created.session.id.as_str());
        self.audit.note(
            who,
            &AuditEntry { action: "create", outcome: &outcome, session, ..AuditEntry::default() },
        );
        created
    }

    async fn create_unnoted(
        &self,
        who: &Principal,
        ask: SessionAsk,
    ) -> Result<Created, EngineError> {
        let begun = Instant::now();
        self.check(&ask)?;
        let workspace = self.state.find_workspace(ask.workspace.as_deref()).await?;
        let ask = SessionAsk { workspace, ..ask };
        let Some(key) = ask.key.clone() else {
            let spec = ask.with_defaults(&self.state.config.defaults);
            let session = self.make(who, None, spec, begun).await?;
            return Ok(Created { session, how: CreatedHow::Created, replaced: None });
        };
        let full_key = (who.tenant.clone(), key);
        let guard = self.registry.lock_key(&full_key);
        let _guard = guard.lock().await;
        if let Some(session) = self.registry.find_by_key(&full_key)
            && let Some(session) = self.hold(&session).await
        {
            match self.found(&session, &ask).await {
                // The session is about to end.
                Err(EngineError::NotNow { .. }) => drop(session.ended().await?),
                found => return found,
            }
        }
        let created = self.create_with_key(who, ask.clone(), &full_key.1, begun).await;
        match created {
            // Another node may have created a session with this key at the same time.
            Err(EngineError::Store(error)) => match self.find_by_key(who, &ask, &full_key.1).await?
            {
                Some(found) => Ok(found),
                None => Err(error.into()),
            },
            created => created,
        }
    }

    /// In a cluster, the session that has this key and is not in the registry. If no node owns it, it is claimed.
    async fn find_by_key(
        &self,
        who: &Principal,
        ask: &SessionAsk,
        key: &str,
    ) -> Result<Option<Created>, EngineError> {
        if self.state.cluster().is_none() {
            return Ok(None);
        }
        let row = self.state.store.session_by_key(&who.tenant, key).await?;
        let Some(row) = row.filter(|row| row.ended_ms.is_none()) else { return Ok(None) };
        let Some(session) = self.held_if_alive(who, &row.id).await? else { return Ok(None) };
        match self.found(&session, ask).await {
            // The session is about to end.
            Err(EngineError::NotNow { .. }) => session.ended().await.map(|_| None),
            found => found.map(Some),
        }
    }

    /// Creates a session with a key that no live session has. An ended session on disk with this key is started again
    /// with its files. The caller must hold the lock of the key.
    async fn create_with_key(
        &self,
        who: &Principal,
        ask: SessionAsk,
        key: &str,
        begun: Instant,
    ) -> Result<Created, EngineError> {
        if let Some(found) = self.find_by_key(who, &ask, key).await? {
            return Ok(found);
        }
        let before = self.state.store.session_by_key(&who.tenant, key).await?;
        if let Some(row) = &before
            && row.spec.storage == Storage::Bind
            && ask.storage != Some(Storage::Tmpfs)
        {
            self.must_have_files(row).await?;
            // All settings except the storage can change with the new sandbox. Settings that the new request does not
            // have are those of the earlier one.
            let spec = ask.with_defaults(&row.spec);
            if spec.checkpoints.is_some() {
                return Err(no_checkpoints_on_disk());
            }
            let session = self.restart(who, SessionRow { spec, ..row.clone() }, begun).await?;
            return Ok(Created { session, how: CreatedHow::Restarted, replaced: None });
        }
        let replaced = before.map(|row| {
            let because = row.ended_because.unwrap_or_else(|| "it ended".into());
            (row.id, because)
        });
        let spec = ask.with_defaults(&self.state.config.defaults);
        let session = self.make(who, Some(key.to_owned()), spec, begun).await?;
        Ok(Created { session, how: CreatedHow::Created, replaced })
    }

    async fn found(&self, session: &Session, ask: &SessionAsk) -> Result<Created, EngineError> {
        session.settled().await;
        rules::allows(session.phase(), Request::Extend)
            .map_err(|refusal| EngineError::not_now(&session.id, refusal, None))?;
        refuse_differences(ask, &session.id, &session.spec)?;
        session.extend(ask.ttl_s.unwrap_or(session.spec.ttl_s)).await?;
        self.state.metrics.created("found");
        Ok(Created { session: self.info(session), how: CreatedHow::Found, replaced: None })
    }

    async fn make(
        &self,
        who: &Principal,
        key: Option<String>,
        spec: SessionSpec,
        begun: Instant,
    ) -> Result<SessionInfo, EngineError> {
        self.state.check_volumes(&who.tenant, &spec.volumes).await?;
        let reservation = self.state.reserve(who, &spec).await?;
        let mut row = new_row(who.tenant.clone(), spec, Phase::Creating);
        row.key = key;
        let pool = self.state.pool.get().filter(|_| self.state.fits_pool(&row.spec));
        let (origin, how) = match pool.and_then(Pool::take_ready) {
            Some(warm) => {
                row.id = warm.id;
                row.handle = Some(warm.sandbox.handle().clone());
                let alone_for_s = self.state.config.alone_for_s;
                let kept = warm.sandbox.outlive_host(alone_for_s).await;
                kept.map_err(EngineError::Create)?;
                (Origin::Pool(Box::new(warm.sandbox)), "pool")
            }
            None => (Origin::Cold, "cold"),
        };
        let session = self.settle_in(row, reservation, origin).await?;
        self.state.metrics.created(how);
        self.state.metrics.create_seconds.observe(begun.elapsed().as_secs_f64());
        self.state.usage.add(&who.tenant, |delta| delta.sessions += 1);
        Ok(session)
    }

    /// Stores a session, starts its driver and waits until it is ready.
    pub(super) async fn settle_in(
        &self,
        mut row: SessionRow,
        reservation: Reservation,
        origin: Origin,
    ) -> Result<SessionInfo, EngineError> {
        if row.handle.is_some() {
            row.phase = Phase::Ready;
        }
        let (state, registry) = (Arc::clone(&self.state), Arc::clone(&self.registry));
        // A separate task: the caller may disconnect at any moment, and a stored session must have a driver.
        let entering = tokio::spawn(async move {
            state.store.put_session(row.clone(), durability(&row.spec)).await?;
            registry.enter(row, reservation, origin)
        });
        let entered = entering.await.map_err(|_| EngineError::Stopping)??;
        let Entered { session, mut failure } = entered;
        let view = session.settled().await;
        match view.phase {
            Phase::Failed | Phase::Stopped | Phase::Stopping => {
                // The driver sends the error before it publishes the end.
                Err(failure.try_recv().unwrap_or_else(|_| {
                    EngineError::not_now(&session.id, rules::Refusal::Ended, view.ended_because)
                }))
            }
            // The server is stopping.
            Phase::Creating => Err(EngineError::Stopping),
            _ => Ok(self.info(&session)),
        }
    }

    /// Refuses requests that this server can never serve.
    pub(super) fn check(&self, ask: &SessionAsk) -> Result<(), EngineError> {
        check_session(ask)?;
        let config = &self.state.config;
        if let Some(image) = ask.image.as_ref().filter(|image| **image != config.defaults.image) {
            config.check_image(image)?;
            self.state.runtime.check_image(image).map_err(|error| match error {
                RuntimeError::NoImage(message) => EngineError::NoImage(message),
                error => EngineError::Create(error),
            })?;
        }
        if let Some(policy) = &ask.network {
            config.network.check(policy)?;
        }
        check_seconds("idle_timeout", ask.idle_s, config.max_ttl_s)?;
        check_seconds("ttl", ask.ttl_s, config.max_ttl_s)?;
        if let (Some(tmpfs), Some(memory)) = (ask.tmpfs, ask.memory)
            && let Some(why) = Limits::why_no_tmpfs(tmpfs, memory)
        {
            return Err(EngineError::Invalid(format!(
                "limits.tmpfs: {why}; ask for more memory, or leave limits.memory out to have it \
                 raised"
            )));
        }
        let storage = ask.storage.unwrap_or(config.defaults.storage);
        if ask.checkpoints.flatten().is_some() && storage == Storage::Bind {
            return Err(no_checkpoints_on_disk());
        }
        if ask.datasets == Some(Datasets::LocalRo) && config.datasets_dir.is_none() {
            return Err(EngineError::Invalid(
                "this server has no datasets directory; set DATASETS_HOST_RO to use LOCAL_RO"
                    .into(),
            ));
        }
        Ok(())
    }
}

fn check_seconds(name: &str, asked: Option<u64>, most: u64) -> Result<(), EngineError> {
    if asked.is_some_and(|seconds| seconds == 0 || seconds > most) {
        return Err(EngineError::Invalid(format!("{name} must be 1 to {most} seconds")));
    }
    Ok(())
}

fn no_checkpoints_on_disk() -> EngineError {
    EngineError::Invalid("checkpoints need storage TMPFS: files on disk are not taken back".into())
}

fn refuse_differences(ask: &SessionAsk, id: &str, spec: &SessionSpec) -> Result<(), EngineError> {
    let differences = ask.differences(spec);
    if differences.is_empty() {
        return Ok(());
    }
    Err(EngineError::Different { session: id.to_owned(), differences })
}

/// The row of a session that begins now.
pub(super) fn new_row(tenant: String, spec: SessionSpec, phase: Phase) -> SessionRow {
    let now = clock::now_ms();
    SessionRow {
        id: crate::new_id("ses"),
        tenant,
        key: None,
        phase,
        handle: None,
        created_ms: now,
        used_ms: now,
        expires_ms: expiry(now, spec.ttl_s),
        ended_ms: None,
        ended_because: None,
        execs: 0,
        spec,
    }
}

/// When a session with this time to live expires.
pub(super) fn expiry(now_ms: i64, ttl_s: u64) -> i64 {
    now_ms.saturating_add(clock::seconds_to_ms(ttl_s))
}
