//! `belljar artifacts get`

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use clap::Args;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::download::{Download, Sink};
use super::{Artifact, explain, find, path_of};
use crate::client::{Client, ClientError, Content};
use crate::commands::outage::Outage;
use crate::commands::output::{self, plain, print_json};
use crate::commands::progress::Progress;

#[derive(Debug, Args)]
#[command(after_help = "\
If the server is lost, the download waits for it and continues. Until the content is complete and its
hash matches, it is in ID.part beside the file; the same command continues an interrupted download.")]
pub(crate) struct ArtifactsGetArgs {
    /// The id of the artifact
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// The target: a file, a directory, or - for standard output [default: its own name, in the current
    /// directory]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Print the artifact and the path of the file as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The exit status after Ctrl-C.
const EXIT_INTERRUPTED: u8 = 130;

pub(super) async fn get(client: &Client, args: &ArtifactsGetArgs) -> Result<ExitCode> {
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    if to_stdout && args.json {
        bail!("--json and -o - both use standard output; leave one of them out");
    }
    let artifact = Artifact::from(&find(client, &args.id).await?)?;
    if to_stdout {
        return print_content(client, &artifact).await;
    }
    let download = Download::of(&artifact, args.output.as_deref(), args.force)?;
    let mut sink = download.open(&artifact)?;
    let resumed_at = sink.written();
    // Handled, so that after Ctrl-C the user is informed about the part file.
    let mut ctrl_c = signal(SignalKind::interrupt()).context("failed to listen for signals")?;
    let fetched = tokio::select! {
        fetched = fetch(client, &artifact, &mut sink) => fetched,
        _ = ctrl_c.recv() => {
            say_kept(&download, &sink);
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
    };
    if let Err(error) = fetched {
        say_kept(&download, &sink);
        return Err(error);
    }
    let part = sink.finish(&artifact).inspect_err(|_| download.discard())?;
    download.finish(&part)?;
    let file = download.file.display().to_string();
    if args.json {
        print_json(&json!({
            "id": artifact.id,
            "name": artifact.name,
            "file": file,
            "size": artifact.size,
            "sha256": artifact.sha256,
            "resumed_at": resumed_at,
        }))?;
    } else {
        output::print(&(file + "\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn print_content(client: &Client, artifact: &Artifact) -> Result<ExitCode> {
    let mut sink = Sink::new(io::stdout().lock());
    let mut printed = fetch(client, artifact, &mut sink).await;
    if printed.is_ok() {
        printed = sink.finish(artifact).map(drop);
    }
    let cause = printed.as_ref().err().and_then(|error| error.downcast_ref::<io::Error>());
    if cause.is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe) {
        // The reader closed the pipe: it wanted only the beginning.
        return Ok(ExitCode::SUCCESS);
    }
    printed.map(|()| ExitCode::SUCCESS)
}

/// Reports the part file of an interrupted download; an empty one is removed.
fn say_kept<W: Write>(download: &Download, sink: &Sink<W>) {
    if sink.written() == 0 {
        download.discard();
    } else {
        output::say(&format!(
            "the first part is in `{}`; the same command continues the download",
            download.part.display()
        ));
    }
}

/// Downloads the missing content; reconnects if the server is lost.
async fn fetch<W: Write>(client: &Client, artifact: &Artifact, sink: &mut Sink<W>) -> Result<()> {
    let mut progress = Progress::of_bytes(plain(&artifact.name), Some(artifact.size));
    let mut outage = Outage::default();
    let mut content = None;
    while sink.written() < artifact.size {
        match next(client, artifact, sink.written(), &mut content).await {
            Ok(bytes) => {
                outage.is_over(|text| progress.say(text));
                sink.write(&bytes).context("failed to write the content")?;
                progress.set(sink.written());
            }
            Err(error) => {
                content = None;
                outage.endure(error, |text| progress.say(text)).await.map_err(explain)?;
            }
        }
    }
    Ok(())
}

/// The next bytes of the missing content.
async fn next(
    client: &Client,
    artifact: &Artifact,
    from: u64,
    content: &mut Option<(Content, u64)>,
) -> Result<Bytes, ClientError> {
    let (content, position) = match content {
        Some(open) => open,
        None => {
            let opened = open(client, artifact, from).await?;
            let begins_at = opened.begins_at;
            content.insert((opened, begins_at))
        }
    };
    loop {
        let Some(mut bytes) = content.next().await? else {
            return Err(ClientError::CutOff { url: client.url() });
        };
        let begins_at = *position;
        *position += bytes.len() as u64;
        if *position > from {
            // A proxy that ignores ranges sends the content from its beginning.
            let known = usize::try_from(from.saturating_sub(begins_at)).unwrap_or(usize::MAX);
            let bytes = bytes.split_off(known.min(bytes.len()));
            let missing = usize::try_from(artifact.size - from).unwrap_or(usize::MAX);
            return Ok(bytes.slice(..missing.min(bytes.len())));
        }
    }
}

/// Opens the content with a new link, because an older link may have expired during an outage.
async fn open(client: &Client, artifact: &Artifact, from: u64) -> Result<Content, ClientError> {
    let ask = json!({ "method": "GET" });
    let link = client.post(&format!("{}/url", path_of(&artifact.id)), &ask).await?;
    let url = link["url"].as_str().unwrap_or_default();
    // Uses only the path of the link, because its host may be meant for other clients.
    let path = url.rfind("/artifacts/").map(|at| &url[at..]);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/?=&%".contains(&byte);
    let path = path.filter(|path| path.bytes().all(is_plain));
    let Some(path) = path else {
        let why = "its link to an artifact cannot be read".to_owned();
        return Err(ClientError::NotBelljar { url: client.url(), why });
    };
    client.content(path, from, &format!("\"{}\"", artifact.sha256)).await
}
