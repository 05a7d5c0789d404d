//! Files of a guest that cannot send descriptors: their content is read from the guest, or written to it, in pieces.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use belljar_proto::guest::{Answer, Call, MAX_TABLE_FILE_BYTES, TableFile};
use belljar_sys::tree;
use belljar_sys::untrusted::UntrustedFd;

use crate::RuntimeError;
use crate::error::failed_to_open;
use crate::link::Link;

/// A file that the guest has opened.
#[derive(Debug)]
pub(crate) enum FileSource {
    Local(UntrustedFd),
    Remote(TableFile),
}

/// The files of one reply, which has either descriptors or numbers.
pub(crate) fn sources(
    fds: Vec<UntrustedFd>,
    files: Vec<TableFile>,
) -> impl Iterator<Item = FileSource> {
    fds.into_iter().map(FileSource::Local).chain(files.into_iter().map(FileSource::Remote))
}

/// The most that is copied of one file: a sparse file can have any size.
const MAX_FETCHED: u64 = 4 << 30;

/// A private copy of a file's content, at most as long as the file was when it was opened. The copy gets the time of the
/// last write to the file, so that a change in between can be noticed.
///
/// The content of a file larger than `most` is not fetched: the copy has its length, and no data.
pub(crate) async fn fetch(
    link: &Link,
    file: TableFile,
    path: &[u8],
    most: u64,
) -> Result<File, RuntimeError> {
    let TableFile { number, size, mut modified_ns, .. } = file;
    let failed = |cause| failed_to_open(path, cause);
    let copy = tempfile::tempfile().map_err(failed)?;
    let mut offset = 0;
    if size > most {
        copy.set_len(size).map_err(failed)?;
        offset = size;
    } else if size > MAX_FETCHED {
        link.call(Call::CloseTableFiles { files: vec![number] }, &[]).await?;
        let why = format!(
            "files of more than {MAX_FETCHED} bytes cannot be read from a sandbox of this backend"
        );
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, why)));
    }
    while offset < size {
        let length = (size - offset).min(MAX_TABLE_FILE_BYTES);
        let reply = link.call(Call::ReadTableFile { file: number, offset, length }, &[]).await?;
        let got = reply.body.len() as u64;
        match reply.answer {
            Answer::Read { modified_ns: now } if got <= length => modified_ns = now,
            _ => return Err(RuntimeError::UnexpectedAnswer),
        }
        copy.write_all_at(&reply.body, offset).map_err(failed)?;
        offset += got;
        if got == 0 {
            break;
        }
    }
    tree::set_modified(&copy, modified_ns).map_err(failed)?;
    link.call(Call::CloseTableFiles { files: vec![number] }, &[]).await?;
    Ok(copy)
}

/// Data for a file of the guest, collected in a temporary file first.
#[derive(Debug)]
pub(crate) struct StagedFile {
    pub(crate) number: u64,
    pub(crate) file: File,
}

impl StagedFile {
    pub(crate) fn new(number: u64) -> io::Result<StagedFile> {
        Ok(StagedFile { number, file: tempfile::tempfile()? })
    }

    /// Sends it to the guest.
    pub(crate) async fn send(&self, link: &Link, path: &[u8]) -> Result<(), RuntimeError> {
        let mut piece = vec![0; usize::try_from(MAX_TABLE_FILE_BYTES).unwrap_or(1 << 20)];
        let mut offset = 0;
        loop {
            let read = self.file.read_at(&mut piece, offset);
            match read.map_err(|cause| failed_to_open(path, cause))? {
                0 => break,
                read => {
                    let call = Call::WriteTableFile { file: self.number, offset };
                    link.call(call, &piece[..read]).await?;
                    offset += read as u64;
                }
            }
        }
        link.call(Call::CloseTableFiles { files: vec![self.number] }, &[]).await.map(|_| ())
    }
}
