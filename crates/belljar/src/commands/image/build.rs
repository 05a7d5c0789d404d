//! `belljar image build`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_image::{BuildOptions, DEFAULT_SPEC, Loaded, Name, Progress, Spec};
use clap::Args;

use super::announce;
use super::progress::Watched;
use crate::commands::output;
use crate::home;
use crate::settings::Settings;

#[derive(Debug, Args)]
#[command(after_help = "\
Native sandboxes can use the image and, if a container engine answers, Docker too. Its base is kept, so
that the next build is faster. --print-spec shows the spec.")]
pub(crate) struct ImageBuildArgs {
    /// The spec of the image [default: Python with the usual packages]
    #[arg(short = 'f', long = "file", value_name = "SPEC")]
    pub(crate) file: Option<PathBuf>,
    /// The name of the image
    #[arg(long, value_name = "NAME", default_value = "belljar/sandbox")]
    pub(crate) name: String,
    /// Use this base instead of the one in the spec
    #[arg(long, value_name = "BASE")]
    pub(crate) base: Option<String>,
    /// Add Chromium and fonts, whatever the spec says
    #[arg(long)]
    pub(crate) browser: bool,
    /// Certificates to trust during the build [default: SSL_CERT_FILE, REQUESTS_CA_BUNDLE, ...]
    #[arg(long, value_name = "FILE")]
    pub(crate) ca_bundle: Option<PathBuf>,
    /// Fail if the image cannot be loaded into a container engine [default: load it if one answers]
    #[arg(long, conflicts_with = "no_docker")]
    pub(crate) docker: bool,
    /// Do not load the image into a container engine
    #[arg(long)]
    pub(crate) no_docker: bool,
    /// Print the spec and build nothing
    #[arg(long)]
    pub(crate) print_spec: bool,
}

pub(super) fn build(args: &ImageBuildArgs, settings: &Settings) -> Result<ExitCode> {
    let text = match &args.file {
        Some(path) => fs::read_to_string(path)
            .with_context(|| format!("failed to read `{}`", path.display()))?,
        None => DEFAULT_SPEC.to_owned(),
    };
    if args.print_spec {
        output::print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let shown = args.file.as_deref().unwrap_or(Path::new("the spec"));
    let mut spec = Spec::parse(&text).with_context(|| format!("`{}`", shown.display()))?;
    spec.browser |= args.browser;
    if let Some(base) = &args.base {
        spec.base.clone_from(base);
    }
    let name: Name = args.name.parse()?;
    let directory = args.file.as_deref().and_then(Path::parent).map(Path::to_owned);
    let options = BuildOptions {
        helper: PathBuf::from("/proc/self/exe"),
        directory: directory.unwrap_or_default(),
        ca_bundle: args.ca_bundle.clone(),
    };
    let store = home::images(settings);
    let writer = store.writer(output::say)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("failed to start the event loop")?;
    let progress = Watched::new();
    let image = runtime
        .block_on(belljar_image::build(&writer, &spec, name, &options, &progress))
        .with_context(|| format!("failed to build {}", args.name))?;
    drop(writer);
    if !args.no_docker {
        let address = std::env::var("DOCKER_HOST").ok().filter(|address| !address.is_empty());
        let loading =
            belljar_image::load_into_docker(&store, &image, address.as_deref(), &progress);
        match runtime.block_on(loading)? {
            Loaded::Yes => progress.say("the container engine has it as well"),
            Loaded::NoEngine(why) if args.docker => bail!("no container engine answers: {why}"),
            Loaded::NoEngine(_) => {
                progress.say("no container engine answers; only native sandboxes can use it");
            }
        }
    }
    drop(progress);
    announce(&image)?;
    Ok(ExitCode::SUCCESS)
}

/// The hidden command that runs one step of a build.
pub(crate) fn build_step() -> Result<ExitCode> {
    let code = belljar_image::perform_step().context("failed to run a build step")?;
    Ok(output::exit_code(code))
}
