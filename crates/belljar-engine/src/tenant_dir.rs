//! The name of a tenant's directory: a hash, because a tenant's name can be any text.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest as _, Sha256};

/// `t` and 16 hexadecimal digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct TenantDir(u64);

impl TenantDir {
    pub(crate) fn of(tenant: &str) -> TenantDir {
        let hash: [u8; 32] = Sha256::digest(tenant).into();
        let [a, b, c, d, e, f, g, h, ..] = hash;
        TenantDir(u64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }
}

/// The name of a tenant's directory.
#[must_use]
pub(crate) fn tenant_dir(tenant: &str) -> String {
    TenantDir::of(tenant).to_string()
}

impl fmt::Display for TenantDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{:016x}", self.0)
    }
}

impl FromStr for TenantDir {
    type Err = ();

    fn from_str(text: &str) -> Result<TenantDir, ()> {
        let hex = text.strip_prefix('t').ok_or(())?;
        let tenant = TenantDir(u64::from_str_radix(hex, 16).map_err(|_| ())?);
        if tenant.to_string() == text { Ok(tenant) } else { Err(()) }
    }
}
