//! Tests that cannot run on this machine. The test harness counts them as passed, so they are recorded: `make test` prints
//! and counts them at its end.

use std::fs::File;
use std::io::Write as _;

/// Names the file in which skipped tests are recorded, a line for each.
const RECORD: &str = "SKIPPED_TESTS_FILE";

/// Records that the current test is skipped, and returns from it: `skip!("there is no node on this machine")`.
#[macro_export]
macro_rules! skip {
    ($($reason:tt)*) => {{
        $crate::skip::record(&format!($($reason)*));
        return;
    }};
}

/// Skips the current test if the user is not root.
#[macro_export]
macro_rules! skip_unless_root {
    ($($reason:tt)*) => {
        if !$crate::skip::is_root() {
            $crate::skip!($($reason)*);
        }
    };
}

/// Whether tests may do what only root can.
#[must_use]
pub fn is_root() -> bool {
    belljar_sys::privileges::is_root()
}

/// Records that the current test is skipped, and why.
pub fn record(reason: &str) {
    let thread = std::thread::current();
    let test = std::env::var("NEXTEST_TEST_NAME");
    let test = test.unwrap_or_else(|_| thread.name().unwrap_or("a test").to_owned());
    eprintln!("skipped: {reason}");
    if let Some(path) = std::env::var_os(RECORD) {
        let file = File::options().create(true).append(true).open(path);
        let line = format!("{}::{test}: {reason}\n", suite());
        file.and_then(|mut file| file.write_all(line.as_bytes())).expect("a record of it");
    }
}

/// The name of the test program, without what Cargo adds to it.
fn suite() -> String {
    let path = std::env::current_exe().unwrap_or_default();
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.rsplit_once('-').map_or(name.clone(), |(suite, _)| suite.to_owned())
}
