//! Lists the datasets of a session.

use std::cmp::Reverse;
use std::collections::HashMap;

use belljar_proto::guest::{TreeFile, TreeLimits};
use belljar_runtime::{Sandbox, UntrustedFile};

use super::stage::info_of_row;
use crate::clock;
use crate::datasets::{
    DatasetInfo, DatasetListing, DatasetRow, DatasetStatus, Description, describe,
};
use crate::error::EngineError;

/// The most files in a listing.
pub(super) const LISTED: TreeLimits = TreeLimits { files: 1000, depth: 16 };

/// How many files of a listing are described.
const DESCRIBED: usize = 100;

/// If files must be copied to be read, larger ones are not described. Their beginning and end would be enough, but only
/// the whole file can be copied.
const MAX_COPIED: u64 = 64 << 20;

/// The files below `root`, and datasets that are pending or have failed.
pub(super) async fn list(
    sandbox: &Sandbox,
    root: &str,
    rows: &[DatasetRow],
) -> Result<DatasetListing, EngineError> {
    let tree = sandbox.list_tree(root, LISTED).await.map_err(EngineError::ListDatasets)?;
    let files: Vec<TreeFile> =
        tree.files.into_iter().filter(|file| !is_temporary(&file.path)).collect();
    let mut described = describe_some(sandbox, root, &files).await?;
    let mut known: HashMap<&str, &DatasetRow> =
        rows.iter().map(|row| (row.name.as_str(), row)).collect();
    let mut datasets = Vec::new();
    for file in files {
        let name = String::from_utf8_lossy(&file.path).into_owned();
        let row = known.remove(name.as_str());
        let description = described.remove(&file.path);
        datasets.push(info_of_file(root, name, &file, row, description));
    }
    // A loaded dataset without a file was removed by code in the session, so it is not listed.
    let absent = known.into_values().filter(|row| row.status != DatasetStatus::Loaded);
    let mut absent: Vec<&DatasetRow> = absent.collect();
    absent.sort_by_key(|row| Reverse(row.updated_ms));
    let room = usize::try_from(LISTED.files).unwrap_or(usize::MAX).saturating_sub(datasets.len());
    let unlisted = absent.split_off(room.min(absent.len()));
    datasets.extend(absent.into_iter().map(|row| info_of_row(row.clone())));
    datasets.sort_by(|a, b| a.name.cmp(&b.name));
    let more = (tree.skipped.len() + unlisted.len()) as u64 + tree.skipped_more;
    Ok(DatasetListing { datasets, more })
}

fn info_of_file(
    root: &str,
    name: String,
    file: &TreeFile,
    row: Option<&DatasetRow>,
    description: Option<Description>,
) -> DatasetInfo {
    // Code in the session may have overwritten the file.
    let unchanged = row.filter(|row| is_unchanged(row, file.size, file.modified_ns));
    // A newer dataset of this name is pending or has failed.
    let replacement = row.filter(|row| {
        row.status != DatasetStatus::Loaded && modified_ms(file.modified_ns) <= row.updated_ms
    });
    DatasetInfo {
        path: format!("{root}/{name}"),
        status: replacement.map_or(DatasetStatus::Loaded, |row| row.status),
        reason: replacement.and_then(|row| row.reason.clone()),
        source: row.and_then(|row| row.source.clone()),
        size: Some(file.size),
        modified: Some(clock::rfc3339(modified_ms(file.modified_ns))),
        sha256: unchanged.and_then(|row| row.sha256),
        description,
        cached: None,
        name,
    }
}

/// Whether a file is still the staged one, judged by its size and modification time.
pub(super) fn is_unchanged(row: &DatasetRow, size: u64, modified_ns: i64) -> bool {
    row.status == DatasetStatus::Loaded
        && row.size == Some(size)
        && row.updated_ms == modified_ms(modified_ns)
}

pub(super) fn modified_ms(modified_ns: i64) -> i64 {
    modified_ns / 1_000_000
}

/// Whether this is the hidden file of a dataset that is being written: `.0123456789abcdef.part`.
pub(super) fn is_temporary(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let random = name.strip_prefix(b".").and_then(|name| name.strip_suffix(b".part"));
    random.is_some_and(|random| random.len() == 16 && random.iter().all(u8::is_ascii_hexdigit))
}

async fn describe_some(
    sandbox: &Sandbox,
    root: &str,
    files: &[TreeFile],
) -> Result<HashMap<Vec<u8>, Description>, EngineError> {
    let mut described = HashMap::new();
    let files = &files[..files.len().min(DESCRIBED)];
    for batch in files.chunks(Sandbox::MAX_OPENED) {
        let opened = sandbox.open_files(root, batch, MAX_COPIED).await;
        let opened = opened.map_err(EngineError::ListDatasets)?;
        let opened: Vec<(Vec<u8>, UntrustedFile, u64)> = batch
            .iter()
            .zip(opened)
            .filter_map(|(file, opened)| {
                let opened = opened.ok().filter(|opened| opened.has_content)?;
                Some((file.path.clone(), opened.file, opened.size))
            })
            .collect();
        let describing = tokio::task::spawn_blocking(move || {
            let describe_one = |(path, file, size): (Vec<u8>, UntrustedFile, u64)| {
                let description = describe(&String::from_utf8_lossy(&path), &file, size);
                (path, description)
            };
            opened.into_iter().map(describe_one).collect::<Vec<_>>()
        });
        described.extend(describing.await.unwrap_or_default());
    }
    Ok(described)
}
