//! The languages: each has a folder in `kernels/`, with a manifest that has its names and the command line of its kernel.
//! `docs/languages.md` describes how to add one.

use std::sync::OnceLock;

use belljar_proto::exec::Language;
use serde::Deserialize;

use crate::kernels;
use crate::spec::paths;

/// A kernel, as its folder describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct KernelManifest {
    kernel: String,
    /// Its command line. It uses frames over descriptor 3, unless it is a shell. `{kernels}` is the directory of all
    /// folders, `{python}` the image's interpreter; a program without a slash is looked up on the `PATH`.
    argv: Vec<String>,
    /// What to do if its program is missing.
    missing: String,
    /// Not a language for users: the server makes its cells, and it cannot be requested by name.
    #[serde(default)]
    service: bool,
    /// Its languages. Cells in all but the first carry the name of their language.
    languages: Vec<Described>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    /// The first is the one that is shown.
    names: Vec<String>,
    extensions: Vec<String>,
    /// Runs code in a new process; the code follows as the last argument.
    script: Vec<String>,
}

struct Known {
    language: Language,
    manifest: &'static KernelManifest,
    described: &'static Described,
}

/// The language with this name.
#[must_use]
pub fn find(name: &str) -> Option<Language> {
    let known = for_users().find(|known| known.described.names.iter().any(|own| own == name));
    known.map(|known| known.language)
}

/// The language of files with this extension.
#[must_use]
pub fn of_extension(extension: &str) -> Option<Language> {
    let has = |known: &&Known| known.described.extensions.iter().any(|own| own == extension);
    all().iter().find(has).map(|known| known.language)
}

/// The name of a language; `other` if only another version of the server knows it.
#[must_use]
pub fn name(language: Language) -> &'static str {
    look_up(language).map_or("other", |known| known.described.names[0].as_str())
}

/// All names in one text, for error messages.
#[must_use]
pub fn names() -> String {
    let names: Vec<&str> = for_users().map(|known| known.described.names[0].as_str()).collect();
    match names.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        _ => names.concat(),
    }
}

/// Every name of a language, including aliases.
#[must_use]
pub fn all_names() -> Vec<&'static str> {
    for_users().flat_map(|known| known.described.names.iter().map(String::as_str)).collect()
}

/// The command line that runs code of this language in a new process.
#[must_use]
pub fn script(language: Language, code: &str) -> Option<Vec<String>> {
    let script = &look_up(language)?.described.script;
    let filled = script.iter().map(|word| filled(word, ""));
    Some(filled.chain([code.to_owned()]).collect())
}

/// The command line of a language's kernel, where the image's Python is `python`.
pub(crate) fn argv(language: Language, python: &str) -> Option<Vec<String>> {
    let argv = &look_up(language)?.manifest.argv;
    Some(argv.iter().map(|word| filled(word, python)).collect())
}

/// What to do if a language's program is missing.
pub fn missing(language: Language) -> Option<&'static str> {
    look_up(language).map(|known| known.manifest.missing.as_str())
}

fn filled(word: &str, python: &str) -> String {
    word.replace("{kernels}", paths::KERNELS).replace("{python}", python)
}

/// Languages for users, without services.
fn for_users() -> impl Iterator<Item = &'static Known> {
    all().iter().filter(|known| !known.manifest.service)
}

fn look_up(language: Language) -> Option<&'static Known> {
    all().iter().find(|known| known.language == language)
}

/// Python first: it is the default.
fn all() -> &'static [Known] {
    static ALL: OnceLock<Vec<Known>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all: Vec<Known> = kernels::manifests().flat_map(known).collect();
        all.sort_by_key(|known| known.language != Language::Python);
        all
    })
}

fn known(manifest: &str) -> Vec<Known> {
    // They are embedded; a test parses every one.
    let manifest: KernelManifest =
        serde_json::from_str(manifest).expect("embedded manifests are valid");
    let manifest: &'static KernelManifest = Box::leak(Box::new(manifest));
    let known = |(index, described): (usize, &'static Described)| {
        let name = match index {
            0 => manifest.kernel.clone(),
            _ => format!("{}.{}", manifest.kernel, described.names[0]),
        };
        let language = Language::new(&name).expect("embedded manifests have valid names");
        Known { language, manifest, described }
    };
    manifest.languages.iter().enumerate().map(known).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_folder_has_a_manifest_and_no_two_share_a_name() {
        assert_eq!(names(), "python, bash, javascript, typescript or r");
        let mut seen = HashSet::new();
        for known in all() {
            let Described { names, extensions, script } = known.described;
            assert!(!names.is_empty());
            assert_eq!(known.manifest.service, extensions.is_empty() && script.is_empty());
            assert!(!known.manifest.argv.is_empty() && !known.manifest.missing.is_empty());
            for name in names.iter().chain(extensions.iter().filter(|ext| !names.contains(ext))) {
                assert!(seen.insert(name), "{name} is there twice");
            }
        }
        let typescript = find("ts").unwrap();
        assert_eq!(
            (typescript.as_str(), name(typescript)),
            ("javascript.typescript", "typescript")
        );
        assert_eq!(of_extension("mjs"), find("node"));
        assert_eq!(argv(Language::Python, "/p").unwrap()[0], "/p");
        assert_eq!(script(Language::Bash, "ls").unwrap(), ["/bin/bash", "-c", "ls"]);
        assert_eq!((find("browser"), name(Language::Browser)), (None, "browser"));
        assert_eq!((find("cobol"), name(Language::new("cobol").unwrap())), (None, "other"));
    }
}
