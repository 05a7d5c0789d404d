//! Opens the host's directories that a sandbox is to see: the files of its session, and volumes. Their disk work runs on
//! blocking threads.

use std::io;
use std::path::PathBuf;

use belljar_sys::tree;

use crate::RuntimeError;
use crate::spec::SandboxSpec;
use crate::volume::{OpenVolume, VolumePlace};

/// Changes the owner of everything in a session's directory to the sandbox that is about to use it: an earlier sandbox
/// may have had other ids.
pub(crate) async fn give_to(
    directory: PathBuf,
    (uid, gid): (u32, u32),
) -> Result<(), RuntimeError> {
    let path = directory.clone();
    tokio::task::spawn_blocking(move || tree::give_to(&directory, uid, gid))
        .await
        .unwrap_or_else(|panic| Err(io::Error::other(panic)))
        .map_err(|cause| RuntimeError::Prepare { path, cause })
}

/// Opens the volumes of a sandbox, in the order of its spec. They stay mounted while the result lives.
pub(crate) async fn open_volumes(spec: &SandboxSpec) -> Result<Vec<OpenVolume>, RuntimeError> {
    let volumes = spec.volumes.clone();
    if volumes.is_empty() {
        return Ok(Vec::new());
    }
    let open = move || volumes.iter().map(|volume| volume.place.open()).collect();
    tokio::task::spawn_blocking(open)
        .await
        .unwrap_or_else(|panic| Err(RuntimeError::Build(panic.to_string())))
}

/// Opens the files of a session. They stay mounted while the result lives.
pub(crate) async fn open_session(place: &VolumePlace) -> Result<OpenVolume, RuntimeError> {
    let place = place.clone();
    tokio::task::spawn_blocking(move || place.open())
        .await
        .unwrap_or_else(|panic| Err(RuntimeError::Build(panic.to_string())))
}
