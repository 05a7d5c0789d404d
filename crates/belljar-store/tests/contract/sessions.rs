//! Sessions.

use belljar_runtime::Handle;
use belljar_store::{
    DatasetRow, DatasetStatus, Durability, Phase, SessionFilter, SessionRow, SessionSpec, Storage,
    Store, StoreError,
};

use crate::Backend;
use crate::execs::exec;
use crate::rows::{session, spec};

fn handle() -> Handle {
    Handle {
        name: "sandbox".into(),
        pid: 7,
        started: 8,
        nonce: "n".into(),
        block: Some(9),
        container: None,
    }
}

pub(crate) async fn put(store: &dyn Store, row: SessionRow) {
    store.put_session(row, Durability::Process).await.unwrap();
}

async fn end(store: &dyn Store, id: &str, at_ms: i64) {
    let ended = Some((at_ms, "asked to".to_owned()));
    store.set_phase(id, Phase::Stopped, ended, Durability::Power).await.unwrap();
}

fn ids(rows: &[SessionRow]) -> Vec<&str> {
    rows.iter().map(|row| row.id.as_str()).collect()
}

pub(crate) async fn a_session_is_read_as_it_was_stored(backend: &impl Backend) {
    let store = backend.store().await;
    assert!(store.session("ses_1").await.unwrap().is_none());
    let row = SessionRow { key: Some("k".into()), handle: Some(handle()), ..session("ses_1", 5) };
    put(&*store, row.clone()).await;
    store.accept_exec(exec("ses_1", "x", 1)).await.unwrap();
    store.accept_exec(exec("ses_1", "y", 2)).await.unwrap();
    store.set_expiry("ses_1", 6, 7).await.unwrap();
    store.close().await;
    let found = backend.store().await.session("ses_1").await.unwrap().unwrap();
    let expected = SessionRow { used_ms: 6, expires_ms: 7, execs: 2, ..row };
    assert_eq!(format!("{found:?}"), format!("{expected:?}"));
}

pub(crate) async fn a_key_belongs_to_one_session_that_has_not_ended(backend: &impl Backend) {
    let store = backend.store().await;
    let with_key = |id, created| SessionRow { key: Some("k".into()), ..session(id, created) };
    put(&*store, with_key("ses_1", 1)).await;
    let second = store.put_session(with_key("ses_2", 2), Durability::Process).await;
    assert!(matches!(second, Err(StoreError::Write(_))), "{second:?}");
    let of_another = SessionRow { tenant: "other".into(), ..with_key("ses_3", 3) };
    put(&*store, of_another).await;
    end(&*store, "ses_1", 4).await;
    put(&*store, with_key("ses_2", 2)).await;
    let found = store.session_by_key("acme", "k").await.unwrap().unwrap();
    assert_eq!(found.id, "ses_2", "the newest");
    assert!(store.session_by_key("acme", "other").await.unwrap().is_none());
}

pub(crate) async fn lists_are_filtered_and_the_newest_come_first(backend: &impl Backend) {
    let store = backend.store().await;
    for (id, created) in [("ses_1", 1), ("ses_2", 2), ("ses_3", 2), ("ses_4", 4)] {
        put(&*store, session(id, created)).await;
    }
    put(&*store, SessionRow { tenant: "other".into(), ..session("ses_5", 5) }).await;
    end(&*store, "ses_4", 6).await;
    let tenant = Some("acme".to_owned());
    let all = SessionFilter { tenant, limit: 10, ..SessionFilter::default() };
    let list = async |filter: SessionFilter| store.sessions(filter).await.unwrap();
    assert_eq!(ids(&list(all.clone()).await), ["ses_4", "ses_3", "ses_2", "ses_1"]);
    let before = SessionFilter { before: Some("ses_3".into()), limit: 1, ..all.clone() };
    assert_eq!(ids(&list(before).await), ["ses_2"]);
    let ready = SessionFilter { phase: Some(Phase::Ready), tenant: None, ..all };
    assert_eq!(ids(&list(ready).await), ["ses_5", "ses_3", "ses_2", "ses_1"]);
}

pub(crate) async fn a_session_that_ends_loses_its_sandbox(backend: &impl Backend) {
    let store = backend.store().await;
    put(&*store, session("ses_1", 1)).await;
    let process = Durability::Process;
    store.set_sandbox("ses_1", Phase::Ready, Some(handle()), process).await.unwrap();
    store.set_phase("ses_1", Phase::Busy, None, process).await.unwrap();
    let awake = store.session("ses_1").await.unwrap().unwrap();
    assert_eq!((awake.phase, awake.handle.is_some()), (Phase::Busy, true));
    assert_eq!(ids(&store.unended_sessions().await.unwrap()), ["ses_1"]);
    end(&*store, "ses_1", 9).await;
    let ended = store.session("ses_1").await.unwrap().unwrap();
    assert_eq!((ended.phase, ended.handle.is_some()), (Phase::Stopped, false));
    assert_eq!((ended.ended_ms, ended.ended_because.as_deref()), (Some(9), Some("asked to")));
    assert!(store.unended_sessions().await.unwrap().is_empty());
}

pub(crate) async fn only_ended_sessions_are_forgotten(backend: &impl Backend) {
    let store = backend.store().await;
    put(&*store, session("ses_1", 1)).await;
    store.accept_exec(exec("ses_1", "x", 1)).await.unwrap();
    let dataset = DatasetRow {
        session: "ses_1".into(),
        name: "a.csv".into(),
        status: DatasetStatus::Loaded,
        reason: None,
        source: None,
        sha256: None,
        size: None,
        updated_ms: 1,
    };
    store.put_dataset(dataset).await.unwrap();
    assert!(!store.forget_session("ses_1").await.unwrap());
    assert_eq!(store.unfinished_execs("ses_1").await.unwrap().len(), 1);
    end(&*store, "ses_1", 2).await;
    assert!(store.forget_session("ses_1").await.unwrap());
    assert!(!store.forget_session("ses_1").await.unwrap());
    assert!(store.session("ses_1").await.unwrap().is_none());
    assert!(store.unfinished_execs("ses_1").await.unwrap().is_empty());
    assert!(store.datasets("ses_1").await.unwrap().is_empty());
}

pub(crate) async fn old_sessions_are_pruned_by_where_their_files_are(backend: &impl Backend) {
    let store = backend.store().await;
    for (id, storage) in [("memory", Storage::Tmpfs), ("disk", Storage::Bind)] {
        for (age, ended) in [("old", 10), ("new", 20)] {
            let id = format!("{id}_{age}");
            put(&*store, SessionRow { spec: SessionSpec { storage, ..spec() }, ..session(&id, 1) })
                .await;
            end(&*store, &id, ended).await;
        }
    }
    assert_eq!(ids(&store.sessions_to_remove(20).await.unwrap()), ["disk_old"]);
    assert_eq!(ids(&store.sessions_to_remove(21).await.unwrap()), ["disk_old", "disk_new"]);
    assert_eq!(store.prune_sessions(20).await.unwrap(), 1);
    assert!(store.session("memory_old").await.unwrap().is_none());
    assert!(store.session("memory_new").await.unwrap().is_some());
    assert!(store.session("disk_old").await.unwrap().is_some());
}
