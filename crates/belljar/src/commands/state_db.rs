//! The server's database and audit log, for commands that use them directly, with or without a running server.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::DirBuilderExt;
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use belljar_engine::audit::Audit;
use belljar_engine::store::{SqliteStore, Store};
use tokio::runtime::Runtime;

pub(super) use super::output::print;
use crate::settings::Settings;
use crate::{home, records};

/// Opens the database, and creates it if there is none.
pub(super) fn open(settings: &Settings) -> Result<Arc<dyn Store>> {
    let directory = &settings.state_dir;
    // Private: it contains the code of users.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).with_context(|| {
        format!("failed to create the state directory `{}`", directory.display())
    })?;
    match open_existing(settings)? {
        Some(store) => Ok(store),
        None => Ok(Arc::new(SqliteStore::open(&home::database(settings))?)),
    }
}

/// Opens the database, if there is one.
pub(super) fn open_existing(settings: &Settings) -> Result<Option<Arc<dyn Store>>> {
    if let Some(url) = &settings.database {
        return block_on(records::open_shared(url)).map(Some);
    }
    let path = home::database(settings);
    // Opened here first to get a useful error: the error of SQLite has no reason.
    match File::options().read(true).write(true).open(&path) {
        Ok(_) => Ok(Some(Arc::new(SqliteStore::open(&path)?))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(error).with_context(|| format!("failed to open the database `{}`", path.display()))
        }
    }
}

pub(super) fn audit(settings: &Settings) -> Result<Audit> {
    let path = settings.state_dir.join("audit.log");
    Audit::open(&path, settings.server.audit_code)
        .with_context(|| format!("failed to open the audit log `{}`", path.display()))
}

pub(super) fn block_on<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    // One for all calls of the process: a store's connections belong to the event loop that opened them.
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = match RUNTIME.get() {
        Some(runtime) => runtime,
        None => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.context("failed to start the event loop")?;
            RUNTIME.get_or_init(|| runtime)
        }
    };
    runtime.block_on(work)
}
