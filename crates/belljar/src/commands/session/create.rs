//! `belljar session create`

use std::collections::BTreeMap;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::{Map, Value, json};

use super::print_json;
use crate::cli::SessionCreateArgs;
use crate::client::Client;
use crate::commands::output;

pub(super) async fn create(client: &Client, args: SessionCreateArgs) -> Result<ExitCode> {
    let as_json = args.json;
    let created = client.post("/v1/sessions", &ask(args)).await?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    if as_json {
        print_json(&created)?;
    } else {
        output::print(&(text(&created["id"]) + "\n"))?;
        match created["how"].as_str() {
            Some("found") => output::say("it was there already"),
            Some("restarted") => {
                output::say("it had ended and goes on with its files; its variables are gone");
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
            "the session {before} had this key and is gone with everything in it: {because}"
        ));
    }
    Ok(ExitCode::SUCCESS)
}

/// Only what was asked for: everything else is the server's to choose.
fn ask(args: SessionCreateArgs) -> Value {
    let mut limits = Map::new();
    let mut limit = |name: &str, value: Option<Value>| {
        limits.extend(value.map(|value| (name.to_owned(), value)));
    };
    limit("memory", args.memory.map(Value::from));
    limit("cpus", args.cpus.map(|millicpus| Value::from(f64::from(millicpus) / 1000.0)));
    limit("pids", args.pids.map(Value::from));
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
