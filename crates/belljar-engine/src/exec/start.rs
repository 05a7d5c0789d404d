//! Starts an execution in a sandbox, with the kernel that it needs.

use std::time::{Duration, Instant};

use belljar_proto::exec::{ExecSpec, Language, What};
use belljar_proto::guest::RefusalCode;
use belljar_runtime::link::Following;
use belljar_runtime::{RuntimeError, Sandbox, languages};

use crate::EngineError;

/// How long to retry while the kernel is busy, for example while it lists its variables.
const BUSY_PATIENCE: Duration = Duration::from_secs(10);
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// Starts an execution, and first its kernel if there is none. There is none if the execution is
/// the first one in its language, or if the kernel died; the guest reports that in the result.
pub(super) async fn start(
    sandbox: &Sandbox,
    spec: ExecSpec,
    code: &[u8],
) -> Result<Following, EngineError> {
    let begun = Instant::now();
    let mut started_kernel = false;
    loop {
        let refusal = match sandbox.exec(spec.clone(), code).await {
            Err(RuntimeError::Refused(refusal)) => refusal,
            started => return started.map_err(EngineError::Exec),
        };
        match (refusal.code, &spec.what) {
            (RefusalCode::NoKernel, What::Cell { language, .. }) if !started_kernel => {
                let started = sandbox.start_kernel(*language).await;
                started.map_err(|error| kernel_not_started(sandbox, *language, error))?;
                started_kernel = true;
            }
            (RefusalCode::Busy, _) if begun.elapsed() < BUSY_PATIENCE => {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            _ => return Err(EngineError::Exec(refusal.into())),
        }
    }
}

fn kernel_not_started(sandbox: &Sandbox, language: Language, error: RuntimeError) -> EngineError {
    if error.is_no_interpreter() {
        no_interpreter(sandbox, language)
    } else {
        EngineError::StartKernel(error)
    }
}

pub(crate) fn no_interpreter(sandbox: &Sandbox, language: Language) -> EngineError {
    let image = sandbox.spec().image.clone().unwrap_or_else(|| "host".to_owned());
    let advice = languages::missing(language).unwrap_or("ask for another image");
    EngineError::NoInterpreter { image, language, advice }
}
