//! Finds the base of an image.

use std::fs;
use std::process::Command;

use super::BuildOptions;
use super::host::{self, Host};
use super::room::watch;
use crate::store::Writer;
use crate::{Image, ImageError, Name, Progress, PullOptions, import, pull};

/// Finds the base: an image in the store, a root file system beside the spec, an image in a
/// registry, or a distribution that is installed from its packages. The result is kept in the store
/// for the next build.
pub(super) async fn find(
    writer: &Writer<'_>,
    base: &str,
    options: &BuildOptions,
    host: &Host,
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    let path = options.directory.join(base);
    // A base that looks like a path is a path, even if it does not exist.
    if base.starts_with(['/', '.']) || (path.exists() && base.parse::<Name>().is_err()) {
        return import(writer, &path, None, progress);
    }
    let name: Name = base.parse()?;
    match writer.store().find(&name) {
        Err(ImageError::Missing(_)) => {}
        found => return found,
    }
    if path.exists() {
        return import(writer, &path, None, progress);
    }
    let pulled = pull(writer, base, None, &PullOptions::default(), progress).await;
    match (pulled, distribution(base)) {
        (Err(ImageError::Unreachable { .. } | ImageError::Registry { .. }), Some(suite)) => {
            progress.say(&format!("{base} cannot be pulled; making it from packages"));
            from_packages(writer, suite, name, host, progress)
        }
        (pulled, _) => pulled,
    }
}

/// The suite of a base such as `debian:bookworm` or `ubuntu:noble`.
fn distribution(base: &str) -> Option<&str> {
    let (name, suite) = base.split_once(':')?;
    let is_suite = suite.bytes().all(|byte| byte.is_ascii_lowercase());
    (matches!(name, "debian" | "ubuntu") && is_suite && !suite.is_empty()).then_some(suite)
}

fn from_packages(
    writer: &Writer<'_>,
    suite: &str,
    name: Name,
    host: &Host,
    progress: &dyn Progress,
) -> Result<Image, ImageError> {
    progress.begin(&format!("Making {name} from packages"), None);
    let archive = writer.scratch()?.join("base.tar");
    let mut command = Command::new("mmdebstrap");
    command.args(["--variant=minbase", "--format=tar", "--include=ca-certificates"]);
    for option in host.apt_options() {
        command.arg(format!("--aptopt={option}"));
    }
    if let Some(bundle) = host.ca_bundle() {
        command.arg(format!("--aptopt=Acquire::https::CAInfo \"{}\";", bundle.display()));
    }
    command.arg(suite).arg(&archive).args(host::sources_of(suite));
    let (lines, success) = match watch(&mut command, b"", progress) {
        Err(ImageError::File { cause, .. }) if cause.kind() == std::io::ErrorKind::NotFound => {
            return Err(ImageError::Build(format!(
                "{name} can neither be pulled nor made here: install mmdebstrap, or name another \
                 base"
            )));
        }
        watched => watched?,
    };
    if !success {
        return Err(ImageError::Build(format!("mmdebstrap failed:\n{lines}")));
    }
    let image = import(writer, &archive, Some(name), progress)?;
    let _ = fs::remove_file(archive);
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distributions_are_known_by_their_suites() {
        assert_eq!(distribution("debian:bookworm"), Some("bookworm"));
        assert_eq!(distribution("ubuntu:noble"), Some("noble"));
        for other in ["debian", "debian:12", "debian:", "alpine:edge", "debian:--x"] {
            assert_eq!(distribution(other), None, "{other}");
        }
    }
}
