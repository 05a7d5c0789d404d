//! Files that sessions work on, and what is known of them.

mod describe;

pub use describe::{Description, describe};
