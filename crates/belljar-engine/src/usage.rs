//! Adds up what tenants use, and writes it down now and then.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use belljar_runtime::Sandbox;

use crate::clock;
use crate::store::{Store, StoreError, UsageDelta};

/// How often consumption is looked at and written down.
pub(crate) const PACE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Usage {
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    deltas: HashMap<String, UsageDelta>,
    /// By session: what was seen last.
    meters: HashMap<String, Meter>,
}

#[derive(Debug, Clone, Copy)]
struct Meter {
    cpu_us: u64,
    seen: Instant,
}

impl Usage {
    pub(crate) fn add(&self, tenant: &str, change: impl FnOnce(&mut UsageDelta)) {
        let mut books = self.lock();
        match books.deltas.get_mut(tenant) {
            Some(delta) => change(delta),
            None => change(books.deltas.entry(tenant.to_owned()).or_default()),
        }
    }

    /// A session that an earlier server has already charged for what it used until now.
    pub(crate) fn open(&self, session: &str, sandbox: &Sandbox) {
        let cpu_us = sandbox.cpu_used_us().unwrap_or(0);
        self.lock().meters.insert(session.to_owned(), Meter { cpu_us, seen: Instant::now() });
    }

    /// Reads the meters of a live session.
    pub(crate) fn read(&self, session: &str, tenant: &str, sandbox: &Sandbox) {
        let (cpu, memory) = (sandbox.cpu_used_us(), sandbox.memory_used());
        let now = Instant::now();
        let mut books = self.lock();
        let before = books.meters.get(session).copied();
        let before = before.unwrap_or(Meter { cpu_us: 0, seen: now });
        let cpu_us = cpu.unwrap_or(before.cpu_us);
        let elapsed_ms = u64::try_from((now - before.seen).as_millis()).unwrap_or(0);
        let delta = books.deltas.entry(tenant.to_owned()).or_default();
        delta.cpu_us += cpu_us.saturating_sub(before.cpu_us);
        delta.memory_mib_ms += (memory.unwrap_or(0) >> 20).saturating_mul(elapsed_ms);
        books.meters.insert(session.to_owned(), Meter { cpu_us, seen: now });
    }

    /// Reads the meters for the last time.
    pub(crate) fn close(&self, session: &str, tenant: &str, sandbox: &Sandbox) {
        self.read(session, tenant, sandbox);
        self.lock().meters.remove(session);
    }

    /// Writes down what has come together.
    pub(crate) async fn flush(&self, store: &dyn Store) -> Result<(), StoreError> {
        let deltas: Vec<_> = self.lock().deltas.drain().collect();
        if deltas.is_empty() {
            return Ok(());
        }
        store.add_usage(clock::day(clock::now_ms()), deltas).await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Books> {
        crate::lock(&self.books)
    }
}
