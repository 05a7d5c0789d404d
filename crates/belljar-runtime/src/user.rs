//! The user that code in a sandbox runs as.

/// Everything inside runs as this user and group.
pub const USER_ID: u32 = 1000;
