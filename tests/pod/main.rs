//! What Belljar needs to work in a pod: sandboxes that can be frozen, a PID 1 that starts the server again, and containers
//! with little of the machine's rights.

mod containers;
mod freeze;
mod init;
