//! The messages between the host, the guest and the kernels, and their framing.
//!
//! There is no I/O here: the code turns values into bytes and bytes into values, so that an async server, a
//! single-threaded guest and the tests can use it.
//!
//! Two protocols use the same [`frame`]:
//!
//! * host and guest ([`guest`]): requests with an id, replies, and the events of executions;
//! * guest and kernel ([`kernel`]): cells and their results.
//!
//! Two others use packets: with a [`zygote`], and with a kernel about its [`snapshot`].
//!
//! Compatibility: a guest outlives the server that started it, so a newer host must understand an
//! older guest. Messages grow by optional fields and new variants only; a change of meaning needs
//! a new [`PROTOCOL`] number, which both sides send in `Hello`. `tests/surface.rs` has one
//! example of every message as it is on the wire, and fails when one changes.

#![forbid(unsafe_code)]

pub mod digest;
pub mod exec;
pub mod frame;
pub mod guest;
pub mod handshake;
pub mod job;
pub mod kernel;
mod language;
pub mod quiescence;
pub mod relay;
pub mod snapshot;
pub mod terminal;
pub mod zygote;

/// The generation of the host/guest protocol this build speaks.
pub const PROTOCOL: u32 = 6;

/// Since this generation a guest sends a fingerprint of the artifact directory with every
/// [`exec::Outcome`], opens several files at once, and removes and writes files.
pub const PROTOCOL_WITH_FILES: u32 = 2;

/// Since this generation a guest runs kernels of languages that it does not know.
pub const PROTOCOL_WITH_LANGUAGES: u32 = 3;

/// Since this generation a guest relays connections to the host.
pub const PROTOCOL_WITH_RELAY: u32 = 3;

/// Since this generation a guest can ask its kernels to move large values to disk.
pub const PROTOCOL_WITH_SPILL: u32 = 4;

/// Since this generation a guest has terminals, watches files, does jobs, and lists by pattern.
pub const PROTOCOL_WITH_TERMINALS: u32 = 4;

/// Since this generation a guest connects the host with a kernel, which writes its snapshot into a pipe. In the
/// generation before, kernels wrote to files, which is not supported any more.
pub const PROTOCOL_WITH_SNAPSHOTS: u32 = 6;

/// Since this generation a guest reports whether it is quiescent, and packs and unpacks all its files.
pub const PROTOCOL_WITH_QUIESCENCE: u32 = 5;

/// Since this generation a guest starts kernels with memory that the host provides.
pub const PROTOCOL_WITH_LOADING: u32 = 6;

/// The oldest generation this build still understands.
pub const OLDEST_PROTOCOL: u32 = 1;
