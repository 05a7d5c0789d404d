//! Colours of text on a terminal.

use std::env;
use std::io::{self, IsTerminal};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::commands) enum Colour {
    Heading,
    Dim,
    Keyword,
    Text,
    Number,
    Comment,
    Good,
    Doubtful,
    Bad,
}

impl Colour {
    const fn code(self) -> &'static str {
        match self {
            Colour::Heading => "1",
            Colour::Dim | Colour::Comment => "2",
            Colour::Keyword => "35",
            Colour::Text | Colour::Good => "32",
            Colour::Number => "36",
            Colour::Doubtful => "33",
            Colour::Bad => "31",
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(in crate::commands) struct Paint {
    colours: bool,
}

impl Paint {
    /// Colours only on a terminal, and not with NO_COLOR (<https://no-color.org>).
    pub(in crate::commands) fn of_stdout() -> Paint {
        let unwanted = env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let dumb = env::var_os("TERM").is_some_and(|value| value == "dumb");
        Paint { colours: io::stdout().is_terminal() && !unwanted && !dumb }
    }

    #[cfg(test)]
    pub(in crate::commands) fn new(colours: bool) -> Paint {
        Paint { colours }
    }

    pub(in crate::commands) fn paint(self, colour: Colour, text: &str) -> String {
        if self.colours && !text.is_empty() {
            format!("\x1b[{}m{text}\x1b[0m", colour.code())
        } else {
            text.to_owned()
        }
    }
}
