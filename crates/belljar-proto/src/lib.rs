//! What is said between the host, the guest and the kernels, and how it is framed.
//!
//! There is no I/O here: everything turns values into bytes and bytes into values, so that the
//! same code serves an async server, a single-threaded guest and the tests.
//!
//! Two conversations use the same [`frame`]:
//!
//! * host and guest ([`guest`]): requests with an id, replies, and the events of executions;
//! * guest and kernel ([`kernel`]): "run this cell", and what came of it.
//!
//! and a third one packets: with a [`zygote`].
//!
//! Compatibility: a guest outlives the server that started it, so a newer host must understand an
//! older guest. Messages grow by optional fields and new variants only; a change of meaning needs
//! a new [`PROTOCOL`] number, which both sides tell each other in `Hello`. `tests/surface.rs`
//! holds one example of every message as it stands on the wire and fails when one changes.

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

/// Since this generation a guest tells with every [`exec::Outcome`] what lies in the artifact
/// directory, opens several files at once, and removes and writes files.
pub const PROTOCOL_WITH_FILES: u32 = 2;

/// Since this generation a guest runs kernels of languages that it has never heard of.
pub const PROTOCOL_WITH_LANGUAGES: u32 = 3;

/// Since this generation a guest relays connections to the host.
pub const PROTOCOL_WITH_RELAY: u32 = 3;

/// Since this generation a guest has its kernels move large values to disk when asked to.
pub const PROTOCOL_WITH_SPILL: u32 = 4;

/// Since this generation a guest has terminals, watches files, does jobs, and lists by pattern.
pub const PROTOCOL_WITH_TERMINALS: u32 = 4;

/// Since this generation a guest gives the host a line to a kernel, which writes itself into a pipe. In the generation
/// before it wrote to files, which no kernel is given any more.
pub const PROTOCOL_WITH_PICTURES: u32 = 6;

/// Since this generation a guest tells whether it rests, and keeps and brings back all its files.
pub const PROTOCOL_WITH_REST: u32 = 5;

/// Since this generation a guest starts kernels that begin with memory which the host brings.
pub const PROTOCOL_WITH_LOADING: u32 = 6;

/// The oldest generation this build still understands.
pub const OLDEST_PROTOCOL: u32 = 1;
