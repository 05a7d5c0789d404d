//! Runs for API clients: one call, one sandbox, removed afterwards.

use std::sync::Arc;

use belljar_proto::exec::{Outcome, Status};
use belljar_runtime::{Sandbox, SandboxSpec, VolumeMount};

use super::{Engine, EngineState, Principal};
use crate::artifacts::{ArtifactMemory, ArtifactOrigin, ArtifactPlace, Artifacts};
use crate::audit::AuditEntry;
use crate::checks::check_session;
use crate::clock;
use crate::error::{EngineError, in_full};
use crate::exec::perform::{Aftermath, Controls, Start};
use crate::exec::result::ExecResult;
use crate::exec::transcript::Transcript;
use crate::exec::{Exec, ExecAsk, ExecParams};
use crate::network::attach;
use crate::pool::Pool;
use crate::run::execute_in;
use crate::spec::{SessionAsk, SessionSpec, Storage};

/// The request for a run.
#[derive(Debug, Clone)]
pub struct RunAsk {
    pub id: String,
    /// The kind of sandbox; `key` and the times to live are not used.
    pub session: SessionAsk,
    pub exec: ExecParams,
}

/// A checked request, which can be started.
#[derive(Debug)]
pub struct CheckedRun {
    session: SessionAsk,
    exec: Exec,
    /// For the audit log.
    source: Vec<u8>,
}

impl RunAsk {
    /// Refuses a request that no server could run.
    pub fn check(self) -> Result<CheckedRun, EngineError> {
        check_session(&self.session)?;
        let source = self.exec.source.text();
        let ExecAsk { request, code, .. } = self.exec.into_ask_of_run()?;
        let exec = Exec::new(self.id, 0, request, code, clock::now_ms());
        Ok(CheckedRun { session: self.session, exec, source })
    }
}

impl CheckedRun {
    #[must_use]
    pub fn id(&self) -> &str {
        &self.exec.id
    }

    #[must_use]
    pub fn transcript(&self) -> Arc<Transcript> {
        Arc::clone(&self.exec.transcript)
    }
}

impl Engine {
    /// Runs in a new sandbox, which is removed afterwards. Dropping the future ends the run.
    pub async fn run(&self, who: &Principal, run: CheckedRun) -> Result<ExecResult, EngineError> {
        let CheckedRun { session, exec, source } = run;
        let mut noted = Noted {
            engine: self,
            who,
            id: exec.id.clone(),
            code: source,
            status: Some(Status::Interrupted),
            bytes_out: 0,
            outcome: "the client went away".into(),
        };
        let outcome = self.run_unnoted(who, session, &exec).await;
        match &outcome {
            Ok(result) => {
                noted.status = Some(result.status);
                noted.bytes_out = (result.stdout.len() + result.stderr.len()) as u64;
                noted.outcome = "done".into();
            }
            Err(error) => {
                noted.status = None;
                noted.outcome = in_full(error);
            }
        }
        outcome
    }

    async fn run_unnoted(
        &self,
        who: &Principal,
        ask: SessionAsk,
        exec: &Exec,
    ) -> Result<ExecResult, EngineError> {
        self.check(&ask)?;
        let mut spec = ask.with_defaults(&self.state.config.defaults);
        spec.storage = Storage::Tmpfs;
        let reservation = self.state.reserve(who, &spec).await?;
        let (volumes, _hold) =
            self.state.volumes_for_run(&who.tenant, &spec.volumes, &exec.id).await?;
        let sandbox = self.sandbox_for_run(who, &spec, volumes).await?;
        let sandbox = Metered { state: &self.state, tenant: &who.tenant, sandbox: Some(sandbox) };
        let traffic = self.state.traffic(&who.tenant, None, Some(&exec.id));
        let network = &self.state.config.network;
        let _attached = attach(network, &spec.network, &traffic, sandbox.get().link()).await?;
        let start = Start::New { env: self.state.sandbox_spec(&spec, "")?.env, script: None };
        let aftermath = InRun {
            state: &self.state,
            tenant: &who.tenant,
            run: &exec.id,
            sandbox: sandbox.get(),
        };
        // A client interrupts a run by closing the connection, which drops this future.
        let controls =
            Controls { frozen: Some(self.state.availability.frozen()), ..Controls::default() };
        let outcome = execute_in(sandbox.get(), exec, start, controls, |_| {}, &aftermath).await;
        sandbox.destroy().await;
        reservation.give_back().await;
        outcome
    }

    /// A warm sandbox of the pool, or a new one if those of the pool are of another kind.
    async fn sandbox_for_run(
        &self,
        who: &Principal,
        spec: &SessionSpec,
        volumes: Vec<VolumeMount>,
    ) -> Result<Sandbox, EngineError> {
        // The files of a run are in memory: a sandbox of the pool with files on disk does not fit.
        let pool = self.state.pool.get().filter(|_| self.state.fits_pool(spec));
        match pool.and_then(Pool::take_ready) {
            Some(warm) => Ok(warm.sandbox),
            None => {
                let _permit = self.state.creation_permit(&who.tenant).await;
                let sandbox_spec = SandboxSpec {
                    session_files: None,
                    alone_for_s: 0,
                    volumes,
                    ..self.state.sandbox_spec(spec, "")?
                };
                Arc::clone(&self.state.runtime)
                    .create(&sandbox_spec)
                    .await
                    .map_err(EngineError::Create)
            }
        }
    }
}

/// Stores the artifacts of a run in the artifact store.
struct InRun<'a> {
    state: &'a EngineState,
    tenant: &'a str,
    run: &'a str,
    sandbox: &'a Sandbox,
}

impl Aftermath for InRun<'_> {
    async fn take_artifacts(&self, outcome: &mut Outcome) -> Artifacts {
        let InRun { state, tenant, run, sandbox } = *self;
        let origin = ArtifactOrigin { tenant, session: run, exec: run, place: ArtifactPlace::Run };
        let mut memory = ArtifactMemory::default();
        state.artifact_store.ingest(sandbox, origin, outcome.artifacts, &mut memory).await
    }
}

/// Records a run when it is dropped, so that a run is also recorded if its client disconnects and its future is
/// dropped.
struct Noted<'a> {
    engine: &'a Engine,
    who: &'a Principal,
    id: String,
    code: Vec<u8>,
    /// `None` if the run never began.
    status: Option<Status>,
    bytes_out: u64,
    outcome: String,
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if let Some(status) = self.status {
            self.engine.state.metrics.runs.inc();
            self.engine.state.usage.add(&self.who.tenant, |delta| {
                delta.runs += 1;
                delta.count(status);
                delta.bytes_in += self.code.len() as u64;
                delta.bytes_out += self.bytes_out;
            });
        }
        let entry = AuditEntry {
            action: "run",
            outcome: &self.outcome,
            exec: Some(&self.id),
            code: Some(&self.code),
            ..AuditEntry::default()
        };
        self.engine.audit.note(self.who, &entry);
    }
}

/// The sandbox of a run. Its processor time is charged when it is destroyed or dropped.
struct Metered<'a> {
    state: &'a EngineState,
    tenant: &'a str,
    /// `None` after it was destroyed.
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
        self.state.usage.add(self.tenant, |delta| delta.cpu_us += cpu_us);
    }
}

impl Drop for Metered<'_> {
    fn drop(&mut self) {
        if self.sandbox.is_some() {
            self.charge();
        }
    }
}
