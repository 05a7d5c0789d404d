//! Executions.

use belljar_proto::exec::{Language, Status};
use belljar_store::{ExecFilter, ExecRequest, ExecRow, FinishedExec, Store};

use crate::Backend;
use crate::rows::session;
use crate::sessions::put;

pub(crate) fn exec(session: &str, id: &str, number: u64) -> ExecRow {
    ExecRow {
        session: session.into(),
        id: id.into(),
        number,
        request: ExecRequest::cell(Language::Python),
        code: b"1 + 1".to_vec(),
        accepted_ms: 10,
        ended_ms: None,
        status: None,
        transcript: None,
    }
}

async fn finish(store: &dyn Store, number: u64, transcript: Vec<u8>) {
    let finished = FinishedExec {
        session: "s".into(),
        id: format!("x{number}"),
        number,
        ended_ms: 20,
        status: Status::Error,
        transcript,
        expires_ms: None,
    };
    store.finish_exec(finished).await.unwrap();
}

async fn add(store: &dyn Store, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        assert!(store.accept_exec(exec("s", &format!("x{number}"), number)).await.unwrap());
    }
}

const OLDEST: ExecFilter =
    ExecFilter { newest_first: false, beyond: None, finished: false, limit: 9 };

async fn numbers(store: &dyn Store, filter: ExecFilter) -> (Vec<u64>, bool) {
    let page = store.execs("s", filter, |row| row.number).await.unwrap();
    (page.items, page.more)
}

pub(crate) async fn an_execution_is_accepted_once(backend: &impl Backend) {
    let store = backend.store().await;
    put(&*store, session("s", 1)).await;
    put(&*store, session("other", 1)).await;
    assert!(store.accept_exec(exec("s", "x", 1)).await.unwrap());
    assert!(!store.accept_exec(exec("s", "x", 2)).await.unwrap());
    assert!(store.accept_exec(exec("other", "x", 1)).await.unwrap());
    let found = store.exec("s", "x", |row| row).await.unwrap().unwrap();
    assert_eq!(format!("{found:?}"), format!("{:?}", exec("s", "x", 1)));
    assert!(store.exec("s", "y", |row| row).await.unwrap().is_none());
    assert_eq!(store.exec_bytes("s", "x").await.unwrap(), 5);
    assert_eq!(store.exec_bytes("s", "y").await.unwrap(), 0);
}

pub(crate) async fn the_end_of_an_execution_is_stored_and_extends_its_session(
    backend: &impl Backend,
) {
    let store = backend.store().await;
    put(&*store, session("s", 1)).await;
    add(&*store, 1..=2).await;
    let finished = FinishedExec {
        session: "s".into(),
        id: "x1".into(),
        number: 1,
        ended_ms: 30,
        status: Status::Oom,
        transcript: b"said".to_vec(),
        expires_ms: Some(90_000),
    };
    store.finish_exec(finished).await.unwrap();
    let found = store.exec("s", "x1", |row| row).await.unwrap().unwrap();
    assert_eq!((found.ended_ms, found.status), (Some(30), Some(Status::Oom)));
    assert_eq!(found.transcript.as_deref(), Some(&b"said"[..]));
    assert_eq!(store.exec_bytes("s", "x1").await.unwrap(), 9);
    let session = store.session("s").await.unwrap().unwrap();
    assert_eq!((session.used_ms, session.expires_ms), (30, 90_000));
    let unfinished = store.unfinished_execs("s").await.unwrap();
    assert_eq!(unfinished.iter().map(|row| row.number).collect::<Vec<_>>(), [2]);
}

pub(crate) async fn pages_go_in_both_directions(backend: &impl Backend) {
    let store = backend.store().await;
    put(&*store, session("s", 1)).await;
    add(&*store, 1..=5).await;
    finish(&*store, 2, Vec::new()).await;
    let page = |newest_first, beyond| ExecFilter { newest_first, beyond, limit: 2, ..OLDEST };
    assert_eq!(numbers(&*store, page(false, None)).await, (vec![1, 2], true));
    assert_eq!(numbers(&*store, page(false, Some(3))).await, (vec![4, 5], false));
    assert_eq!(numbers(&*store, page(true, None)).await, (vec![5, 4], true));
    assert_eq!(numbers(&*store, page(true, Some(2))).await, (vec![1], false));
    assert_eq!(numbers(&*store, page(false, Some(u64::MAX))).await, (vec![], false));
    let finished = ExecFilter { finished: true, ..OLDEST };
    assert_eq!(numbers(&*store, finished).await, (vec![2], false));
    assert_eq!(store.execs_bytes("s", page(false, None)).await.unwrap(), 10);
}

/// Each execution has 5 MiB, and a page ends after 8 MiB.
pub(crate) async fn a_page_of_large_executions_ends_early(backend: &impl Backend) {
    let store = backend.store().await;
    put(&*store, session("s", 1)).await;
    add(&*store, 1..=3).await;
    for number in 1..=3 {
        finish(&*store, number, vec![0; 5 << 20]).await;
    }
    assert_eq!(numbers(&*store, OLDEST).await, (vec![1, 2], true));
    let bytes = store.execs_bytes("s", OLDEST).await.unwrap();
    assert_eq!(bytes, 2 * ((5 << 20) + 5));
}

/// The oldest executions are deleted after every 50th one, by number and by size.
pub(crate) async fn old_executions_are_pruned(backend: &impl Backend) {
    let store = backend.store().await;
    put(&*store, session("s", 1)).await;
    add(&*store, 1..=150).await;
    for number in 1..=150 {
        finish(&*store, number, Vec::new()).await;
    }
    let first = ExecFilter { limit: 1, ..OLDEST };
    assert_eq!(numbers(&*store, first).await.0, [51]);
    add(&*store, 151..=200).await;
    for number in 151..=200 {
        finish(&*store, number, vec![0; 2 << 20]).await;
    }
    // 64 MiB are kept, code included.
    assert_eq!(numbers(&*store, first).await.0, [170]);
}
