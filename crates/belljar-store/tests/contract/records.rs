//! The store as a whole.

use belljar_store::StoreError;

use crate::Backend;

pub(crate) async fn the_owner_stays_the_same(backend: &impl Backend) {
    let store = backend.store().await;
    let owner = store.owner().to_owned();
    assert!(!owner.is_empty());
    store.close().await;
    assert_eq!(backend.store().await.owner(), owner);
}

pub(crate) async fn a_closed_store_fails(backend: &impl Backend) {
    let store = backend.store().await;
    store.check().await.unwrap();
    store.close().await;
    assert!(matches!(store.check().await, Err(StoreError::Closed)));
    assert!(matches!(store.keys().await, Err(StoreError::Closed)));
}
