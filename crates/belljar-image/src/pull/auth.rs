//! Credentials for a registry: those given, or those that `docker login` stored.

use std::collections::HashMap;
use std::fmt;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use base64::Engine as _;
use oci_client::secrets::RegistryAuth;
use serde::Deserialize;

use crate::ImageError;

/// The registry of Docker, and its key in Docker's configuration.
const DOCKER_HUB: &str = "docker.io";
const DOCKER_HUB_KEY: &str = "https://index.docker.io/v1/";

/// The user name with which a helper returns a token instead of a password.
const TOKEN_USER: &str = "<token>";

/// A user and a password, which `Debug` does not show.
#[derive(Clone)]
pub struct Login {
    pub user: String,
    pub password: String,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

pub(super) fn find(login: Option<&Login>, registry: &str) -> Result<RegistryAuth, ImageError> {
    if let Some(Login { user, password }) = login {
        return Ok(RegistryAuth::Basic(user.clone(), password.clone()));
    }
    let Some(path) = config_path() else { return Ok(RegistryAuth::Anonymous) };
    let text = match std::fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(RegistryAuth::Anonymous);
        }
        text => text.map_err(ImageError::file(&path))?,
    };
    let broken = |_| ImageError::Refused(format!("`{}` is not valid JSON", path.display()));
    let config: Config = serde_json::from_slice(&text).map_err(broken)?;
    config.auth(registry)
}

fn config_path() -> Option<PathBuf> {
    let directory = match std::env::var_os("DOCKER_CONFIG") {
        Some(directory) if !directory.is_empty() => PathBuf::from(directory),
        _ => PathBuf::from(std::env::var_os("HOME")?).join(".docker"),
    };
    Some(directory.join("config.json"))
}

/// The part of Docker's configuration that is about registries.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Config {
    #[serde(default)]
    auths: HashMap<String, StoredCredentials>,
    #[serde(default)]
    cred_helpers: HashMap<String, String>,
    #[serde(default)]
    creds_store: Option<String>,
}

#[derive(Deserialize, Default)]
struct StoredCredentials {
    #[serde(default)]
    auth: String,
    #[serde(default)]
    identitytoken: String,
}

impl Config {
    fn auth(&self, registry: &str) -> Result<RegistryAuth, ImageError> {
        let key = if registry == DOCKER_HUB { DOCKER_HUB_KEY } else { registry };
        let keys = [key.to_owned(), format!("https://{key}"), format!("https://{key}/")];
        if let Some(helper) = self.cred_helpers.get(key) {
            return ask_helper(helper, key);
        }
        let entry = keys.iter().find_map(|key| self.auths.get(key));
        match (entry, &self.creds_store) {
            (Some(entry), _) if !entry.auth.is_empty() => decode(&entry.auth, registry),
            (Some(entry), _) if !entry.identitytoken.is_empty() => Err(ImageError::Refused(
                "an identity token of `docker login` cannot be used; give --username".into(),
            )),
            (Some(_), Some(helper)) => ask_helper(helper, key),
            _ => Ok(RegistryAuth::Anonymous),
        }
    }
}

fn decode(auth: &str, registry: &str) -> Result<RegistryAuth, ImageError> {
    let decoded = base64::engine::general_purpose::STANDARD.decode(auth).ok();
    let text = decoded.and_then(|bytes| String::from_utf8(bytes).ok());
    let pair = text.as_deref().and_then(|text| text.split_once(':'));
    match pair {
        Some((user, password)) => Ok(RegistryAuth::Basic(user.into(), password.into())),
        None => Err(ImageError::Refused(format!(
            "what `docker login` left for {registry} makes no sense; log in again"
        ))),
    }
}

/// Asks a credential helper of Docker. Its answer is sent only to the registry.
fn ask_helper(helper: &str, registry: &str) -> Result<RegistryAuth, ImageError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "PascalCase")]
    struct HelperAnswer {
        username: String,
        secret: String,
    }
    let program = format!("docker-credential-{helper}");
    let asked = Command::new(&program)
        .arg("get")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .and_then(|mut child| {
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(registry.as_bytes())?;
            }
            child.wait_with_output()
        });
    let output = asked.map_err(ImageError::file(&program))?;
    if !output.status.success() {
        // The helper has no credentials for this registry.
        return Ok(RegistryAuth::Anonymous);
    }
    let answer: HelperAnswer = serde_json::from_slice(&output.stdout)
        .map_err(|_| ImageError::Refused(format!("`{program}` answered with nonsense")))?;
    Ok(match answer.username.as_str() {
        TOKEN_USER => RegistryAuth::Bearer(answer.secret),
        _ => RegistryAuth::Basic(answer.username, answer.secret),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_docker_login_left_is_found() {
        let config: Config = serde_json::from_str(
            r#"{"auths": {
                "registry.example:5000": {"auth": "YW5uYTpzM2NyZXQ6eA=="},
                "https://index.docker.io/v1/": {"auth": "aHViOnB3"},
                "broken.example": {"auth": "%%%"},
                "empty.example": {}
            }}"#,
        )
        .unwrap();
        let basic = |user: &str, password: &str| RegistryAuth::Basic(user.into(), password.into());
        assert_eq!(config.auth("registry.example:5000").unwrap(), basic("anna", "s3cret:x"));
        assert_eq!(config.auth("docker.io").unwrap(), basic("hub", "pw"));
        assert_eq!(config.auth("elsewhere.example").unwrap(), RegistryAuth::Anonymous);
        assert_eq!(config.auth("empty.example").unwrap(), RegistryAuth::Anonymous);
        let error = config.auth("broken.example").unwrap_err().to_string();
        assert!(!error.contains("%%%"), "{error}");
    }

    #[test]
    fn secrets_are_not_shown() {
        let login = Login { user: "anna".into(), password: "s3cret".into() };
        assert!(!format!("{login:?}").contains("s3cret"));
    }
}
