//! Checks every answer of every test against the OpenAPI document.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde_json::Value;

const DOCUMENT: &str = include_str!("../../../openapi/belljar.json");

/// Statuses of HTTP itself, before a request reaches our handlers: 405 (a path does not take the
/// method), 414 and 431.
const OF_HTTP: [u16; 3] = [405, 414, 431];

struct Operation {
    method: String,
    /// Parts of the path; `{name}` stands for anything.
    parts: Vec<String>,
    statuses: BTreeSet<u16>,
}

/// Fails if an operation answered with a status that the document does not list for it.
pub fn check(method: &str, path: &str, status: u16) {
    if OF_HTTP.contains(&status) {
        return;
    }
    let path = path.split('?').next().unwrap_or_default();
    let asked: Vec<&str> = path.split('/').collect();
    let fits = operations().iter().filter(|known| known.method == method && known.fits(&asked));
    // `datasets/export` is a better match than `datasets/{dataset}`.
    let best = fits.max_by_key(|known| known.parts.iter().filter(|part| !is_name(part)).count());
    let Some(best) = best else { return };
    assert!(
        best.statuses.contains(&status),
        "{method} {path} answered {status}, and openapi/belljar.json says {:?} of {}: add the error to \
         crates/belljar-api/src/document/errors.rs",
        best.statuses,
        best.parts.join("/"),
    );
}

impl Operation {
    fn fits(&self, asked: &[&str]) -> bool {
        // In these paths the last parameter may contain slashes.
        let is_deep = matches!(self.parts.last().map(String::as_str), Some("{path}" | "{dataset}"));
        let fits = |(part, asked): (&String, &&str)| {
            if is_name(part) { !asked.is_empty() || is_deep } else { part == asked }
        };
        let length = match is_deep {
            true => asked.len() >= self.parts.len(),
            false => asked.len() == self.parts.len(),
        };
        length && self.parts.iter().zip(asked).all(fits)
    }
}

fn is_name(part: &str) -> bool {
    part.starts_with('{')
}

fn operations() -> &'static [Operation] {
    static ALL: OnceLock<Vec<Operation>> = OnceLock::new();
    ALL.get_or_init(|| {
        let document: Value = serde_json::from_str(DOCUMENT).expect("JSON");
        let mut all = Vec::new();
        for (path, operations) in document["paths"].as_object().expect("paths") {
            for (method, operation) in operations.as_object().expect("operations") {
                let statuses = operation["responses"].as_object().expect("answers").keys();
                all.push(Operation {
                    method: method.to_uppercase(),
                    parts: path.split('/').map(str::to_owned).collect(),
                    statuses: statuses.map(|status| status.parse().expect("a status")).collect(),
                });
            }
        }
        all
    })
}
