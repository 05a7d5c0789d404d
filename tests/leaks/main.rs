//! Sandboxes leave nothing behind on the machine; and what an ordinary user without root can do.

mod census;
mod cycles;
mod rootless;
