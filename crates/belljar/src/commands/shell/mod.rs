//! `belljar shell`: a terminal in a session ([`attach`]), or a shell on our standard input and output ([`stdio`]).

mod args;
mod attach;
mod keys;
mod stdio;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

pub(crate) use args::ShellArgs;

use super::as_client;
use super::output;
use super::session::{find_id, find_known_id};
use crate::client::{Client, escape};
use crate::settings::Settings;

pub(crate) fn shell(args: ShellArgs, settings: &Settings) -> Result<ExitCode> {
    if let (Some(exec), Some(session)) = (&args.guard, &args.session) {
        return as_client(settings, async |client| stdio::guard(client, session, exec).await);
    }
    if !args.stdio {
        // Checked first, so that no session is created for nothing.
        attach::check_terminal()?;
    }
    as_client(settings, async |client| {
        let session = ShellSession::by(client, &args).await?;
        if args.stdio {
            return stdio::stdio(client, &session, &args).await;
        }
        attach::attach(client, &session, &args).await
    })
}

/// The session of the shell.
#[derive(Debug)]
struct ShellSession {
    id: String,
    /// It was created for this shell and ends with it.
    is_own: bool,
}

impl ShellSession {
    async fn by(client: &Client, args: &ShellArgs) -> Result<ShellSession> {
        let Some(name) = &args.session else {
            let made = client.post("/v1/sessions", &json!({})).await?;
            return Ok(ShellSession { id: id_of(&made)?, is_own: true });
        };
        if !args.create {
            return Ok(ShellSession { id: find_id(client, name).await?, is_own: false });
        }
        // A session with this id is used. For a key, the server finds or creates the session.
        let known = find_known_id(client, name).await?.filter(|id| id == name);
        let id = match known {
            Some(id) => id,
            None => id_of(&client.post("/v1/sessions", &json!({"key": name})).await?)?,
        };
        Ok(ShellSession { id, is_own: false })
    }

    /// Stops a session that was created for this shell.
    async fn end(&self, client: &Client) {
        if !self.is_own {
            return;
        }
        if let Err(error) = client.delete(&format!("/v1/sessions/{}", escape(&self.id))).await {
            let error = anyhow::Error::from(error);
            output::say(&format!("failed to stop the session {}: {error:#}", self.id));
        }
    }
}

fn id_of(session: &Value) -> Result<String> {
    let id = session["id"].as_str().context("the server created a session without an id")?;
    Ok(id.to_owned())
}

/// A command as one text for a shell; several words are quoted.
fn as_text(words: &[String]) -> Result<Option<String>> {
    match words {
        [] => Ok(None),
        [text] if text.is_empty() => bail!("the command is empty"),
        [text] => Ok(Some(text.clone())),
        words => {
            let quoted = words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''")));
            Ok(Some(format!("exec {}", quoted.collect::<Vec<_>>().join(" "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stay_words() {
        let text = |words: &[&str]| {
            as_text(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap()
        };
        assert_eq!(text(&[]), None);
        assert_eq!(text(&["cd /tmp; ls"]).as_deref(), Some("cd /tmp; ls"));
        assert_eq!(text(&["echo", "it's $HOME"]).as_deref(), Some("exec 'echo' 'it'\\''s $HOME'"));
        assert!(as_text(&[String::new()]).is_err());
    }
}
