//! A plain `bash` as a kernel.
//!
//! The shell is interactive and reads commands from the control socket, which is its standard input. It
//! answers on the same socket with records that end in NUL:
//!
//! ```text
//!  guest: setup.bash                       shell: N<names of its variables>  H<version>
//!  guest: a cell                           shell: B<exec id>  ...  D<count> <status> <flags> <exec id>
//!  guest: ping                             shell: P<token>
//!  guest: state.bash                       shell: V<chars> <elements> <declaration>...  F<names>  S<cwd>
//! ```
//!
//! The reasons:
//!
//! * *Interactive*: an interrupt ends the command that runs, even an endless loop, and the shell goes
//!   on with its next line. A shell that is not interactive would end.
//! * *Sourced*: while a shell sources code it prints no messages for people: no `exit`, no `[1] 123`,
//!   no warning that there is no terminal. The code is in a here-document, whose lines need no quoting and
//!   are read in linear time.
//! * *Checked first*, if the code might leave a `$(` open: an interactive bash 5.2 that sources such
//!   code corrupts its memory, and may die later. `eval` then runs it, which prints more and reports the
//!   error too.
//! * *Descriptors 0, 1 and 2 belong to the one command* that sources: the shell itself undoes what the
//!   code does to them (`exec >/dev/null`). At top level 0 is the control socket, and 1 and 2 are
//!   `/dev/null`, so that messages of the shell itself are not shown.
//! * *B is sent after the code was read.* If an interrupt comes while the shell reads the code, the shell
//!   takes the rest of it for commands of the guest.
//!
//! `\builtin` bypasses aliases and functions of the user.

use std::collections::HashSet;

use belljar_proto::guest::{KernelVariables, Variable};
use belljar_proto::kernel::{CellStatus, FromKernel, ToKernel};

use super::CellRequest;

/// Sent to a fresh shell.
pub(super) const SETUP: &str = include_str!("../../../../kernels/bash/setup.bash");

/// Asks a shell for its variables.
const STATE: &str = include_str!("../../../../kernels/bash/state.bash");

/// The most that is kept of a record; the rest is skipped. Names and declarations can have any length.
const MAX_RECORD: usize = 64 * 1024;

/// The most variables that are listed.
const MAX_VARIABLES: usize = 500;

/// The most characters of a value that are shown.
const MAX_PREVIEW: usize = 200;

/// The status of a command that an interrupt ended.
const INTERRUPTED: i32 = 130;

#[derive(Debug, Default)]
pub(crate) struct Shell {
    buffer: Vec<u8>,
    /// The current record is too long, and the rest of it is skipped.
    skipping: bool,
    /// How many cells were sent.
    count: u64,
    /// `$?` of the last one, and whether it left `set -x` on.
    status: i32,
    traces: bool,
    /// Variables that a fresh shell has.
    own: HashSet<Vec<u8>>,
    /// The variables received so far.
    variables: KernelVariables,
}

impl Shell {
    pub(super) fn cell(&mut self, request: &CellRequest<'_>) -> Result<Vec<u8>, String> {
        let spec = request.spec;
        if request.code.contains(&0) {
            return Err("the code contains a NUL byte, which no shell can read".into());
        }
        if spec.exec_id.contains('\0') {
            return Err("the id of the execution contains a NUL byte".into());
        }
        let exec_id = quoted(spec.exec_id.as_bytes());
        let mut exports = Vec::new();
        for (name, value) in &spec.env {
            if !is_name(name) || value.contains('\0') {
                return Err(format!("`{name}` cannot be a variable of a shell"));
            }
            exports.extend_from_slice(format!("\\builtin export {name}=").as_bytes());
            exports.extend_from_slice(&quoted(value.as_bytes()));
            exports.extend_from_slice(b"; ");
        }
        let (open, stdin) = match request.stdin {
            Some(path) => {
                ([&b"\\exec 58<"[..], &quoted(path.as_bytes()), b"; "].concat(), &b"<&58 58<&-"[..])
            }
            None => (Vec::new(), &b"</dev/null"[..]),
        };
        self.count += 1;
        let count = self.count;
        let begin = [b"\\builtin printf 'B%s\\0' ", &exec_id[..], b" >&0; ", &exports].concat();
        let output: &[u8] = match spec.merge_output {
            true => b" >&56 2>&56 56>&- 57>&-",
            false => b" >&56 2>&57 56>&- 57>&-",
        };
        let redirected = [stdin, output].concat();
        let cell =
            Cell { code: request.code, before: self.resume(request.code), begin, redirected };
        Ok([
            // Signal handlers and tracing belong to the code, and must not affect the guest's commands.
            &b"\\builtin trap - INT DEBUG; \\builtin set +mvx; "[..],
            &open,
            &if may_be_left_open(request.code) { cell.checked() } else { cell.sourced() },
            format!("\\builtin printf 'D%d %d %s %s\\0' {count} \"$?\" \"$-\" ").as_bytes(),
            &exec_id,
            b" >&0; \\exec 58<&-\n",
        ]
        .concat())
    }

    /// The text before the code on its first line: restores `$?` and tracing of the last cell.
    fn resume(&mut self, code: &[u8]) -> String {
        let trace = if self.traces { "\\builtin set -x; " } else { "" };
        let status = match self.status {
            // Code that does nothing has status 0.
            _ if is_empty(code) => String::new(),
            0 => String::new(),
            code => format!("{{ __belljar_status {code} && :; }} 2>/dev/null; "),
        };
        // Until the cell reports its status.
        self.status = INTERRUPTED;
        format!("{trace}{status}")
    }

    pub(super) fn encode(&mut self, message: &ToKernel) -> Vec<u8> {
        match message {
            ToKernel::State => {
                self.variables = KernelVariables::default();
                STATE.into()
            }
            // The first newline ends what an interrupt may have left of an earlier line.
            ToKernel::Ping { token } => {
                format!("\n\\builtin printf 'P%d\\0' {token} >&0\n").into_bytes()
            }
            ToKernel::Shutdown => b"\nexit\n".into(),
            ToKernel::Exec { .. }
            | ToKernel::Input { .. }
            | ToKernel::Interrupt { .. }
            | ToKernel::Spill(_)
            | ToKernel::SnapshotSocket
            | ToKernel::Seen => Vec::new(),
        }
    }

    pub(super) fn push(&mut self, mut bytes: &[u8]) {
        if self.skipping {
            let Some(end) = bytes.iter().position(|byte| *byte == 0) else { return };
            self.skipping = false;
            bytes = &bytes[end..];
        }
        self.buffer.extend_from_slice(bytes);
        // Only the last record can be incomplete.
        let begin = self.buffer.iter().rposition(|byte| *byte == 0).map_or(0, |at| at + 1);
        if self.buffer.len() - begin > MAX_RECORD {
            self.buffer.truncate(begin + MAX_RECORD);
            self.skipping = true;
        }
    }

    pub(super) fn next(&mut self) -> Option<(FromKernel, Vec<u8>)> {
        loop {
            let end = self.buffer.iter().position(|byte| *byte == 0)?;
            let record: Vec<u8> = self.buffer.drain(..=end).take(end).collect();
            // Records that cannot be parsed were written by the code, and are ignored.
            let message = record.split_first().and_then(|(kind, rest)| self.record(*kind, rest));
            if message.is_some() {
                return message;
            }
        }
    }

    fn record(&mut self, kind: u8, rest: &[u8]) -> Option<(FromKernel, Vec<u8>)> {
        let text = String::from_utf8_lossy(rest);
        let message = match kind {
            b'H' => FromKernel::Hello {
                protocol: belljar_proto::kernel::PROTOCOL,
                language: "bash".into(),
                language_version: text.split('(').next().unwrap_or_default().to_owned(),
                pid: 0,
            },
            b'B' => FromKernel::Begun { exec_id: text.into_owned() },
            b'D' => self.done(&text)?,
            b'P' => FromKernel::Pong { token: text.parse().ok()? },
            b'S' => return Some((FromKernel::State, self.state(&text))),
            b'N' => {
                self.own = names(rest).map(<[u8]>::to_vec).collect();
                return None;
            }
            b'V' => {
                self.variable(&text);
                return None;
            }
            b'F' => {
                names(rest).for_each(|name| self.function(&String::from_utf8_lossy(name)));
                return None;
            }
            _ => return None,
        };
        Some((message, Vec::new()))
    }

    fn done(&mut self, text: &str) -> Option<FromKernel> {
        let mut words = text.splitn(4, ' ');
        let execution_count = words.next()?.parse().ok()?;
        let exit_code = words.next()?.parse().ok()?;
        let flags = words.next()?;
        let exec_id = words.next()?.to_owned();
        (self.status, self.traces) = (exit_code, flags.contains('x'));
        let status = if exit_code == 0 { CellStatus::Ok } else { CellStatus::Error };
        Some(FromKernel::Done { exec_id, status, exit_code, execution_count })
    }

    /// `<characters> <elements> declare -<flags> <name>=<value>`
    fn variable(&mut self, text: &str) -> Option<()> {
        let mut words = text.splitn(5, ' ');
        let characters: u64 = words.next()?.parse().ok()?;
        let elements: u64 = words.next()?.parse().ok()?;
        let flags = words.nth(1)?;
        let (name, value) = words.next()?.split_once('=').unwrap_or_default();
        let (type_name, size) = match flags {
            _ if flags.contains('A') => ("associative array", elements),
            _ if flags.contains('a') => ("array", elements),
            _ if flags.contains('n') => ("reference", characters),
            _ if flags.contains('i') => ("integer", characters),
            _ => ("string", characters),
        };
        if is_name(name) && !self.own.contains(name.as_bytes()) && !is_made_by_shells(name) {
            self.add_variable(name, type_name, Some(size), value.trim_end_matches('\n'));
        }
        Some(())
    }

    fn function(&mut self, name: &str) {
        if !name.starts_with("__belljar") {
            self.add_variable(name, "function", None, &format!("{name} ()"));
        }
    }

    fn add_variable(&mut self, name: &str, type_name: &str, size: Option<u64>, value: &str) {
        if self.variables.variables.len() >= MAX_VARIABLES {
            self.variables.truncated += 1;
            return;
        }
        self.variables.variables.push(Variable {
            name: name.to_owned(),
            type_name: type_name.to_owned(),
            size,
            shape: None,
            dtype: None,
            on_disk: false,
            preview: shortened(value),
        });
    }

    fn state(&mut self, cwd: &str) -> Vec<u8> {
        let mut state = std::mem::take(&mut self.variables);
        state.cwd = cwd.to_owned();
        state.variables.sort_by(|a, b| a.name.cmp(&b.name));
        // Plain data always serializes.
        serde_json::to_vec(&state).unwrap_or_default()
    }
}

/// Whether the code has something like `$(` that it might not close.
fn may_be_left_open(code: &[u8]) -> bool {
    code.windows(2).any(|two| matches!(two, b"$(" | b"<(" | b">("))
}

/// Whether the code has only comments and empty lines.
fn is_empty(code: &[u8]) -> bool {
    code.split(|byte| *byte == b'\n').all(|line| matches!(line.trim_ascii(), [] | [b'#', ..]))
}

/// The parts of the commands that run a cell.
struct Cell<'a> {
    code: &'a [u8],
    /// Comes first, on the same line, so that lines keep their numbers.
    before: String,
    begin: Vec<u8>,
    redirected: Vec<u8>,
}

impl Cell<'_> {
    fn sourced(&self) -> Vec<u8> {
        let text = [b"\\exec 59<&-; ", self.before.as_bytes(), self.code].concat();
        [
            &self.begin[..],
            b"\\builtin . /dev/fd/59 ",
            // The here-document comes last: if there is no space for it, the error goes to the user.
            &self.redirected,
            b" 59<<",
            &document(&text),
        ]
        .concat()
    }

    /// Sourced or evaluated, depending on whether another shell accepts the syntax.
    fn checked(&self) -> Vec<u8> {
        // The variable is removed before the code could see it.
        let text = format!("\\builtin unset -v __belljar_code; {}$__belljar_code", self.before);
        [
            &b"if BASH_ENV= \"$BASH\" -n /dev/fd/59 </dev/null 59<<"[..],
            &document(self.code),
            b"then ",
            &self.sourced(),
            // `read` fails at the end of the document, after it has read all of it.
            b"else ! IFS= \\builtin read -r -d '' __belljar_code <<",
            &document(self.code),
            &self.begin,
            b"\\builtin eval \"",
            text.as_bytes(),
            b"\" ",
            &self.redirected,
            b"; fi\n",
        ]
        .concat()
    }
}

/// A here-document with an end mark that the text does not contain.
fn document(text: &[u8]) -> Vec<u8> {
    let ends = |mark: &String| text.windows(mark.len()).any(|part| part == mark.as_bytes());
    let mut marks = (0u64..).map(|n| format!("__belljar_end_{n}"));
    // One always exists: a text has fewer parts than there are numbers.
    let mark = marks.find(|mark| !ends(mark)).unwrap_or_default();
    [b"'", mark.as_bytes(), b"'\n", text, b"\n", mark.as_bytes(), b"\n"].concat()
}

/// Quotes bytes without NUL as one word of the shell.
fn quoted(bytes: &[u8]) -> Vec<u8> {
    let mut word = Vec::with_capacity(bytes.len() + 2);
    word.push(b'\'');
    for &byte in bytes {
        match byte {
            b'\'' => word.extend_from_slice(b"'\\''"),
            byte => word.push(byte),
        }
    }
    word.push(b'\'');
    word
}

fn is_name(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

/// Variables that the shell sets by itself while it runs.
fn is_made_by_shells(name: &str) -> bool {
    const MADE: [&str; 7] = ["_", "COLUMNS", "FUNCNAME", "LINES", "OLDPWD", "OPTARG", "PIPESTATUS"];
    name.starts_with("BASH") || MADE.contains(&name)
}

/// One name per line.
fn names(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    list.split(|byte| *byte == b'\n').filter(|name| !name.is_empty())
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(MAX_PREVIEW) {
        None => text.to_owned(),
        Some(_) => text.chars().take(MAX_PREVIEW - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use belljar_proto::exec::{ExecSpec, Language, What};
    use proptest::prelude::*;

    fn spec(env: &[(&str, &str)]) -> ExecSpec {
        ExecSpec {
            exec_id: "it's 1".into(),
            what: What::Cell { language: Language::Bash, echo: false },
            env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            timeout_ms: 1,
            grace_ms: 1,
            output_limit: 1,
            stdin: false,
            script: None,
            merge_output: false,
        }
    }

    fn encoded(shell: &mut Shell, spec: &ExecSpec, code: &[u8]) -> Result<String, String> {
        let request = CellRequest { spec, echo: false, variant: None, stdin: None, code };
        shell.cell(&request).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    fn received(shell: &mut Shell, bytes: &[u8]) -> Vec<FromKernel> {
        shell.push(bytes);
        std::iter::from_fn(|| shell.next()).map(|(message, _)| message).collect()
    }

    #[test]
    fn code_is_a_document_between_two_lines() {
        let code = b"echo 'hi'\n__belljar_end_0";
        let text = encoded(&mut Shell::default(), &spec(&[("K", "it's")]), code).unwrap();
        let lines: Vec<_> = text.lines().collect();
        let [first, one, two, mark, last] = lines[..] else { panic!("{text}") };
        assert!(first.contains(r"; \builtin printf 'B%s\0' 'it'\''s 1' >&0; "), "{text}");
        assert!(first.contains(r"; \builtin export K='it'\''s'; \builtin . /dev/fd/59 "), "{text}");
        assert!(first.ends_with(" 59<<'__belljar_end_1'"), "{text}");
        assert_eq!([one, two], [r"\exec 59<&-; echo 'hi'", "__belljar_end_0"]);
        assert_eq!(mark, "__belljar_end_1");
        let done = r#"\builtin printf 'D%d %d %s %s\0' 1 "$?" "$-" 'it'\''s 1' >&0; "#;
        assert!(last.starts_with(done), "{text}");
    }

    #[test]
    fn only_code_that_might_be_left_open_is_checked() {
        for (code, checked) in [("echo $(date)", true), ("cat <(date)", true), ("(date)", false)] {
            let text = encoded(&mut Shell::default(), &spec(&[]), code.as_bytes()).unwrap();
            assert_eq!(text.contains("if BASH_ENV= \"$BASH\" -n "), checked, "{text}");
        }
    }

    #[test]
    fn what_a_shell_cannot_take_is_refused() {
        let mut shell = Shell::default();
        assert!(encoded(&mut shell, &spec(&[]), b"echo \0").unwrap_err().contains("NUL"));
        assert!(encoded(&mut shell, &spec(&[("A-B", "1")]), b":").unwrap_err().contains("`A-B`"));
        assert!(encoded(&mut shell, &spec(&[]), b"\xff\xfe").is_ok(), "any other byte passes");
        assert_eq!(shell.count, 1, "what was refused does not count");
    }

    #[test]
    fn the_status_of_a_cell_is_there_for_the_next() {
        let mut shell = Shell::default();
        assert!(!encoded(&mut shell, &spec(&[]), b":").unwrap().contains("__belljar_status"));
        received(&mut shell, b"D1 3 hix e\0");
        let next = encoded(&mut shell, &spec(&[]), b":").unwrap();
        assert!(next.contains(r"; \builtin set -x; { __belljar_status 3 && :; } "), "{next}");
        assert!(encoded(&mut shell, &spec(&[]), b":").unwrap().contains("__belljar_status 130 "));
        let comment = encoded(&mut shell, &spec(&[]), b"\n # nothing\n").unwrap();
        assert!(!comment.contains("__belljar_status"), "{comment}");
    }

    #[test]
    fn records_are_understood_and_nonsense_is_skipped() {
        let mut shell = Shell::default();
        let messages =
            received(&mut shell, b"H5.2.15(1)-release\0Be 1\0D7 2 hiBs e 1\0??\0\0D\0P9\0P");
        let done = FromKernel::Done {
            exec_id: "e 1".into(),
            status: CellStatus::Error,
            exit_code: 2,
            execution_count: 7,
        };
        assert!(
            matches!(&messages[0], FromKernel::Hello { language_version, .. } if language_version == "5.2.15")
        );
        assert_eq!(messages[1], FromKernel::Begun { exec_id: "e 1".into() });
        assert_eq!(messages[2..], [done, FromKernel::Pong { token: 9 }]);
        assert_eq!(received(&mut shell, b"10\0"), [FromKernel::Pong { token: 10 }]);
    }

    #[test]
    fn a_record_of_any_length_costs_a_bounded_amount() {
        let mut shell = Shell::default();
        received(&mut shell, b"P1\0V");
        for _ in 0..100 {
            assert_eq!(received(&mut shell, &[b'x'; 10_000]), []);
            assert!(shell.buffer.len() <= MAX_RECORD);
        }
        assert_eq!(received(&mut shell, b"x\0P2\0"), [FromKernel::Pong { token: 2 }]);
    }

    #[test]
    fn variables_are_listed_without_those_of_the_shell() {
        let mut shell = Shell::default();
        received(&mut shell, b"NPATH\nHOME\n\0");
        shell.encode(&ToKernel::State);
        shell.push(
            b"V9 1 declare -x PATH=\"/usr/bin\"\n\0V1 2 declare -a pair=([0]=\"a\" [1]=\"b\")\n\0\
              V3 1 declare -- BASH_REMATCH=\"x\"\n\0V5 1 declare -x word=$'two\\nlines'\n\0\
              V0 0 declare -A nothing=()\n\0Fgreet\n__belljar_status\n\0S/session\0",
        );
        let (message, body) = shell.next().unwrap();
        assert_eq!(message, FromKernel::State);
        let snapshot: KernelVariables = serde_json::from_slice(&body).unwrap();
        let listed: Vec<_> = snapshot
            .variables
            .iter()
            .map(|v| (v.name.as_str(), v.type_name.as_str(), v.size, v.preview.as_str()))
            .collect();
        assert_eq!(
            listed,
            [
                ("greet", "function", None, "greet ()"),
                ("nothing", "associative array", Some(0), "()"),
                ("pair", "array", Some(2), "([0]=\"a\" [1]=\"b\")"),
                ("word", "string", Some(5), "$'two\\nlines'"),
            ]
        );
        assert_eq!((snapshot.cwd.as_str(), snapshot.truncated), ("/session", 0));
    }

    #[test]
    fn long_values_and_many_variables_are_cut() {
        let mut shell = Shell::default();
        let long = "ü".repeat(1000);
        shell.push(format!("V1000 1 declare -- long=\"{long}\"\0").as_bytes());
        for n in 0..MAX_VARIABLES {
            shell.push(format!("V1 1 declare -- v{n}=\"\"\0").as_bytes());
        }
        shell.push(b"S/\0");
        let snapshot: KernelVariables = serde_json::from_slice(&shell.next().unwrap().1).unwrap();
        assert_eq!((snapshot.variables.len(), snapshot.truncated), (MAX_VARIABLES, 1));
        assert_eq!(snapshot.variables[0].preview.chars().count(), MAX_PREVIEW);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 0..20)) {
            let mut shell = Shell::default();
            for piece in pieces {
                shell.push(&piece);
                while shell.next().is_some() {}
            }
        }
    }
}
