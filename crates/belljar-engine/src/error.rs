use belljar_runtime::RuntimeError;

#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error("failed to make a sandbox")]
    Create(#[source] RuntimeError),
    #[error("failed to start a kernel")]
    StartKernel(#[source] RuntimeError),
    #[error("failed to execute the code")]
    Exec(#[source] RuntimeError),
    #[error("failed to look for artifacts")]
    ListArtifacts(#[source] RuntimeError),
}
