//! The model for browser tasks when only `OPENAI_API_KEY` is set, and the header that the proxy adds to its requests.
//!
//! Only for local servers: on a server with API keys, every tenant could use the operator's key. Such servers set
//! `BELLJAR_NETWORK_SECRETS`.

use belljar_engine::network::{Policy, Secrets};

use super::parse;
use super::values::Values;

/// The name of the secret in the policies of sessions.
const SECRET: &str = "OPENAI_API_KEY";

/// Good enough for these tasks, and cheap.
pub const DEFAULT_MODEL: &str = "gpt-5-mini";

const DEFAULT_URL: &str = "https://api.openai.com/v1";

#[derive(Debug, Clone)]
pub struct OpenAi {
    pub url: String,
    pub secrets: Secrets,
    /// Allows the host of the model and no other.
    pub policy: Policy,
}

impl OpenAi {
    /// Returns `None` without a key. Other programs read these variables too, so an invalid value is an error only for
    /// commands that use it.
    pub(super) fn read(values: &Values<'_>) -> Result<Option<OpenAi>, String> {
        let (key, url) =
            (values.text(SECRET), values.optional("OPENAI_BASE_URL", parse::public_url));
        let key = key.trim();
        if key.is_empty() {
            return Ok(None);
        }
        let url = url.map_err(|why| why.to_string())?;
        let url = url.unwrap_or_else(|| DEFAULT_URL.to_owned());
        let origin = parse::web_url(&url).ok_or("OPENAI_BASE_URL is not a URL")?;
        let authority = origin.authority();
        let policy = Policy::parse(authority).map_err(|why| format!("OPENAI_BASE_URL: {why}"))?;
        let value = format!("Bearer {key}");
        let hosts = [format!("{}://{authority}", origin.scheme())];
        let secret = serde_json::json!({SECRET: {"value": value, "hosts": hosts}}).to_string();
        // The cause is left out, because it may contain the key.
        let secrets = Secrets::parse(&secret, |_| None)
            .map_err(|_| format!("{SECRET} cannot be the value of a header"))?;
        Ok(Some(OpenAi { url, secrets, policy }))
    }
}

#[cfg(test)]
mod tests {
    use belljar_engine::network::AuthoritySource;

    use super::super::Settings;
    use super::super::tests::with;
    use super::OpenAi;

    #[test]
    fn a_key_alone_is_enough() {
        assert!(with(&[]).unwrap().openai.unwrap().is_none());
        let settings = with(&[("OPENAI_API_KEY", "sk-secret")]).unwrap();
        let model = |settings: &Settings| settings.openai.clone().unwrap();
        assert_eq!(model(&settings).unwrap().url, "https://api.openai.com/v1");
        assert!(!format!("{settings:?}").contains("sk-secret"));
        let inject = r#"{"allow": ["api.openai.com"], "inject": [{"host": "api.openai.com",
            "header": "Authorization", "value_from": "OPENAI_API_KEY", "tls": "terminate"}]}"#;
        let asked = belljar_engine::network::Policy::parse(inject).unwrap();
        let server = |model: Option<OpenAi>| {
            settings.network.of_server(AuthoritySource::Temporary, model.as_ref())
        };
        assert!(server(model(&settings)).unwrap().check(&asked).is_ok());
        // Tenants may not use it.
        assert!(server(None).unwrap().check(&asked).is_err());
        // The operator's limit has priority.
        let strict =
            with(&[("OPENAI_API_KEY", "sk-secret"), ("BELLJAR_MAX_NETWORK", "none")]).unwrap();
        let network =
            strict.network.of_server(AuthoritySource::Temporary, model(&strict).as_ref()).unwrap();
        assert!(network.check(&asked).is_err());
    }

    #[test]
    fn what_is_wrong_is_named_and_the_key_is_not_shown() {
        for (key, url, name) in
            [("sk-\u{7}secret", "", "OPENAI_API_KEY"), ("sk-secret", "nonsense", "OPENAI_BASE_URL")]
        {
            let pairs = [("OPENAI_API_KEY", key), ("OPENAI_BASE_URL", url)];
            let why = with(&pairs).unwrap().openai.unwrap_err();
            assert!(why.contains(name) && !why.contains("secret"), "{why}");
        }
    }
}
