//! The catalog of artifacts.

use belljar_store::{
    ArtifactFilter, ArtifactQuota, ArtifactQuotas, ArtifactRow, ArtifactTotal, Digest,
};

use crate::Backend;

const PLENTY: ArtifactQuota = ArtifactQuota { count: 100, bytes: 100 };
const QUOTAS: ArtifactQuotas = ArtifactQuotas { file_bytes: 100, session: PLENTY, tenant: PLENTY };

fn row(number: u64, tenant: &str, session: &str, exec: &str) -> ArtifactRow {
    ArtifactRow {
        id: format!("art_{number}"),
        tenant: tenant.into(),
        session: session.into(),
        exec: exec.into(),
        name: "a".into(),
        path: format!("/session/artifacts/{number}"),
        size: number,
        mime: "text/plain".into(),
        sha256: Digest::of(&number.to_be_bytes()),
        created_ms: i64::try_from(number).unwrap(),
    }
}

pub(crate) async fn totals_follow_the_rows_and_duplicates_count_once(backend: &impl Backend) {
    let catalog = backend.catalog().await;
    let rows = vec![row(1, "a", "s", "x"), row(2, "a", "s", "y"), row(4, "a", "t", "x")];
    catalog.add(rows.clone(), QUOTAS).await.unwrap();
    let again = rows.into_iter().map(|row| ArtifactRow { id: format!("{}_", row.id), ..row });
    catalog.add(again.collect(), QUOTAS).await.unwrap();
    catalog.add(vec![row(8, "b", "u", "x")], QUOTAS).await.unwrap();
    let total = |count, bytes| ArtifactTotal { count, bytes };
    assert_eq!(catalog.totals("a", "s").await.unwrap(), (total(3, 7), total(2, 3)));
    assert_eq!(catalog.of_exec("s", "y").await.unwrap(), [row(2, "a", "s", "y")]);

    assert_eq!(catalog.remove("b", "art_1").await.unwrap(), None, "it belongs to another tenant");
    assert!(catalog.remove("a", "art_1").await.unwrap().is_some());
    assert_eq!(catalog.totals("a", "s").await.unwrap(), (total(2, 6), total(1, 2)));
    let digests = [1u64, 2, 8].map(|number| Digest::of(&number.to_be_bytes()));
    assert_eq!(catalog.referenced("a", &digests).await.unwrap(), [false, true, false]);

    assert_eq!(catalog.remove_before(5, 10).await.unwrap().len(), 2);
    assert_eq!(catalog.totals("a", "t").await.unwrap(), Default::default());
    assert_eq!(catalog.tenants().await.unwrap(), ["b"]);
}

pub(crate) async fn quotas_refuse_new_artifacts_only(backend: &impl Backend) {
    let catalog = backend.catalog().await;
    let most = |count, bytes| ArtifactQuota { count, bytes };
    let quotas = ArtifactQuotas { session: most(2, 100), tenant: most(100, 10), ..QUOTAS };
    let rows = [(1, "s"), (2, "s"), (3, "s"), (8, "t"), (4, "t")];
    let rows: Vec<_> =
        rows.into_iter().map(|(number, session)| row(number, "a", session, "x")).collect();
    let refused = catalog.add(rows.clone(), quotas).await.unwrap();
    let said: Vec<_> = refused.iter().map(|why| why.as_deref().unwrap_or_default()).collect();
    let (session, tenant) = (
        "this session has 2 artifacts, which is the most",
        "the artifacts of this tenant would exceed 10 bytes",
    );
    assert_eq!(said, ["", "", session, tenant, ""]);
    let total = |count, bytes| ArtifactTotal { count, bytes };
    assert_eq!(catalog.totals("a", "s").await.unwrap(), (total(3, 7), total(2, 3)));
    let again =
        rows[..2].iter().map(|row| ArtifactRow { id: format!("{}_", row.id), ..row.clone() });
    assert_eq!(catalog.add(again.collect(), quotas).await.unwrap(), [None, None]);
}

pub(crate) async fn pages_go_from_the_newest_to_the_oldest(backend: &impl Backend) {
    let catalog = backend.catalog().await;
    let rows = (1..=5).map(|number| row(number, "a", "s", "x")).collect();
    catalog.add(rows, QUOTAS).await.unwrap();
    let mut filter = ArtifactFilter { tenant: "a".into(), limit: 2, ..Default::default() };
    let mut seen = Vec::new();
    loop {
        let page = catalog.list(filter.clone()).await.unwrap();
        seen.extend(page.items.iter().map(|row| row.size));
        filter.before = page.items.last().map(|row| row.id.clone());
        if !page.more {
            break;
        }
    }
    assert_eq!(seen, [5, 4, 3, 2, 1]);
    let other = ArtifactFilter { tenant: "b".into(), limit: 2, ..Default::default() };
    assert!(catalog.list(other).await.unwrap().items.is_empty());
}

pub(crate) async fn contents_in_use_are_known(backend: &impl Backend) {
    let catalog = backend.catalog().await;
    let first = row(1, "a", "s", "x");
    let twin = ArtifactRow { id: "art_2".into(), exec: "y".into(), ..first.clone() };
    let newer = ArtifactRow { path: first.path.clone(), ..row(3, "a", "s", "z") };
    let rows = vec![first.clone(), twin.clone(), newer.clone()];
    catalog.add(rows.clone(), QUOTAS).await.unwrap();
    assert_eq!(catalog.all().await.unwrap(), rows);
    assert_eq!(catalog.latest("s").await.unwrap()[&first.path], newer.sha256);
    let removed = catalog.remove("a", &first.id).await.unwrap().unwrap();
    assert_eq!(catalog.find(&first.id).await.unwrap(), None);
    let gone = catalog.remove("a", &newer.id).await.unwrap().unwrap();
    assert_eq!(catalog.have_twins(vec![removed, gone]).await.unwrap(), [true, false]);
    catalog.close().await;
    assert_eq!(backend.catalog().await.all().await.unwrap(), [twin]);
}
