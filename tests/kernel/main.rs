//! Kernels through the engine: what they remember, how they die, which clients may talk to them,
//! and the zygote they are forked from.
//!
//! A zygote takes seconds to warm and every test runs in its own process, so each test checks
//! several things about one subject. What must not depend on how a kernel was started is checked on
//! both kinds, forked and executed.

mod bash;
mod commands;
mod connections;
mod deaths;
mod files;
mod host_presence;
mod input;
mod inspect;
mod interrupts;
mod lab;
mod memory;
mod moved;
mod node;
mod snapshots;
mod state;
mod zygote;
