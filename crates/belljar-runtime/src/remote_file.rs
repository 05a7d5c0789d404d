//! Files of a guest that cannot give us their descriptors: their content is brought here, or from
//! here, in pieces.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use belljar_proto::guest::{Answer, Call, HeldFile, MAX_HELD_BYTES};
use belljar_sys::tree;
use belljar_sys::untrusted::UntrustedFd;

use crate::RuntimeError;
use crate::files::failed_to_open;
use crate::link::Link;

/// A file, as the guest hands it over.
#[derive(Debug)]
pub(crate) enum Source {
    Here(UntrustedFd),
    There(HeldFile),
}

/// Of one reply: it has the ones or the others.
pub(crate) fn sources(fds: Vec<UntrustedFd>, held: Vec<HeldFile>) -> impl Iterator<Item = Source> {
    fds.into_iter().map(Source::Here).chain(held.into_iter().map(Source::There))
}

/// The most that is copied of one file: code can make a file of any size out of nothing.
const MAX_FETCHED: u64 = 4 << 30;

/// A copy of what is in a file now, no longer than it was when it was opened; nobody else sees it.
/// It bears the time at which the file was last written to, so that a change meanwhile is seen.
///
/// Of a file that is larger than `most` nobody wants the content: the copy is as long, and empty.
pub(crate) async fn fetch(
    link: &Link,
    file: HeldFile,
    path: &[u8],
    most: u64,
) -> Result<File, RuntimeError> {
    let HeldFile { held, size, mut modified_ns, .. } = file;
    let failed = |cause| failed_to_open(path, cause);
    let copy = tempfile::tempfile().map_err(failed)?;
    let mut offset = 0;
    if size > most {
        copy.set_len(size).map_err(failed)?;
        offset = size;
    } else if size > MAX_FETCHED {
        link.call(Call::DropHeld { held: vec![held] }, &[]).await?;
        let why = format!("more than {MAX_FETCHED} bytes cannot be had of a sandbox of this kind");
        return Err(failed(io::Error::new(io::ErrorKind::FileTooLarge, why)));
    }
    while offset < size {
        let length = (size - offset).min(MAX_HELD_BYTES);
        let reply = link.call(Call::ReadHeld { held, offset, length }, &[]).await?;
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
    link.call(Call::DropHeld { held: vec![held] }, &[]).await?;
    Ok(copy)
}

/// What is to be written to a file of the guest, collected here first.
#[derive(Debug)]
pub(crate) struct Outside {
    pub(crate) held: u64,
    pub(crate) file: File,
}

impl Outside {
    pub(crate) fn new(held: u64) -> io::Result<Outside> {
        Ok(Outside { held, file: tempfile::tempfile()? })
    }

    /// Brings it to the guest.
    pub(crate) async fn send(&self, link: &Link, path: &[u8]) -> Result<(), RuntimeError> {
        let mut piece = vec![0; usize::try_from(MAX_HELD_BYTES).unwrap_or(1 << 20)];
        let mut offset = 0;
        loop {
            let read = self.file.read_at(&mut piece, offset);
            match read.map_err(|cause| failed_to_open(path, cause))? {
                0 => break,
                read => {
                    let call = Call::WriteHeld { held: self.held, offset };
                    link.call(call, &piece[..read]).await?;
                    offset += read as u64;
                }
            }
        }
        link.call(Call::DropHeld { held: vec![self.held] }, &[]).await.map(|_| ())
    }
}
