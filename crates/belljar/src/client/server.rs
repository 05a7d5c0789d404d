//! The address of a server.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use url::Url;

use super::ClientError;
use crate::settings::ServerUrl;

#[derive(Debug)]
pub(super) struct Server {
    /// The URL without a slash at its end; paths are appended to it.
    base: String,
    /// The URL as users write it.
    shown: String,
    socket: Option<PathBuf>,
    /// The socket belongs to the local server of this user.
    is_own: bool,
}

impl Server {
    pub(super) fn new(url: &ServerUrl) -> Result<Server> {
        match url {
            ServerUrl::Http(url) => {
                Url::parse(url).with_context(|| format!("`{url}` is not the URL of a server"))?;
                let base = url.trim_end_matches('/').to_owned();
                Ok(Server { base, shown: url.clone(), socket: None, is_own: false })
            }
            ServerUrl::Unix(path) | ServerUrl::Local(path) => Ok(Server {
                base: "http://localhost".to_owned(),
                shown: format!("unix:{}", path.display()),
                socket: Some(path.clone()),
                is_own: matches!(url, ServerUrl::Local(_)),
            }),
        }
    }

    /// The URL as users write it, for messages.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    pub(super) fn is_tls(&self) -> bool {
        self.base.starts_with("https:")
    }

    pub(super) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The socket, if only a process of the same user may listen there.
    pub(super) fn own_socket(&self) -> Option<&Path> {
        self.socket().filter(|_| self.is_own)
    }

    /// The URL of `path` on this server. Names in it are escaped, so that only `.` and `..` can change its meaning.
    pub(super) fn address(&self, path: &str) -> Result<Url, ClientError> {
        let address = Url::parse(&format!("{}{path}", self.base)).ok();
        let address = address.filter(|address| address.as_str().ends_with(path));
        address.ok_or_else(|| ClientError::Path { path: path.to_owned() })
    }

    /// A link to `path` for other programs; `None` behind a socket.
    pub(super) fn link(&self, path: &str) -> Option<String> {
        self.socket.is_none().then(|| format!("{}{path}", self.base))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str) -> Server {
        Server::new(&ServerUrl::Http(url.into())).unwrap()
    }

    fn address(server: &Server, path: &str) -> Option<String> {
        server.address(path).ok().map(String::from)
    }

    #[test]
    fn paths_are_below_the_url() {
        let plain = server("http://127.0.0.1:8000");
        let expected = "http://127.0.0.1:8000/v1/sessions?key=a%20b";
        assert_eq!(address(&plain, "/v1/sessions?key=a%20b").as_deref(), Some(expected));
        let below = server("http://[::1]/jar/");
        assert_eq!(address(&below, "/healthz").as_deref(), Some("http://[::1]/jar/healthz"));
        assert_eq!(below.link("/artifacts/a").as_deref(), Some("http://[::1]/jar/artifacts/a"));
        let socket = Server::new(&ServerUrl::Unix("/run/b.sock".into())).unwrap();
        assert_eq!(socket.shown(), "unix:/run/b.sock");
        assert_eq!(socket.link("/artifacts/a"), None);
    }

    #[test]
    fn no_name_leads_to_another_path() {
        let server = server("http://h:1");
        for path in ["/v1/sessions/..", "/v1/sessions/./exec", "/v1/sessions/%2e%2e/x"] {
            assert_eq!(address(&server, path), None, "{path}");
        }
        assert!(address(&server, "/v1/sessions/s/files/..%2Fa").is_some());
    }
}
