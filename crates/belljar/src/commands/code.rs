//! Reads code for a command: from a flag, a file, or standard input.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, bail};
use belljar_proto::exec::Language;
use belljar_proto::frame::MAX_BODY;
use belljar_runtime::languages;

/// The code for a command.
pub(super) struct GivenCode {
    pub(super) code: Vec<u8>,
    pub(super) lang: Language,
    /// The code is from a file: the value of its last expression is not printed.
    pub(super) is_script: bool,
}

pub(super) fn read(
    code: Option<&str>,
    file: Option<&Path>,
    lang: Option<Language>,
) -> Result<GivenCode> {
    let lang = lang.unwrap_or_else(|| language_of(file));
    let (code, is_script) = match (code, file) {
        (Some(code), _) => (code.as_bytes().to_vec(), false),
        (None, Some(path)) if path == Path::new("-") => (read_stdin()?, false),
        (None, Some(path)) => (read_file(path)?, true),
        (None, None) => bail!("give a FILE, - or -c CODE"),
    };
    if code.len() > MAX_BODY {
        bail!("the code has {} bytes, more than the {MAX_BODY} allowed", code.len());
    }
    Ok(GivenCode { code, lang, is_script })
}

fn language_of(file: Option<&Path>) -> Language {
    let extension = file.and_then(Path::extension).and_then(|extension| extension.to_str());
    extension.and_then(languages::of_extension).unwrap_or(Language::Python)
}

fn read_stdin() -> Result<Vec<u8>> {
    let mut code = Vec::new();
    let most = MAX_BODY as u64 + 1;
    io::stdin().take(most).read_to_end(&mut code).context("failed to read standard input")?;
    Ok(code)
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let context = || format!("failed to read `{}`", path.display());
    let metadata = fs::metadata(path).with_context(context)?;
    if metadata.is_dir() {
        bail!("`{}` is a directory", path.display());
    }
    let mut code = Vec::new();
    let most = MAX_BODY as u64 + 1;
    fs::File::open(path).with_context(context)?.take(most).read_to_end(&mut code)?;
    Ok(code)
}
