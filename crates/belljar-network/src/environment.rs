//! The environment variables that make programs in a sandbox use the proxy and trust its certificates.

use belljar_proto::relay::{CERTIFICATES, PORT};

use crate::Policy;

impl Policy {
    /// Environment variables that make programs use the proxy; empty if the policy allows nothing.
    #[must_use]
    pub fn environment(&self) -> Vec<(String, String)> {
        if self.is_none() {
            return Vec::new();
        }
        let proxy = format!("http://127.0.0.1:{PORT}");
        // Programs connect directly to servers in the sandbox. But if a rule of the policy has this address, it means
        // the address on the host, so the proxy is used.
        let own = ["localhost", "127.0.0.1", "::1"]
            .into_iter()
            .filter(|own| own.parse().map_or(true, |address| !self.names_any_port(address)));
        let own = own.collect::<Vec<_>>().join(",");
        let both = |name: &str, value: &str| {
            [(name.to_owned(), value.to_owned()), (name.to_lowercase(), value.to_owned())]
        };
        let mut environment = Vec::new();
        environment.extend(both("HTTP_PROXY", &proxy));
        environment.extend(both("HTTPS_PROXY", &proxy));
        environment.extend(both("NO_PROXY", &own));
        // Node ignores the other variables without this one.
        environment.push(("NODE_USE_ENV_PROXY".into(), "1".into()));
        for name in [
            "SSL_CERT_FILE",
            "REQUESTS_CA_BUNDLE",
            "CURL_CA_BUNDLE",
            "PIP_CERT",
            "NODE_EXTRA_CA_CERTS",
            "GIT_SSL_CAINFO",
        ] {
            environment.push((name.into(), CERTIFICATES.into()));
        }
        environment
    }
}
