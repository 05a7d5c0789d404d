//! Adds up the usage of tenants until it is stored.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use belljar_runtime::Sandbox;

use crate::clock;
use crate::store::{Store, StoreError, UsageDelta};

/// How often usage is read and stored.
pub(crate) const PACE: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Usage {
    ledger: Mutex<Ledger>,
}

#[derive(Debug, Default)]
struct Ledger {
    deltas: HashMap<String, UsageDelta>,
    /// The last reading of each session.
    readings: HashMap<String, Reading>,
}

#[derive(Debug, Clone, Copy)]
struct Reading {
    cpu_us: u64,
    at: Instant,
}

impl Usage {
    pub(crate) fn add(&self, tenant: &str, change: impl FnOnce(&mut UsageDelta)) {
        let mut ledger = self.lock();
        match ledger.deltas.get_mut(tenant) {
            Some(delta) => change(delta),
            None => change(ledger.deltas.entry(tenant.to_owned()).or_default()),
        }
    }

    /// Begins to count a session of an earlier server. Usage until now was counted by that server.
    pub(crate) fn open(&self, session: &str, sandbox: &Sandbox) {
        let cpu_us = sandbox.cpu_used_us().unwrap_or(0);
        self.lock().readings.insert(session.to_owned(), Reading { cpu_us, at: Instant::now() });
    }

    /// Adds the usage of a live session since its last reading.
    pub(crate) fn read(&self, session: &str, tenant: &str, sandbox: &Sandbox) {
        let (cpu, memory) = (sandbox.cpu_used_us(), sandbox.memory_used());
        let now = Instant::now();
        let mut ledger = self.lock();
        let before = ledger.readings.get(session).copied();
        let before = before.unwrap_or(Reading { cpu_us: 0, at: now });
        let cpu_us = cpu.unwrap_or(before.cpu_us);
        let elapsed_ms = u64::try_from((now - before.at).as_millis()).unwrap_or(0);
        let delta = ledger.deltas.entry(tenant.to_owned()).or_default();
        delta.cpu_us += cpu_us.saturating_sub(before.cpu_us);
        delta.memory_mib_ms += (memory.unwrap_or(0) >> 20).saturating_mul(elapsed_ms);
        ledger.readings.insert(session.to_owned(), Reading { cpu_us, at: now });
    }

    /// Adds the usage of a session for the last time.
    pub(crate) fn close(&self, session: &str, tenant: &str, sandbox: &Sandbox) {
        self.read(session, tenant, sandbox);
        self.lock().readings.remove(session);
    }

    /// Stores the usage that was added since the last flush.
    pub(crate) async fn flush(&self, store: &dyn Store) -> Result<(), StoreError> {
        let deltas: Vec<_> = self.lock().deltas.drain().collect();
        if deltas.is_empty() {
            return Ok(());
        }
        store.add_usage(clock::day(clock::now_ms()), deltas).await
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ledger> {
        crate::lock(&self.ledger)
    }
}
