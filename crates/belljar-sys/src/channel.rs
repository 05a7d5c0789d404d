//! Messages that carry descriptors, over UNIX sockets.
//!
//! Packets ([`send_packet`], [`recv_packet`]) serve the spawner and the zygote: one JSON object, a
//! few descriptors, bounded in size. On a stream ([`send_with_fds`], [`recv_with_fds`]) descriptors
//! are attached to the first byte of a frame and taken from a queue when the frame is parsed.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, OFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use tokio::io::unix::AsyncFd;

use crate::untrusted::{Closer, Untrusted, UntrustedFd};

/// The largest packet: a plan with its generated files. The default send buffer of Linux is larger.
pub const MAX_PACKET: usize = 128 * 1024;

/// The most descriptors beside one message: a sandbox needs a listener, cgroups and a few mounts.
pub const MAX_FDS: usize = 64;

/// The most that Linux allows in one message (`SCM_MAX_FD`). There is always room for all of them: Linux would close those
/// without room in the thread that receives.
pub const MAX_RECEIVED: usize = 253;

/// Two connected sockets that keep the boundaries of packets.
pub fn packet_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    Ok(rustix::net::socketpair(family, kind, SocketFlags::CLOEXEC, None)?)
}

/// A pipe (read end, write end) that holds about this many bytes, or what the system allows.
pub fn pipe(bytes: usize) -> io::Result<(OwnedFd, OwnedFd)> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    // A user has a limit for all pipes together; a smaller pipe is only slower.
    let _ = rustix::pipe::fcntl_setpipe_size(&writer, bytes);
    Ok((reader, writer))
}

pub fn send_packet(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    must_fit(bytes, fds)?;
    send_with_fds(socket, bytes, fds).map(|_| ())
}

/// Like [`send_packet`], but never waits: a socket that came from a sandbox may be a blocking one.
pub fn send_packet_now(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    must_fit(bytes, fds)?;
    send(socket.as_fd(), bytes, fds, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map(|_| ())
}

fn must_fit(bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    if bytes.len() > MAX_PACKET || fds.len() > MAX_FDS {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message exceeds its bounds"));
    }
    Ok(())
}

/// Sends as much of `bytes` as the socket takes, the descriptors with the first of them.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    send(socket.as_fd(), bytes, fds, SendFlags::NOSIGNAL)
}

/// Sends as much of `bytes` as the socket takes now, and never waits.
pub fn send_now(socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    send(socket.as_fd(), bytes, &[], SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
}

fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RECEIVED))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?)
}

/// One packet and its descriptors; `None` when the other side is gone.
pub fn recv_packet(socket: impl AsFd) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    let mut bytes = vec![0; MAX_PACKET];
    let mut fds = Vec::new();
    let got = recv_with_fds(socket, &mut bytes, &mut fds)?;
    bytes.truncate(got);
    Ok((got > 0).then_some((bytes, fds)))
}

/// Waits until a packet has arrived, and leaves it in the socket.
pub fn await_packet(socket: impl AsFd) -> io::Result<()> {
    let mut byte = [0u8];
    rustix::net::recv(socket, &mut byte, RecvFlags::PEEK)?;
    Ok(())
}

/// Reads what is there into `bytes` and appends descriptors to `fds`. Zero means end of stream.
pub fn recv_with_fds(
    socket: impl AsFd,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    receive(socket.as_fd(), bytes, RecvFlags::empty(), |fd| fds.push(fd))
}

/// Like [`recv_with_fds`], from a sandbox over a socket that we made. Never waits; received descriptors are in `fds` also after
/// an error.
pub fn recv_untrusted(
    socket: impl AsFd,
    bytes: &mut [u8],
    fds: &mut Vec<UntrustedFd>,
    closer: &Closer,
) -> io::Result<usize> {
    let keep = |fd| fds.push(Untrusted::new(fd, closer));
    receive(socket.as_fd(), bytes, RecvFlags::DONTWAIT, keep)
}

fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    flags: RecvFlags,
    mut keep: impl FnMut(OwnedFd),
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_RECEIVED))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(bytes)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | flags,
    )?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            received.for_each(&mut keep);
        }
    }
    if received.flags.intersects(ReturnFlags::TRUNC | ReturnFlags::CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "message was cut off"));
    }
    Ok(received.bytes)
}

/// Reads from a socket that came from a sandbox; never waits for data. Closes descriptors that came with it, which may take
/// long: only for a thread of this sandbox alone. True if there were any.
pub fn recv_alone(socket: impl AsFd, bytes: &mut [u8]) -> io::Result<(usize, bool)> {
    let received = rustix::net::recvmsg(
        socket,
        &mut [IoSliceMut::new(bytes)],
        &mut RecvAncillaryBuffer::new(&mut []),
        RecvFlags::DONTWAIT,
    )?;
    match received.flags.contains(ReturnFlags::TRUNC) {
        true => Err(io::Error::new(io::ErrorKind::InvalidData, "message was cut off")),
        false => Ok((received.bytes, received.flags.contains(ReturnFlags::CTRUNC))),
    }
}

/// Moves what is available from one pipe to another. Never waits, even if the pipes are blocking ones.
pub fn move_now(from: impl AsFd, to: impl AsFd, most: usize) -> io::Result<usize> {
    use rustix::pipe::{SpliceFlags, splice};
    Ok(splice(from, None, to, None, most, SpliceFlags::NONBLOCK)?)
}

/// Shuts down the writing side of a connection.
pub fn end_writing(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, rustix::net::Shutdown::Write)?)
}

/// A pipe of our own whose ends do not block.
pub fn own_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    use rustix::pipe::{PipeFlags, pipe_with};
    Ok(pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?)
}

/// Writes as much as there is room for to a descriptor that does not block.
pub fn write_now(fd: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    Ok(rustix::io::write(fd, bytes)?)
}

/// Reads what is available from a nonblocking descriptor. The async runtime may not know yet that it is readable; this asks
/// Linux.
pub fn read_now(fd: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    Ok(rustix::io::read(fd, buffer)?)
}

/// Registers a descriptor with the async runtime: a packet socket, a pidfd.
pub fn watched(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the runtime needs `as_raw_fd` to name the same open descriptor for as long as it is
    // registered; an owned descriptor does, and nothing takes it out without unregistering it.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Like [`watched`], for a descriptor that a sandbox has sent, or whose queue has such descriptors.
pub fn watched_untrusted(fd: UntrustedFd) -> io::Result<AsyncFd<UntrustedFd>> {
    // SAFETY: as above; it owns its descriptor until it is dropped.
    Ok(unsafe { AsyncFd::register(fd) }?)
}

/// Like [`watched`], for an end of [`packet_pair`], which becomes nonblocking.
pub fn nonblocking(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    let socket = std::os::unix::net::UnixStream::from(socket);
    socket.set_nonblocking(true)?;
    watched(socket.into())
}

/// [`send_packet`], waiting until there is room.
pub async fn send_packet_async(
    socket: &AsyncFd<OwnedFd>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    socket.async_io(tokio::io::Interest::WRITABLE, |s| send_packet(s, bytes, fds)).await
}

/// [`recv_packet`], waiting until there is one.
pub async fn recv_packet_async(
    socket: &AsyncFd<OwnedFd>,
) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
    socket.async_io(tokio::io::Interest::READABLE, |s| recv_packet(s)).await
}

/// A named pipe, for a process that cannot inherit a pipe.
///
/// Dropping it removes the name. Until then it keeps a reading end open, so that both sides can be opened in any order.
#[derive(Debug)]
pub struct Fifo {
    path: PathBuf,
    _reader: OwnedFd,
}

impl Fifo {
    /// Makes one, and returns it with the writing end. The path must be new.
    pub fn make(path: PathBuf) -> io::Result<(Fifo, OwnedFd)> {
        use rustix::fs::{CWD, Mode, mknodat, open};
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let ends = open(&path, OFlags::RDONLY | flags, Mode::empty())
            .and_then(|reader| Ok((reader, open(&path, OFlags::WRONLY | flags, Mode::empty())?)));
        match ends {
            Ok((reader, writer)) => Ok((Fifo { path, _reader: reader }, writer)),
            Err(errno) => {
                let _ = std::fs::remove_file(&path);
                Err(errno.into())
            }
        }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    #[test]
    fn a_named_pipe_can_be_opened_by_name_until_its_name_is_gone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let (fifo, writer) = Fifo::make(path.clone()).unwrap();
        assert!(Fifo::make(path.clone()).is_err(), "a path is used once");
        let mut writer = std::fs::File::from(writer);
        writer.write_all(b"early").unwrap();
        let mut reader = std::fs::File::open(fifo.path()).unwrap();
        drop(fifo);
        assert!(!path.exists());
        writer.write_all(b" and late").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "early and late");
    }
}
