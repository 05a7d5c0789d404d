//! Documents name files that exist, and the glossary stays short.

use std::path::{Path, PathBuf};

const MAX_GLOSSARY: usize = 25;

#[test]
fn documents_name_files_that_exist() {
    let root = root();
    let mut tree = Vec::new();
    for folder in ["crates", "tests", "kernels", "sdk", "docs", "deploy", "openapi", "examples"] {
        list(&root.join(folder), &root, &mut tree);
    }
    let mut missing = Vec::new();
    for document in ["ARCHITECTURE.md", "THREAT-MODEL.md", "README.md"] {
        for name in paths_in(&read(&root, document)) {
            let found = root.join(&name).exists()
                || tree.iter().any(|path| path.ends_with(name.trim_end_matches('/')));
            if !found {
                missing.push(format!("{document}: {name}"));
            }
        }
    }
    assert_eq!(missing, Vec::<String>::new());
}

#[test]
fn the_glossary_is_short() {
    let text = read(&root(), "ARCHITECTURE.md");
    let (_, glossary) = text.split_once("## Glossary").expect("a glossary");
    let words = glossary.lines().filter(|line| line.starts_with("| ")).count() - 2;
    assert!(words <= MAX_GLOSSARY, "the glossary has {words} words");
}

/// Code spans that look like paths of source files or folders: relative, with a known ending or a `/` at the end.
fn paths_in(text: &str) -> Vec<String> {
    let spans = text.split('`').skip(1).step_by(2);
    let is_plain = |span: &&str| {
        span.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c))
            && !span.starts_with(['/', '.'])
    };
    let is_source = |span: &&str| {
        [".rs", ".py", ".js", ".md"].iter().any(|ending| span.ends_with(ending))
            || span.starts_with("crates/")
    };
    spans.filter(is_plain).filter(is_source).map(str::to_owned).collect()
}

fn list(folder: &Path, root: &Path, into: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the project").flatten() {
        let path = entry.path();
        if path.is_dir() {
            list(&path, root, into);
        } else {
            let relative = path.strip_prefix(root).expect("below the root");
            into.push(relative.display().to_string());
        }
    }
}

fn read(root: &Path, name: &str) -> String {
    std::fs::read_to_string(root.join(name)).expect("a document of the project")
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the project")
}
