//! `belljar image build`

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_image::{BuildOptions, DEFAULT_SPEC, Loaded, Name, Progress, Spec};

use super::announce;
use super::progress::Watched;
use crate::cli::ImageBuildArgs;
use crate::commands::output;
use crate::home;
use crate::settings::Settings;

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

/// The hidden command that a build starts for each of its commands.
pub(in crate::commands) fn build_step() -> Result<ExitCode> {
    let code = belljar_image::perform_step().context("failed to carry out a step")?;
    Ok(output::exit_code(code))
}
