//! Files that are open for a host whose connection cannot carry their descriptors.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use belljar_proto::guest::{
    Answer, MAX_TABLE_FILE_BYTES, MAX_TABLE_FILES, Refusal, RefusalCode, TableFile,
};
use belljar_sys::tree::Identity;

use crate::files;
use crate::reply::{Reply, refuse};

/// The files of one connection. They are closed with it.
#[derive(Debug, Default)]
pub(crate) struct FileTable {
    files: RefCell<HashMap<u64, File>>,
    next: Cell<u64>,
}

impl FileTable {
    /// Adds files, and returns the numbers by which the host refers to them.
    pub(crate) fn add(&self, fds: Vec<OwnedFd>) -> Result<Vec<TableFile>, Refusal> {
        let mut files = self.files.borrow_mut();
        if files.len() + fds.len() > MAX_TABLE_FILES {
            let message = format!("{MAX_TABLE_FILES} files are open for the host already");
            return Err(refuse(RefusalCode::Busy, message));
        }
        let mut added = Vec::with_capacity(fds.len());
        for fd in fds {
            let Identity { size, inode, changed_ns, modified_ns } =
                Identity::of_file(&fd).map_err(|error| files::refusal("look at", b"", &error))?;
            let number = self.next.get();
            self.next.set(number + 1);
            files.insert(number, fd.into());
            added.push(TableFile { number, size, inode, changed_ns, modified_ns });
        }
        Ok(added)
    }

    pub(crate) fn read(&self, number: u64, offset: u64, length: u64) -> Result<Reply, Refusal> {
        let mut body = vec![0; usize::try_from(length.min(MAX_TABLE_FILE_BYTES)).unwrap_or(0)];
        let (filled, modified_ns) = self.with(number, |file| {
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
        Ok(Reply::with_body(Answer::Read { modified_ns }, body))
    }

    pub(crate) fn write(&self, number: u64, offset: u64, bytes: &[u8]) -> Result<Reply, Refusal> {
        self.with(number, |file| file.write_all_at(bytes, offset))?;
        Ok(Answer::Done.into())
    }

    pub(crate) fn close(&self, numbers: &[u64]) -> Reply {
        let mut files = self.files.borrow_mut();
        numbers.iter().for_each(|number| drop(files.remove(number)));
        Answer::Done.into()
    }

    fn with<T>(&self, number: u64, ask: impl FnOnce(&File) -> io::Result<T>) -> Result<T, Refusal> {
        let files = self.files.borrow();
        let gone = || refuse(RefusalCode::Invalid, format!("file {number} is not open"));
        ask(files.get(&number).ok_or_else(gone)?)
            .map_err(|error| files::refusal("use", b"an open file", &error))
    }
}
