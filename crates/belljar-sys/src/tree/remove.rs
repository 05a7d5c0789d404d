//! Removes files that the host has stored.

use std::io;

use rustix::fs::{AtFlags, FileType};

use super::create::Missing;
use super::{Identity, Root};

impl Root {
    /// Removes a plain file if it is unchanged; false if it is not. A file that replaces it between the check and the removal
    /// is removed instead.
    pub fn remove_file(&self, path: &[u8], as_seen: Identity) -> io::Result<bool> {
        let (directory, name) = self.parent(path, Missing::IsAnError)?;
        let stat = rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || Identity::of(&stat) != as_seen {
            return Ok(false);
        }
        rustix::fs::unlinkat(&directory, name, AtFlags::empty())?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn only_what_is_still_the_same_goes() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join("root").join(name);
        fs::create_dir_all(at("sub")).unwrap();
        for name in ["same", "grown", "replaced", "linked", "touched", "sub/same"] {
            fs::write(at(name), "12345").unwrap();
        }
        fs::create_dir(dir.path().join("elsewhere")).unwrap();
        fs::write(dir.path().join("elsewhere/same"), "12345").unwrap();
        let root = at("");
        let files = super::super::list(root.to_str().unwrap(), 10, 3).unwrap().files;
        assert_eq!(files.len(), 6);
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(at("grown"), "123456").unwrap();
        fs::write(at("new"), "12345").unwrap();
        fs::rename(at("new"), at("replaced")).unwrap();
        fs::rename(at("linked"), at("moved")).unwrap();
        symlink("moved", at("linked")).unwrap();
        let file = fs::File::open(at("touched")).unwrap();
        file.set_modified(file.metadata().unwrap().modified().unwrap()).unwrap();
        symlink(dir.path().join("elsewhere"), at("way")).unwrap();

        let root = Root::open(root.to_str().unwrap()).unwrap();
        let removed: Vec<_> = files
            .iter()
            .filter(|(path, identity)| root.remove_file(path, *identity).unwrap())
            .map(|(path, _)| String::from_utf8_lossy(path))
            .collect();
        assert_eq!(removed, ["same", "sub/same"]);
        assert!(at("sub").is_dir() && at("linked").is_symlink());
        let of_same = files[0].1;
        for hostile in ["way/same", "../elsewhere/same", "same/x", "", "/etc/passwd"] {
            assert!(root.remove_file(hostile.as_bytes(), of_same).is_err(), "{hostile}");
        }
        assert!(dir.path().join("elsewhere/same").exists());
    }
}
