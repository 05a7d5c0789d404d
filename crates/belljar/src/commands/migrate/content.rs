//! The content of artifacts, which is not in the database.

use anyhow::Result;

use super::output;
use crate::settings::Settings;

/// Called after all records are copied and verified, and before the migration is reported as done. It
/// must be possible to call it again after an interruption.
pub(super) fn copy(settings: &Settings) -> Result<()> {
    let directory = settings.artifacts.blobs_dir.display();
    output::say(&format!("the content of artifacts stays in `{directory}`"));
    Ok(())
}
