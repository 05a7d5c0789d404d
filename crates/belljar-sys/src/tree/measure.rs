//! Measures the size of a tree.

use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};

use super::{Found, Root, directory_flags, walk};

/// Deeper than any ordinary tree.
const MAX_DEPTH: u32 = 1000;

/// What was found below a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Measured {
    /// Space on the disk, not the lengths of files: holes do not count.
    pub bytes: u64,
    /// Of any kind, directories included.
    pub files: u64,
    /// There was more than was examined.
    pub partial: bool,
}

/// Examines at most `max_entries`; follows no link.
pub fn measure(root: &Path, max_entries: u64) -> io::Result<Measured> {
    let root = Root(rustix::fs::openat(CWD, root, directory_flags(), Mode::empty())?);
    let mut measured = Measured::default();
    // A file with several names counts once.
    let mut seen = HashSet::new();
    let walked = walk(&root, MAX_DEPTH, |_, found| {
        if measured.files >= max_entries {
            return ControlFlow::Break(());
        }
        measured.files += 1;
        match found {
            Found::Entry(stat) => {
                let is_directory = FileType::from_raw_mode(stat.st_mode) == FileType::Directory;
                if is_directory || stat.st_nlink == 1 || seen.insert(stat.st_ino) {
                    measured.bytes += u64::try_from(stat.st_blocks).unwrap_or(0) * 512;
                }
            }
            Found::TooDeep | Found::Unreadable(_) => measured.partial = true,
        }
        ControlFlow::Continue(())
    });
    measured.partial |= walked.is_break();
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn files_count_once_and_links_lead_nowhere() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        fs::create_dir_all(root.join("sub")).unwrap();
        let large = vec![1; 1 << 20];
        fs::write(root.join("sub/file"), &large).unwrap();
        fs::hard_link(root.join("sub/file"), root.join("again")).unwrap();
        fs::write(directory.path().join("outside"), &large).unwrap();
        symlink(directory.path(), root.join("link")).unwrap();
        let all = measure(&root, 100).unwrap();
        assert_eq!((all.files, all.partial), (4, false));
        assert!((1 << 20..3 << 19).contains(&all.bytes), "{all:?}");
        let some = measure(&root, 2).unwrap();
        assert_eq!((some.files, some.partial), (2, true));
    }
}
