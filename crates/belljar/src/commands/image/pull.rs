//! `belljar image pull`

use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_image::{Login, Name, PullOptions};
use clap::Args;

use super::announce;
use super::progress::Watched;
use crate::commands::output;
use crate::home;
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "\
Without --username, BELLJAR_REGISTRY_USER and BELLJAR_REGISTRY_PASSWORD are used, or else the login of
`docker login`. Layers that are complete are not pulled again; an interrupted pull is continued.")]
pub(crate) struct ImagePullArgs {
    /// Such as python:3.12-slim, registry.example/team/lab:1.0 or NAME@sha256:...
    #[arg(value_name = "REF")]
    pub(crate) reference: String,
    /// The name of the image [default: REF]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Your user name at the registry
    #[arg(long, value_name = "USER", requires = "password_stdin")]
    pub(crate) username: Option<String>,
    /// Read the password from standard input
    #[arg(long, requires = "username")]
    pub(crate) password_stdin: bool,
    /// Without TLS; this is the default for a registry on this machine
    #[arg(long)]
    pub(crate) plain_http: bool,
}

/// The longest password.
const MAX_PASSWORD: u64 = 64 << 10;

pub(super) fn pull(args: ImagePullArgs, settings: &Settings) -> Result<ExitCode> {
    let name: Option<Name> = args.name.as_deref().map(str::parse).transpose()?;
    let login = match args.username {
        Some(user) => Some(Login { user, password: password()? }),
        None => settings.registry_login.clone(),
    };
    let options = PullOptions { login, plain_http: args.plain_http };
    let store = home::images(settings);
    let writer = store.writer(output::say)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start the event loop")?;
    let progress = Watched::new();
    let pulling = belljar_image::pull(&writer, &args.reference, name, &options, &progress);
    let image = runtime.block_on(pulling);
    drop(progress);
    let image = image.with_context(|| format!("failed to pull `{}`", args.reference))?;
    announce(&image)?;
    Ok(ExitCode::SUCCESS)
}

fn password() -> Result<String> {
    let mut text = String::new();
    let mut input = std::io::stdin().lock().take(MAX_PASSWORD);
    input.read_to_string(&mut text).context("failed to read the password")?;
    let password = text.trim_end_matches(['\r', '\n']);
    if password.is_empty() {
        bail!("there is no password on standard input");
    }
    Ok(password.to_owned())
}
