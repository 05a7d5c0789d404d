//! `docs/settings.md`, made from the declarations. `BLESS=1 cargo test -p belljar --lib settings`
//! writes it; without that, the test fails when it is out of date.

use std::fs;

use super::variables::{GROUPS, Variable};

const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");

const INTRODUCTION: &str = "\
# Settings

<!-- Generated from crates/belljar/src/settings/variables.rs:
     BLESS=1 cargo test -p belljar --lib settings -->

Flags win over the environment, the environment over the `.env` of the current directory, and that
over the defaults. `belljar setup` writes a `.env` with everything below commented out. An empty
value is the same as none. A wrong value is refused by every command, and so is a name that begins
with `BELLJAR_` and is not listed here: it would be believed to work.

Sizes are numbers of bytes, or of K, M, G or T (1024 of the one before). Names such as `TMPFS` may be
written in lower case.
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

#[test]
fn the_reference_page_is_up_to_date() {
    if std::env::var_os("BLESS").is_some() {
        fs::write(PATH, page()).expect("docs can be written");
    }
    let checked_in = fs::read_to_string(PATH).unwrap_or_default();
    assert!(
        checked_in == page(),
        "docs/settings.md is out of date; write it anew with \
         `BLESS=1 cargo test -p belljar --lib settings`"
    );
}
