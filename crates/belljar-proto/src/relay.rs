//! Relays connections of code in a sandbox to the host, over the connection between guest and host. So it
//! works where a sandbox has no network, and where descriptors cannot be passed.
//!
//! ```text
//!   code ── TCP, loopback of the sandbox ──▶ guest ══ Open, Data, End, Reset ══▶ host: its proxy
//!                                              ◀═════ Data, End, Reset, Credit ═══
//! ```
//!
//! Each direction of a stream begins with a [`WINDOW`] of bytes that may be in flight. A receiver that has
//! consumed bytes returns as many as credit. So neither side buffers more than a window for one stream, and
//! a stream that is not read delays neither other streams nor events.
//!
//! The pipes and sockets of replies are relayed the same way, where a connection to a guest cannot carry
//! their descriptors. They are open from the start, and have a separate limit.
//!
//! A stream is over when both sides have sent `End`, or one of them `Reset`. Messages for a stream that is
//! over are dropped: they may have been sent before the other side's `Reset` arrived.

use serde::{Deserialize, Serialize};

/// Where the guest listens, on loopback. It is bound before any code runs.
pub const PORT: u16 = 3128;

/// Where the guest writes the certificates that programs inside may trust.
pub const CERTIFICATES: &str = "/tmp/.belljar/certificates.pem";

/// Bytes of one direction of one stream that were sent and not consumed yet.
pub const WINDOW: usize = 256 * 1024;

/// The most that one `Data` carries, so that events of executions can be sent in between.
pub const MAX_DATA: usize = 32 * 1024;

/// Relayed connections of one sandbox at a time. The guest accepts no more; later ones wait.
pub const MAX_STREAMS: usize = 64;

/// Pipes and sockets of replies that are relayed at a time: more than a guest can have open.
pub const MAX_CARRIED: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum RelayMessage {
    /// A new stream, with a number that was never used. Only guests send it.
    Open,
    /// The body is data.
    Data,
    /// So many bytes were consumed, and as many more may be sent.
    Credit { bytes: u64 },
    /// Nothing follows in this direction.
    End,
    /// Nothing follows in either.
    Reset,
}

/// The credit that the receiver of one direction owes. It is returned in large pieces, not with every byte.
#[derive(Debug, Default)]
pub struct Owed(usize);

impl Owed {
    /// Counts consumed bytes, and returns how much credit to send now.
    pub fn taken(&mut self, bytes: usize) -> Option<u64> {
        self.0 += bytes;
        (self.0 >= WINDOW / 4).then(|| std::mem::take(&mut self.0) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sender_is_never_starved_by_credit_that_is_kept_back() {
        // What is kept back is less than a quarter, and one piece of data less than a half.
        const { assert!(WINDOW - WINDOW / 4 >= MAX_DATA) }
        let mut owed = Owed::default();
        let (mut taken, mut given) = (0, 0);
        for bytes in [1, 70_000, 3, 65_533, 10, 200_000] {
            taken += bytes as u64;
            given += owed.taken(bytes).unwrap_or(0);
            assert!(taken - given < WINDOW as u64 / 4);
        }
    }
}
