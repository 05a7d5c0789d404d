//! `belljar volume`, as the user writes it.

use clap::{Args, Subcommand};

use super::parse_size;

#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    /// Where the server is [default: BELLJAR_URL, else the local server of Python programs, else
    /// http://127.0.0.1:8000]
    #[arg(long, value_name = "URL", global = true)]
    url: Option<String>,
    #[command(subcommand)]
    pub(crate) command: VolumeCommand,
}

impl VolumeArgs {
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        self.url.iter().map(|url| ("BELLJAR_URL", url.clone())).collect()
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a volume
    Create(VolumeCreateArgs),
    /// Volumes, by name
    List(VolumeListArgs),
    /// How full a volume is, and who uses it
    Show(VolumeShowArgs),
    /// Remove volumes that nobody uses, with everything in them
    Remove(VolumeRemoveArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Sessions see it at /volumes/NAME:
  belljar volume create models --size 2G
  belljar session create --volume models:ro")]
pub(crate) struct VolumeCreateArgs {
    /// Letters, digits, `.`, `_` and `-`
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// How much it has room for: a number of bytes, or with K, M, G [default: the server's]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// Print everything about it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeListArgs {
    /// Print them as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeShowArgs {
    /// Its name
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Print it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct VolumeRemoveArgs {
    /// Their names
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
    /// Print the names of those that were removed as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// `NAME`, `NAME:rw` or `NAME:ro`; what may be a name is for the server to say.
pub(super) fn parse_volume(text: &str) -> Result<(String, String), String> {
    let (name, mode) = text.split_once(':').unwrap_or((text, "rw"));
    match mode {
        "rw" | "ro" if !name.is_empty() => Ok((name.to_owned(), mode.to_owned())),
        _ => Err(format!("expected NAME, NAME:rw or NAME:ro, not `{text}`")),
    }
}
