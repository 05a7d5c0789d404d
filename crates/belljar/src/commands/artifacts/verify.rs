//! `belljar artifacts verify`

use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_engine::artifacts::{self, Lost, Verified};
use belljar_engine::clock;
use belljar_engine::store::PostgresCatalog;
use clap::Args;
use indicatif::HumanBytes;
use serde_json::{Value, json};

use crate::commands::output::{self, plain, print_json};
use crate::commands::progress::Progress;
use crate::commands::state_db;
use crate::settings::Settings;
use crate::table;

#[derive(Debug, Args)]
#[command(after_help = "\
Reads BLOBSTORE_DIR and ARTIFACTS_DB directly and changes nothing; a server may run meanwhile. The exit
status is 0 if all artifacts are complete, 1 if content is lost or damaged, 125 if that could not be
checked.")]
pub(crate) struct ArtifactsVerifyArgs {
    /// Print the findings as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The exit status if content is lost or damaged.
const EXIT_LOST: u8 = 1;

pub(super) fn verify(args: &ArtifactsVerifyArgs, settings: &Settings) -> Result<ExitCode> {
    let (database, blobs_dir) = (&settings.artifacts.database, &settings.artifacts.blobs_dir);
    // Without permission to read the directory, the database may still exist.
    let is_there = settings.database.is_some()
        || database.try_exists().with_context(|| {
            format!("failed to look for the database of artifacts `{}`", database.display())
        })?;
    if !is_there {
        output::say(&format!(
            "there is no database of artifacts at `{}`; ARTIFACTS_DB says where it is",
            database.display()
        ));
    }
    let mut bar = None;
    let progress = move |so_far: &Verified| {
        let total = so_far.expected_bytes;
        let bar = bar.get_or_insert_with(|| Progress::of_bytes("", Some(total)));
        bar.set_message(format!("{} contents", so_far.intact));
        bar.set(so_far.bytes);
    };
    let verified = state_db::block_on(async {
        Ok(match &settings.database {
            Some(url) => {
                let catalog = PostgresCatalog::open(url).await?;
                artifacts::verify_catalog(&catalog, blobs_dir, progress).await?
            }
            None => artifacts::verify(database, blobs_dir, progress).await?,
        })
    })?;
    if args.json {
        print_json(&as_json(&verified))?;
    } else {
        report(&verified)?;
    }
    let well = verified.lost.is_empty();
    Ok(if well { ExitCode::SUCCESS } else { ExitCode::from(EXIT_LOST) })
}

fn report(verified: &Verified) -> Result<()> {
    if !verified.lost.is_empty() {
        let header = ["lost", "name", "session", "reason"];
        let cells = |Lost { artifact, reason }: &Lost| {
            let (id, session) = (artifact.id.clone(), artifact.session.clone());
            vec![id, plain(&artifact.name), session, (*reason).to_owned()]
        };
        let rows: Vec<Vec<String>> = verified.lost.iter().map(cells).collect();
        output::print(&(table::render(&header, &rows) + "\n"))?;
    }
    let lost = match verified.lost.len() {
        0 => "nothing is lost".to_owned(),
        1 => "1 artifact is lost".to_owned(),
        many => format!("{many} artifacts are lost"),
    };
    output::print(&format!(
        "{} content{} intact, {}; {} unused; {lost}\n",
        verified.intact,
        if verified.intact == 1 { "" } else { "s" },
        HumanBytes(verified.bytes),
        verified.unused
    ))
}

fn as_json(verified: &Verified) -> Value {
    let lost = |Lost { artifact, reason }: &Lost| {
        json!({
            "id": artifact.id,
            "name": artifact.name,
            "path": artifact.path,
            "size": artifact.size,
            "sha256": artifact.sha256,
            "created": clock::rfc3339(artifact.created_ms),
            "tenant": artifact.tenant,
            "session_id": artifact.session,
            "exec_id": artifact.exec,
            "reason": reason,
        })
    };
    json!({
        "intact": verified.intact,
        "bytes": verified.bytes,
        "unused": verified.unused,
        "lost": verified.lost.iter().map(lost).collect::<Vec<_>>(),
    })
}
