//! `belljar cluster ca`: makes the authority of a cluster.

use std::fs::{DirBuilder, File};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use belljar_cluster::tls;
use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Make the authority whose certificates nodes and gateways use
    Ca(CaArgs),
}

#[derive(Debug, Args)]
pub(crate) struct CaArgs {
    /// The directory for ca.pem and ca.key, which must not exist there yet
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn cluster(command: &ClusterCommand) -> Result<ExitCode> {
    let ClusterCommand::Ca(args) = command;
    let made = DirBuilder::new().recursive(true).mode(0o700).create(&args.out);
    made.with_context(|| format!("failed to make `{}`", args.out.display()))?;
    let (certificate, key) = tls::create_authority()?;
    // The key first: a certificate without its key could be taken for a complete authority.
    let (key_path, certificate_path) = (args.out.join("ca.key"), args.out.join("ca.pem"));
    write(&key_path, &key)?;
    write(&certificate_path, &certificate)?;
    println!("BELLJAR_CLUSTER_CA={}", certificate_path.display());
    println!("BELLJAR_CLUSTER_CA_KEY={}", key_path.display());
    Ok(ExitCode::SUCCESS)
}

/// With the key, a program can impersonate every node and gateway, so only its owner may read it.
fn write(path: &Path, text: &str) -> Result<()> {
    let file = File::options().write(true).create_new(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.with_context(|| format!("failed to write `{}`", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use belljar_cluster::tls::{ClusterTls, Role};

    use super::*;

    #[test]
    fn an_authority_can_be_used_and_is_not_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let out = directory.path().join("ca");
        let make = || cluster(&ClusterCommand::Ca(CaArgs { out: out.clone() }));
        make().unwrap();
        let (certificate, key) = (out.join("ca.pem"), out.join("ca.key"));
        ClusterTls::load(&certificate, &key, &Role::Gateway).unwrap();
        let mode = key.metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let before = std::fs::read(&key).unwrap();
        assert!(format!("{:#}", make().unwrap_err()).contains("ca.key"));
        assert_eq!(std::fs::read(&key).unwrap(), before);
    }
}
