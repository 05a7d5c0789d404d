//! Notebooks in nbformat 4: the code of their cells, and a copy with their outputs.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result, bail};
use belljar_engine::exec::Code;
use belljar_engine::exec::result::ExecResult;
use belljar_proto::exec::{Dropped, ErrorReport, Event, KernelState, Language, MimeBundle, Status};
use belljar_runtime::languages;
use serde_json::{Map, Value, json};

/// The usual tags of cells: a cell that may fail, and one that is skipped.
const MAY_FAIL: &str = "raises-exception";
const SKIPPED: &str = "skip-execution";

#[derive(Debug)]
pub(super) struct Notebook {
    document: Value,
    language: Language,
    /// The indexes of cells with code to run.
    to_run: Vec<usize>,
    /// The outputs of each of them.
    shown: Vec<Shown>,
}

impl Notebook {
    /// Parses a notebook.
    pub(super) fn read(text: &[u8], lang: Option<Language>) -> Result<Notebook> {
        let document: Value = serde_json::from_slice(text).context("it is not JSON")?;
        match document["nbformat"].as_u64() {
            Some(4) => {}
            Some(format) => bail!(
                "it has notebook format {format}, and only format 4 can be run; \
                 `jupyter nbconvert --to notebook` converts it"
            ),
            None => bail!("it does not say which notebook format it has"),
        }
        let language = match lang {
            Some(language) => language,
            None => language_of(&document["metadata"])?,
        };
        let Some(cells) = document["cells"].as_array() else { bail!("it has no list of cells") };
        let to_run: Vec<usize> = (0..cells.len()).filter(|at| is_run(&cells[*at])).collect();
        let shown = to_run.iter().map(|_| Shown::default()).collect();
        Ok(Notebook { document, language, to_run, shown })
    }

    /// The number of cells to run.
    pub(super) fn len(&self) -> usize {
        self.to_run.len()
    }

    pub(super) fn code(&self) -> Vec<Code> {
        let code = |at: &usize| {
            let source = source(&self.document["cells"][*at]);
            Code::cell(self.language, source.into_bytes(), true)
        };
        self.to_run.iter().map(code).collect()
    }

    pub(super) fn watch(&mut self, number: usize, event: &Event, body: &[u8]) {
        self.shown[number].watch(event, body);
    }

    /// Records the end of a cell. Returns whether it failed.
    pub(super) fn ended(&mut self, number: usize, result: &ExecResult) -> bool {
        self.shown[number].end(result);
        let failed = result.status != Status::Ok || result.exit_code != 0;
        failed && !(is_tagged(&self.cell(number), MAY_FAIL) && result.status == Status::Error)
    }

    /// The index of a cell among all cells of the document.
    pub(super) fn index(&self, number: usize) -> usize {
        self.to_run[number]
    }

    fn cell(&self, number: usize) -> Value {
        self.document["cells"][self.to_run[number]].clone()
    }

    /// The copy: cells that ran have their outputs, other code cells have none.
    pub(super) fn executed(mut self) -> Value {
        let cells = self.document["cells"].as_array_mut().into_iter().flatten();
        for cell in cells.filter(|cell| cell["cell_type"] == "code") {
            cell["outputs"] = json!([]);
            cell["execution_count"] = Value::Null;
        }
        for (at, shown) in self.to_run.iter().zip(self.shown) {
            let cell = &mut self.document["cells"][*at];
            cell["execution_count"] = shown.count.into();
            cell["outputs"] = shown.outputs();
        }
        self.document
    }
}

/// Formats a document as Jupyter does: indented by one space.
pub(super) fn to_text(document: &Value) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    serde::Serialize::serialize(document, &mut serializer)?;
    text.push(b'\n');
    Ok(text)
}

/// Replaces a file atomically.
pub(super) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let temporary = directory.join(format!(".belljar-{}", belljar_sys::process::random_name()));
    let written = fs::File::create_new(&temporary)
        .and_then(|mut file| file.write_all(bytes))
        .and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

fn language_of(metadata: &Value) -> Result<Language> {
    let name = [&metadata["kernelspec"]["language"], &metadata["language_info"]["name"]]
        .into_iter()
        .find_map(Value::as_str)
        .unwrap_or("python");
    languages::find(&name.to_lowercase())
        .with_context(|| format!("its language is `{name}`; sandboxes have {}", languages::names()))
}

fn is_run(cell: &Value) -> bool {
    cell["cell_type"] == "code" && !is_tagged(cell, SKIPPED) && !source(cell).trim().is_empty()
}

fn is_tagged(cell: &Value, tag: &str) -> bool {
    let tags = cell["metadata"]["tags"].as_array();
    tags.is_some_and(|tags| tags.iter().any(|own| own == tag))
}

/// The source of a cell: one string, or a list of lines.
fn source(cell: &Value) -> String {
    match &cell["source"] {
        Value::String(text) => text.clone(),
        Value::Array(lines) => lines.iter().filter_map(Value::as_str).collect(),
        _ => String::new(),
    }
}

/// The outputs of one cell so far.
#[derive(Debug, Default)]
struct Shown {
    pieces: Vec<Piece>,
    /// `None` for a cell that did not run.
    count: Option<u64>,
}

#[derive(Debug)]
enum Piece {
    Stream { name: &'static str, bytes: Vec<u8> },
    Bundle { bundle: MimeBundle, is_result: bool },
    Error(ErrorReport),
}

impl Shown {
    fn watch(&mut self, event: &Event, body: &[u8]) {
        let bundle = || serde_json::from_slice::<MimeBundle>(body).ok();
        let piece = match event {
            Event::Stdout => return self.print("stdout", body),
            Event::Stderr => return self.print("stderr", body),
            Event::Display => bundle().map(|bundle| Piece::Bundle { bundle, is_result: false }),
            Event::Result => bundle().map(|bundle| Piece::Bundle { bundle, is_result: true }),
            Event::Error => serde_json::from_slice(body).ok().map(Piece::Error),
            Event::Input | Event::Artifacts | Event::Done(_) => None,
        };
        self.pieces.extend(piece);
    }

    fn print(&mut self, to: &'static str, new: &[u8]) {
        match self.pieces.last_mut() {
            Some(Piece::Stream { name, bytes }) if *name == to => bytes.extend_from_slice(new),
            _ => self.pieces.push(Piece::Stream { name: to, bytes: new.to_vec() }),
        }
    }

    /// Adds why the cell ended, if the outputs do not show it.
    fn end(&mut self, result: &ExecResult) {
        self.count = Some(result.execution_count);
        let Dropped { stdout_bytes, stderr_bytes, .. } = result.dropped;
        for (stream, bytes) in [("stdout", stdout_bytes), ("stderr", stderr_bytes)] {
            if bytes > 0 {
                let note = format!("belljar: {bytes} bytes of {stream} were dropped\n");
                self.print("stderr", note.as_bytes());
            }
        }
        let name = match result.status {
            Status::Timeout => "Timeout",
            Status::Interrupted => "Interrupted",
            Status::Crashed => "Crashed",
            Status::Oom => "OutOfMemory",
            Status::Ok | Status::Error => return,
        };
        // After an interrupt, the traceback already shows the reason.
        if result.error.is_none() || result.kernel_state == KernelState::Lost {
            let value = result.reason.clone().unwrap_or_default();
            let traceback = format!("{name}: {value}");
            self.pieces.push(Piece::Error(ErrorReport { name: name.into(), value, traceback }));
        }
    }

    fn outputs(self) -> Value {
        let count = self.count;
        self.pieces.into_iter().map(|piece| piece.output(count)).collect()
    }
}

impl Piece {
    /// The output in nbformat.
    fn output(self, count: Option<u64>) -> Value {
        match self {
            Piece::Stream { name, bytes } => {
                let text = lines(&String::from_utf8_lossy(&bytes));
                json!({"output_type": "stream", "name": name, "text": text})
            }
            Piece::Bundle { bundle, is_result } => {
                let data: Map<String, Value> =
                    bundle.data.into_iter().map(|(kind, value)| form(kind, value)).collect();
                let metadata = bundle.metadata;
                if is_result {
                    json!({"output_type": "execute_result", "data": data, "metadata": metadata,
                        "execution_count": count})
                } else {
                    json!({"output_type": "display_data", "data": data, "metadata": metadata})
                }
            }
            Piece::Error(ErrorReport { name, value, traceback }) => {
                let traceback: Vec<&str> = traceback.trim_end().lines().collect();
                json!({"output_type": "error", "ename": name, "evalue": value, "traceback": traceback})
            }
        }
    }
}

/// Converts text to a list of lines; images and JSON are unchanged.
fn form(kind: String, value: Value) -> (String, Value) {
    let is_text = kind.starts_with("text/") || kind == "image/svg+xml";
    let value = match value {
        Value::String(text) if is_text => lines(&text),
        other => other,
    };
    (kind, value)
}

fn lines(text: &str) -> Value {
    text.split_inclusive('\n').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(document: &Value) -> Result<Notebook> {
        Notebook::read(document.to_string().as_bytes(), None)
    }

    #[test]
    fn what_is_no_notebook_is_refused_with_the_reason() {
        for (text, reason) in [
            ("", "not JSON"),
            ("[]", "which notebook format"),
            ("{\"nbformat\": 3, \"worksheets\": []}", "format 3"),
            ("{\"nbformat\": 4}", "no list of cells"),
            ("{\"nbformat\": 4, \"cells\": 5}", "no list of cells"),
            (
                "{\"nbformat\": 4, \"cells\": [], \"metadata\": {\"kernelspec\": {\"language\": \"cobol\"}}}",
                "cobol",
            ),
        ] {
            let error = Notebook::read(text.as_bytes(), None).unwrap_err();
            assert!(format!("{error:#}").contains(reason), "{text}: {error:#}");
        }
    }

    #[test]
    fn only_cells_with_code_are_run_whatever_is_in_the_list() {
        let notebook = read(&json!({"nbformat": 4, "cells": [
            {"cell_type": "markdown", "source": "x"},
            {"cell_type": "code", "source": ["a = 1\n", "a"]},
            {"cell_type": "code", "source": "  \n"},
            {"cell_type": "code", "source": 5},
            {"cell_type": "code", "source": "x", "metadata": {"tags": ["skip-execution"]}},
            7, null, {},
        ]}));
        let notebook = notebook.unwrap();
        assert_eq!((notebook.len(), notebook.index(0)), (1, 1));
        assert_eq!(notebook.code(), [Code::cell(Language::Python, *b"a = 1\na", true)]);
    }

    #[test]
    fn output_of_one_stream_is_one_output_and_split_characters_are_whole() {
        let mut shown = Shown::default();
        for piece in [&b"a\n\xc3"[..], b"\xbc\n"] {
            shown.watch(&Event::Stdout, piece);
        }
        shown.watch(&Event::Stderr, b"!");
        assert_eq!(
            shown.outputs(),
            json!([
                {"output_type": "stream", "name": "stdout", "text": ["a\n", "\u{fc}\n"]},
                {"output_type": "stream", "name": "stderr", "text": ["!"]},
            ])
        );
    }
}
