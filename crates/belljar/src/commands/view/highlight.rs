//! Highlights keywords, strings, numbers and comments of code.
//!
//! It is not a parser and may colour a string or comment wrongly, but it never changes the text.

use crate::commands::colours::{Colour, Paint};

const PYTHON: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "case", "class",
    "continue", "def", "del", "elif", "else", "except", "finally", "for", "from", "global", "if",
    "import", "in", "is", "lambda", "match", "nonlocal", "not", "or", "pass", "raise", "return",
    "try", "while", "with", "yield",
];
const BASH: &[&str] = &[
    "case", "do", "done", "elif", "else", "esac", "export", "fi", "for", "function", "if", "in",
    "local", "return", "select", "then", "time", "until", "while",
];

/// Adds colours to code; each line ends its own colours.
pub(super) fn highlight(code: &str, language: &str, paint: Paint) -> String {
    let keywords = match language {
        "python" => PYTHON,
        "bash" => BASH,
        _ => return code.to_owned(),
    };
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(first) = rest.chars().next() {
        let (length, colour) = match first {
            '#' => (rest.find('\n').unwrap_or(rest.len()), Some(Colour::Comment)),
            '"' | '\'' => (text_length(rest, language == "python"), Some(Colour::Text)),
            c if c.is_ascii_digit() => (word_length(rest), Some(Colour::Number)),
            c if is_word(c) => {
                let length = word_length(rest);
                (length, keywords.contains(&&rest[..length]).then_some(Colour::Keyword))
            }
            c => (c.len_utf8(), None),
        };
        let (token, after) = rest.split_at(length);
        match colour {
            Some(colour) => {
                let lines: Vec<String> =
                    token.split('\n').map(|line| paint.paint(colour, line)).collect();
                out += &lines.join("\n");
            }
            None => out += token,
        }
        rest = after;
    }
    out
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The length of a word or a number.
fn word_length(text: &str) -> usize {
    let number = text.starts_with(|c: char| c.is_ascii_digit());
    text.find(|c: char| !(is_word(c) || number && c == '.')).unwrap_or(text.len())
}

/// The length of a string with its quotes. It ends with its line, unless it has triple quotes.
fn text_length(text: &str, python: bool) -> usize {
    let quote = &text[..1];
    let triple = quote.repeat(3);
    let (delimiter, one_line) = if python && text.starts_with(&triple) {
        (triple.as_str(), false)
    } else {
        (quote, python)
    };
    let mut at = delimiter.len();
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with(delimiter) {
            return at + delimiter.len();
        }
        if one_line && rest.starts_with('\n') {
            return at;
        }
        let mut chars = rest.chars();
        let escaped = chars.next() == Some('\\');
        let next = if escaped { chars.next().map_or(0, char::len_utf8) } else { 0 };
        at += rest.chars().next().map_or(1, char::len_utf8) + next;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn marked(code: &str, language: &str) -> String {
        let coloured = highlight(code, language, Paint::new(true));
        let opened = coloured.replace("\x1b[0m", ">");
        [("35", "k"), ("32", "t"), ("36", "n"), ("2", "c")]
            .iter()
            .fold(opened, |text, (code, mark)| {
                text.replace(&format!("\x1b[{code}m"), &format!("<{mark}:"))
            })
    }

    #[test]
    fn words_texts_numbers_and_comments_are_told_apart() {
        let code = "def f(x1):  # why\n    return 'it\\'s' + \"\"\"a\n'b'\"\"\" + f\"{x}\" * 1.5e3";
        assert_eq!(
            marked(code, "python"),
            "<k:def> f(x1):  <c:# why>\n    <k:return> <t:'it\\'s'> + <t:\"\"\"a>\n<t:'b'\"\"\"> + f<t:\"{x}\"> * <n:1.5e3>"
        );
        assert_eq!(
            marked("for i in a; do echo 'x\ny' # z", "bash"),
            "<k:for> i <k:in> a; <k:do> echo <t:'x>\n<t:y'> <c:# z>"
        );
        assert_eq!(marked("x = 'open\ny", "python"), "x = <t:'open>\ny");
        assert_eq!(marked("for", "cobol"), "for");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_or_added(code in "[a-z0-9#'\"\\\\ \n.é]{0,40}") {
            for language in ["python", "bash"] {
                prop_assert_eq!(highlight(&code, language, Paint::new(false)), code.clone());
            }
        }
    }
}
