//! Browser tasks with nothing set but `OPENAI_API_KEY`: which model does them, and what the proxy adds on the way to it.
//!
//! Only for servers that are for local use: on one with API keys every tenant could ask for the operator's
//! key to be used. `BELLJAR_NETWORK_SECRETS` is for those.

use belljar_engine::network::{Policy, Secrets};

use super::parse;
use super::values::Values;

/// The name by which a session asks for the key.
const SECRET: &str = "OPENAI_API_KEY";

/// Does tasks well enough, and is cheap.
pub const DEFAULT_MODEL: &str = "gpt-5-mini";

const DEFAULT_URL: &str = "https://api.openai.com/v1";

#[derive(Debug, Clone)]
pub struct OpenAi {
    pub url: String,
    pub secrets: Secrets,
    /// The host of the model, as the only one.
    pub policy: Policy,
}

impl OpenAi {
    /// Nothing where there is no key. Other programs read these variables as well, so what is wrong with them
    /// is for those to mind who use them here.
    pub(super) fn read(values: &Values<'_>) -> Result<Option<OpenAi>, String> {
        let (key, url) =
            (values.text(SECRET), values.optional("OPENAI_BASE_URL", parse::public_url));
        let key = key.trim();
        if key.is_empty() {
            return Ok(None);
        }
        let url = url.map_err(|why| why.to_string())?;
        let url = url.unwrap_or_else(|| DEFAULT_URL.to_owned());
        let (scheme, rest) = url.split_once("://").unwrap_or(("https", &url));
        let authority = rest.split('/').next().unwrap_or_default();
        let policy = Policy::parse(authority).map_err(|why| format!("OPENAI_BASE_URL: {why}"))?;
        let value = format!("Bearer {key}");
        let hosts = [format!("{scheme}://{authority}")];
        let secret = serde_json::json!({SECRET: {"value": value, "hosts": hosts}}).to_string();
        // What is wrong with it is not repeated: it is the key.
        let secrets = Secrets::parse(&secret, |_| None)
            .map_err(|_| format!("{SECRET} cannot be the value of a header"))?;
        Ok(Some(OpenAi { url, secrets, policy }))
    }
}

#[cfg(test)]
mod tests {
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
            settings.network.of_server("/x/authority.pem".into(), model.as_ref())
        };
        assert!(server(model(&settings)).unwrap().check(&asked).is_ok());
        // Tenants do not get to use it.
        assert!(server(None).unwrap().check(&asked).is_err());
        // An operator who says what is allowed has the last word.
        let strict =
            with(&[("OPENAI_API_KEY", "sk-secret"), ("BELLJAR_MAX_NETWORK", "none")]).unwrap();
        let network = strict.network.of_server("/x".into(), model(&strict).as_ref()).unwrap();
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
