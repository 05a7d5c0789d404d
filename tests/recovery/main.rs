//! What remains when the server is killed, and how the next server continues with it.

mod disk;
mod half_done;
mod kills;
mod lives;
mod network;
mod sleep;
mod successor;
mod volumes;
mod worker;
