//! Generates `docs/settings.md` and the list of settings in the Python package from the declarations.
//! `BLESS=1 cargo test -p belljar --lib settings` writes them; without BLESS, the test fails if one is out of date.

use std::fs;

use super::variables::{GROUPS, INTERNAL, Variable};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const INTRODUCTION: &str = "\
# Settings

<!-- Generated from crates/belljar/src/settings/variables.rs:
     BLESS=1 cargo test -p belljar --lib settings -->

Flags override the environment, the environment overrides the `.env` of the current directory, and `.env`
overrides the defaults. `belljar setup` writes a `.env` with everything below commented out. The Python
package reads the same settings in the same way. A line of the file is `NAME=value`, with or without
`export` before it. `#` begins a comment. A value in quotes may have several lines; in double quotes, `\\n`
and `\\\"` are escapes as in C. An empty value means that the variable is not set. Every command refuses a
wrong value, and a name that begins with `BELLJAR_` and is not listed here.

Sizes are numbers of bytes, or of K, M, G or T (powers of 1024). Names such as `TMPFS` may be written in
lower case.
";

fn page() -> String {
    let mut page = INTRODUCTION.to_owned();
    for group in GROUPS {
        page += &format!("\n## {}\n\n", group.title);
        page += "| variable | accepts | default | meaning |\n| --- | --- | --- | --- |\n";
        for variable in group.variables {
            page += &row(variable);
        }
    }
    page
}

fn row(variable: &Variable) -> String {
    let Variable { name, accepts, default, when_empty, help, secret } = variable;
    let default = if default.is_empty() { (*when_empty).into() } else { format!("`{default}`") };
    let help = help.replace('\n', " ");
    let secret = if *secret { " Secret: its value is never shown." } else { "" };
    assert!(!format!("{accepts}{default}{help}").contains('|'), "{name} would break the table");
    format!("| `{name}` | {accepts} | {default} | {help}{secret} |\n")
}

/// Every setting with its default, for the Python package.
fn python_module() -> String {
    let mut module = String::from(
        "\"\"\"Every setting and its default. Generated from crates/belljar/src/settings/variables.rs:\n\
         BLESS=1 cargo test -p belljar --lib settings\"\"\"\n\n\
         # ruff: noqa: E501\n\
         from __future__ import annotations\n\nDEFAULTS = {\n",
    );
    for variable in GROUPS.iter().flat_map(|group| group.variables) {
        assert!(!variable.default.contains(['"', '\\', '\n']), "{}", variable.name);
        module += &format!("    \"{}\": \"{}\",\n", variable.name, variable.default);
    }
    module += "}\n\n#: Not for users.\nINTERNAL = (\n";
    INTERNAL.iter().for_each(|name| module += &format!("    \"{name}\",\n"));
    module += ")\n\n#: Their values are never shown.\nSECRET = (\n";
    for variable in GROUPS.iter().flat_map(|group| group.variables).filter(|it| it.secret) {
        module += &format!("    \"{}\",\n", variable.name);
    }
    module + ")\n"
}

#[test]
fn what_is_made_from_the_declarations_is_up_to_date() {
    for (name, expected) in
        [("docs/settings.md", page()), ("sdk/python/src/belljar/_variables.py", python_module())]
    {
        let path = format!("{ROOT}/{name}");
        if std::env::var_os("BLESS").is_some() {
            fs::write(&path, &expected).expect("it can be written");
        }
        let checked_in = fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == expected,
            "{name} is out of date; write it anew with \
             `BLESS=1 cargo test -p belljar --lib settings`"
        );
    }
}
