//! Files kept open for a host that cannot be given their descriptors.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use belljar_proto::guest::{Answer, HeldFile, MAX_HELD, MAX_HELD_BYTES, Refusal, RefusalCode};
use belljar_sys::tree::Identity;

use crate::connection::{Reply, refuse};
use crate::files;

/// What is held for one connection; it ends with it.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    files: RefCell<HashMap<u64, File>>,
    next: Cell<u64>,
}

impl FileTable {
    pub(crate) fn hold(&self, fds: Vec<OwnedFd>) -> Result<Vec<HeldFile>, Refusal> {
        let mut files = self.files.borrow_mut();
        if files.len() + fds.len() > MAX_HELD {
            let message = format!("{MAX_HELD} files are open for the host already");
            return Err(refuse(RefusalCode::Busy, message));
        }
        let mut held = Vec::with_capacity(fds.len());
        for fd in fds {
            let Identity { size, inode, changed_ns, modified_ns } =
                Identity::of_file(&fd).map_err(|error| files::refusal("look at", b"", &error))?;
            let number = self.next.get();
            self.next.set(number + 1);
            files.insert(number, fd.into());
            held.push(HeldFile { held: number, size, inode, changed_ns, modified_ns });
        }
        Ok(held)
    }

    pub(crate) fn read(&self, held: u64, offset: u64, length: u64) -> Result<Reply, Refusal> {
        let mut body = vec![0; usize::try_from(length.min(MAX_HELD_BYTES)).unwrap_or(0)];
        let (filled, modified_ns) = self.with(held, |file| {
            let mut filled = 0;
            while filled < body.len() {
                match file.read_at(&mut body[filled..], offset + filled as u64) {
                    Ok(0) => break,
                    Ok(read) => filled += read,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            Ok((filled, Identity::of_file(file)?.modified_ns))
        })?;
        body.truncate(filled);
        Ok(Reply { answer: Answer::Read { modified_ns }, body, fds: Vec::new() })
    }

    pub(crate) fn write(&self, held: u64, offset: u64, bytes: &[u8]) -> Result<Reply, Refusal> {
        self.with(held, |file| file.write_all_at(bytes, offset))?;
        Ok(Answer::Done.into())
    }

    pub(crate) fn release(&self, held: &[u64]) -> Reply {
        let mut files = self.files.borrow_mut();
        held.iter().for_each(|number| drop(files.remove(number)));
        Answer::Done.into()
    }

    fn with<T>(&self, held: u64, ask: impl FnOnce(&File) -> io::Result<T>) -> Result<T, Refusal> {
        let files = self.files.borrow();
        let gone = || refuse(RefusalCode::Invalid, format!("file {held} is not held"));
        ask(files.get(&held).ok_or_else(gone)?)
            .map_err(|error| files::refusal("use", b"a file that is held", &error))
    }
}
