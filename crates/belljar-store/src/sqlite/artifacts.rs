//! What artifacts there are: a row each, in a database of their own.

use std::collections::HashMap;
use std::ops::Add;
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::digest::Digest;
use super::store::Quotas;
use crate::store::{Database, Durability, Page, Schema, StoreError};

const SCHEMA: Schema = Schema {
    // "bela"
    application_id: 0x6265_6c61,
    migrations: &["
        CREATE TABLE artifacts (
            -- In the order they were taken.
            number INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            tenant TEXT NOT NULL,
            -- Of a run, the run's id.
            session TEXT NOT NULL,
            exec TEXT NOT NULL,
            name TEXT NOT NULL,
            -- In the sandbox.
            path TEXT NOT NULL,
            size INTEGER NOT NULL,
            mime TEXT NOT NULL,
            sha256 TEXT NOT NULL,
            created_ms INTEGER NOT NULL
        ) STRICT;
        -- A server that was killed while it took them takes them again, and then finds them here.
        CREATE UNIQUE INDEX artifacts_by_exec ON artifacts (session, exec, path, sha256);
        CREATE INDEX artifacts_by_tenant ON artifacts (tenant, number);
        CREATE INDEX artifacts_by_session ON artifacts (session, number);
        CREATE INDEX artifacts_by_content ON artifacts (tenant, sha256);
        CREATE INDEX artifacts_by_age ON artifacts (created_ms);

        -- What a tenant has in all (session '') and in each session.
        CREATE TABLE totals (
            tenant TEXT NOT NULL,
            session TEXT NOT NULL,
            count INTEGER NOT NULL,
            bytes INTEGER NOT NULL,
            PRIMARY KEY (tenant, session)
        ) STRICT, WITHOUT ROWID;
        CREATE TRIGGER artifact_added AFTER INSERT ON artifacts BEGIN
            INSERT INTO totals VALUES (new.tenant, '', 1, new.size)
                ON CONFLICT DO UPDATE SET count = count + 1, bytes = bytes + new.size;
            INSERT INTO totals VALUES (new.tenant, new.session, 1, new.size)
                ON CONFLICT DO UPDATE SET count = count + 1, bytes = bytes + new.size;
        END;
        CREATE TRIGGER artifact_removed AFTER DELETE ON artifacts BEGIN
            UPDATE totals SET count = count - 1, bytes = bytes - old.size
                WHERE tenant = old.tenant AND session IN ('', old.session);
            DELETE FROM totals WHERE tenant = old.tenant AND session = old.session AND count = 0;
        END;
    "],
    first_rows: |_| Ok(()),
    holds: "list of artifacts",
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArtifactRow {
    pub id: String,
    pub tenant: String,
    /// Of a run, the run's id.
    pub session: String,
    pub exec: String,
    pub name: String,
    /// In the sandbox.
    pub path: String,
    pub size: u64,
    pub mime: String,
    pub sha256: Digest,
    pub created_ms: i64,
}

/// Which artifacts to list, the newest first.
#[derive(Debug, Clone, Default)]
pub struct ArtifactFilter {
    pub tenant: String,
    pub session: Option<String>,
    pub exec: Option<String>,
    /// Only those taken before this one.
    pub before: Option<String>,
    pub limit: u32,
}

/// How much there is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Total {
    pub(super) count: u64,
    pub(super) bytes: u64,
}

impl Add for Total {
    type Output = Total;

    fn add(self, more: Total) -> Total {
        Total {
            count: self.count.saturating_add(more.count),
            bytes: self.bytes.saturating_add(more.bytes),
        }
    }
}

const COLUMNS: &str = "id, tenant, session, exec, name, path, size, mime, sha256, created_ms";

#[derive(Debug, Clone)]
pub(super) struct Catalog {
    database: Database,
}

impl Catalog {
    pub(super) fn open(path: &Path) -> Result<Catalog, StoreError> {
        Ok(Catalog { database: Database::open(path, &SCHEMA)? })
    }

    pub(super) async fn close(&self) {
        self.database.close().await;
    }

    /// Adds them, whose content is safe already, as far as the quotas allow: for each, why it was
    /// not added. One that is there already stays.
    ///
    /// Sessions of a tenant that come at the same time are told apart only here.
    pub(super) async fn add(
        &self,
        rows: Vec<ArtifactRow>,
        quotas: Quotas,
    ) -> Result<Vec<Option<String>>, StoreError> {
        self.database
            .write(Durability::Power, move |connection| {
                rows.iter().map(|row| add_one(connection, row, quotas)).collect()
            })
            .await
    }

    /// What the tenant has in all, and in this session.
    pub(super) async fn totals(
        &self,
        tenant: &str,
        session: &str,
    ) -> Result<(Total, Total), StoreError> {
        let (tenant, session) = (tenant.to_owned(), session.to_owned());
        self.database
            .read(move |connection| {
                Ok((total(connection, &tenant, "")?, total(connection, &tenant, &session)?))
            })
            .await
    }

    /// What an execution left, in the order of its paths.
    pub(super) async fn of_exec(
        &self,
        session: &str,
        exec: &str,
    ) -> Result<Vec<ArtifactRow>, StoreError> {
        let (session, exec) = (session.to_owned(), exec.to_owned());
        self.database
            .read(move |connection| {
                connection
                    .prepare_cached(&format!(
                        "SELECT {COLUMNS} FROM artifacts WHERE session = ?1 AND exec = ?2
                         ORDER BY path, number"
                    ))?
                    .query_map([session, exec], from_row)?
                    .collect()
            })
            .await
    }

    /// What a session has left at each path, the last time.
    pub(super) async fn latest(
        &self,
        session: &str,
    ) -> Result<HashMap<String, Digest>, StoreError> {
        let session = session.to_owned();
        self.database
            .read(move |connection| {
                connection
                    .prepare_cached(&format!(
                        "SELECT {COLUMNS} FROM artifacts WHERE session = ?1 ORDER BY number"
                    ))?
                    .query_map([session], from_row)?
                    .map(|row| row.map(|row| (row.path, row.sha256)))
                    .collect()
            })
            .await
    }

    /// Of artifacts that were taken out, which have a namesake with the same content.
    pub(super) async fn shown_by_others(
        &self,
        rows: Vec<ArtifactRow>,
    ) -> Result<Vec<bool>, StoreError> {
        self.database
            .read(move |connection| {
                let mut query = connection.prepare_cached(
                    "SELECT EXISTS (SELECT 1 FROM artifacts
                         WHERE tenant = ?1 AND sha256 = ?2 AND session = ?3 AND path = ?4)",
                )?;
                let mut is_shown = |row: &ArtifactRow| {
                    let key = params![row.tenant, row.sha256.to_string(), row.session, row.path];
                    query.query_row(key, |row| row.get(0))
                };
                rows.iter().map(&mut is_shown).collect()
            })
            .await
    }

    pub(super) async fn list(
        &self,
        filter: ArtifactFilter,
    ) -> Result<Page<ArtifactRow>, StoreError> {
        self.database
            .read(move |connection| {
                let mut items: Vec<ArtifactRow> = connection
                    .prepare_cached(&format!(
                        "SELECT {COLUMNS} FROM artifacts
                         WHERE tenant = ?1 AND (?2 IS NULL OR session = ?2)
                             AND (?3 IS NULL OR exec = ?3)
                             AND (?4 IS NULL OR number < (SELECT number FROM artifacts WHERE id = ?4))
                         ORDER BY number DESC LIMIT ?5"
                    ))?
                    .query_map(
                        params![
                            filter.tenant,
                            filter.session,
                            filter.exec,
                            filter.before,
                            u64::from(filter.limit) + 1
                        ],
                        from_row,
                    )?
                    .collect::<rusqlite::Result<_>>()?;
                let more = items.len() > filter.limit as usize;
                items.truncate(filter.limit as usize);
                Ok(Page { items, more })
            })
            .await
    }

    pub(super) async fn find(&self, id: &str) -> Result<Option<ArtifactRow>, StoreError> {
        let id = id.to_owned();
        self.database
            .read(move |connection| {
                connection
                    .prepare_cached(&format!("SELECT {COLUMNS} FROM artifacts WHERE id = ?1"))?
                    .query_row([id], from_row)
                    .optional()
            })
            .await
    }

    /// Takes an artifact of this tenant out; its content goes when nobody refers to it any more.
    pub(super) async fn remove(
        &self,
        tenant: &str,
        id: &str,
    ) -> Result<Option<ArtifactRow>, StoreError> {
        let (tenant, id) = (tenant.to_owned(), id.to_owned());
        self.database
            .write(Durability::Power, move |connection| {
                connection
                    .prepare_cached(&format!(
                        "DELETE FROM artifacts WHERE tenant = ?1 AND id = ?2 RETURNING {COLUMNS}"
                    ))?
                    .query_row([tenant, id], from_row)
                    .optional()
            })
            .await
    }

    /// Takes the oldest out, at most `limit` of them, as long as they are older than this.
    pub(super) async fn remove_before(
        &self,
        created_ms: i64,
        limit: u32,
    ) -> Result<Vec<ArtifactRow>, StoreError> {
        self.database
            .write(Durability::Process, move |connection| {
                connection
                    .prepare_cached(&format!(
                        "DELETE FROM artifacts WHERE number IN (SELECT number FROM artifacts
                             WHERE created_ms < ?1 ORDER BY created_ms LIMIT ?2)
                         RETURNING {COLUMNS}"
                    ))?
                    .query_map(params![created_ms, limit], from_row)?
                    .collect()
            })
            .await
    }

    pub(super) fn all(&self) -> Result<Vec<ArtifactRow>, StoreError> {
        self.database.read_now(|connection| {
            connection
                .prepare(&format!("SELECT {COLUMNS} FROM artifacts ORDER BY number"))?
                .query_map([], from_row)?
                .collect()
        })
    }

    pub(super) fn tenants(&self) -> Result<Vec<String>, StoreError> {
        self.database.read_now(|connection| {
            connection
                .prepare("SELECT tenant FROM totals WHERE session = '' AND count > 0")?
                .query_map([], |row| row.get(0))?
                .collect()
        })
    }

    /// Which of these contents some artifact of the tenant has.
    pub(super) fn referenced(
        &self,
        tenant: &str,
        contents: &[Digest],
    ) -> Result<Vec<bool>, StoreError> {
        self.database.read_now(|connection| are_referenced(connection, tenant, contents))
    }
}

/// Adds one, or says why not.
fn add_one(
    connection: &Connection,
    row: &ArtifactRow,
    quotas: Quotas,
) -> rusqlite::Result<Option<String>> {
    let before = [
        ("session", total(connection, &row.tenant, &row.session)?, quotas.session),
        ("tenant", total(connection, &row.tenant, "")?, quotas.tenant),
    ];
    let mut insert = connection.prepare_cached(&format!(
        "INSERT INTO artifacts ({COLUMNS}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)
         ON CONFLICT DO NOTHING"
    ))?;
    let added = insert.execute(params![
        row.id,
        row.tenant,
        row.session,
        row.exec,
        row.name,
        row.path,
        row.size,
        row.mime,
        row.sha256.to_string(),
        row.created_ms,
    ])?;
    let too_much =
        before.into_iter().find_map(|(whose, there, most)| most.refuses(whose, there, row.size));
    // What was there already takes no room.
    let refused = too_much.filter(|_| added > 0);
    if refused.is_some() {
        connection.prepare_cached("DELETE FROM artifacts WHERE id = ?1")?.execute([&row.id])?;
    }
    Ok(refused)
}

fn total(connection: &Connection, tenant: &str, session: &str) -> rusqlite::Result<Total> {
    let total = connection
        .prepare_cached("SELECT count, bytes FROM totals WHERE tenant = ?1 AND session = ?2")?
        .query_row([tenant, session], |row| Ok(Total { count: row.get(0)?, bytes: row.get(1)? }))
        .optional()?;
    Ok(total.unwrap_or_default())
}

fn are_referenced(
    connection: &Connection,
    tenant: &str,
    contents: &[Digest],
) -> rusqlite::Result<Vec<bool>> {
    let mut query = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM artifacts WHERE tenant = ?1 AND sha256 = ?2)",
    )?;
    let mut is_referenced =
        |content: &Digest| query.query_row(params![tenant, content.to_string()], |row| row.get(0));
    contents.iter().map(&mut is_referenced).collect()
}

fn from_row(row: &Row<'_>) -> rusqlite::Result<ArtifactRow> {
    let sha256: String = row.get(8)?;
    Ok(ArtifactRow {
        id: row.get(0)?,
        tenant: row.get(1)?,
        session: row.get(2)?,
        exec: row.get(3)?,
        name: row.get(4)?,
        path: row.get(5)?,
        size: row.get(6)?,
        mime: row.get(7)?,
        sha256: sha256.parse().map_err(|_| {
            rusqlite::Error::InvalidColumnType(8, sha256, rusqlite::types::Type::Text)
        })?,
        created_ms: row.get(9)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::artifacts::Quota;

    const PLENTY: Quota = Quota { count: 100, bytes: 100 };
    const QUOTAS: Quotas = Quotas { file_bytes: 100, session: PLENTY, tenant: PLENTY };

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

    #[tokio::test]
    async fn totals_follow_what_is_there_and_what_is_told_twice_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(&directory.path().join("artifacts.db")).unwrap();
        let rows = vec![row(1, "a", "s", "x"), row(2, "a", "s", "y"), row(4, "a", "t", "x")];
        catalog.add(rows.clone(), QUOTAS).await.unwrap();
        let again = rows.into_iter().map(|row| ArtifactRow { id: format!("{}_", row.id), ..row });
        catalog.add(again.collect(), QUOTAS).await.unwrap();
        catalog.add(vec![row(8, "b", "u", "x")], QUOTAS).await.unwrap();
        let total = |count, bytes| Total { count, bytes };
        assert_eq!(catalog.totals("a", "s").await.unwrap(), (total(3, 7), total(2, 3)));
        assert_eq!(catalog.of_exec("s", "y").await.unwrap(), [row(2, "a", "s", "y")]);

        assert_eq!(catalog.remove("b", "art_1").await.unwrap(), None, "it is another's");
        assert!(catalog.remove("a", "art_1").await.unwrap().is_some());
        assert_eq!(catalog.totals("a", "s").await.unwrap(), (total(2, 6), total(1, 2)));
        let digests = [1u64, 2, 8].map(|number| Digest::of(&number.to_be_bytes()));
        assert_eq!(catalog.referenced("a", &digests).unwrap(), [false, true, false]);

        assert_eq!(catalog.remove_before(5, 10).await.unwrap().len(), 2);
        assert_eq!(catalog.totals("a", "t").await.unwrap(), Default::default());
        assert_eq!(catalog.tenants().unwrap(), ["b"]);
    }

    #[tokio::test]
    async fn what_is_too_much_is_not_added_and_what_is_there_is_not_too_much() {
        let directory = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(&directory.path().join("artifacts.db")).unwrap();
        let most = |count, bytes| Quota { count, bytes };
        let quotas = Quotas { session: most(2, 100), tenant: most(100, 10), ..QUOTAS };
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
        let total = |count, bytes| Total { count, bytes };
        assert_eq!(catalog.totals("a", "s").await.unwrap(), (total(3, 7), total(2, 3)));
        let again =
            rows[..2].iter().map(|row| ArtifactRow { id: format!("{}_", row.id), ..row.clone() });
        assert_eq!(catalog.add(again.collect(), quotas).await.unwrap(), [None, None]);
    }

    #[tokio::test]
    async fn pages_go_from_the_newest_to_the_oldest() {
        let directory = tempfile::tempdir().unwrap();
        let catalog = Catalog::open(&directory.path().join("artifacts.db")).unwrap();
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
}
