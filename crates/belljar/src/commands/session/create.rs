//! `belljar session create`

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use belljar_engine::network::Policy;
use clap::Args;
use serde_json::{Map, Value, json};

use super::print_json;
use crate::client::Client;
use crate::commands::output;
use crate::flags::LimitFlags;
use crate::flags::values::{parse_env, parse_volume};

#[derive(Debug, Args)]
#[command(after_help = "\
The id goes to standard output and everything else to standard error:
  id=$(belljar session create --ttl 600)
  belljar session create --key thread-42 --storage BIND --env TOKEN=abc")]
pub(crate) struct SessionCreateArgs {
    /// Your own name for the session; the same key finds it again
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Its image, which the server must have and allow [default: the server's]
    #[arg(long, value_name = "NAME")]
    pub(crate) image: Option<String>,
    /// The storage of its files: TMPFS (in memory) or BIND (on disk) [default: the server's]
    #[arg(long, value_name = "STORAGE", ignore_case = true, value_parser = ["TMPFS", "BIND"])]
    pub(crate) storage: Option<String>,
    /// Its access to datasets: NONE, LOCAL_RO (at /data) or API [default: the server's]
    #[arg(long, value_name = "DATASETS", ignore_case = true,
        value_parser = ["NONE", "LOCAL_RO", "API"])]
    pub(crate) datasets: Option<String>,
    #[command(flatten)]
    pub(crate) limits: LimitFlags,
    /// Seconds it lives after its last use [default: the server's]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) ttl: Option<u64>,
    /// A variable for everything that runs in it; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = parse_env)]
    pub(crate) env: Vec<(String, String)>,
    /// Network policy: none, open, hosts such as example.org,*.example.com:443, or JSON [default: the
    /// server's]
    #[arg(long, value_name = "POLICY", value_parser = Policy::parse)]
    pub(crate) network: Option<Policy>,
    /// A volume to mount at /volumes/NAME, read-only with :ro; may be repeated
    #[arg(long = "volume", value_name = "NAME[:ro]", value_parser = parse_volume)]
    pub(crate) volumes: Vec<(String, String)>,
    /// A directory of the server's machine to mount at /workspace, if the server allows it
    #[arg(long, value_name = "DIR")]
    pub(crate) workspace: Option<PathBuf>,
    /// Keep a checkpoint after every execution
    #[arg(long)]
    pub(crate) checkpoints: bool,
    /// Print everything about it as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

pub(super) async fn create(client: &Client, args: SessionCreateArgs) -> Result<ExitCode> {
    let as_json = args.json;
    let created = client.post("/v1/sessions", &ask(args)).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if as_json {
        print_json(&created)?;
    } else {
        output::print(&(text(&created["id"]) + "\n"))?;
        match created["how"].as_str() {
            Some("found") => output::say("the session existed already"),
            Some("restarted") => {
                output::say("the session had ended; it has its files again, but no variables");
            }
            _ => {}
        }
    }
    for warning in created["warnings"].as_array().into_iter().flatten() {
        output::say(&format!("warning: {}", text(warning)));
    }
    if let Some(before) = created["replaced"]["id"].as_str() {
        let because = text(&created["replaced"]["because"]);
        output::say(&format!(
            "the session {before} had this key and was removed with everything in it: {because}"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// The request, with only the given fields; the server has defaults for all others.
fn ask(args: SessionCreateArgs) -> Value {
    let mut limits = Map::new();
    let mut limit = |name: &str, value: Option<Value>| {
        limits.extend(value.map(|value| (name.to_owned(), value)));
    };
    limit("memory", args.limits.memory.map(Value::from));
    limit("cpus", args.limits.cpus.map(|millicpus| Value::from(f64::from(millicpus) / 1000.0)));
    limit("pids", args.limits.pids.map(Value::from));
    let mut ask = Map::new();
    let mut field = |name: &str, value: Option<Value>| {
        ask.extend(value.map(|value| (name.to_owned(), value)));
    };
    field("key", args.key.map(Value::from));
    field("image", args.image.map(Value::from));
    field("storage", args.storage.map(|word| word.to_ascii_uppercase().into()));
    field("datasets", args.datasets.map(|word| word.to_ascii_uppercase().into()));
    field("network", args.network.map(|policy| json!(policy)));
    let volumes: BTreeMap<String, String> = args.volumes.into_iter().collect();
    field("volumes", (!volumes.is_empty()).then(|| json!(volumes)));
    let workspace = args.workspace.map(|path| std::path::absolute(&path).unwrap_or(path));
    field("workspace", workspace.map(|path| json!(path)));
    field("ttl", args.ttl.map(Value::from));
    field("checkpoints", args.checkpoints.then_some(true.into()));
    let env: BTreeMap<String, String> = args.env.into_iter().collect();
    field("env", (!env.is_empty()).then(|| json!(env)));
    field("limits", (!limits.is_empty()).then(|| limits.into()));
    ask.into()
}
