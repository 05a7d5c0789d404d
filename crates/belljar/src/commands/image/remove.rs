//! `belljar image remove`

use std::process::ExitCode;

use anyhow::Result;
use belljar_image::Name;
use clap::Args;

use crate::commands::output;
use crate::home;
use crate::settings::Settings;

#[derive(Debug, Args)]
pub(crate) struct ImageRemoveArgs {
    #[arg(value_name = "NAME", required = true)]
    pub(crate) names: Vec<String>,
}

pub(super) fn remove(args: &ImageRemoveArgs, settings: &Settings) -> Result<ExitCode> {
    let names: Vec<Name> = args.names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
    let store = home::images(settings);
    // Removes all of them or none, so that a mistyped name does no harm.
    names.iter().try_for_each(|name| store.find(name).map(|_| ()))?;
    let writer = store.writer(output::say)?;
    for name in &names {
        if writer.remove(name)? {
            output::say(&format!(
                "{name} is removed; a sandbox still uses its files, which the next change of images \
                 after its end removes"
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}
