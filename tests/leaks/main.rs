//! What sandboxes leave behind on the machine: nothing. And what an ordinary user can do.

mod census;
mod cycles;
mod rootless;
