//! Packs the directories that a snapshot keeps ([`KEPT_DIRECTORIES`]) into one archive, and unpacks them.

use std::fs::File;
use std::io::{self, BufReader, BufWriter};
use std::os::fd::OwnedFd;

use belljar_proto::guest::{Refusal, RefusalCode};
use belljar_proto::job::JobReport;
use belljar_proto::quiescence::KEPT_DIRECTORIES;
use belljar_sys::tree::Root;

use super::archive::{PIECE, Tar, unpack_tar};
use super::tree::{self, Tree};
use super::{Item, Moving, Outcome, Target};
use crate::files::refusal;
use crate::reply::refuse;

type KeptDirectory = (&'static str, Root);

/// Opens the directories with these names.
pub(super) fn open(names: &[String]) -> Result<Vec<KeptDirectory>, Refusal> {
    let find = |name: &String| KEPT_DIRECTORIES.iter().find(|(known, _)| known == name);
    names
        .iter()
        .map(|name| {
            let unknown =
                || refuse(RefusalCode::Invalid, format!("there is no directory named `{name}`"));
            let (name, path) = *find(name).ok_or_else(unknown)?;
            let root = Root::open_followed(path.as_bytes());
            root.map(|root| (name, root)).map_err(|error| refusal("open", path.as_bytes(), &error))
        })
        .collect()
}

pub(super) fn pack(directories: Vec<KeptDirectory>, to: OwnedFd) -> Outcome {
    let to = BufWriter::with_capacity(PIECE, File::from(to));
    let mut tar = Tar::new(to);
    let mut report = JobReport::default();
    for (name, root) in &directories {
        let mut target = Below { name, tar: &mut tar };
        let mut moving = Moving { target: &mut target, report };
        if let Err(refusal) = tree::walk(root, &mut moving) {
            // Half an archive must not look like a whole one.
            std::mem::forget(tar);
            return Err(refusal);
        }
        report = moving.report;
    }
    Moving { target: &mut tar, report }.finish()
}

pub(super) fn unpack(from: OwnedFd, directories: Vec<KeptDirectory>) -> Outcome {
    let from = BufReader::with_capacity(PIECE, File::from(from));
    let trees = directories.iter().map(|(name, root)| (*name, Tree::new(root))).collect();
    let mut target = Several { trees };
    let mut moving = Moving { target: &mut target, report: JobReport::default() };
    unpack_tar(from, &mut moving)?;
    moving.finish()
}

/// Writes to an archive, and puts one name in front of every path.
struct Below<'a> {
    name: &'a str,
    tar: &'a mut dyn Target,
}

impl Target for Below<'_> {
    fn put(&mut self, path: &[u8], mode: u32, modified: i64, item: Item<'_>) -> io::Result<()> {
        let path = [self.name.as_bytes(), b"/", path].concat();
        self.tar.put(&path, mode, modified, item)
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Several trees, each with a name.
struct Several<'a> {
    trees: Vec<(&'static str, Tree<'a>)>,
}

impl Target for Several<'_> {
    fn put(&mut self, path: &[u8], mode: u32, modified: i64, item: Item<'_>) -> io::Result<()> {
        let at = path.iter().position(|byte| *byte == b'/');
        // The directories themselves exist already.
        let Some((name, rest)) = at.map(|at| (&path[..at], &path[at + 1..])) else { return Ok(()) };
        let tree = self.trees.iter_mut().find(|(known, _)| known.as_bytes() == name);
        let (_, tree) = tree.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "it is outside of the directories of a sandbox",
            )
        })?;
        tree.put(rest, mode, modified, item)
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}
