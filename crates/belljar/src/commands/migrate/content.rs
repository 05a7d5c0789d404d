//! What is not in the tables: secrets, the content of artifacts, and the snapshots of sleeping sessions.
//!
//! ```text
//!   secrets ─▶ contents: copy ─▶ read all back ─▶ each sleeping session: copy ─▶ read back ─▶ row: no owner, snapshot
//! ```
//!
//! Contents that S3 has are not copied again, and a session whose row has a snapshot is done, so all of it can be started
//! again after an interruption.

use std::time::Instant;

use anyhow::{Context, Result, bail};
use belljar_engine::artifacts::{self, CopiedBlobs, Verified, claim_objects, copy_blobs};
use belljar_engine::objects::{Objects, ObjectsConfig};
use belljar_engine::shared_secrets::{self, OwnSecrets};
use belljar_engine::store::{DatabaseUrl, MigratedSessions, PostgresCatalog};
use belljar_engine::{RemoteSnapshotConfig, SnapshotConfig, SnapshotCopier};
use belljar_sys::wake_class::NodeClass;
use indicatif::HumanBytes;

use super::{PACE, output};
use crate::settings::{Choice, DOCKER_IMAGE, Settings};
use crate::{home, records};

/// Artifacts without content that are named in an error.
const NAMED: usize = 5;

/// Called after all records are copied and verified, and before the migration is reported as done. `server` is the name
/// of the server that is moved.
pub(super) async fn copy(settings: &Settings, url: &DatabaseUrl, server: &str) -> Result<()> {
    let catalog = share_secrets(settings, url).await?;
    let sessions = MigratedSessions::open(url, server).await?;
    match &settings.artifacts.objects {
        Some(config) => {
            copy_contents(settings, url, config, &catalog).await?;
            copy_snapshots(settings, config, &sessions, server).await?;
        }
        None => {
            let blobs = settings.artifacts.blobs_dir.display();
            let snapshots = settings.server.snapshots.directory.display();
            output::say(&format!(
                "BELLJAR_BLOBS_URL is not set: the content of artifacts stays in `{blobs}`, and the snapshots of \
                 sleeping sessions stay in `{snapshots}`; other machines cannot use them"
            ));
        }
    }
    say_what_stays(&sessions).await?;
    sessions.close().await;
    Ok(())
}

/// Returns the name of the catalog of artifacts.
async fn share_secrets(settings: &Settings, url: &DatabaseUrl) -> Result<String> {
    let store = records::open_shared(url).await?;
    let cluster = store.cluster().context("the database has no shared secrets")?;
    let own = OwnSecrets {
        link_key: home::link_key(settings),
        catalog: settings.artifacts.database.clone(),
        authority: home::network_authority(settings),
    };
    let catalog =
        shared_secrets::share(cluster, &own).await.context("failed to copy the secrets")?;
    store.close().await;
    Ok(catalog)
}

async fn copy_contents(
    settings: &Settings,
    url: &DatabaseUrl,
    config: &ObjectsConfig,
    catalog: &str,
) -> Result<()> {
    let objects = Objects::open(config)?;
    objects.check().await?;
    claim_objects(&objects, catalog).await?;
    let directory = &settings.artifacts.blobs_dir;
    let mut pace = Pace::new();
    let copied = match directory.try_exists() {
        Ok(false) => CopiedBlobs::default(),
        _ => {
            let progress = |so_far: &CopiedBlobs| {
                let CopiedBlobs { copied, skipped, bytes, .. } = so_far;
                pace.say(|| {
                    format!("artifacts: {} contents, {}", copied + skipped, HumanBytes(*bytes))
                });
            };
            copy_blobs(directory, &objects, progress).await.context("failed to copy artifacts")?
        }
    };
    for path in &copied.damaged {
        output::say(&format!("`{path}` does not match its hash and was not copied"));
    }
    let intact = read_back(settings, url, config).await?;
    let CopiedBlobs { copied, skipped, bytes, .. } = copied;
    output::say(&format!(
        "artifacts: {copied} contents copied, {skipped} were in S3 already, {}; {intact} read back and intact",
        HumanBytes(bytes)
    ));
    Ok(())
}

/// Compares the content of each artifact in S3 with its hash. Returns how many contents there are.
async fn read_back(settings: &Settings, url: &DatabaseUrl, config: &ObjectsConfig) -> Result<u64> {
    let catalog = PostgresCatalog::open(url).await?;
    let mut pace = Pace::new();
    let progress = move |so_far: &Verified| {
        pace.say(|| format!("artifacts: {} contents read back", so_far.intact));
    };
    let directory = &settings.artifacts.blobs_dir;
    let verifying = artifacts::verify_catalog(&catalog, directory, Some(config), progress);
    let Verified { intact, lost, .. } = verifying.await.context("failed to read artifacts back")?;
    if !lost.is_empty() {
        let named =
            lost.iter().take(NAMED).map(|lost| format!("{} ({})", lost.artifact.id, lost.reason));
        bail!(
            "S3 does not have the content of {} artifacts: {}; `belljar artifacts verify` lists all. Restore or remove \
             them and start the migration again",
            lost.len(),
            named.collect::<Vec<_>>().join(", ")
        );
    }
    Ok(intact)
}

async fn copy_snapshots(
    settings: &Settings,
    objects: &ObjectsConfig,
    sessions: &MigratedSessions,
    server: &str,
) -> Result<()> {
    let class = class(settings);
    let remote = RemoteSnapshotConfig { objects: objects.clone(), class: class.clone() };
    let config = SnapshotConfig { remote: Some(remote), ..settings.server.snapshots.clone() };
    let mut copier = SnapshotCopier::open(config, server)?;
    let sleeping = sessions.sleeping().await?;
    let (mut copied, mut bytes, mut pace) = (0, 0, Pace::new());
    for session in &sleeping {
        let id = &session.id;
        let failed = || format!("failed to copy the snapshot of session {id}");
        let Some(snapshot) = copier.copy(id, session.execs).await.with_context(failed)? else {
            output::say(&format!("session {id} sleeps and has no snapshot; it was not copied"));
            continue;
        };
        if !sessions.release(session, &snapshot.pointer).await? {
            output::say(&format!("session {id} has changed meanwhile; its snapshot was not moved"));
            continue;
        }
        copier.remove_earlier(&snapshot).await.with_context(failed)?;
        copied += 1;
        bytes += snapshot.bytes;
        pace.say(|| format!("snapshots: {copied} of {} sessions", sleeping.len()));
    }
    output::say(&format!(
        "snapshots: {copied} sleeping sessions copied, {}, read back and intact; any node of class `{class}` can wake them",
        HumanBytes(bytes)
    ));
    Ok(())
}

/// The class of a node on this machine.
fn class(settings: &Settings) -> String {
    let image = match settings.backend.choice {
        Choice::Docker => settings.backend.image.clone().unwrap_or_else(|| DOCKER_IMAGE.to_owned()),
        Choice::Native | Choice::Auto => home::native_image(settings),
    };
    NodeClass::here(&image).to_string()
}

async fn say_what_stays(sessions: &MigratedSessions) -> Result<()> {
    let staying = sessions.staying().await?;
    let counts = [
        (staying.pinned, "have files or volumes on this machine"),
        (staying.awake, "were awake when the server stopped"),
        (staying.asleep, "sleep with their snapshots on this machine"),
    ];
    for (count, why) in counts.into_iter().filter(|(count, _)| *count > 0) {
        output::say(&format!(
            "{count} sessions {why}; they go on when a server or node starts on this machine with this state directory"
        ));
    }
    Ok(())
}

/// Shows progress, but not too often.
struct Pace(Instant);

impl Pace {
    fn new() -> Pace {
        Pace(Instant::now())
    }

    fn say(&mut self, text: impl FnOnce() -> String) {
        if self.0.elapsed() >= PACE {
            output::say(&text());
            self.0 = Instant::now();
        }
    }
}
