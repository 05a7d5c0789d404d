//! How much of the disk snapshots take, in total and for each tenant, while they are being taken too.
//!
//! What is counted are blocks on the disk, and a file that several directories have links to is counted once for
//! each tenant, and once in total. Layers that the server itself makes for everybody are in the total only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use belljar_runtime::Meter;

use crate::error::EngineError;
use crate::lock;

/// A file of an snapshots, as the disk has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// The same for all links to it.
    pub(super) inode: u64,
    pub(super) bytes: u64,
    /// Made by the server, and not by a session.
    pub(super) common: bool,
}

/// The most, in bytes; `None` is no limit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Most {
    pub(super) total: Option<u64>,
    pub(super) tenant: Option<u64>,
}

#[derive(Debug, Clone)]
pub(super) struct SnapshotUsage {
    most: Most,
    accounts: Arc<Mutex<Accounts>>,
}

#[derive(Debug, Default)]
struct Accounts {
    /// By session: whose it is, and what is in its snapshots.
    directories: HashMap<String, (String, Vec<Kept>)>,
    tenants: HashMap<String, Account>,
    total: Account,
}

/// Files by their inodes.
#[derive(Debug, Default)]
struct Account {
    files: HashMap<u64, (usize, u64)>,
    bytes: u64,
    /// What is being written at the moment.
    coming: u64,
}

impl Account {
    fn add(&mut self, file: Kept) {
        let (links, bytes) = self.files.entry(file.inode).or_default();
        *links += 1;
        // One that is still being written has grown since it was counted for another.
        self.bytes = self.bytes - *bytes + file.bytes;
        *bytes = file.bytes;
    }

    fn remove(&mut self, file: Kept) {
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

    fn has_room(&self, more: u64, most: Option<u64>) -> bool {
        most.is_none_or(|most| self.used().saturating_add(more) <= most)
    }
}

impl Accounts {
    fn set(&mut self, session: &str, tenant: &str, files: Vec<Kept>) {
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
    pub(super) fn new(most: Most) -> SnapshotUsage {
        SnapshotUsage { most, accounts: Arc::default() }
    }

    /// What is in a session's snapshots now.
    pub(super) fn set(&self, session: &str, tenant: &str, files: Vec<Kept>) {
        lock(&self.accounts).set(session, tenant, files);
    }

    /// Nothing is kept of a session any more.
    pub(super) fn remove(&self, session: &str) {
        let mut accounts = lock(&self.accounts);
        let owner = accounts.directories.get(session).map(|(tenant, _)| tenant.clone());
        if let Some(tenant) = owner {
            accounts.set(session, &tenant, Vec::new());
        }
    }

    /// Counts a snapshot while it is taken: no more than `room`, and no more than there is for its tenant
    /// and in total. Refused if nothing is left for it.
    pub(super) fn meter(&self, tenant: &str, room: u64) -> Result<Arc<Tally>, EngineError> {
        let tally =
            Tally { books: self.clone(), tenant: tenant.to_owned(), room, taken: Mutex::default() };
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

/// A snapshot that is being taken, by the bytes that came so far. Given back when dropped: by then its files are
/// counted, or gone.
#[derive(Debug)]
pub(super) struct Tally {
    books: SnapshotUsage,
    tenant: String,
    room: u64,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    bytes: u64,
    /// How many more were asked for than there was room for.
    refused: Option<u64>,
}

impl Tally {
    /// Why it got no more; none, if it did.
    pub(super) fn refusal(&self) -> Option<EngineError> {
        let (bytes, refused) = {
            let taken = lock(&self.taken);
            (taken.bytes, taken.refused?)
        };
        if bytes.saturating_add(refused) > self.room {
            return Some(super::too_large(self.room));
        }
        self.missing(refused).or(Some(EngineError::PicturesFull))
    }

    /// What there is not enough of; what others keep is nobody's business.
    fn missing(&self, more: u64) -> Option<EngineError> {
        let accounts = lock(&self.books.accounts);
        let most = self.books.most;
        let own = accounts.tenants.get(&self.tenant);
        if let (Some(own), Some(limit)) = (own, most.tenant)
            && !own.has_room(more, most.tenant)
        {
            return Some(EngineError::TenantPicturesFull { used: own.used(), limit });
        }
        (!accounts.total.has_room(more, most.total)).then_some(EngineError::PicturesFull)
    }
}

impl Meter for Tally {
    fn take(&self, bytes: u64) -> bool {
        let mut taken = lock(&self.taken);
        let mut accounts = lock(&self.books.accounts);
        let Accounts { tenants, total, .. } = &mut *accounts;
        let own = tenants.entry(self.tenant.clone()).or_default();
        let most = self.books.most;
        let fits = taken.bytes.saturating_add(bytes) <= self.room
            && own.has_room(bytes, most.tenant)
            && total.has_room(bytes, most.total);
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
        let mut accounts = lock(&self.books.accounts);
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

    fn file(inode: u64, bytes: u64) -> Kept {
        Kept { inode, bytes, common: false }
    }

    #[test]
    fn a_file_is_counted_once_for_each_tenant_and_once_in_total() {
        let books = SnapshotUsage::new(Most::default());
        let common = Kept { common: true, ..file(9, 1000) };
        books.set("1", "a", vec![file(1, 10), file(2, 20), common]);
        books.set("2", "a", vec![file(1, 10), file(3, 5), common]);
        books.set("3", "b", vec![file(4, 7), common]);
        assert_eq!(books.used("a"), (35, 1042));
        assert_eq!(books.used("b"), (7, 1042));
        books.set("1", "a", vec![file(2, 20)]);
        assert_eq!(books.used("a"), (35, 1042));
        books.remove("2");
        assert_eq!(books.used("a"), (20, 1027));
        books.remove("1");
        books.remove("3");
        assert_eq!((books.used("a"), books.used("b")), ((0, 0), (0, 0)));
    }

    #[test]
    fn limits_hold_while_pictures_are_taken_and_tell_nothing_of_others() {
        let books = SnapshotUsage::new(Most { total: Some(100), tenant: Some(60) });
        books.set("1", "a", vec![file(1, 30)]);
        let first = books.meter("a", 1000).unwrap();
        let second = books.meter("a", 1000).unwrap();
        assert!(first.take(20) && second.take(10) && !first.take(1));
        let refused = first.refusal().unwrap().to_string();
        assert!(refused.contains("60") && !refused.contains("100"), "{refused}");
        let other = books.meter("b", 1000).unwrap();
        assert!(other.take(40) && !other.take(1));
        let refused = other.refusal().unwrap();
        assert!(matches!(refused, EngineError::PicturesFull), "{refused}");
        assert!(!refused.to_string().chars().any(|it| it.is_ascii_digit()), "{refused}");
        assert!(books.meter("a", 1000).is_err());
        drop((first, second));
        assert_eq!(books.used("a"), (30, 70));
        let small = books.meter("a", 5).unwrap();
        assert!(!small.take(6) && small.take(5));
        drop((small, other));
        assert_eq!(books.used("a"), (30, 30));
    }

    proptest! {
        /// What is counted step by step is what counting everything at once would give.
        #[test]
        fn counts_are_always_those_of_what_is_there(
            steps in prop::collection::vec(
                (0..4usize, prop::collection::btree_set(0..6u64, 0..5)), 0..30),
        ) {
            let books = SnapshotUsage::new(Most::default());
            let mut directories = vec![Vec::new(); 4];
            for (session, inodes) in steps {
                let files: Vec<Kept> = inodes.into_iter().map(|it| file(it, 10 + it)).collect();
                directories[session] = files.clone();
                let tenant = if session < 2 { "a" } else { "b" };
                books.set(&session.to_string(), tenant, files);
                let sum = |directories: &[Vec<Kept>]| -> u64 {
                    let all = directories.iter().flatten().map(|it| (it.inode, it.bytes));
                    all.collect::<std::collections::BTreeMap<_, _>>().values().sum()
                };
                prop_assert_eq!(books.used("a"), (sum(&directories[..2]), sum(&directories)));
                prop_assert_eq!(books.used("b"), (sum(&directories[2..]), sum(&directories)));
            }
        }
    }
}
