//! A point to go back to after every execution, where that is wanted.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use belljar_runtime::Sandbox;

use super::{Session, lock};
use crate::engine::EngineState;
use crate::error::{EngineError, in_full};
use crate::exec::{Exec, Stage};
use crate::snapshots::{Ask, Manifest, SessionSnapshots, capture};
use crate::spec::Checkpoints;

/// Takes a snapshot of what an execution left, before its end is told: whoever hears of that can go
/// back to it. `None` if nobody wants one, and otherwise, perhaps, why there is none. `joined` is set if an earlier server
/// began the execution.
pub(super) async fn checkpoint(
    shared: &EngineState,
    session: &Session,
    sandbox: &Sandbox,
    exec: &Exec,
    joined: bool,
) -> Option<Result<(), String>> {
    let bounds = session.spec.checkpoints?;
    // What goes on in the background ends at no particular point.
    if exec.request.background {
        return None;
    }
    if joined && shared.snapshot_store.of_session(&session.id).checkpoint(&exec.id).is_some() {
        // An earlier server took it, before it was killed. By now the session may be something else.
        return Some(Ok(()));
    }
    if joined && session.view().execs > exec.number {
        return Some(Err("the server ended before one could be taken".into()));
    }
    let taken = take(shared, session, sandbox, exec, bounds).await;
    Some(taken.map_err(|error| match error {
        EngineError::NotAtRest { reasons, .. } => reasons.join("; "),
        error => in_full(&error),
    }))
}

async fn take(
    shared: &EngineState,
    session: &Session,
    sandbox: &Sandbox,
    exec: &Exec,
    bounds: Checkpoints,
) -> Result<(), EngineError> {
    exec.at_rest.store(true, Ordering::Relaxed);
    let _turn = session.checkpointing.lock().await;
    let others = session.live_execs();
    let runs = |other: &&Arc<Exec>| {
        other.stage() == Stage::Running && !other.at_rest.load(Ordering::Relaxed)
    };
    if let Some(other) = others.iter().find(runs) {
        let reasons = vec![format!("execution `{}` runs", other.id)];
        return Err(EngineError::NotAtRest { session: session.id.clone(), reasons });
    }
    let snapshots = shared.snapshot_store.of_session(&session.id);
    let earlier = checkpoints(&snapshots);
    let ask = Ask {
        session: &session.id,
        tenant: &session.tenant,
        places: &["session", "tmp", "shm"],
        room: bounds.max_bytes,
        force: false,
        sync: false,
        exec: Some(&exec.id),
        // What the others need together is more than there may be: they go, and this stays.
        before: lock(&session.base).filter(|_| snapshots.bytes_of(&earlier) <= bounds.max_bytes),
        same_files_as: earlier.last(),
    };
    let taken = capture(&shared.snapshot_store, sandbox, ask).await?;
    *lock(&session.base) = Some(taken.id);
    drop_oldest(&snapshots, bounds).map_err(EngineError::KeepSnapshot)?;
    shared.snapshot_store.count(&session.id, &session.tenant);
    Ok(())
}

fn checkpoints(snapshots: &SessionSnapshots) -> Vec<Manifest> {
    snapshots.list().into_iter().filter(|snapshot| snapshot.exec.is_some()).collect()
}

/// Drops the oldest until the others are within bounds; the newest stays.
fn drop_oldest(snapshots: &SessionSnapshots, bounds: Checkpoints) -> std::io::Result<()> {
    let mut kept = checkpoints(snapshots);
    while kept.len() > 1
        && (kept.len() as u64 > bounds.max || snapshots.bytes_of(&kept) > bounds.max_bytes)
    {
        snapshots.forget(&[kept.remove(0).id])?;
    }
    Ok(())
}
