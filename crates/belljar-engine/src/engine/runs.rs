//! Ephemeral runs: a sandbox for one call.

use std::sync::Arc;

use belljar_proto::exec::{Outcome, Status};
use belljar_runtime::{Sandbox, SandboxSpec, VolumeMount};
use tokio::sync::watch;

use super::{Engine, EngineState, Principal};
use crate::artifacts::{self, Memory, Origin};
use crate::audit::Entry;
use crate::error::{EngineError, in_full};
use crate::exec::result::ExecResult;
use crate::exec::transcript::Transcript;
use crate::network::attach;
use crate::pool::Pool;
use crate::run::{Code, Run};
use crate::spec::{SessionAsk, SessionSpec, Storage};

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

impl Engine {
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
        let (volumes, _hold) =
            self.shared.volumes_for_run(&who.tenant, &spec.volumes, &ask.id).await?;
        let sandbox = self.sandbox_for_run(who, &spec, volumes).await?;
        let sandbox = Metered { shared: &self.shared, tenant: &who.tenant, sandbox: Some(sandbox) };
        let traffic = self.shared.traffic(&who.tenant, None, Some(&ask.id));
        let network = &self.shared.config.network;
        let _attached = attach(network, &spec.network, &traffic, sandbox.get().link()).await?;
        let sandbox_spec = self.shared.sandbox_spec(&spec, "")?;
        let mut run = Run::new(ask.id, ask.code, sandbox_spec);
        run.timeout_ms = ask.timeout_ms;
        run.output_limit = ask.output_limit;
        // Nobody can interrupt a run but by going away.
        let (_nobody, interrupt) = watch::channel(false);
        let id = run.id.clone();
        let take = async |sandbox: &Sandbox, outcome: &Outcome| {
            let origin = Origin {
                tenant: &who.tenant,
                session: &id,
                exec: &id,
                place: artifacts::Place::Run,
            };
            let mut memory = Memory::default();
            self.shared.artifact_store.ingest(sandbox, origin, outcome.artifacts, &mut memory).await
        };
        let outcome =
            run.execute_in(sandbox.get(), transcript, interrupt, None, |_| {}, take).await;
        sandbox.destroy().await;
        outcome
    }

    /// A warm sandbox for one run, or a cold one where the pool's are not what is asked for.
    async fn sandbox_for_run(
        &self,
        who: &Principal,
        spec: &SessionSpec,
        volumes: Vec<VolumeMount>,
    ) -> Result<Sandbox, EngineError> {
        // One whose files would stay on disk does not fit: a run's are in memory.
        let pool = self.shared.pool.get().filter(|_| self.shared.fits_pool(spec));
        match pool.and_then(Pool::take_ready) {
            Some(warm) => Ok(warm.sandbox),
            None => {
                let _permit = self.shared.may_make(&who.tenant).await;
                let sandbox_spec = SandboxSpec {
                    session_files: None,
                    alone_for_s: 0,
                    volumes,
                    ..self.shared.sandbox_spec(spec, "")?
                };
                Arc::clone(&self.shared.runtime)
                    .create(&sandbox_spec)
                    .await
                    .map_err(EngineError::Create)
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
    shared: &'a EngineState,
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
