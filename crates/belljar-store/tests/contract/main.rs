//! What every implementation of [`Store`] and [`ArtifactCatalog`] must do. One more implementation
//! needs a [`Backend`] and one more line `contract!(name, Type);`.

#![expect(clippy::unwrap_used, reason = "a test fails by a panic")]

mod artifacts;
mod datasets;
mod execs;
mod keys;
mod records;
#[path = "../rows/mod.rs"]
mod rows;
mod sessions;
mod usage;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use belljar_store::{
    ArtifactCatalog, ClusterRecords, DatabaseUrl, NewNode, NodeLoad, PostgresCatalog,
    PostgresStore, SqliteCatalog, SqliteStore, Store,
};
use belljar_testkit::postgres::Postgres;

/// An empty set of records for one test, which may open it several times.
#[async_trait]
pub trait Backend: Sync {
    fn new() -> Self;
    async fn store(&self) -> Arc<dyn Store>;
    async fn catalog(&self) -> Arc<dyn ArtifactCatalog>;
}

macro_rules! contract {
    ($name:ident, $backend:ty) => {
        mod $name {
            contract!(@cases $backend,
                records::the_owner_stays_the_same,
                records::a_closed_store_fails,
                sessions::a_session_is_read_as_it_was_stored,
                sessions::a_key_belongs_to_one_session_that_has_not_ended,
                sessions::lists_are_filtered_and_the_newest_come_first,
                sessions::a_session_that_ends_loses_its_sandbox,
                sessions::only_ended_sessions_are_forgotten,
                sessions::old_sessions_are_pruned_by_where_their_files_are,
                execs::an_execution_is_accepted_once,
                execs::the_end_of_an_execution_is_stored_and_extends_its_session,
                execs::pages_go_in_both_directions,
                execs::a_page_of_large_executions_ends_early,
                execs::old_executions_are_pruned,
                datasets::datasets_are_replaced_found_and_removed,
                datasets::pending_datasets_fail_with_their_server,
                volumes::only_ready_volumes_are_seen,
                volumes::quotas_are_kept,
                volumes::a_volume_in_use_is_not_retired,
                keys::a_key_is_revoked_once,
                keys::keys_are_forgotten_when_none_is_valid,
                keys::writes_of_others_change_the_version,
                usage::days_add_up,
                artifacts::totals_follow_the_rows_and_duplicates_count_once,
                artifacts::quotas_refuse_new_artifacts_only,
                artifacts::pages_go_from_the_newest_to_the_oldest,
                artifacts::contents_in_use_are_known,
            );
        }
    };
    (@cases $backend:ty, $($module:ident::$case:ident),* $(,)?) => {
        $(
            #[tokio::test]
            async fn $case() {
                crate::$module::$case(&<$backend as crate::Backend>::new()).await;
            }
        )*
    };
}

contract!(sqlite, crate::SqliteFiles);
contract!(postgres, crate::PostgresDatabase);

struct SqliteFiles {
    directory: tempfile::TempDir,
}

#[async_trait]
impl Backend for SqliteFiles {
    fn new() -> SqliteFiles {
        SqliteFiles { directory: tempfile::tempdir().unwrap() }
    }

    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(SqliteStore::open(&self.directory.path().join("belljar.db")).unwrap())
    }

    async fn catalog(&self) -> Arc<dyn ArtifactCatalog> {
        Arc::new(SqliteCatalog::open(&self.directory.path().join("artifacts.db")).unwrap())
    }
}

struct PostgresDatabase {
    url: DatabaseUrl,
}

#[async_trait]
impl Backend for PostgresDatabase {
    fn new() -> PostgresDatabase {
        PostgresDatabase { url: DatabaseUrl::parse(&Postgres::shared().database()).unwrap() }
    }

    /// The store of a single server.
    async fn store(&self) -> Arc<dyn Store> {
        let store = PostgresStore::open(&self.url, "node").await.unwrap();
        let node = NewNode {
            id: "node".into(),
            address: "127.0.0.1:1".into(),
            class: "any".into(),
            capacity: NodeLoad::default(),
        };
        store.register_node(node, Duration::MAX).await.unwrap();
        Arc::new(store)
    }

    async fn catalog(&self) -> Arc<dyn ArtifactCatalog> {
        Arc::new(PostgresCatalog::open(&self.url).await.unwrap())
    }
}
