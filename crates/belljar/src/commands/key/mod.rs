//! `belljar key`: creates, lists and revokes API keys in the server's database. A running server notices changes.

mod args;

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use belljar_engine::audit::{Audit, AuditEntry};
use belljar_engine::keys::{self, NewKey};
use belljar_engine::store::{KeyLimits, KeyRow, Store};
use belljar_engine::{Principal, clock};
use belljar_sys::privileges;
use indicatif::HumanBytes;
use serde::Serialize;

pub(crate) use args::{KeyCommand, KeyCreateArgs, KeyListArgs, KeyRevokeArgs};

use super::state_db;
use crate::settings::Settings;
use crate::table;

pub(crate) fn key(command: KeyCommand, settings: &Settings) -> Result<ExitCode> {
    match command {
        KeyCommand::Create(args) => create(args, settings)?,
        KeyCommand::List(args) => list(&args, settings)?,
        KeyCommand::Revoke(args) => revoke(&args, settings)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A key without its hash, for output.
#[derive(Debug, Serialize)]
struct KeyRecord {
    id: String,
    name: String,
    tenant: String,
    limits: KeyLimits,
    created: String,
    revoked: Option<String>,
    /// The secret of a key that was just created.
    #[serde(skip_serializing_if = "Option::is_none")]
    secret: Option<String>,
}

#[derive(Debug, Serialize)]
struct KeyList {
    keys: Vec<KeyRecord>,
}

impl From<KeyRow> for KeyRecord {
    fn from(row: KeyRow) -> KeyRecord {
        let KeyRow { id, name, tenant, limits, created_ms, revoked_ms, hash: _ } = row;
        let created = clock::rfc3339(created_ms);
        let revoked = revoked_ms.map(clock::rfc3339);
        KeyRecord { id, name, tenant, limits, created, revoked, secret: None }
    }
}

fn create(args: KeyCreateArgs, settings: &Settings) -> Result<()> {
    let limits = KeyLimits {
        requests_per_minute: args.requests_per_minute,
        sessions: args.max_sessions,
        sleeping: args.max_sleeping,
        memory: args.max_memory,
        pids: args.max_pids,
        operator: args.operator,
    };
    let store = state_db::open(settings)?;
    let audit = state_db::audit(settings)?;
    let (made, is_first) = state_db::block_on(async {
        let is_first = none_valid(&store.keys().await?);
        let made = keys::create(&*store, args.name, args.tenant, limits).await?;
        store.close().await;
        Ok((made, is_first))
    })?;
    let NewKey { row, secret } = made;
    let detail = format!("{} named {:?}, {}", row.id, row.name, by_whom());
    let entry = AuditEntry {
        action: "key_create",
        outcome: "created",
        detail: Some(&detail),
        ..AuditEntry::default()
    };
    audit.note(&on_behalf_of(&row), &entry);
    audit.flush();

    let id = row.id.clone();
    let text = if args.json {
        serde_json::to_string_pretty(&KeyRecord { secret: Some(secret), ..row.into() })? + "\n"
    } else {
        let whom = match row.limits.operator {
            true => "operators".into(),
            false => format!("tenant {}", row.tenant),
        };
        eprintln!("Created {id} for {whom}. This is the key; it is not shown again:");
        secret + "\n"
    };
    // The key cannot be shown again, so even a closed pipe is an error.
    let printed = io::stdout().write_all(text.as_bytes()).and_then(|()| io::stdout().flush());
    printed.with_context(|| {
        format!("created {id}, but could not print the key; `belljar key revoke {id}` removes it")
    })?;
    if is_first {
        eprintln!(
            "It is the only valid key: from now on the server refuses requests without a key."
        );
        eprintln!("`belljar key revoke --allow-keyless {id}` allows local use without keys again.");
    }
    Ok(())
}

fn list(args: &KeyListArgs, settings: &Settings) -> Result<()> {
    let rows = match state_db::open_existing(settings)? {
        Some(store) => state_db::block_on(async { Ok(store.keys().await?) })?,
        None => Vec::new(),
    };
    let keys: Vec<KeyRecord> = rows.into_iter().map(KeyRecord::from).collect();
    if args.json {
        let text = serde_json::to_string_pretty(&KeyList { keys })?;
        return state_db::print(&(text + "\n"));
    }
    if keys.is_empty() {
        eprintln!("There are no keys; `belljar key create --name NAME` creates one.");
        return Ok(());
    }
    let header = [
        "id",
        "name",
        "tenant",
        "per minute",
        "sessions",
        "asleep",
        "memory",
        "pids",
        "created",
        "revoked",
    ];
    let rows: Vec<Vec<String>> = keys.into_iter().map(cells).collect();
    state_db::print(&table::render(&header, &rows))
}

fn cells(key: KeyRecord) -> Vec<String> {
    fn or_dash<T: ToString>(value: Option<T>) -> String {
        value.map_or_else(|| "-".into(), |value| value.to_string())
    }
    let KeyLimits { requests_per_minute, sessions, sleeping, memory, pids, operator } = key.limits;
    vec![
        key.id,
        key.name,
        if operator { "(operator)".into() } else { key.tenant },
        or_dash(requests_per_minute),
        or_dash(sessions),
        or_dash(sleeping.or(sessions)),
        or_dash(memory.map(HumanBytes)),
        or_dash(pids),
        key.created,
        or_dash(key.revoked),
    ]
}

fn revoke(args: &KeyRevokeArgs, settings: &Settings) -> Result<()> {
    let Some(id) = &args.id else { return allow_keyless(args, settings) };
    if !id.starts_with("key_") {
        // It may be a valid key, which an error must not repeat.
        bail!("give the id of a key, such as key_5a1f...; `belljar key list` shows them");
    }
    let Some(store) = state_db::open_existing(settings)? else {
        bail!("there is no key `{id}`: there are no keys at all");
    };
    let audit = state_db::audit(settings)?;
    let Revoked { row, revoked_now, is_last, forgotten } =
        state_db::block_on(revoke_in(&*store, id, args.allow_keyless))?;
    if revoked_now {
        let detail = format!("{id} named {:?}, {}", row.name, by_whom());
        let entry = AuditEntry {
            action: "key_revoke",
            outcome: "revoked",
            detail: Some(&detail),
            ..AuditEntry::default()
        };
        audit.note(&on_behalf_of(&row), &entry);
        audit.flush();
    }
    if forgotten > 0 {
        note_keyless(&audit, forgotten);
    }
    if args.json {
        state_db::print(&(serde_json::to_string_pretty(&KeyRecord::from(row))? + "\n"))?;
    } else if revoked_now {
        state_db::print(&format!("Revoked {id}.\n"))?;
    } else {
        let when = row.revoked_ms.map(clock::rfc3339).unwrap_or_default();
        state_db::print(&format!("{id} was revoked before, at {when}.\n"))?;
    }
    if forgotten > 0 {
        eprintln!("{KEYLESS}");
    } else if is_last {
        eprintln!(
            "belljar: warning: no valid key is left; the server refuses all requests until `belljar \
             key create --name NAME` creates one, or `belljar key revoke --allow-keyless` allows local \
             use without keys"
        );
    }
    Ok(())
}

const KEYLESS: &str = "A server on loopback or a UNIX socket needs no key any more; everyone who can reach it there \
     may use it.";

/// Allows local use without keys again, after all keys were revoked.
fn allow_keyless(args: &KeyRevokeArgs, settings: &Settings) -> Result<()> {
    let forgotten = match state_db::open_existing(settings)? {
        None => 0,
        Some(store) => {
            let audit = state_db::audit(settings)?;
            let forgotten = state_db::block_on(async {
                refuse_others(&store.keys().await?, None)?;
                let forgotten = store.forget_revoked_keys().await?;
                store.close().await;
                Ok(forgotten)
            })?;
            if forgotten > 0 {
                note_keyless(&audit, forgotten);
            }
            forgotten
        }
    };
    if args.json {
        state_db::print(&format!("{:#}\n", serde_json::json!({ "keys_removed": forgotten })))?;
    }
    match forgotten {
        0 => eprintln!("There are no keys; none is needed."),
        _ => eprintln!("{KEYLESS}"),
    }
    Ok(())
}

fn note_keyless(audit: &Audit, forgotten: usize) {
    let detail = format!("{forgotten} revoked keys, {}", by_whom());
    let entry = AuditEntry {
        action: "keyless_allow",
        outcome: "allowed",
        detail: Some(&detail),
        ..AuditEntry::default()
    };
    audit.note(&Principal::default(), &entry);
    audit.flush();
}

/// The effect of revoking a key.
struct Revoked {
    row: KeyRow,
    /// The key was revoked now, not earlier.
    revoked_now: bool,
    is_last: bool,
    /// Number of keys that were removed, so that no key is needed.
    forgotten: usize,
}

async fn revoke_in(store: &dyn Store, id: &str, allow_keyless: bool) -> Result<Revoked> {
    if allow_keyless {
        refuse_others(&store.keys().await?, Some(id))?;
    }
    let revoked_now = store.revoke_key(id, clock::now_ms()).await?;
    let rows = store.keys().await?;
    let is_last = none_valid(&rows);
    let Some(row) = rows.into_iter().find(|row| row.id == id) else {
        bail!("there is no key `{id}`; `belljar key list` shows all");
    };
    let forgotten = if allow_keyless { store.forget_revoked_keys().await? } else { 0 };
    store.close().await;
    Ok(Revoked { row, revoked_now, is_last, forgotten })
}

/// Fails while other keys are valid: their owners rely on requests without a key being refused.
fn refuse_others(rows: &[KeyRow], but: Option<&str>) -> Result<()> {
    if let Some(id) = but
        && !rows.iter().any(|row| row.id == id)
    {
        bail!("there is no key `{id}`; `belljar key list` shows all");
    }
    let valid = rows.iter().filter(|row| row.revoked_ms.is_none() && Some(row.id.as_str()) != but);
    let ids: Vec<&str> = valid.map(|row| row.id.as_str()).collect();
    if !ids.is_empty() {
        bail!("--allow-keyless: revoke the other valid keys first: {}", ids.join(", "));
    }
    Ok(())
}

fn none_valid(rows: &[KeyRow]) -> bool {
    rows.iter().all(|row| row.revoked_ms.is_some())
}

/// The principal of a change on the command line. No key is needed: every user with write access to the database may do
/// this.
fn on_behalf_of(row: &KeyRow) -> Principal {
    Principal { tenant: row.tenant.clone(), ..Principal::default() }
}

fn by_whom() -> String {
    format!("on the command line by uid {}", privileges::own_ids().0)
}
