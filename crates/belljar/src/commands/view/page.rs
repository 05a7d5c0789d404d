//! The page of `belljar view`, as text.

use std::fmt::Write as _;
use std::path::Path;

use indicatif::HumanBytes;
use serde_json::Value;

use super::highlight::highlight;
use super::record::RecordedArtifact;
use crate::commands::colours::{Colour, Paint};
use crate::commands::output::plain;
use crate::table;

/// How many lines of a stream or value are shown; the log contains all of them.
const MAX_LINES: usize = 200;

#[derive(Debug)]
pub(super) struct Page {
    paint: Paint,
}

impl Page {
    pub(super) fn new(paint: Paint) -> Page {
        Page { paint }
    }

    pub(super) fn metadata(&self, directory: &Path, metadata: Option<&Value>) -> String {
        let mut page = self.heading("Session");
        let line = |page: &mut String, name: &str, value: &str| {
            let _ = writeln!(page, "{name:<10}  {}", plain(value));
        };
        line(&mut page, "directory", &directory.display().to_string());
        let Some(metadata) = metadata else { return page + "(its metadata is not there)\n" };
        for (name, key) in [
            ("id", "session_id"),
            ("key", "key"),
            ("tenant", "tenant"),
            ("state", "state"),
            ("image", "image"),
            ("storage", "storage"),
            ("datasets", "datasets"),
            ("created", "created"),
            ("last used", "last_used"),
            ("expires", "expires"),
            ("ended", "ended"),
            ("because", "ended_because"),
        ] {
            if let Some(text) = metadata[key].as_str() {
                line(&mut page, name, text);
            }
        }
        let limits = &metadata["limits"];
        if let Some(memory) = limits["memory"].as_u64() {
            let cpus = limits["millicpus"].as_u64().unwrap_or(0);
            let pids = limits["pids"].as_u64().unwrap_or(0);
            let cpus = format!("{}.{:03}", cpus / 1000, cpus % 1000);
            let cpus = cpus.trim_end_matches('0').trim_end_matches('.');
            line(
                &mut page,
                "limits",
                &format!("memory {}, cpus {cpus}, pids {pids}", HumanBytes(memory)),
            );
        }
        if let Some(own) = metadata["metadata"].as_object().filter(|own| !own.is_empty()) {
            line(&mut page, "metadata", &Value::Object(own.clone()).to_string());
        }
        page
    }

    pub(super) fn history(&self, execs: &[Value], earlier: u64) -> String {
        let mut page = format!("\n{}", self.heading("Executions"));
        if earlier > 0 {
            let _ = writeln!(page, "({earlier} earlier are not shown; --limit 0 shows all)");
        } else if execs.is_empty() {
            page += "(none)\n";
        }
        execs.iter().for_each(|exec| page += &self.exec(exec));
        page
    }

    /// One execution: its code, output, duration and memory.
    pub(super) fn exec(&self, exec: &Value) -> String {
        let text = |key: &str| exec[key].as_str().unwrap_or_default();
        if let Some(line) = exec["unreadable"].as_str() {
            return self
                .paint
                .paint(Colour::Bad, "\na line of the log that is not an execution:\n")
                + &self.block(line, None);
        }
        let status = text("status");
        let colour = if status == "ok" { Colour::Good } else { Colour::Bad };
        let mut facts = vec![plain(text("language")), plain(text("time"))];
        facts.extend(exec["duration_ms"].as_f64().map(|ms| format!("{ms:.1} ms")));
        facts.extend(
            exec["memory_bytes"].as_u64().map(|bytes| format!("{} in memory", HumanBytes(bytes))),
        );
        let mut page = format!(
            "\n{} {} {}\n",
            self.paint.paint(Colour::Heading, &format!("[{}]", exec["number"])),
            self.paint.paint(colour, &plain(status)),
            self.paint.paint(Colour::Dim, &facts.join(", ")),
        );
        match exec["command"].as_array() {
            Some(words) => {
                let words: Vec<String> =
                    words.iter().filter_map(Value::as_str).map(quoted).collect();
                page += &self.block(&format!("$ {}", words.join(" ")), None);
            }
            None => {
                let code = harmless(text("code"));
                page += &indented(&highlight(&code, text("language"), self.paint));
            }
        }
        page += &self.said("stdout", text("stdout"), None);
        page += &self.said("stderr", text("stderr"), Some(Colour::Bad));
        for result in exec["results"].as_array().into_iter().flatten() {
            page += &self.result(result);
        }
        page += &self.said(
            "error",
            exec["error"]["traceback"].as_str().unwrap_or_default(),
            Some(Colour::Bad),
        );
        page += &self.said("reason", text("reason"), Some(Colour::Bad));
        for stream in ["stdout_bytes", "stderr_bytes"] {
            if let Some(bytes) = exec["dropped"][stream].as_u64().filter(|bytes| *bytes > 0) {
                let name = &stream[..6];
                page +=
                    &self.said("dropped", &format!("{bytes} bytes of {name}"), Some(Colour::Bad));
            }
        }
        for artifact in exec["artifacts"].as_array().into_iter().flatten() {
            let size = artifact["size"].as_u64().unwrap_or(0);
            let path = artifact["path"].as_str().unwrap_or_default();
            page += &self.said("artifact", &format!("{path} ({})", HumanBytes(size)), None);
        }
        page
    }

    /// The variables, and the modules that names refer to.
    pub(super) fn state(&self, state: Option<&Value>) -> String {
        let mut page = format!("\n{}", self.heading("Variables"));
        let Some(state) = state else { return page + "(not written yet)\n" };
        let text = |value: &Value| plain(value.as_str().unwrap_or_default());
        let row = |variable: &Value| {
            let shape: Vec<String> =
                variable["shape"].as_array().into_iter().flatten().map(Value::to_string).collect();
            let place = if variable["on_disk"] == true { "disk" } else { "memory" };
            let size = variable["size"]
                .as_u64()
                .map_or_else(String::new, |size| HumanBytes(size).to_string());
            let first = variable["preview"].as_str().unwrap_or_default();
            let first = first.lines().next().unwrap_or_default();
            vec![
                text(&variable["name"]),
                text(&variable["type"]),
                shape.join(" x "),
                size,
                place.into(),
                plain(first),
            ]
        };
        let rows: Vec<_> = state["variables"].as_array().into_iter().flatten().map(row).collect();
        if rows.is_empty() {
            page += "(none)\n";
        } else {
            page += &table::render(&["NAME", "TYPE", "SHAPE", "SIZE", "WHERE", "VALUE"], &rows);
        }
        if let Some(more) = state["truncated"].as_u64().filter(|more| *more > 0) {
            let _ = writeln!(page, "({more} more are not shown)");
        }
        let module = |import: &Value| {
            let (name, module) = (text(&import["name"]), text(&import["module"]));
            let version =
                import["version"].as_str().map(|it| format!(" {}", plain(it))).unwrap_or_default();
            if name == module {
                format!("{name}{version}")
            } else {
                format!("{name} = {module}{version}")
            }
        };
        let modules: Vec<_> =
            state["imports"].as_array().into_iter().flatten().map(module).collect();
        if !modules.is_empty() {
            let _ = writeln!(page, "imports: {}", modules.join(", "));
        }
        page
    }

    pub(super) fn artifacts(&self, artifacts: &[RecordedArtifact]) -> String {
        let page = format!("\n{}", self.heading("Artifacts"));
        if artifacts.is_empty() {
            return page + "(none)\n";
        }
        let row = |it: &RecordedArtifact| vec![plain(&it.name), HumanBytes(it.bytes).to_string()];
        page + &table::render(&["NAME", "SIZE"], &artifacts.iter().map(row).collect::<Vec<_>>())
    }

    fn heading(&self, title: &str) -> String {
        self.paint.paint(Colour::Heading, title) + "\n"
    }

    fn result(&self, result: &Value) -> String {
        let forms = result["data"].as_object();
        let shown = forms.and_then(|forms| forms.get("text/plain")).and_then(Value::as_str);
        let mut page = self.said("result", shown.unwrap_or_default(), None);
        for (mime, form) in forms.into_iter().flatten().filter(|(mime, _)| *mime != "text/plain") {
            let size = form.as_str().map_or_else(|| form.to_string().len(), str::len);
            page += &self.said("shown", &format!("{mime}, {size} characters"), None);
        }
        page
    }

    fn said(&self, name: &str, text: &str, colour: Option<Colour>) -> String {
        if text.is_empty() {
            return String::new();
        }
        format!("  {}\n{}", self.paint.paint(Colour::Dim, name), self.block(text, colour))
    }

    fn block(&self, text: &str, colour: Option<Colour>) -> String {
        let text = harmless(text);
        let count = text.lines().count();
        let mut lines: Vec<String> = text
            .lines()
            .take(MAX_LINES)
            .map(|line| {
                colour.map_or_else(|| line.to_owned(), |colour| self.paint.paint(colour, line))
            })
            .collect();
        if count > MAX_LINES {
            lines.push(
                self.paint.paint(Colour::Dim, &format!("({} more lines)", count - MAX_LINES)),
            );
        }
        indented(&lines.join("\n"))
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("    {line}").trim_end().to_owned() + "\n").collect()
}

/// Lines from the sandbox, with control characters escaped.
fn harmless(text: &str) -> String {
    let lines: Vec<String> = text
        .replace("\r\n", "\n")
        .split('\n')
        .map(|line| line.split('\t').map(plain).collect::<Vec<_>>().join("\t"))
        .collect();
    lines.join("\n")
}

fn quoted(word: &str) -> String {
    let simple = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(simple) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_a_terminal_obeys_comes_through() {
        let evil = "\x1b]0;owned\x07\x1b[2J\u{202e}\r\x08";
        let exec = json!({
            "number": 1, "status": "ok", "language": "python", "time": evil, "code": format!("x = '{evil}'\ny"),
            "stdout": evil, "stderr": evil, "reason": evil, "error": {"traceback": evil}, "duration_ms": 1.0,
            "results": [{"data": {"text/plain": evil, "text/html": "<b>"}}], "artifacts": [{"path": evil, "size": 1}],
        });
        let page = Page::new(Paint::new(false));
        let state = json!({"variables": [{"name": evil, "type": evil, "preview": evil}], "imports": [{"name": evil, "module": evil}]});
        let metadata = json!({"session_id": evil, "metadata": {"k": evil}});
        let shown = page.exec(&exec)
            + &page.state(Some(&state))
            + &page.metadata(Path::new("d"), Some(&metadata));
        let shown = shown
            + &page.artifacts(&[RecordedArtifact { name: evil.into(), bytes: 1 }])
            + &page.exec(&json!({"unreadable": evil}));
        let obeyed: Vec<char> =
            shown.chars().filter(|c| (c.is_control() && *c != '\n') || *c == '\u{202e}').collect();
        assert!(obeyed.is_empty(), "{obeyed:?} in {shown}");
    }

    #[test]
    fn long_output_is_cut_and_said_so() {
        let exec = json!({"number": 1, "status": "ok", "stdout": "line\n".repeat(500)});
        let page = Page::new(Paint::new(false)).exec(&exec);
        assert!(page.contains("(300 more lines)"), "{page}");
    }
}
