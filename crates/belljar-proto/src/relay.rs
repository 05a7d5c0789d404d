//! Connections that code in a sandbox makes and the host answers, over the one connection that
//! host and guest have anyway. So it works where a sandbox has no network at all, and where no
//! descriptor can be handed over.
//!
//! ```text
//!   code ── TCP, loopback of the sandbox ──▶ guest ══ Open, Data, End, Reset ══▶ host: its proxy
//!                                              ◀═════ Data, End, Reset, Credit ═══
//! ```
//!
//! Each direction of a connection begins with a [`WINDOW`] of bytes that may be on their way. Who
//! has taken bytes out gives that many back as credit. So neither side ever holds more than a
//! window for one connection, and one that nobody reads holds up no other, and no events either.
//!
//! The same parts carry the pipes and sockets of replies, where a connection to a guest cannot carry
//! their descriptors. Those are open from the start, and are not counted with the others.
//!
//! A connection is over when both sides have said `End`, or one of them `Reset`. What arrives for
//! one that is over is dropped: the two may have crossed on their way.

use serde::{Deserialize, Serialize};

/// Where the guest listens, on loopback. It is bound before any code runs.
pub const PORT: u16 = 3128;

/// Where the guest puts the certificates that programs inside may believe.
pub const CERTIFICATES: &str = "/tmp/.belljar/certificates.pem";

/// Bytes of one direction of one connection that were sent and not yet taken out.
pub const WINDOW: usize = 256 * 1024;

/// The most that one `Data` carries: events of executions travel between them.
pub const MAX_DATA: usize = 32 * 1024;

/// Connections of one sandbox at a time. The guest accepts no more; those that come later wait.
pub const MAX_STREAMS: usize = 64;

/// Pipes and sockets of replies that are carried at a time: more than a guest gives away of them.
pub const MAX_CARRIED: usize = 128;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum Part {
    /// A new connection, with a number that no other had. Only guests say so.
    Open,
    /// The body is what was sent.
    Data,
    /// That many bytes were taken out, and as many more may be sent.
    Credit { bytes: u64 },
    /// Nothing follows in this direction.
    End,
    /// Nothing follows in either.
    Reset,
}

/// What the receiver of one direction owes: credit is given back in larger pieces, not with every
/// byte.
#[derive(Debug, Default)]
pub struct Owed(usize);

impl Owed {
    /// Counts bytes that were taken out, and says how many to give back now.
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
