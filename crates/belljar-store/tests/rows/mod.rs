//! Rows for the tests of the stores.

use std::collections::BTreeMap;

use belljar_runtime::Limits;
use belljar_store::{Datasets, Phase, SessionRow, SessionSpec, Storage};

pub(crate) fn spec() -> SessionSpec {
    SessionSpec {
        image: "default".into(),
        storage: Storage::Tmpfs,
        datasets: Datasets::None,
        limits: Limits::default(),
        network: Default::default(),
        volumes: BTreeMap::new(),
        workspace: None,
        env: BTreeMap::from([("A".into(), "1".into())]),
        ttl_s: 60,
        idle_s: None,
        spill_s: Some(5),
        checkpoints: None,
        metadata: serde_json::Map::from_iter([("who".into(), "me".into())]),
    }
}

/// A session that is ready and expires a minute after its creation.
pub(crate) fn session(id: &str, created_ms: i64) -> SessionRow {
    SessionRow {
        id: id.into(),
        tenant: "acme".into(),
        key: None,
        phase: Phase::Ready,
        spec: spec(),
        handle: None,
        created_ms,
        used_ms: created_ms,
        expires_ms: created_ms + 60_000,
        ended_ms: None,
        ended_because: None,
        execs: 0,
    }
}
