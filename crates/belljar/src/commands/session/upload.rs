//! `belljar session upload`
//!
//! A separate thread reads the file in pieces, so that memory use is small, and reading and sending happen at the same
//! time. The hash that the server reports is compared with that of the bytes that were read.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result, bail};
use belljar_engine::artifacts::Digest;
use bytes::Bytes;
use clap::Args;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc::{self, Sender};

use super::datasets::{Dataset, path_in};
use super::{find_id, print_json};
use crate::client::{Client, Upload, escape};
use crate::commands::outage::Outage;
use crate::commands::output;
use crate::commands::progress::{Progress, while_waiting};
use crate::flags::SessionArg;

#[derive(Debug, Args)]
#[command(after_help = "\
The file appears when all of it has come, and replaces one of the same name. A file of up to 1 GiB
that the server has already, from any of your sessions, is not sent again.

Examples:
  belljar session create --key demo --datasets API
  belljar session upload demo sales.csv
  belljar session upload demo export.parquet --name 2024/q1.parquet")]
pub(crate) struct SessionUploadArgs {
    #[command(flatten)]
    pub(crate) session: SessionArg,
    /// The file to upload
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
    /// Its name below /session/data, with or without folders [default: the file's own]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Print the server's response as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// A file up to this size is hashed first. It is not sent if the server already has its content.
const ASKED_UP_TO: u64 = 1 << 30;

/// The size of a piece, and how many pieces may wait for the server.
const PIECE: usize = 256 * 1024;
pub(super) const PIECES: usize = 4;

pub(super) async fn upload(client: &Client, args: &SessionUploadArgs) -> Result<ExitCode> {
    let source = Source::open(&args.file)?;
    let name = match &args.name {
        Some(name) => name.as_str(),
        None => args.file.file_name().and_then(|name| name.to_str()).with_context(|| {
            format!(
                "`{}` has a name that is not UTF-8; --name gives it another",
                args.file.display()
            )
        })?,
    };
    let id = find_id(client, &args.session).await?;
    let path = format!("{}/{}", path_in(&id), escape(name));
    let staged = match ask(client, &path, &source).await? {
        Some(staged) => staged,
        None => send(client, &path, &source).await?,
    };
    if args.json {
        return print_json(&staged).map(|()| ExitCode::SUCCESS);
    }
    let dataset = Dataset::from(&staged)?;
    output::print(&(dataset.describe() + "\n"))?;
    if dataset.was_there() {
        output::say("the server has it already; nothing was sent");
    }
    Ok(ExitCode::SUCCESS)
}

/// A file to be sent.
struct Source<'a> {
    path: &'a Path,
    file: File,
    /// `None` for pipes and for files that seem to be empty, such as those in /proc.
    size: Option<u64>,
    /// Whether it can be read more than once.
    is_plain: bool,
}

impl Source<'_> {
    fn open(path: &Path) -> Result<Source<'_>> {
        let context = || format!("failed to read `{}`", path.display());
        let file = File::open(path).with_context(context)?;
        let metadata = file.metadata().with_context(context)?;
        if metadata.is_dir() {
            bail!("`{}` is a directory; upload its files one by one", path.display());
        }
        let is_plain = metadata.is_file();
        let size = Some(metadata.len()).filter(|size| is_plain && *size > 0);
        Ok(Source { path, file, size, is_plain })
    }

    fn unreadable(&self) -> String {
        format!("failed to read `{}`", self.path.display())
    }

    /// The file at its beginning, if it can be read again.
    fn rewound(&self) -> Result<File> {
        let file = self.file.try_clone().with_context(|| self.unreadable())?;
        if self.is_plain {
            (&file).rewind().with_context(|| self.unreadable())?;
        }
        Ok(file)
    }
}

/// Asks the server to stage the content if it already has it; `None` if it does not.
async fn ask(client: &Client, path: &str, source: &Source<'_>) -> Result<Option<Value>> {
    let Some(size @ ..=ASKED_UP_TO) = source.size else { return Ok(None) };
    let sha256 = hash(source, size)?;
    let path = format!("{path}?sha256={sha256}");
    match while_waiting("asking whether the server has the content", client.put_nothing(&path))
        .await
    {
        Err(error) if error.is("content_unknown") => Ok(None),
        answer => Ok(Some(answer?)),
    }
}

fn hash(source: &Source<'_>, size: u64) -> Result<Digest> {
    let mut progress = Progress::of_bytes("reading it", Some(size));
    let mut file = source.rewound()?;
    let (mut hash, mut read) = (Sha256::new(), 0);
    let mut piece = vec![0; PIECE];
    loop {
        let length = file.read(&mut piece).with_context(|| source.unreadable())?;
        if length == 0 {
            return Ok(Digest::from(hash));
        }
        hash.update(&piece[..length]);
        read += length as u64;
        progress.set(read);
    }
}

/// Sends the file. Starts again at its beginning if the server was lost meanwhile.
async fn send(client: &Client, path: &str, source: &Source<'_>) -> Result<Value> {
    let mut progress = Progress::of_bytes("sending it", source.size);
    let mut outage = Outage::default();
    loop {
        let (sender, pieces) = mpsc::channel(PIECES);
        let failure = Arc::default();
        let reading = read_aside(source.rewound()?, source.size, sender, Arc::clone(&failure));
        let pieces = Upload::new(pieces, source.size);
        let sent = client.put(path, pieces, |gone| {
            progress.set(gone);
            if Some(gone) == source.size {
                progress.set_message("the server brings it into the session".into());
            }
        });
        let sent = sent.await;
        if let Some(error) = failure.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Err(error).with_context(|| source.unreadable());
        }
        match sent {
            Ok(staged) => {
                outage.is_over(|text| progress.say(text));
                return compared(staged, reading);
            }
            // A pipe cannot be read again.
            Err(error) if !source.is_plain => return Err(error.into()),
            Err(error) => outage.endure(error, |text| progress.say(text)).await?,
        }
    }
}

/// The error of the reading thread. The request itself fails without a reason.
pub(super) type Failure = Arc<Mutex<Option<io::Error>>>;

/// Reads up to the end of the file, or to its size, and hashes the bytes. Also ends when the receiver is dropped.
pub(super) fn read_aside(
    mut file: File,
    size: Option<u64>,
    to: Sender<io::Result<Bytes>>,
    failure: Failure,
) -> JoinHandle<Digest> {
    thread::spawn(move || {
        let mut hash = Sha256::new();
        let mut left = size;
        loop {
            let most = left.map_or(PIECE, |left| usize::try_from(left).unwrap_or(PIECE).min(PIECE));
            let mut piece = vec![0; most];
            let read = match file.read(&mut piece) {
                Ok(0) if left.is_some_and(|left| left > 0) => {
                    Err(io::Error::other("it became shorter while it was read"))
                }
                read => read,
            };
            match read {
                Ok(0) => return Digest::from(hash),
                Ok(length) => {
                    piece.truncate(length);
                    hash.update(&piece);
                    left = left.map(|left| left - length as u64);
                    if to.blocking_send(Ok(piece.into())).is_err() {
                        return Digest::from(hash);
                    }
                }
                Err(error) => {
                    let kind = error.kind();
                    *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
                    // This ends the request; the error itself is in `failure`.
                    let _ = to.blocking_send(Err(kind.into()));
                    return Digest::from(hash);
                }
            }
        }
    })
}

/// Checks that the server has received what was read.
fn compared(staged: Value, reading: JoinHandle<Digest>) -> Result<Value> {
    let Ok(sha256) = reading.join() else { bail!("failed to read the file: the reader panicked") };
    match Dataset::from(&staged)?.sha256 {
        Some(got) if got != sha256.to_string() => {
            bail!("the server received something else than was sent; upload it again")
        }
        _ => Ok(staged),
    }
}
