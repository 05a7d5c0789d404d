//! Admission: limits on sessions, memory and processes, in total and per tenant. Capacity is reserved before a sandbox
//! is created and returned when it is gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use belljar_runtime::Limits;

use crate::error::EngineError;
use crate::lock;
use crate::store::{NodeLoad, QuotaLimit, Store, StoreError};

/// Limits; `None` means no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Quota {
    pub sessions: Option<u64>,
    /// Hibernated sessions.
    pub sleeping: Option<u64>,
    /// Bytes: the sum of the sandboxes' limits.
    pub memory: Option<u64>,
    pub pids: Option<u64>,
}

/// Capacity in use, or requested.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Load {
    pub sessions: u64,
    pub sleeping: u64,
    pub memory: u64,
    pub pids: u64,
}

/// The limit that was reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no room for another session: {whose} limit of {limit} {what} is reached ({used} in use)")]
pub struct Full {
    pub whose: &'static str,
    pub what: &'static str,
    pub limit: u64,
    pub used: u64,
}

#[derive(Debug, Clone)]
pub struct Admission {
    total: Quota,
    /// For each tenant whose key has no limits of its own.
    each: Quota,
    used: Arc<Mutex<Used>>,
}

#[derive(Debug, Default)]
struct Used {
    total: Load,
    tenants: HashMap<String, Load>,
    /// The limit of hibernated sessions of each tenant, from the key of its last request. It is kept because sessions
    /// also hibernate without a request.
    sleeping: HashMap<String, u64>,
}

/// Reserved capacity; returned when dropped.
#[derive(Debug)]
pub struct Reservation {
    used: Arc<Mutex<Used>>,
    tenant: String,
    load: Load,
    /// What is also counted over all nodes of the cluster, and where.
    over_nodes: Option<(Arc<dyn Store>, NodeLoad)>,
}

/// How often, and how long apart, capacity is given back to a database that cannot be reached.
const RETURN_ATTEMPTS: u32 = 120;
const RETURN_PAUSE: Duration = Duration::from_secs(1);

impl Reservation {
    /// Reserves the same capacity over all nodes, if the tenant has limits.
    pub(crate) async fn over_all_nodes(
        mut self,
        store: &Arc<dyn Store>,
        quota: Quota,
    ) -> Result<Reservation, EngineError> {
        let limit = QuotaLimit { sessions: quota.sessions, memory: quota.memory };
        let Some(cluster) = store.cluster().filter(|_| limit != QuotaLimit::default()) else {
            return Ok(self);
        };
        let load = NodeLoad { sessions: self.load.sessions, memory: self.load.memory };
        if cluster.reserve_quota(&self.tenant, load, limit).await? {
            self.over_nodes = Some((Arc::clone(store), load));
            return Ok(self);
        }
        let (what, limit) = match (quota.sessions, quota.memory) {
            (Some(sessions), None) => ("sessions on all nodes", sessions),
            (_, memory) => ("bytes of memory or of sessions on all nodes", memory.unwrap_or(0)),
        };
        Err(Full { whose: "this tenant's", what, limit, used: limit }.into())
    }

    /// Gives the capacity back, and waits until it is counted as free on all nodes.
    pub(crate) async fn give_back(mut self) {
        let Some((store, load)) = self.over_nodes.take() else { return };
        let (shared, tenant) = (Arc::clone(&store), self.tenant.clone());
        if let Err(error) = give_back_over_nodes(shared, tenant, load).await {
            tracing::debug!("a quota is given back later: {error}");
            self.over_nodes = Some((store, load));
        }
    }
}

async fn give_back_over_nodes(
    store: Arc<dyn Store>,
    tenant: String,
    load: NodeLoad,
) -> Result<(), StoreError> {
    match store.cluster() {
        Some(cluster) => cluster.release_quota(&tenant, load).await,
        None => Ok(()),
    }
}

impl Admission {
    #[must_use]
    pub fn new(total: Quota, each: Quota) -> Admission {
        Admission { total, each, used: Arc::default() }
    }

    /// Reserves capacity for a sandbox with these limits.
    pub fn reserve(
        &self,
        tenant: &str,
        quota: Quota,
        limits: &Limits,
    ) -> Result<Reservation, Full> {
        if let Some(limit) = quota.sleeping {
            lock(&self.used).sleeping.insert(tenant.to_owned(), limit);
        }
        let load = Load { sessions: 1, sleeping: 0, memory: limits.memory, pids: limits.pids };
        self.reserve_load(tenant, quota, load)
    }

    /// Reserves capacity for a hibernated session. `asked` is the quota of the client's key. Without a client, the
    /// quota of the tenant's last key applies.
    pub fn reserve_sleep(&self, tenant: &str, asked: Option<Quota>) -> Result<Reservation, Full> {
        if let Some(limit) = asked.and_then(|quota| quota.sleeping) {
            lock(&self.used).sleeping.insert(tenant.to_owned(), limit);
        }
        let limit = self.sleep_limit(tenant);
        let quota = Quota { sleeping: limit, ..Quota::default() };
        self.reserve_load(tenant, quota, Load { sleeping: 1, ..Load::default() })
    }

    /// How many hibernated sessions the tenant may have, by the key of its last request.
    #[must_use]
    pub fn sleep_limit(&self, tenant: &str) -> Option<u64> {
        lock(&self.used).sleeping.get(tenant).copied().or(self.each.sleeping)
    }

    fn reserve_load(&self, tenant: &str, quota: Quota, load: Load) -> Result<Reservation, Full> {
        let mut used = lock(&self.used);
        let own = used.tenants.get(tenant).copied().unwrap_or_default();
        fits("this tenant's", own, load, quota)?;
        fits("this server's", used.total, load, self.total)?;
        used.total.add(load);
        used.tenants.entry(tenant.to_owned()).or_default().add(load);
        drop(used);
        let used = Arc::clone(&self.used);
        Ok(Reservation { used, tenant: tenant.to_owned(), load, over_nodes: None })
    }

    /// Reserves capacity for a sandbox that exists already, regardless of the limits.
    #[must_use]
    pub fn admit(&self, tenant: &str, limits: &Limits) -> Reservation {
        self.without_limits()
            .reserve(tenant, Quota::default(), limits)
            .expect("without a limit nothing is refused")
    }

    /// The same for a session that is hibernated already.
    #[must_use]
    pub fn admit_sleep(&self, tenant: &str) -> Reservation {
        let load = Load { sleeping: 1, ..Load::default() };
        self.without_limits()
            .reserve_load(tenant, Quota::default(), load)
            .expect("without a limit nothing is refused")
    }

    fn without_limits(&self) -> Admission {
        let none = Quota::default();
        Admission { total: none, each: none, used: Arc::clone(&self.used) }
    }

    /// The limits of all tenants together.
    #[must_use]
    pub fn total(&self) -> Quota {
        self.total
    }

    #[must_use]
    pub fn load(&self) -> Load {
        lock(&self.used).total
    }
}

fn fits(whose: &'static str, used: Load, more: Load, quota: Quota) -> Result<(), Full> {
    for (what, used, more, limit) in [
        ("sessions", used.sessions, more.sessions, quota.sessions),
        ("sleeping sessions", used.sleeping, more.sleeping, quota.sleeping),
        ("bytes of memory", used.memory, more.memory, quota.memory),
        ("processes", used.pids, more.pids, quota.pids),
    ] {
        if let Some(limit) = limit
            && more > 0
            && used.saturating_add(more) > limit
        {
            return Err(Full { whose, what, limit, used });
        }
    }
    Ok(())
}

impl Load {
    fn add(&mut self, more: Load) {
        self.sessions += more.sessions;
        self.sleeping += more.sleeping;
        self.memory = self.memory.saturating_add(more.memory);
        self.pids = self.pids.saturating_add(more.pids);
    }

    fn subtract(&mut self, less: Load) {
        self.sessions = self.sessions.saturating_sub(less.sessions);
        self.sleeping = self.sleeping.saturating_sub(less.sleeping);
        self.memory = self.memory.saturating_sub(less.memory);
        self.pids = self.pids.saturating_sub(less.pids);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some((store, load)) = self.over_nodes.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let tenant = self.tenant.clone();
            runtime.spawn(async move {
                for _ in 0..RETURN_ATTEMPTS {
                    let (shared, tenant) = (Arc::clone(&store), tenant.clone());
                    if give_back_over_nodes(shared, tenant, load).await.is_ok() {
                        return;
                    }
                    tokio::time::sleep(RETURN_PAUSE).await;
                }
                tracing::error!(tenant, "failed to give back a quota");
            });
        }
        let mut used = lock(&self.used);
        used.total.subtract(self.load);
        if let Some(own) = used.tenants.get_mut(&self.tenant) {
            own.subtract(self.load);
            if *own == Load::default() {
                used.tenants.remove(&self.tenant);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(memory: u64) -> Limits {
        Limits { memory, pids: 10, ..Limits::default() }
    }

    #[test]
    fn room_is_granted_up_to_the_limit_and_given_back() {
        let total = Quota { sessions: Some(3), memory: Some(100), ..Quota::default() };
        let admission = Admission::new(total, Quota::default());
        let own = Quota { sessions: Some(2), ..Quota::default() };
        let first = admission.reserve("a", own, &limits(40)).unwrap();
        let second = admission.reserve("a", own, &limits(40)).unwrap();
        let refused = admission.reserve("a", own, &limits(1)).unwrap_err();
        assert_eq!((refused.whose, refused.what), ("this tenant's", "sessions"));
        let refused = admission.reserve("b", own, &limits(40)).unwrap_err();
        assert_eq!((refused.whose, refused.what), ("this server's", "bytes of memory"));
        drop(first);
        let third = admission.reserve("b", own, &limits(40)).unwrap();
        drop((second, third));
        assert_eq!(admission.load(), Load::default());
    }

    #[test]
    fn existing_sandboxes_are_never_refused() {
        let total = Quota { sessions: Some(0), ..Quota::default() };
        let admission = Admission::new(total, Quota::default());
        let _kept = admission.admit("a", &limits(1 << 40));
        assert_eq!(admission.load().sessions, 1);
    }

    #[test]
    fn hibernated_sessions_are_counted_separately() {
        let each = Quota { sleeping: Some(2), ..Quota::default() };
        let admission = Admission::new(Quota::default(), each);
        let one = Quota { sessions: Some(1), sleeping: Some(1), ..Quota::default() };
        let _awake = admission.reserve("a", one, &limits(1)).unwrap();
        let _asleep = admission.reserve_sleep("a", Some(one)).unwrap();
        let refused = admission.reserve_sleep("a", Some(one)).unwrap_err();
        assert_eq!((refused.what, refused.limit, refused.used), ("sleeping sessions", 1, 1));
        // The limit of that key also applies without a client, until a request with another key.
        assert!(admission.reserve_sleep("a", None).is_err());
        let two = [0, 1].map(|_| admission.reserve_sleep("b", None).unwrap());
        assert_eq!(admission.reserve_sleep("b", None).unwrap_err().limit, 2);
        let _third = admission.admit_sleep("b");
        drop(two);
        assert_eq!(admission.load().sleeping, 2);
        assert!(admission.reserve_sleep("b", None).is_ok());
    }

    #[test]
    fn sums_cannot_overflow() {
        let total = Quota { memory: Some(u64::MAX), ..Quota::default() };
        let admission = Admission::new(total, Quota::default());
        let _first = admission.admit("a", &limits(u64::MAX));
        let _second = admission.reserve("a", Quota::default(), &limits(u64::MAX)).unwrap();
    }
}
