//! A fingerprint of everything below a directory.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::ControlFlow;

use rustix::fs::FileType;

use super::{Found, Identity, Root, random_number, walk};

/// Entries that are examined, including directories: a stat each, about twenty milliseconds in all. Beyond this number, or
/// this depth, the fingerprint is always new, so that the directory is listed.
const MAX_ENTRIES: usize = 10_000;
const MAX_DEPTH: u32 = 32;

/// A fingerprint of everything below `root` except directories; `None` if there is nothing. The same fingerprint means that no
/// path, type, size or time changed. Writes through a mapping may change no time, see [`super::is_being_written`].
#[must_use]
pub fn fingerprint(root: &str) -> Option<u64> {
    sum_of(root, false)
}

/// Like [`fingerprint`], with directories and permissions.
#[must_use]
pub fn fingerprint_of_all(root: &str) -> Option<u64> {
    sum_of(root, true)
}

fn sum_of(root: &str, all: bool) -> Option<u64> {
    let root = match Root::open_if_any(root) {
        Ok(root) => root?,
        Err(error) => return Some(hash(error.kind())),
    };
    let (mut seen, mut sum) = (0, None);
    let walked = walk(&root, MAX_DEPTH, |path, found| {
        seen += 1;
        let of_this = match found {
            Found::TooDeep => return ControlFlow::Break(()),
            _ if seen > MAX_ENTRIES => return ControlFlow::Break(()),
            Found::Unreadable(error) => hash((path, error.kind())),
            Found::Entry(stat) => {
                let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                match (is_directory, all) {
                    (true, false) => return ControlFlow::Continue(()),
                    // Its times change with its entries.
                    (true, true) => hash((path, stat.st_mode)),
                    (false, false) => {
                        hash((path, Identity::of(&stat), stat.st_mode & libc::S_IFMT))
                    }
                    (false, true) => hash((path, Identity::of(&stat), stat.st_mode)),
                }
            }
        };
        // A sum, because directories list their entries in any order.
        sum = Some(sum.unwrap_or(0u64).wrapping_add(of_this));
        ControlFlow::Continue(())
    });
    if walked.is_break() { Some(random_number()) } else { sum }
}

/// Need not be secure: code that makes a collision only hides its own files.
fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn of(root: &Path) -> Option<u64> {
        fingerprint(root.to_str().unwrap())
    }

    #[test]
    fn nothing_but_directories_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("root");
        assert_eq!(of(&root), None, "missing");
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::create_dir(root.join("c")).unwrap();
        assert_eq!(of(&root), None, "empty directories");
        symlink(&root, dir.path().join("link")).unwrap();
        fs::write(root.join("file"), "").unwrap();
        assert_eq!(of(&dir.path().join("link")), None, "a link is no directory");
        assert_eq!(of(&root.join("file")), None, "nor is a file");
    }

    #[test]
    fn it_changes_with_everything_that_matters() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let file = root.join("a");
        let mut seen = Vec::new();
        let mut must_be_new = |what: &str| {
            let now = of(root);
            assert!(now.is_some() && !seen.contains(&now), "{what}");
            assert_eq!(of(root), now, "{what}: looking changes nothing");
            seen.push(now);
        };
        fs::write(&file, "12345").unwrap();
        must_be_new("a file");
        fs::write(&file, "1234").unwrap();
        must_be_new("another size");
        fs::rename(&file, root.join("b")).unwrap();
        must_be_new("another name");
        fs::create_dir(root.join("sub")).unwrap();
        fs::rename(root.join("b"), root.join("sub/b")).unwrap();
        must_be_new("another directory");
        let before = fs::metadata(root.join("sub/b")).unwrap().modified().unwrap();
        std::thread::sleep(Duration::from_millis(20));
        fs::write(root.join("sub/b"), "4321").unwrap();
        fs::File::open(root.join("sub/b")).unwrap().set_modified(before).unwrap();
        must_be_new("other contents, and the time set back");
        symlink("nowhere", root.join("link")).unwrap();
        must_be_new("a link, which is reported as skipped");
    }

    #[test]
    fn what_is_too_much_never_looks_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let deep = dir.path().join("x/".repeat(MAX_DEPTH as usize + 2));
        fs::create_dir_all(&deep).unwrap();
        let first = of(dir.path());
        assert!(first.is_some() && first != of(dir.path()));

        let dir = tempfile::tempdir().unwrap();
        for n in 0..=MAX_ENTRIES {
            symlink("x", dir.path().join(n.to_string())).unwrap();
        }
        let first = of(dir.path());
        assert!(first.is_some() && first != of(dir.path()));
    }

    /// Every execution takes this time, even if it leaves no files.
    #[test]
    fn an_empty_directory_costs_less_than_a_tenth_of_a_millisecond() {
        let dir = tempfile::tempdir().unwrap();
        let fastest = || {
            let rounds = (0..500).map(|_| {
                let begun = Instant::now();
                assert_eq!(of(dir.path()), None);
                begun.elapsed()
            });
            rounds.min().unwrap()
        };
        let empty = fastest();
        for name in ["a", "b", "c"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        let with_three = fastest();
        println!("empty: {empty:?}, with three empty directories: {with_three:?}");
        assert!(empty.max(with_three) < Duration::from_micros(100), "{empty:?}, {with_three:?}");
    }
}
