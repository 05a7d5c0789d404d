//! Counts the disk space of snapshots, in total and for each tenant, also while they are being taken.
//!
//! Blocks on the disk are counted. A file with links in several directories is counted once for each tenant, and once
//! in total. Layers that the server makes for all sessions count only in the total.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use belljar_runtime::Meter;

use crate::error::EngineError;
use crate::lock;

/// A file of a snapshot, with its size on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeptFile {
    /// The same for all links to it.
    pub(super) inode: u64,
    pub(super) bytes: u64,
    /// Made by the server for all sessions.
    pub(super) common: bool,
}

/// Limits in bytes; `None` means no limit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UsageLimits {
    pub(super) total: Option<u64>,
    pub(super) tenant: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct SnapshotUsage {
    limits: UsageLimits,
    accounts: Arc<Mutex<Accounts>>,
}

#[derive(Debug, Default)]
struct Accounts {
    /// By session: its tenant, and the files of its snapshots.
    directories: HashMap<String, (String, Vec<KeptFile>)>,
    tenants: HashMap<String, Account>,
    total: Account,
}

/// Files by their inodes.
#[derive(Debug, Default)]
struct Account {
    files: HashMap<u64, (usize, u64)>,
    bytes: u64,
    /// Bytes of snapshots that are being taken.
    coming: u64,
}

impl Account {
    fn add(&mut self, file: KeptFile) {
        let (links, bytes) = self.files.entry(file.inode).or_default();
        *links += 1;
        // A file that is still being written may have grown since it was counted for another session.
        self.bytes = self.bytes - *bytes + file.bytes;
        *bytes = file.bytes;
    }

    fn remove(&mut self, file: KeptFile) {
        let Some((links, bytes)) = self.files.get_mut(&file.inode) else { return };
        *links -= 1;
        if *links == 0 {
            self.bytes -= *bytes;
            self.files.remove(&file.inode);
        }
    }

    fn used(&self) -> u64 {
        self.bytes + self.coming
    }

    fn has_room(&self, more: u64, limits: Option<u64>) -> bool {
        limits.is_none_or(|limits| self.used().saturating_add(more) <= limits)
    }
}

impl Accounts {
    fn set(&mut self, session: &str, tenant: &str, files: Vec<KeptFile>) {
        if let Some((owner, before)) = self.directories.remove(session) {
            let account = self.tenants.entry(owner).or_default();
            for file in before {
                self.total.remove(file);
                if !file.common {
                    account.remove(file);
                }
            }
        }
        let account = self.tenants.entry(tenant.to_owned()).or_default();
        for &file in &files {
            self.total.add(file);
            if !file.common {
                account.add(file);
            }
        }
        if !files.is_empty() {
            self.directories.insert(session.to_owned(), (tenant.to_owned(), files));
        }
        self.tenants.retain(|_, account| account.coming > 0 || !account.files.is_empty());
    }
}

impl SnapshotUsage {
    pub(super) fn new(limits: UsageLimits) -> SnapshotUsage {
        SnapshotUsage { limits, accounts: Arc::default() }
    }

    /// Sets the files that the snapshots of a session have now.
    pub(super) fn set(&self, session: &str, tenant: &str, files: Vec<KeptFile>) {
        lock(&self.accounts).set(session, tenant, files);
    }

    /// Removes the files of a session from the count.
    pub(super) fn remove(&self, session: &str) {
        let mut accounts = lock(&self.accounts);
        let owner = accounts.directories.get(session).map(|(tenant, _)| tenant.clone());
        if let Some(tenant) = owner {
            accounts.set(session, &tenant, Vec::new());
        }
    }

    /// Counts a snapshot while it is taken. It may take up to `room` bytes, within the limits of its tenant and the
    /// total. Refused if nothing is left.
    pub(super) fn meter(&self, tenant: &str, room: u64) -> Result<Arc<Tally>, EngineError> {
        let tally =
            Tally { usage: self.clone(), tenant: tenant.to_owned(), room, taken: Mutex::default() };
        match tally.missing(1) {
            None => Ok(Arc::new(tally)),
            Some(error) => Err(error),
        }
    }

    #[cfg(test)]
    fn used(&self, tenant: &str) -> (u64, u64) {
        let accounts = lock(&self.accounts);
        (accounts.tenants.get(tenant).map_or(0, Account::used), accounts.total.used())
    }
}

/// Counts the bytes of a snapshot that is being taken. They are released when this is dropped. By then the files of the
/// snapshot are counted, or removed.
#[derive(Debug)]
pub(super) struct Tally {
    usage: SnapshotUsage,
    tenant: String,
    room: u64,
    taken: Mutex<TakenBytes>,
}

#[derive(Debug, Default)]
struct TakenBytes {
    bytes: u64,
    /// How many bytes were requested when there was no room.
    refused: Option<u64>,
}

impl Tally {
    /// Why it got no more bytes, if it was refused.
    pub(super) fn refusal(&self) -> Option<EngineError> {
        let (bytes, refused) = {
            let taken = lock(&self.taken);
            (taken.bytes, taken.refused?)
        };
        if bytes.saturating_add(refused) > self.room {
            return Some(super::too_large(self.room));
        }
        self.missing(refused).or(Some(EngineError::SnapshotsFull))
    }

    /// The limit that leaves no room. A tenant must not learn how much others use.
    fn missing(&self, more: u64) -> Option<EngineError> {
        let accounts = lock(&self.usage.accounts);
        let limits = self.usage.limits;
        let own = accounts.tenants.get(&self.tenant);
        if let (Some(own), Some(limit)) = (own, limits.tenant)
            && !own.has_room(more, limits.tenant)
        {
            return Some(EngineError::TenantSnapshotsFull { used: own.used(), limit });
        }
        (!accounts.total.has_room(more, limits.total)).then_some(EngineError::SnapshotsFull)
    }
}

impl Meter for Tally {
    fn take(&self, bytes: u64) -> bool {
        let mut taken = lock(&self.taken);
        let mut accounts = lock(&self.usage.accounts);
        let Accounts { tenants, total, .. } = &mut *accounts;
        let own = tenants.entry(self.tenant.clone()).or_default();
        let limits = self.usage.limits;
        let fits = taken.bytes.saturating_add(bytes) <= self.room
            && own.has_room(bytes, limits.tenant)
            && total.has_room(bytes, limits.total);
        if fits {
            own.coming += bytes;
            total.coming += bytes;
            taken.bytes += bytes;
        } else {
            taken.refused = Some(bytes);
        }
        fits
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let bytes = lock(&self.taken).bytes;
        let mut accounts = lock(&self.usage.accounts);
        accounts.total.coming -= bytes;
        if let Some(own) = accounts.tenants.get_mut(&self.tenant) {
            own.coming -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(inode: u64, bytes: u64) -> KeptFile {
        KeptFile { inode, bytes, common: false }
    }

    #[test]
    fn a_file_is_counted_once_for_each_tenant_and_once_in_total() {
        let usage = SnapshotUsage::new(UsageLimits::default());
        let common = KeptFile { common: true, ..file(9, 1000) };
        usage.set("1", "a", vec![file(1, 10), file(2, 20), common]);
        usage.set("2", "a", vec![file(1, 10), file(3, 5), common]);
        usage.set("3", "b", vec![file(4, 7), common]);
        assert_eq!(usage.used("a"), (35, 1042));
        assert_eq!(usage.used("b"), (7, 1042));
        usage.set("1", "a", vec![file(2, 20)]);
        assert_eq!(usage.used("a"), (35, 1042));
        usage.remove("2");
        assert_eq!(usage.used("a"), (20, 1027));
        usage.remove("1");
        usage.remove("3");
        assert_eq!((usage.used("a"), usage.used("b")), ((0, 0), (0, 0)));
    }

    #[test]
    fn limits_hold_while_snapshots_are_taken_and_reveal_nothing_of_others() {
        let usage = SnapshotUsage::new(UsageLimits { total: Some(100), tenant: Some(60) });
        usage.set("1", "a", vec![file(1, 30)]);
        let first = usage.meter("a", 1000).unwrap();
        let second = usage.meter("a", 1000).unwrap();
        assert!(first.take(20) && second.take(10) && !first.take(1));
        let refused = first.refusal().unwrap().to_string();
        assert!(refused.contains("60") && !refused.contains("100"), "{refused}");
        let other = usage.meter("b", 1000).unwrap();
        assert!(other.take(40) && !other.take(1));
        let refused = other.refusal().unwrap();
        assert!(matches!(refused, EngineError::SnapshotsFull), "{refused}");
        assert!(!refused.to_string().chars().any(|it| it.is_ascii_digit()), "{refused}");
        assert!(usage.meter("a", 1000).is_err());
        drop((first, second));
        assert_eq!(usage.used("a"), (30, 70));
        let small = usage.meter("a", 5).unwrap();
        assert!(!small.take(6) && small.take(5));
        drop((small, other));
        assert_eq!(usage.used("a"), (30, 30));
    }

    proptest! {
        /// Counting step by step gives the same as counting everything at once.
        #[test]
        fn counts_are_always_those_of_what_is_there(
            steps in prop::collection::vec(
                (0..4usize, prop::collection::btree_set(0..6u64, 0..5)), 0..30),
        ) {
            let usage = SnapshotUsage::new(UsageLimits::default());
            let mut directories = vec![Vec::new(); 4];
            for (session, inodes) in steps {
                let files: Vec<KeptFile> = inodes.into_iter().map(|it| file(it, 10 + it)).collect();
                directories[session] = files.clone();
                let tenant = if session < 2 { "a" } else { "b" };
                usage.set(&session.to_string(), tenant, files);
                let sum = |directories: &[Vec<KeptFile>]| -> u64 {
                    let all = directories.iter().flatten().map(|it| (it.inode, it.bytes));
                    all.collect::<std::collections::BTreeMap<_, _>>().values().sum()
                };
                prop_assert_eq!(usage.used("a"), (sum(&directories[..2]), sum(&directories)));
                prop_assert_eq!(usage.used("b"), (sum(&directories[2..]), sum(&directories)));
            }
        }
    }
}
