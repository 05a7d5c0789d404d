//! The specification of an image to build.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::ImageError;

/// The default image.
pub const DEFAULT_SPEC: &str = include_str!("../../../../images/sandbox.toml");

/// Packages that `browser = true` adds.
pub(super) const BROWSER: [&str; 5] =
    ["chromium", "fonts-liberation", "fonts-noto-cjk", "fonts-noto-color-emoji", "fonts-noto-core"];

/// The package that `browser_use = true` adds, in its own environment.
pub(super) const BROWSER_USE: &str = "browser-use>=0.13,<0.14";

/// The most packages of one kind; a longer list is a mistake.
const MAX_PACKAGES: usize = 2000;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    pub base: String,
    #[serde(default)]
    pub apt: Vec<String>,
    #[serde(default)]
    pub pip: Vec<String>,
    #[serde(default)]
    pub npm: Vec<String>,
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Modules that kernels preload; `None` means the server's list.
    pub preload: Option<Vec<String>>,
    #[serde(default = "default_user")]
    pub user: String,
    #[serde(default)]
    pub browser: bool,
    #[serde(default)]
    pub browser_use: bool,
}

fn default_user() -> String {
    "belljar".into()
}

impl Spec {
    pub fn parse(text: &str) -> Result<Spec, ImageError> {
        let spec: Spec =
            toml::from_str(text).map_err(|error| ImageError::Spec(error.to_string()))?;
        spec.check()?;
        Ok(spec)
    }

    /// Checks names, because they become arguments of commands: a name must not look like an
    /// option, and must be one line.
    fn check(&self) -> Result<(), ImageError> {
        let wrong = |message: String| Err(ImageError::Spec(message));
        let lists = [("apt", &self.apt), ("pip", &self.pip), ("npm", &self.npm)];
        for (key, names) in lists {
            if names.len() > MAX_PACKAGES {
                return wrong(format!("{key}: more than {MAX_PACKAGES} packages"));
            }
            let is_bad = |name: &&String| {
                name.is_empty() || name.starts_with('-') || name.chars().any(char::is_control)
            };
            if let Some(name) = names.iter().find(is_bad) {
                return wrong(format!("{key}: `{name}` is not the name of a package"));
            }
        }
        let fits = |text: &str, extra: &str| {
            !text.is_empty()
                && text.chars().all(|c| c.is_ascii_alphanumeric() || extra.contains(c))
                && !text.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        };
        for name in self.env.keys() {
            if !fits(name, "_") {
                return wrong(format!("env: `{name}` is not the name of a variable"));
            }
        }
        if let Some(key) = self.env.iter().find(|(_, value)| value.contains(['\0', '\n'])) {
            return wrong(format!("env: the value of {} has more than one line", key.0));
        }
        for module in self.preload.iter().flatten() {
            if !fits(module, "_.") {
                return wrong(format!("preload: `{module}` is not the name of a module"));
            }
        }
        if !fits(&self.user, "_-") || self.user.len() > 32 || self.user == "root" {
            return wrong(format!("user: `{}` is not a name for a user", self.user));
        }
        Ok(())
    }

    /// The packages of the distribution, including those that options add.
    pub(super) fn packages(&self) -> Vec<&str> {
        let own = self.apt.iter().map(String::as_str);
        // Browser tasks need a browser.
        let browser: &[&str] = if self.browser || self.browser_use { &BROWSER } else { &[] };
        let mut all: Vec<&str> = own.chain(browser.iter().copied()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_has_what_was_promised() {
        let spec = Spec::parse(DEFAULT_SPEC).unwrap();
        for package in ["pandas", "rdkit", "scikit-learn", "ipython"] {
            assert!(spec.pip.iter().any(|name| name == package), "{package}");
        }
        assert!(!spec.browser && !spec.packages().contains(&"chromium"));
        let with_browser = Spec { browser: true, ..spec };
        assert!(with_browser.packages().contains(&"chromium"));
    }

    #[test]
    fn mistakes_are_said() {
        for (text, said) in [
            ("", "base"),
            ("base = \"x\"\nptp = []", "ptp"),
            ("base = \"x\"\npip = [\"--index-url=http://evil\"]", "pip"),
            ("base = \"x\"\napt = [\"\"]", "apt"),
            ("base = \"x\"\nuser = \"root\"", "user"),
            ("base = \"x\"\npreload = [\"os; x\"]", "preload"),
            ("base = \"x\"\n[env]\n\"A B\" = \"x\"", "env"),
            ("base = \"x\"\n[env]\nA = \"x\\ny\"", "env"),
        ] {
            let error = Spec::parse(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
