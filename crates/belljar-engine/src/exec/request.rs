//! What is to be executed, and how long it may take.

pub use crate::store::ExecRequest;

/// The longest an execution may be asked to run: a year. More is a mistake.
pub const MAX_TIMEOUT_S: f64 = 366.0 * 86400.0;

/// Seconds as milliseconds, if an execution can be given that long.
#[must_use]
pub fn timeout_ms(seconds: f64) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
    (seconds > 0.0 && seconds <= MAX_TIMEOUT_S).then(|| (seconds * 1000.0).ceil() as u64)
}
