//! Datasets.

use belljar_store::{DatasetRow, DatasetStatus, Digest};

use crate::Backend;
use crate::rows::session;
use crate::sessions::put;

fn dataset(name: &str, status: DatasetStatus, updated_ms: i64) -> DatasetRow {
    DatasetRow {
        session: "s".into(),
        name: name.into(),
        status,
        reason: None,
        source: Some("id".into()),
        sha256: Some(Digest::of(b"x")),
        size: Some(1),
        updated_ms,
    }
}

pub(crate) async fn datasets_are_replaced_found_and_removed(backend: &impl Backend) {
    let store = backend.store().await;
    put(&*store, session("s", 1)).await;
    let (a, b) = (dataset("a", DatasetStatus::Loaded, 3), dataset("b", DatasetStatus::Loaded, 2));
    for row in [&b, &dataset("a", DatasetStatus::Pending, 1), &a] {
        store.put_dataset(row.clone()).await.unwrap();
    }
    assert_eq!(store.datasets("s").await.unwrap(), [a.clone(), b.clone()]);
    assert!(store.datasets("other").await.unwrap().is_empty());
    assert_eq!(store.dataset_of_source("s", "id").await.unwrap(), Some(a));
    assert_eq!(store.dataset_of_source("s", "unknown").await.unwrap(), None);
    store.remove_dataset("s", "a").await.unwrap();
    assert_eq!(store.datasets("s").await.unwrap(), [b]);
}

pub(crate) async fn pending_datasets_fail_with_their_server(backend: &impl Backend) {
    let store = backend.store().await;
    put(&*store, session("s", 1)).await;
    let loaded = dataset("a", DatasetStatus::Loaded, 1);
    let pending = dataset("b", DatasetStatus::Pending, 1);
    store.put_dataset(loaded.clone()).await.unwrap();
    store.put_dataset(pending.clone()).await.unwrap();
    store.fail_pending_datasets("it ended", 7).await.unwrap();
    let reason = Some("it ended".into());
    let failed = DatasetRow { status: DatasetStatus::Failed, reason, updated_ms: 7, ..pending };
    assert_eq!(store.datasets("s").await.unwrap(), [loaded, failed]);
}
