//! What the lease of a node does to its sandboxes.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use belljar_cluster::lease::Sandboxes;
use belljar_engine::store::NodeLoad;
use belljar_engine::{Engine, EngineError, in_full};
use belljar_runtime::Runtime;

use super::super::EXIT_FAILED;
use crate::logging;

pub(super) struct NodeSandboxes {
    runtime: Arc<dyn Runtime>,
    /// Set when the engine has started, which may take longer than a lease.
    engine: OnceLock<Arc<Engine>>,
}

impl NodeSandboxes {
    pub(super) fn new(runtime: Arc<dyn Runtime>) -> NodeSandboxes {
        NodeSandboxes { runtime, engine: OnceLock::new() }
    }

    pub(super) fn set_engine(&self, engine: &Arc<Engine>) {
        let _ = self.engine.set(Arc::clone(engine));
    }
}

#[async_trait]
impl Sandboxes for NodeSandboxes {
    fn load(&self) -> NodeLoad {
        self.engine.get().map(|engine| engine.node_load()).unwrap_or_default()
    }

    async fn freeze(&self, frozen: bool) -> bool {
        let switched = match self.engine.get() {
            Some(engine) => engine.freeze(frozen).await,
            None => {
                Arc::clone(&self.runtime).freeze_all(frozen).await.map_err(EngineError::FreezeAll)
            }
        };
        if let Err(error) = switched {
            let what = if frozen { "freeze" } else { "thaw" };
            tracing::error!("failed to {what} the sandboxes: {}", in_full(&error));
            return false;
        }
        true
    }

    async fn fence(&self) {
        let Some(engine) = self.engine.get() else {
            logging::fail("the lease was lost while the node started");
            std::process::exit(EXIT_FAILED.into());
        };
        engine.fence().await;
    }

    async fn registered(&self) {
        let Some(engine) = self.engine.get() else { return };
        if let Err(error) = engine.recover_owned().await {
            tracing::error!("failed to find the sessions of this node: {}", in_full(&error));
        }
    }
}
