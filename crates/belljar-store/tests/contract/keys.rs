//! API keys.

use belljar_store::{KeyLimits, KeyRow};

use crate::Backend;

fn key(id: &str, created_ms: i64) -> KeyRow {
    KeyRow {
        id: id.into(),
        name: "ci".into(),
        tenant: "acme".into(),
        hash: id.as_bytes().to_vec(),
        limits: KeyLimits { sessions: Some(3), ..KeyLimits::default() },
        created_ms,
        revoked_ms: None,
    }
}

pub(crate) async fn a_key_is_revoked_once(backend: &impl Backend) {
    let store = backend.store().await;
    store.put_key(key("key_2", 2)).await.unwrap();
    store.put_key(key("key_1", 1)).await.unwrap();
    assert!(store.revoke_key("key_1", 9).await.unwrap());
    assert!(!store.revoke_key("key_1", 10).await.unwrap());
    assert!(!store.revoke_key("key_3", 10).await.unwrap());
    let expected = [KeyRow { revoked_ms: Some(9), ..key("key_1", 1) }, key("key_2", 2)];
    assert_eq!(format!("{:?}", store.keys().await.unwrap()), format!("{expected:?}"));
    let same_hash = KeyRow { id: "key_4".into(), ..key("key_2", 4) };
    assert!(store.put_key(same_hash).await.is_err());
}

pub(crate) async fn keys_are_forgotten_when_none_is_valid(backend: &impl Backend) {
    let store = backend.store().await;
    store.put_key(key("key_1", 1)).await.unwrap();
    store.put_key(key("key_2", 2)).await.unwrap();
    store.revoke_key("key_1", 3).await.unwrap();
    assert_eq!(store.forget_revoked_keys().await.unwrap(), 0);
    store.revoke_key("key_2", 3).await.unwrap();
    assert_eq!(store.forget_revoked_keys().await.unwrap(), 2);
    assert!(store.keys().await.unwrap().is_empty());
}

pub(crate) async fn writes_of_others_change_the_version(backend: &impl Backend) {
    let (store, other) = (backend.store().await, backend.store().await);
    let before = store.data_version().await.unwrap();
    for _ in 0..20 {
        assert_eq!(store.data_version().await.unwrap(), before);
    }
    other.put_key(key("key_1", 1)).await.unwrap();
    assert_ne!(store.data_version().await.unwrap(), before);
}
