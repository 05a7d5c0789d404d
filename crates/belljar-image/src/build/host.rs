//! The parts of this machine that a build uses: its proxies, the certificates it trusts, and its
//! package sources. None of this becomes part of the image.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use belljar_sys::plan::{Access, Source, Step};

use super::places;
use crate::ImageError;

/// Variables that name package sources and proxies.
const PASSED: [&str; 14] = [
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "PIP_INDEX_URL",
    "PIP_EXTRA_INDEX_URL",
    "PIP_TRUSTED_HOST",
    "PIP_DEFAULT_TIMEOUT",
    "PIP_RETRIES",
    "NPM_CONFIG_REGISTRY",
];

/// Variables that may name a file of certificates, the most specific first.
const BUNDLES: [&str; 4] =
    ["SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"];

/// Our files while a command runs; `/run` is a tmpfs then.
const INSIDE: &str = "/run/belljar";

#[derive(Debug)]
pub(super) struct Host {
    env: Vec<(String, String)>,
    ca_bundle: Option<PathBuf>,
    pip_conf: Option<PathBuf>,
    /// The proxy and certificate settings of apt on this machine.
    apt_conf: String,
    resolv_conf: Option<Vec<u8>>,
}

impl Host {
    pub(super) fn look(ca_bundle: Option<&Path>) -> Result<Host, ImageError> {
        let ca_bundle = match ca_bundle {
            Some(path) => {
                fs::metadata(path).map_err(ImageError::file(path))?;
                Some(fs::canonicalize(path).map_err(ImageError::file(path))?)
            }
            None => BUNDLES
                .iter()
                .filter_map(|name| env::var_os(name).map(PathBuf::from))
                .find_map(|path| fs::canonicalize(path).ok().filter(|path| path.is_file())),
        };
        let passed = |name: &&str| Some(((*name).to_owned(), env::var(name).ok()?));
        let mut apt_conf = apt_settings().unwrap_or_default();
        if ca_bundle.is_some() {
            apt_conf += &format!("Acquire::https::CAInfo \"{INSIDE}/ca.pem\";\n");
        }
        Ok(Host {
            env: PASSED.iter().filter_map(passed).collect(),
            ca_bundle,
            pip_conf: Some(PathBuf::from("/etc/pip.conf")).filter(|path| path.is_file()),
            apt_conf,
            resolv_conf: fs::read("/etc/resolv.conf").ok(),
        })
    }

    pub(super) fn env(&self) -> Vec<(String, String)> {
        let mut env = self.env.clone();
        let mut set = |name: &str, value: String| env.push((name.to_owned(), value));
        set("APT_CONFIG", format!("{INSIDE}/apt.conf"));
        if self.pip_conf.is_some() {
            set("PIP_CONFIG_FILE", format!("{INSIDE}/pip.conf"));
        }
        if self.ca_bundle.is_some() {
            for name in BUNDLES.iter().chain(&["PIP_CERT", "GIT_SSL_CAINFO"]) {
                set(name, format!("{INSIDE}/ca.pem"));
            }
        }
        env
    }

    /// Steps that create our files at the paths that [`env`](Host::env) names.
    pub(super) fn steps(&self, root: &Path) -> Vec<Step> {
        let inside = root.join(INSIDE.trim_start_matches('/'));
        let mut steps = vec![Step::MakeDir { path: inside.clone(), mode: 0o755, owner: None }];
        let apt_conf = self.apt_conf.clone();
        steps.push(Step::MakeFile { path: inside.join("apt.conf"), contents: apt_conf });
        for (name, from) in [("ca.pem", &self.ca_bundle), ("pip.conf", &self.pip_conf)] {
            if let Some(from) = from {
                let target = inside.join(name);
                steps.push(Step::MakeFile { path: target.clone(), contents: String::new() });
                let source = Source::Path(from.clone());
                steps.push(Step::Bind { source, target, access: Access::READ });
            }
        }
        steps
    }

    /// Writes this machine's `resolv.conf`, so that names are resolved in the same way. It goes
    /// into the upper layer, because an image may have a link there, and is left out of the packed
    /// layer.
    pub(super) fn prepare(&self, upper: &Path) -> Result<(), ImageError> {
        let Some(contents) = &self.resolv_conf else { return Ok(()) };
        let etc = upper.join("etc");
        places::directory(&etc)?;
        let path = etc.join("resolv.conf");
        fs::write(&path, contents).map_err(ImageError::file(path))
    }

    /// Settings of apt for other tools that use it, so that they use the same proxies.
    pub(super) fn apt_options(&self) -> impl Iterator<Item = &str> {
        self.apt_conf.lines().filter(|line| !line.contains(INSIDE))
    }

    pub(super) fn ca_bundle(&self) -> Option<&Path> {
        self.ca_bundle.as_deref()
    }
}

/// The network settings of apt on this machine (proxies, certificate checks, retries, timeouts),
/// one per line.
fn apt_settings() -> Option<String> {
    let output = Command::new("apt-config").arg("dump").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let is_way_out = |line: &&str| {
        let name = line.split(' ').next().unwrap_or_default().to_ascii_lowercase();
        name.starts_with("acquire::")
            && ["::proxy", "::verify-peer", "::retries", "::timeout", "::proxyautodetect"]
                .iter()
                .any(|end| name.ends_with(end) || name.contains(&format!("{end}::")))
            && !line.ends_with("\"\";")
    };
    Some(text.lines().filter(is_way_out).map(|line| line.to_owned() + "\n").collect())
}

/// This machine's package sources for a suite, as lines for `sources.list`. Only the archives of
/// the distribution itself; other configured archives are left out.
pub(super) fn sources_of(suite: &str) -> Vec<String> {
    let mut paths = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(entries) = fs::read_dir("/etc/apt/sources.list.d") {
        paths.extend(entries.filter_map(|entry| Some(entry.ok()?.path())));
    }
    paths.sort();
    let texts = paths.iter().filter_map(|path| {
        let is_stanza = path.extension().is_some_and(|extension| extension == "sources");
        Some((fs::read_to_string(path).ok()?, is_stanza))
    });
    let mut found = Vec::new();
    for (text, is_stanza) in texts {
        match is_stanza {
            true => text.split("\n\n").for_each(|stanza| found.extend(of_stanza(stanza, suite))),
            false => found.extend(text.lines().filter_map(|line| of_line(line, suite))),
        }
    }
    found.dedup();
    found
}

/// Whether `candidate` is the suite itself, its updates or its security fixes.
fn belongs(candidate: &str, suite: &str) -> bool {
    match candidate.strip_prefix(suite) {
        Some(rest) => matches!(rest, "" | "-updates" | "-security"),
        None => false,
    }
}

fn of_line(line: &str, suite: &str) -> Option<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match words[..] {
        ["deb", uri, candidate, "main", ..] if belongs(candidate, suite) => {
            Some(format!("deb {uri} {candidate} main"))
        }
        _ => None,
    }
}

fn of_stanza(stanza: &str, suite: &str) -> Vec<String> {
    let lines: Vec<&str> = stanza.lines().filter(|line| !line.starts_with('#')).collect();
    let field = |name: &str| {
        let found = lines.iter().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        });
        found.unwrap_or_default()
    };
    let signed_by = field("Signed-By");
    let is_own = signed_by.is_empty() || signed_by.contains("archive-keyring");
    let has = |name: &str, word: &str| field(name).split_whitespace().any(|it| it == word);
    if !is_own || !has("Types", "deb") || !has("Components", "main") {
        return Vec::new();
    }
    let mut found = Vec::new();
    for uri in field("URIs").split_whitespace() {
        let suites = field("Suites").split_whitespace();
        for candidate in suites.filter(|candidate| belongs(candidate, suite)) {
            found.push(format!("deb {uri} {candidate} main"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_archives_of_the_distribution_are_used() {
        let own = "Types: deb\n# a note\nURIs: http://mirror.example/debian\n\
                   Suites: bookworm bookworm-updates sid\nComponents: main contrib\n\
                   Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg";
        assert_eq!(
            of_stanza(own, "bookworm"),
            [
                "deb http://mirror.example/debian bookworm main",
                "deb http://mirror.example/debian bookworm-updates main"
            ]
        );
        let other = "Types: deb\nURIs: https://vendor.example\nSuites: bookworm\n\
                     Components: main\nSigned-By: /usr/share/keyrings/vendor.gpg";
        assert!(of_stanza(other, "bookworm").is_empty());
        assert_eq!(
            of_line("deb http://a bookworm main", "bookworm").unwrap(),
            "deb http://a bookworm main"
        );
        assert_eq!(of_line("deb http://a bookworm-pgdg main", "bookworm"), None);
        assert_eq!(of_line("# deb http://a bookworm main", "bookworm"), None);
    }
}
