//! The target of a migration from SQLite.

use std::error::Error;

use bytes::BytesMut;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::pool::{Connection, Failed, Pool, Side, Work};
use super::sessions::{is_pinned, storage_name};
use super::{DatabaseUrl, schema, signed, to_json, unsigned};
use crate::migrate::{RowHash, SleepingSession, StayingSessions, Table, Value};
use crate::{Digest, SessionSpec, StoreError};

/// Rows that are read at once to compute a hash.
const PAGE: i64 = 200;

/// A database that gets the records of a server.
#[derive(Debug)]
pub(crate) struct Target {
    pool: Pool,
}

/// The columns that Postgres has beside the spec of a session.
pub(crate) struct SpecColumns {
    pub(crate) storage: &'static str,
    pub(crate) volumes: Option<String>,
    pub(crate) is_pinned: bool,
}

pub(crate) fn spec_columns(spec: &str) -> Result<SpecColumns, String> {
    let spec: SessionSpec = serde_json::from_str(spec).map_err(|error| error.to_string())?;
    let volumes = (!spec.volumes.is_empty()).then(|| serde_json::to_string(&spec.volumes));
    Ok(SpecColumns {
        storage: storage_name(spec.storage),
        volumes: volumes.transpose().map_err(|error| error.to_string())?,
        is_pinned: is_pinned(&spec),
    })
}

impl Target {
    pub(crate) async fn open(url: &DatabaseUrl) -> Result<Target, StoreError> {
        let pool = Pool::open(url.clone()).await?;
        schema::migrate(&pool).await?;
        Ok(Target { pool })
    }

    pub(crate) async fn close(&self) {
        self.pool.close().await;
    }

    /// Returns false if the tables have rows that this source did not copy.
    pub(crate) async fn begin(&self, source: &str, tables: &[&str]) -> Result<bool, StoreError> {
        let source = source.to_owned();
        let tables: Vec<String> = tables.iter().map(|&table| table.to_owned()).collect();
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, bool> {
                Box::pin(async move {
                    connection.begin().await?;
                    connection.batch("LOCK TABLE migrated IN EXCLUSIVE MODE").await?;
                    let sql = "SELECT 1 FROM migrated WHERE source = $1 AND name = ''";
                    if connection.query_opt(sql, &[&source]).await?.is_some() {
                        return Ok(true);
                    }
                    for table in tables {
                        let sql = format!("SELECT 1 FROM {table} LIMIT 1");
                        if connection.query_opt(&sql, &[]).await?.is_some() {
                            return Ok(false);
                        }
                    }
                    let sql = "INSERT INTO migrated VALUES ($1, '', 0, '')";
                    connection.execute(sql, &[&source]).await?;
                    connection.commit().await?;
                    Ok(true)
                })
            })
            .await
    }

    /// The rows and hash of a table that was copied completely.
    pub(crate) async fn complete_table(
        &self,
        source: &str,
        table: &'static str,
    ) -> Result<Option<(u64, Digest)>, StoreError> {
        let source = source.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, Option<(u64, Digest)>> {
                Box::pin(async move {
                    let sql = "SELECT rows, sha256 FROM migrated WHERE source = $1 AND name = $2";
                    let Some(row) = connection.query_opt(sql, &[&source, &table]).await? else {
                        return Ok(None);
                    };
                    let hash: &str = row.try_get(1)?;
                    let hash = hash
                        .parse()
                        .map_err(|_| Failed::Value(format!("`{hash}` is not a hash")))?;
                    Ok(Some((unsigned(row.try_get(0)?), hash)))
                })
            })
            .await
    }

    /// Sessions that sleep with the snapshot on the disk of the source, and that another node may have.
    pub(crate) async fn sleeping(&self, source: &str) -> Result<Vec<SleepingSession>, StoreError> {
        let source = source.to_owned();
        self.pool
            .read_long(move |connection| -> Work<'_, Vec<SleepingSession>> {
                Box::pin(async move {
                    let sql = "SELECT id, epoch,
                             (SELECT coalesce(max(number), 0) FROM execs WHERE session = s.id)
                         FROM sessions s
                         WHERE owner = $1 AND phase = 'hibernated' AND handle IS NULL
                           AND pinned IS NULL AND snapshot IS NULL
                         ORDER BY id";
                    let rows = connection.query(sql, &[&source]).await?;
                    let session = |row: &Row| -> Result<SleepingSession, Failed> {
                        Ok(SleepingSession {
                            id: row.try_get(0)?,
                            epoch: row.try_get(1)?,
                            execs: unsigned(row.try_get(2)?),
                        })
                    };
                    rows.iter().map(session).collect()
                })
            })
            .await
    }

    /// Lets any node wake a sleeping session from `snapshot`. Returns false if the session has changed since it was
    /// listed.
    pub(crate) async fn release(
        &self,
        source: &str,
        session: &SleepingSession,
        snapshot: &serde_json::Value,
    ) -> Result<bool, StoreError> {
        let (source, session, snapshot) = (source.to_owned(), session.clone(), snapshot.clone());
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, bool> {
                Box::pin(async move {
                    let sql = "UPDATE sessions SET owner = NULL, epoch = epoch + 1, snapshot = $4,
                             snapshot_number = 1
                         WHERE id = $1 AND owner = $2 AND epoch = $3 AND phase = 'hibernated'
                           AND handle IS NULL AND pinned IS NULL AND snapshot IS NULL";
                    let snapshot = to_json(&snapshot)?;
                    let changed = connection
                        .execute(sql, &[&session.id, &source, &session.epoch, &snapshot])
                        .await?;
                    Ok(changed > 0)
                })
            })
            .await
    }

    /// Sessions that only the source can have: those that are pinned to it, and all others.
    pub(crate) async fn staying(&self, source: &str) -> Result<StayingSessions, StoreError> {
        let source = source.to_owned();
        self.pool
            .read(move |connection| -> Work<'_, StayingSessions> {
                Box::pin(async move {
                    let sql = "SELECT count(*) FILTER (WHERE pinned IS NOT NULL),
                             count(*) FILTER (WHERE pinned IS NULL AND phase <> 'hibernated'),
                             count(*) FILTER (WHERE pinned IS NULL AND phase = 'hibernated')
                         FROM sessions WHERE owner = $1 AND phase NOT IN ('stopped', 'failed')";
                    let row = connection.query_one(sql, &[&source]).await?;
                    Ok(StayingSessions {
                        pinned: unsigned(row.try_get(0)?),
                        awake: unsigned(row.try_get(1)?),
                        asleep: unsigned(row.try_get(2)?),
                    })
                })
            })
            .await
    }

    /// Adds rows that do not exist yet, in one transaction.
    pub(crate) async fn insert(
        &self,
        table: &'static Table,
        rows: Vec<Vec<Value>>,
    ) -> Result<(), StoreError> {
        self.pool
            .write_long(Side::Quick, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    connection.begin_long().await?;
                    for row in &rows {
                        insert_one(connection, table, row).await?;
                    }
                    connection.commit().await
                })
            })
            .await
    }

    /// The hash of all rows, in the order of their key.
    pub(crate) async fn hash(&self, table: &'static Table) -> Result<RowHash, StoreError> {
        self.pool
            .read_long(move |connection| -> Work<'_, RowHash> {
                Box::pin(async move {
                    connection.begin_long().await?;
                    connection
                        .batch(&format!(
                            "DECLARE all_rows CURSOR FOR SELECT {} FROM {} ORDER BY {}",
                            table.columns, table.name, table.key
                        ))
                        .await?;
                    let mut hash = RowHash::default();
                    loop {
                        let sql = format!("FETCH {PAGE} FROM all_rows");
                        let rows = connection.query_uncached(&sql).await?;
                        if rows.is_empty() {
                            return Ok(hash);
                        }
                        for row in rows {
                            let values = (0..row.len()).map(|index| row.try_get(index));
                            hash.add(&values.collect::<Result<Vec<Value>, _>>()?);
                        }
                    }
                })
            })
            .await
    }

    /// Survives a power cut, with all rows that were added before.
    pub(crate) async fn mark_complete(
        &self,
        source: &str,
        table: &'static str,
        rows: u64,
        hash: Digest,
    ) -> Result<(), StoreError> {
        let source = source.to_owned();
        self.pool
            .write(Side::Safe, move |connection| -> Work<'_, ()> {
                Box::pin(async move {
                    let sql = "INSERT INTO migrated VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING";
                    let hash = hash.to_string();
                    connection.execute(sql, &[&source, &table, &signed(rows), &hash]).await?;
                    // Servers read keys again when this number changes.
                    connection.batch("UPDATE keys_version SET version = version + 1").await
                })
            })
            .await
    }
}

async fn insert_one(
    connection: &mut Connection,
    table: &Table,
    row: &[Value],
) -> Result<(), Failed> {
    let extra = table.extra.map(|extra| format!(", {extra}")).unwrap_or_default();
    let places: Vec<String> = (1..=row.len()).map(|index| format!("${index}")).collect();
    let sql = format!(
        "INSERT INTO {} ({}{extra}) VALUES ({}) ON CONFLICT DO NOTHING",
        table.name,
        table.columns,
        places.join(", ")
    );
    let parameters: Vec<&(dyn ToSql + Sync)> =
        row.iter().map(|value| value as &(dyn ToSql + Sync)).collect();
    connection.execute(&sql, &parameters).await.map(|_| ())
}

impl ToSql for Value {
    fn to_sql(
        &self,
        kind: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Value::Null => Ok(IsNull::Yes),
            Value::Number(number) => number.to_sql(kind, out),
            Value::Text(text) => text.to_sql(kind, out),
            Value::Bytes(bytes) => bytes.to_sql(kind, out),
        }
    }

    fn accepts(kind: &Type) -> bool {
        [Type::INT8, Type::TEXT, Type::BYTEA].contains(kind)
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Value {
    fn from_sql(kind: &Type, raw: &'a [u8]) -> Result<Value, Box<dyn Error + Sync + Send>> {
        Ok(match *kind {
            Type::INT8 => Value::Number(i64::from_sql(kind, raw)?),
            Type::BYTEA => Value::Bytes(raw.to_vec()),
            _ => Value::Text(String::from_sql(kind, raw)?),
        })
    }

    fn from_sql_null(_: &Type) -> Result<Value, Box<dyn Error + Sync + Send>> {
        Ok(Value::Null)
    }

    fn accepts(kind: &Type) -> bool {
        [Type::INT8, Type::TEXT, Type::BYTEA].contains(kind)
    }
}
