//! Settings of the network of sandboxes.

use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use belljar_engine::Dns;
use belljar_engine::network::{AuthoritySource, Network, Policy, Secrets};

use super::openai::OpenAi;
use super::parse;
use super::values::Values;

#[derive(Debug, Clone)]
pub struct NetworkSettings {
    /// The default policy.
    pub default: Policy,
    /// The widest policy that a session can request.
    most: Policy,
    /// Whether `most` is set; if not, it is the default policy.
    is_most_given: bool,
    /// The most bytes of one sandbox, in both directions together.
    bytes: u64,
    /// An error here is reported only by commands that use the secrets.
    secrets: Result<Arc<Secrets>, String>,
    dns: Arc<Dns>,
}

impl NetworkSettings {
    pub(super) fn read(values: &Values<'_>) -> Result<NetworkSettings> {
        let policy =
            |name: &str| Policy::parse(&values.text(name)).map_err(|why| anyhow!("{name}: {why}"));
        let default = policy("BELLJAR_NETWORK")?;
        let is_most_given = !values.text("BELLJAR_MAX_NETWORK").trim().is_empty();
        let most = if is_most_given { policy("BELLJAR_MAX_NETWORK")? } else { default.clone() };
        let bytes = values.limit("BELLJAR_NETWORK_BYTES", parse::size_from(0))?;
        let secret = |name: &str| std::env::var(name).ok().or_else(|| (values.lookup)(name));
        let secrets = Secrets::parse(&values.text("BELLJAR_NETWORK_SECRETS"), secret);
        let bytes = bytes.unwrap_or(u64::MAX);
        let dns = Dns::parse(&values.text("BELLJAR_DNS"));
        let dns = Arc::new(dns.map_err(|why| anyhow!("BELLJAR_DNS: {why}"))?);
        let secrets = secrets.map(Arc::new);
        Ok(NetworkSettings { default, most, is_most_given, bytes, secrets, dns })
    }

    /// The network of a server's sandboxes, with this certificate authority. Sessions may request `model`, unless the
    /// operator forbids it.
    pub fn of_server(
        &self,
        authority: AuthoritySource,
        model: Option<&OpenAi>,
    ) -> Result<Arc<Network>> {
        let (mut most, mut secrets) = (self.most.clone(), self.secrets()?);
        if let Some(model) = model {
            secrets = Arc::new(model.secrets.clone().overridden_by(&secrets));
            // `none` forbids the model as well.
            if !(self.is_most_given && most.is_none()) {
                most = most.and(&model.policy);
            }
        }
        let dns = Arc::clone(&self.dns);
        let network = Network::new(Some(most), secrets, self.bytes, authority, dns);
        if let Err(why) = network.check(&self.default) {
            bail!("BELLJAR_NETWORK: {why}");
        }
        Ok(Arc::new(network))
    }

    /// The network of a run. Its user has access to this machine anyway, so the run may use the network as the machine
    /// does.
    pub fn of_run(&self) -> Result<Arc<Network>> {
        let dns = Arc::clone(&self.dns);
        Ok(Arc::new(Network::new(
            None,
            self.secrets()?,
            self.bytes,
            AuthoritySource::Temporary,
            dns,
        )))
    }

    fn secrets(&self) -> Result<Arc<Secrets>> {
        let secrets = self.secrets.as_ref();
        secrets.map(Arc::clone).map_err(|why| anyhow!("BELLJAR_NETWORK_SECRETS: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::with;
    use super::*;

    fn server(pairs: &[(&str, &str)]) -> Result<Arc<Network>> {
        with(pairs)?.network.of_server(AuthoritySource::Temporary, None)
    }

    #[test]
    fn nobody_gets_out_unless_somebody_said_so() {
        let none = server(&[]).unwrap();
        assert!(with(&[]).unwrap().network.default.is_none());
        assert!(none.check(&Policy::default()).is_ok());
        assert!(
            none.check(&Policy::open()).unwrap_err().to_string().contains("BELLJAR_MAX_NETWORK")
        );
        let run = with(&[]).unwrap().network.of_run().unwrap();
        assert!(run.check(&Policy::parse("10.0.0.5:80 open").unwrap()).is_ok());
    }

    #[test]
    fn the_most_is_at_least_the_default() {
        let own = server(&[("BELLJAR_NETWORK", "example.org")]).unwrap();
        assert!(own.check(&Policy::parse("example.org:443").unwrap()).is_ok());
        let less = [("BELLJAR_NETWORK", "example.org"), ("BELLJAR_MAX_NETWORK", "none")];
        assert!(server(&less).unwrap_err().to_string().starts_with("BELLJAR_NETWORK: "));
    }

    #[test]
    fn what_is_wrong_is_named_and_secrets_are_not_shown() {
        let error = with(&[("BELLJAR_NETWORK", "127.1")]).unwrap_err().to_string();
        assert!(error.starts_with("BELLJAR_NETWORK: `127.1`"), "{error}");
        let error = with(&[("BELLJAR_DNS", "dns.example")]).unwrap_err().to_string();
        assert!(error.starts_with("BELLJAR_DNS: `dns.example`"), "{error}");
        let settings = with(&[("BELLJAR_NETWORK_SECRETS", "hunter2")]).unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
        let error = settings.network.of_run().unwrap_err().to_string();
        assert!(error.starts_with("BELLJAR_NETWORK_SECRETS: ") && !error.contains("hunter2"));
        let good = r#"{"K": {"value": "Bearer ${T}", "hosts": ["https://h"]}}"#;
        let settings = with(&[("BELLJAR_NETWORK_SECRETS", good), ("T", "hunter2")]).unwrap();
        settings.network.of_run().unwrap();
        assert!(!format!("{settings:?}").contains("hunter2"));
    }
}
