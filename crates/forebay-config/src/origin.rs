//! Where a value came from.

use std::fmt;

/// The source of a setting, as errors and `forebay conf show` name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It was not set.
    Default,
    /// A line of a configuration file.
    File {
        /// The file, as it was named to us.
        name: String,
        /// The line, from 1.
        line: usize,
    },
    /// An environment variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// A `-o key=value` flag.
    Flag {
        /// What followed `-o`.
        text: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { name, line } => write!(f, "{name}:{line}"),
            Self::Environment { variable } => write!(f, "environment {variable}"),
            Self::Flag { text } => write!(f, "flag -o {}", one_line(text)),
        }
    }
}

/// `text` without line breaks and other control characters, so that a message stays one line whatever was typed.
pub(crate) fn one_line(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}
