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
A server that goes away is waited for, and the download goes on where it was. Until all of it is
there and matches its hash, what has come is in ID.part beside the file; the same command goes on
with a part that was left.")]
pub(crate) struct ArtifactsGetArgs {
    /// The id of the artifact
    #[arg(value_name = "ID")]
    pub(crate) id: String,
    /// Where it goes: a file, a directory, or - for standard output [default: its own name, here]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Print what was downloaded, and where it is, as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// The exit status of what Ctrl-C ended.
const EXIT_INTERRUPTED: u8 = 130;

pub(super) async fn get(client: &Client, args: &ArtifactsGetArgs) -> Result<ExitCode> {
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    if to_stdout && args.json {
        bail!("--json and -o - both want standard output; leave one of them out");
    }
    let artifact = Artifact::from(&find(client, &args.id).await?)?;
    if to_stdout {
        return print_content(client, &artifact).await;
    }
    let download = Download::of(&artifact, args.output.as_deref(), args.force)?;
    let mut sink = download.open(&artifact)?;
    let resumed_at = sink.written();
    // Without a word about it, what has come would lie there unnoticed.
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
        // Who reads only the beginning has what they wanted.
        return Ok(ExitCode::SUCCESS);
    }
    printed.map(|()| ExitCode::SUCCESS)
}

/// What an interrupted download leaves, if it is worth going on with.
fn say_kept<W: Write>(download: &Download, sink: &Sink<W>) {
    if sink.written() == 0 {
        download.discard();
    } else {
        output::say(&format!(
            "what has come is in `{}`; the same command goes on with it",
            download.part.display()
        ));
    }
}

/// Writes what is missing, over as many connections and servers as it takes.
async fn fetch<W: Write>(client: &Client, artifact: &Artifact, sink: &mut Sink<W>) -> Result<()> {
    let mut progress = Progress::of_bytes(plain(&artifact.name), Some(artifact.size));
    let mut outage = Outage::default();
    let mut content = None;
    while sink.written() < artifact.size {
        match next(client, artifact, sink.written(), &mut content).await {
            Ok(bytes) => {
                outage.is_over(|text| progress.say(text));
                sink.write(&bytes).context("failed to write what came")?;
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

/// The next bytes of what is missing; never more than that.
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
            // Somebody on the way may not know ranges, and have sent it from its beginning.
            let known = usize::try_from(from.saturating_sub(begins_at)).unwrap_or(usize::MAX);
            let bytes = bytes.split_off(known.min(bytes.len()));
            let missing = usize::try_from(artifact.size - from).unwrap_or(usize::MAX);
            return Ok(bytes.slice(..missing.min(bytes.len())));
        }
    }
}

/// By a fresh link: one from before an outage may have expired.
async fn open(client: &Client, artifact: &Artifact, from: u64) -> Result<Content, ClientError> {
    let ask = json!({ "method": "GET" });
    let link = client.post(&format!("{}/url", path_of(&artifact.id)), &ask).await?;
    let url = link["url"].as_str().unwrap_or_default();
    // We know how to reach the server; whom its links are for may be elsewhere.
    let path = url.rfind("/artifacts/").map(|at| &url[at..]);
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/?=&%".contains(&byte);
    let path = path.filter(|path| path.bytes().all(is_plain));
    let Some(path) = path else {
        let why = "it tells of a link in an unknown way".to_owned();
        return Err(ClientError::NotBelljar { url: client.url(), why });
    };
    client.content(path, from, &format!("\"{}\"", artifact.sha256)).await
}
