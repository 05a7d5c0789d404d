//! The tenant and the key on whose behalf a call is made.

use crate::admission::Quota;
use crate::store::KeyLimits;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub tenant: String,
    /// The id of the API key; `None` where the server needs no keys.
    pub key_id: Option<String>,
    pub limits: KeyLimits,
}

/// The tenant of a server without keys.
pub const DEFAULT_TENANT: &str = "default";

impl Default for Principal {
    fn default() -> Self {
        let limits = KeyLimits::default();
        Principal { tenant: DEFAULT_TENANT.into(), key_id: None, limits }
    }
}

impl Principal {
    pub(crate) fn quota(&self) -> Quota {
        let KeyLimits { sessions, sleeping, memory, pids, .. } = self.limits;
        // By default, the limit of hibernated sessions is the limit of live ones.
        Quota { sessions, sleeping: sleeping.or(sessions), memory, pids }
    }
}
