//! Usage.

use belljar_proto::exec::Status;
use belljar_store::UsageDelta;

use crate::Backend;

pub(crate) async fn days_add_up(backend: &impl Backend) {
    let store = backend.store().await;
    let mut delta = UsageDelta {
        sessions: 1,
        runs: 2,
        cpu_us: 1_500_000,
        memory_mib_ms: 1024 * 1000,
        bytes_in: 3,
        bytes_out: 4,
        ..UsageDelta::default()
    };
    delta.count(Status::Ok);
    delta.count(Status::Oom);
    let of = |tenant: &str| (tenant.to_owned(), delta.clone());
    store.add_usage("2026-11-15".into(), vec![of("b"), of("a")]).await.unwrap();
    store.add_usage("2026-11-16".into(), vec![of("a")]).await.unwrap();
    store.add_usage("2026-11-16".into(), vec![of("a")]).await.unwrap();
    let all = store.usage(None, "2026-11-15".into()).await.unwrap();
    let days: Vec<_> =
        all.iter().map(|row| (row.day.as_str(), row.tenant.as_str(), row.runs)).collect();
    assert_eq!(days, [("2026-11-15", "a", 2), ("2026-11-15", "b", 2), ("2026-11-16", "a", 4)]);
    let one = store.usage(Some("a".into()), "2026-11-16".into()).await.unwrap();
    let [row] = &one[..] else { panic!("{one:?}") };
    assert_eq!((row.execs["ok"], row.execs["oom"], row.execs["error"]), (2, 2, 0));
    assert_eq!((row.sessions, row.bytes_in, row.bytes_out), (2, 6, 8));
    assert_eq!((row.cpu_seconds, row.memory_gib_seconds), (3.0, 2.0));
}
