//! The table of artifacts, in a database of its own.

use std::collections::HashMap;
use std::path::Path;

use async_trait::async_trait;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::database::Database;
use super::schema::Schema;
use crate::{
    ArtifactCatalog, ArtifactFilter, ArtifactQuotas, ArtifactRow, ArtifactTotal, Digest,
    Durability, Page, StoreError,
};

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

const COLUMNS: &str = "id, tenant, session, exec, name, path, size, mime, sha256, created_ms";

/// The [`ArtifactCatalog`] in a SQLite file.
#[derive(Debug, Clone)]
pub struct SqliteCatalog {
    database: Database,
}

impl SqliteCatalog {
    /// Opens the file, creating or migrating it as needed. A file that is damaged, or not a
    /// catalog, is not changed.
    pub fn open(path: &Path) -> Result<SqliteCatalog, StoreError> {
        Ok(SqliteCatalog { database: Database::open(path, &SCHEMA)? })
    }
}

#[async_trait]
impl ArtifactCatalog for SqliteCatalog {
    async fn close(&self) {
        self.database.close().await;
    }

    async fn add(
        &self,
        rows: Vec<ArtifactRow>,
        quotas: ArtifactQuotas,
    ) -> Result<Vec<Option<String>>, StoreError> {
        self.database
            .write(Durability::Power, move |connection| {
                rows.iter().map(|row| add_one(connection, row, quotas)).collect()
            })
            .await
    }

    async fn totals(
        &self,
        tenant: &str,
        session: &str,
    ) -> Result<(ArtifactTotal, ArtifactTotal), StoreError> {
        let (tenant, session) = (tenant.to_owned(), session.to_owned());
        self.database
            .read(move |connection| {
                Ok((total(connection, &tenant, "")?, total(connection, &tenant, &session)?))
            })
            .await
    }

    async fn of_exec(&self, session: &str, exec: &str) -> Result<Vec<ArtifactRow>, StoreError> {
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

    async fn latest(&self, session: &str) -> Result<HashMap<String, Digest>, StoreError> {
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

    async fn have_twins(&self, rows: Vec<ArtifactRow>) -> Result<Vec<bool>, StoreError> {
        self.database
            .read(move |connection| {
                let mut query = connection.prepare_cached(
                    "SELECT EXISTS (SELECT 1 FROM artifacts
                         WHERE tenant = ?1 AND sha256 = ?2 AND session = ?3 AND path = ?4)",
                )?;
                let mut has_twin = |row: &ArtifactRow| {
                    let key = params![row.tenant, row.sha256.to_string(), row.session, row.path];
                    query.query_row(key, |row| row.get(0))
                };
                rows.iter().map(&mut has_twin).collect()
            })
            .await
    }

    async fn list(&self, filter: ArtifactFilter) -> Result<Page<ArtifactRow>, StoreError> {
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

    async fn find(&self, id: &str) -> Result<Option<ArtifactRow>, StoreError> {
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

    async fn remove(&self, tenant: &str, id: &str) -> Result<Option<ArtifactRow>, StoreError> {
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

    async fn remove_before(
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

    async fn all(&self) -> Result<Vec<ArtifactRow>, StoreError> {
        self.database
            .read(|connection| {
                connection
                    .prepare(&format!("SELECT {COLUMNS} FROM artifacts ORDER BY number"))?
                    .query_map([], from_row)?
                    .collect()
            })
            .await
    }

    async fn tenants(&self) -> Result<Vec<String>, StoreError> {
        self.database
            .read(|connection| {
                connection
                    .prepare("SELECT tenant FROM totals WHERE session = '' AND count > 0")?
                    .query_map([], |row| row.get(0))?
                    .collect()
            })
            .await
    }

    async fn referenced(&self, tenant: &str, contents: &[Digest]) -> Result<Vec<bool>, StoreError> {
        let (tenant, contents) = (tenant.to_owned(), contents.to_vec());
        self.database.read(move |connection| are_referenced(connection, &tenant, &contents)).await
    }
}

/// Adds one artifact, or returns the reason why it was not added.
fn add_one(
    connection: &Connection,
    row: &ArtifactRow,
    quotas: ArtifactQuotas,
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
    // An artifact that existed already takes no additional room.
    let refused = too_much.filter(|_| added > 0);
    if refused.is_some() {
        connection.prepare_cached("DELETE FROM artifacts WHERE id = ?1")?.execute([&row.id])?;
    }
    Ok(refused)
}

fn total(connection: &Connection, tenant: &str, session: &str) -> rusqlite::Result<ArtifactTotal> {
    let total = connection
        .prepare_cached("SELECT count, bytes FROM totals WHERE tenant = ?1 AND session = ?2")?
        .query_row([tenant, session], |row| {
            Ok(ArtifactTotal { count: row.get(0)?, bytes: row.get(1)? })
        })
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
