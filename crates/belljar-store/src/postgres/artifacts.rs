//! The table of artifacts.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};

use async_trait::async_trait;
use tokio_postgres::Row;

use super::pool::{Connection, Failed, Pool, Side, Work};
use super::{DatabaseUrl, schema, signed, unsigned};
use crate::{
    ArtifactCatalog, ArtifactFilter, ArtifactQuotas, ArtifactRow, ArtifactTotal, Digest, Page,
    StoreError,
};

const COLUMNS: &str = "id, tenant, session, exec, name, path, size, mime, sha256, created_ms";

/// The [`ArtifactCatalog`] in a Postgres database.
#[derive(Debug, Clone)]
pub struct PostgresCatalog {
    pool: Pool,
}

impl PostgresCatalog {
    /// Connects, and creates or migrates the tables.
    pub async fn open(url: &DatabaseUrl) -> Result<PostgresCatalog, StoreError> {
        let pool = Pool::open(url.clone()).await?;
        schema::migrate(&pool).await?;
        Ok(PostgresCatalog { pool })
    }

    async fn remove_some(
        &self,
        tenant: String,
        ids: Vec<String>,
    ) -> Result<Vec<ArtifactRow>, StoreError> {
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, Vec<ArtifactRow>> {
                Box::pin(async move {
                    connection.begin().await?;
                    lock_totals(connection, &tenant).await?;
                    let sql = format!(
                        "DELETE FROM artifacts WHERE tenant = $1 AND id = ANY($2)
                         RETURNING {COLUMNS}"
                    );
                    let rows = connection.query(&sql, &[&tenant, &ids]).await?;
                    connection.commit().await?;
                    rows.iter().map(from_row).collect()
                })
            })
            .await
    }
}

#[async_trait]
impl ArtifactCatalog for PostgresCatalog {
    async fn close(&self) {
        self.pool.close().await;
    }

    async fn add(
        &self,
        rows: Vec<ArtifactRow>,
        quotas: ArtifactQuotas,
    ) -> Result<Vec<Option<String>>, StoreError> {
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, Vec<Option<String>>> {
                Box::pin(async move {
                    connection.begin().await?;
                    let tenants: BTreeSet<&str> =
                        rows.iter().map(|row| row.tenant.as_str()).collect();
                    for tenant in tenants {
                        lock_totals(connection, tenant).await?;
                    }
                    let mut refused = Vec::with_capacity(rows.len());
                    let mut totals = HashMap::new();
                    for row in &rows {
                        refused.push(add_one(connection, row, quotas, &mut totals).await?);
                    }
                    connection.commit().await?;
                    Ok(refused)
                })
            })
            .await
    }

    async fn totals(
        &self,
        tenant: &str,
        session: &str,
    ) -> Result<(ArtifactTotal, ArtifactTotal), StoreError> {
        let (tenant, session) = (tenant.to_owned(), session.to_owned());
        self.pool
            .read(move |connection| -> Work<'_, _> {
                Box::pin(async move {
                    let of_tenant = total(connection, &tenant, "").await?;
                    Ok((of_tenant, total(connection, &tenant, &session).await?))
                })
            })
            .await
    }

    async fn of_exec(&self, session: &str, exec: &str) -> Result<Vec<ArtifactRow>, StoreError> {
        let (session, exec) = (session.to_owned(), exec.to_owned());
        self.pool
            .read(move |connection| -> Work<'_, Vec<ArtifactRow>> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS} FROM artifacts WHERE session = $1 AND exec = $2
                         ORDER BY path, number"
                    );
                    connection.query(&sql, &[&session, &exec]).await?.iter().map(from_row).collect()
                })
            })
            .await
    }

    async fn latest(&self, session: &str) -> Result<HashMap<String, Digest>, StoreError> {
        let session = session.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, HashMap<String, Digest>> {
                Box::pin(async move {
                    let sql = "SELECT path, sha256 FROM artifacts WHERE session = $1
                               ORDER BY number";
                    let rows = connection.query(sql, &[&session]).await?;
                    rows.iter().map(|row| Ok((row.try_get(0)?, digest(row, 1)?))).collect()
                })
            })
            .await
    }

    async fn have_twins(&self, rows: Vec<ArtifactRow>) -> Result<Vec<bool>, StoreError> {
        self.pool
            .read(move |connection| -> Work<'_, Vec<bool>> {
                Box::pin(async move {
                    let sql = "SELECT EXISTS (SELECT 1 FROM artifacts
                         WHERE tenant = $1 AND sha256 = $2 AND session = $3 AND path = $4)";
                    let mut have = Vec::with_capacity(rows.len());
                    for row in &rows {
                        let sha256 = row.sha256.to_string();
                        let found = connection
                            .query_one(sql, &[&row.tenant, &sha256, &row.session, &row.path])
                            .await?;
                        have.push(found.try_get(0)?);
                    }
                    Ok(have)
                })
            })
            .await
    }

    async fn list(&self, filter: ArtifactFilter) -> Result<Page<ArtifactRow>, StoreError> {
        self.pool
            .read(move |connection| -> Work<'_, Page<ArtifactRow>> {
                Box::pin(async move {
                    let sql = format!(
                        "SELECT {COLUMNS} FROM artifacts
                         WHERE tenant = $1 AND ($2::text IS NULL OR session = $2)
                             AND ($3::text IS NULL OR exec = $3)
                             AND ($4::text IS NULL
                                 OR number < (SELECT number FROM artifacts WHERE id = $4))
                         ORDER BY number DESC LIMIT $5"
                    );
                    let limit = i64::from(filter.limit) + 1;
                    let rows = connection
                        .query(
                            &sql,
                            &[
                                &filter.tenant,
                                &filter.session,
                                &filter.exec,
                                &filter.before,
                                &limit,
                            ],
                        )
                        .await?;
                    let shown = rows.iter().take(filter.limit as usize);
                    let items = shown.map(from_row).collect::<Result<_, _>>()?;
                    Ok(Page { items, more: rows.len() > filter.limit as usize })
                })
            })
            .await
    }

    async fn find(&self, id: &str) -> Result<Option<ArtifactRow>, StoreError> {
        let id = id.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, Option<ArtifactRow>> {
                Box::pin(async move {
                    let sql = format!("SELECT {COLUMNS} FROM artifacts WHERE id = $1");
                    connection.query_opt(&sql, &[&id]).await?.as_ref().map(from_row).transpose()
                })
            })
            .await
    }

    async fn remove(&self, tenant: &str, id: &str) -> Result<Option<ArtifactRow>, StoreError> {
        let removed = self.remove_some(tenant.to_owned(), vec![id.to_owned()]).await?;
        Ok(removed.into_iter().next())
    }

    /// A tenant after the other, because two transactions that change totals of several tenants
    /// could wait for each other.
    async fn remove_before(
        &self,
        created_ms: i64,
        limit: u32,
    ) -> Result<Vec<ArtifactRow>, StoreError> {
        let limit = i64::from(limit);
        let oldest = self
            .pool
            .read(move |connection| -> Work<'_, Vec<(String, String)>> {
                Box::pin(async move {
                    let sql = "SELECT tenant, id FROM artifacts WHERE created_ms < $1
                               ORDER BY created_ms LIMIT $2";
                    let rows = connection.query(sql, &[&created_ms, &limit]).await?;
                    rows.iter().map(|row| Ok((row.try_get(0)?, row.try_get(1)?))).collect()
                })
            })
            .await?;
        let mut by_tenant: HashMap<String, Vec<String>> = HashMap::new();
        for (tenant, id) in oldest {
            by_tenant.entry(tenant).or_default().push(id);
        }
        let mut removed = Vec::new();
        for (tenant, ids) in by_tenant {
            removed.extend(self.remove_some(tenant, ids).await?);
        }
        Ok(removed)
    }

    async fn all(&self) -> Result<Vec<ArtifactRow>, StoreError> {
        self.pool
            .read_long(move |connection| -> Work<'_, Vec<ArtifactRow>> {
                Box::pin(async move {
                    connection.begin_long().await?;
                    let sql = format!("SELECT {COLUMNS} FROM artifacts ORDER BY number");
                    connection.query(&sql, &[]).await?.iter().map(from_row).collect()
                })
            })
            .await
    }

    async fn tenants(&self) -> Result<Vec<String>, StoreError> {
        self.pool
            .read(move |connection| -> Work<'_, Vec<String>> {
                Box::pin(async move {
                    let sql = "SELECT tenant FROM artifact_totals
                               WHERE session = '' AND count > 0 ORDER BY tenant";
                    let rows = connection.query(sql, &[]).await?;
                    rows.iter().map(|row| Ok(row.try_get(0)?)).collect()
                })
            })
            .await
    }

    async fn referenced(&self, tenant: &str, contents: &[Digest]) -> Result<Vec<bool>, StoreError> {
        let tenant = tenant.to_owned();
        let contents: Vec<String> = contents.iter().map(Digest::to_string).collect();
        self.pool
            .read(move |connection| -> Work<'_, Vec<bool>> {
                Box::pin(async move {
                    let sql = "SELECT DISTINCT sha256 FROM artifacts
                               WHERE tenant = $1 AND sha256 = ANY($2)";
                    let rows = connection.query(sql, &[&tenant, &contents]).await?;
                    let found: HashSet<String> =
                        rows.iter().map(|row| row.try_get(0)).collect::<Result<_, _>>()?;
                    Ok(contents.iter().map(|content| found.contains(content)).collect())
                })
            })
            .await
    }
}

/// Changes of the totals of a tenant happen one after another.
async fn lock_totals(connection: &mut Connection, tenant: &str) -> Result<(), Failed> {
    let sql = "SELECT pg_advisory_xact_lock(hashtextextended('artifacts ' || $1, 0))";
    connection.query(sql, &[&tenant]).await.map(|_| ())
}

type Totals = HashMap<(String, String), ArtifactTotal>;

/// Adds one artifact, or returns the reason why it was not added. `totals` has what is known.
async fn add_one(
    connection: &mut Connection,
    row: &ArtifactRow,
    quotas: ArtifactQuotas,
    totals: &mut Totals,
) -> Result<Option<String>, Failed> {
    let keys = [row.session.as_str(), ""].map(|session| (row.tenant.clone(), session.to_owned()));
    for key in &keys {
        if let Entry::Vacant(entry) = totals.entry(key.clone()) {
            entry.insert(total(connection, &key.0, &key.1).await?);
        }
    }
    let there = |key: &(String, String)| totals.get(key).copied().unwrap_or_default();
    let too_much = quotas
        .session
        .refuses("session", there(&keys[0]), row.size)
        .or_else(|| quotas.tenant.refuses("tenant", there(&keys[1]), row.size));
    if too_much.is_some() {
        // An artifact that exists already takes no additional room.
        return Ok(if exists(connection, row).await? { None } else { too_much });
    }
    if insert(connection, row).await? > 0 {
        for key in keys {
            let total = totals.entry(key).or_default();
            *total = *total + ArtifactTotal { count: 1, bytes: row.size };
        }
    }
    Ok(None)
}

async fn exists(connection: &mut Connection, row: &ArtifactRow) -> Result<bool, Failed> {
    let sql = "SELECT 1 FROM artifacts WHERE id = $1
               OR (session = $2 AND exec = $3 AND path = $4 AND sha256 = $5)";
    let sha256 = row.sha256.to_string();
    let key: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
        [&row.id, &row.session, &row.exec, &row.path, &sha256];
    Ok(connection.query_opt(sql, &key).await?.is_some())
}

pub(super) async fn insert(connection: &mut Connection, row: &ArtifactRow) -> Result<u64, Failed> {
    let sql = format!(
        "INSERT INTO artifacts ({COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
         ON CONFLICT DO NOTHING"
    );
    connection
        .execute(
            &sql,
            &[
                &row.id,
                &row.tenant,
                &row.session,
                &row.exec,
                &row.name,
                &row.path,
                &signed(row.size),
                &row.mime,
                &row.sha256.to_string(),
                &row.created_ms,
            ],
        )
        .await
}

async fn total(
    connection: &mut Connection,
    tenant: &str,
    session: &str,
) -> Result<ArtifactTotal, Failed> {
    let sql = "SELECT count, bytes FROM artifact_totals WHERE tenant = $1 AND session = $2";
    let Some(row) = connection.query_opt(sql, &[&tenant, &session]).await? else {
        return Ok(ArtifactTotal::default());
    };
    Ok(ArtifactTotal { count: unsigned(row.try_get(0)?), bytes: unsigned(row.try_get(1)?) })
}

fn digest(row: &Row, index: usize) -> Result<Digest, Failed> {
    let text: &str = row.try_get(index)?;
    text.parse().map_err(|_| Failed::Value(format!("`{text}` is not a hash")))
}

fn from_row(row: &Row) -> Result<ArtifactRow, Failed> {
    Ok(ArtifactRow {
        id: row.try_get(0)?,
        tenant: row.try_get(1)?,
        session: row.try_get(2)?,
        exec: row.try_get(3)?,
        name: row.try_get(4)?,
        path: row.try_get(5)?,
        size: unsigned(row.try_get(6)?),
        mime: row.try_get(7)?,
        sha256: digest(row, 8)?,
        created_ms: row.try_get(9)?,
    })
}
