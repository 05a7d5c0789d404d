//! What is left of everything when the server is killed, and what its successor makes of it.

mod disk;
mod half_done;
mod kills;
mod lives;
mod network;
mod sleep;
mod successor;
mod volumes;
mod worker;
