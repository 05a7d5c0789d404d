//! Volumes.

use belljar_runtime::VolumeKind;
use belljar_store::{
    AskedVolumes, SessionRow, SessionSpec, Store, VolumeAdded, VolumeMode, VolumeName, VolumeQuota,
    VolumeRetired, VolumeRow, VolumeUser,
};

use crate::Backend;
use crate::rows::{session, spec};
use crate::sessions::put;

const PLENTY: VolumeQuota = VolumeQuota { count: 10, bytes: 1000 };

fn name(text: &str) -> VolumeName {
    text.parse().unwrap()
}

fn volume(text: &str) -> VolumeRow {
    VolumeRow {
        id: format!("vol_{text}"),
        tenant: "acme".into(),
        name: name(text),
        size: 100,
        kind: VolumeKind::Directory,
        created_ms: 1,
    }
}

async fn make(store: &dyn Store, text: &str) -> VolumeRow {
    let row = volume(text);
    assert_eq!(store.add_volume(row.clone(), PLENTY).await.unwrap(), VolumeAdded::Yes);
    store.volume_ready(&row.id).await.unwrap();
    row
}

pub(crate) async fn only_ready_volumes_are_seen(backend: &impl Backend) {
    let store = backend.store().await;
    let asked = AskedVolumes::from([(name("a"), VolumeMode::Rw)]);
    assert_eq!(store.add_volume(volume("a"), PLENTY).await.unwrap(), VolumeAdded::Yes);
    assert_eq!(store.add_volume(volume("a"), PLENTY).await.unwrap(), VolumeAdded::Exists);
    assert_eq!(store.volume("acme", &name("a")).await.unwrap(), None);
    assert_eq!(store.volumes_asked("acme", asked.clone()).await.unwrap(), Err(name("a")));
    assert_eq!(store.volumes_left().await.unwrap().unfinished, [volume("a")]);
    store.volume_ready("vol_a").await.unwrap();
    assert_eq!(store.volume("acme", &name("a")).await.unwrap(), Some(volume("a")));
    assert_eq!(store.volume("other", &name("a")).await.unwrap(), None);
    assert_eq!(store.volumes_asked("acme", asked).await.unwrap(), Ok(vec![volume("a")]));
    assert_eq!(store.volumes("acme").await.unwrap(), [volume("a")]);
    let retired = store.retire_volume("acme", name("a")).await.unwrap();
    assert_eq!(retired, VolumeRetired::Yes(volume("a")));
    assert!(store.volumes("acme").await.unwrap().is_empty());
    let again = store.retire_volume("acme", name("a")).await.unwrap();
    assert_eq!(again, VolumeRetired::Unknown);
    let left = store.volumes_left().await.unwrap();
    assert_eq!((left.ready, left.unfinished), (vec![], vec![volume("a")]));
    store.forget_volume("vol_a").await.unwrap();
    assert!(store.volumes_left().await.unwrap().unfinished.is_empty());
}

pub(crate) async fn quotas_are_kept(backend: &impl Backend) {
    let store = backend.store().await;
    make(&*store, "a").await;
    for quota in [VolumeQuota { count: 1, ..PLENTY }, VolumeQuota { bytes: 199, ..PLENTY }] {
        let added = store.add_volume(volume("b"), quota).await.unwrap();
        assert_eq!(added, VolumeAdded::NoRoom { count: 1, bytes: 100 });
    }
    let exactly = VolumeQuota { count: 2, bytes: 200 };
    assert_eq!(store.add_volume(volume("b"), exactly).await.unwrap(), VolumeAdded::Yes);
}

pub(crate) async fn a_volume_in_use_is_not_retired(backend: &impl Backend) {
    let store = backend.store().await;
    let row = make(&*store, "a").await;
    let asked = AskedVolumes::from([(name("a"), VolumeMode::Ro)]);
    let of_session = SessionSpec { volumes: asked.clone(), ..spec() };
    put(&*store, SessionRow { spec: of_session, ..session("ses_1", 1) }).await;
    let held = store.hold_volumes("acme", asked.clone(), "run_1").await.unwrap();
    let (rows, hold) = held.unwrap();
    assert_eq!(rows, std::slice::from_ref(&row));
    let missing = AskedVolumes::from([(name("b"), VolumeMode::Ro)]);
    assert!(store.hold_volumes("acme", missing, "run_2").await.unwrap().is_err());
    let both = [("run_1".to_owned(), asked.clone()), ("ses_1".to_owned(), asked)];
    assert_eq!(store.volume_users("acme").await.unwrap(), both);
    assert!(store.volume_users("other").await.unwrap().is_empty());
    let user = |id: &str| VolumeUser { id: id.into(), mode: VolumeMode::Ro };
    let retire = async || store.retire_volume("acme", name("a")).await.unwrap();
    assert_eq!(retire().await, VolumeRetired::Used(vec![user("run_1"), user("ses_1")]));
    drop(hold);
    assert_eq!(retire().await, VolumeRetired::Used(vec![user("ses_1")]));
    let (phase, power) = (belljar_store::Phase::Failed, belljar_store::Durability::Power);
    store.set_phase("ses_1", phase, Some((2, "lost".into())), power).await.unwrap();
    assert_eq!(retire().await, VolumeRetired::Yes(row));
}
