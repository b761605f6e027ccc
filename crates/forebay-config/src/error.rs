//! What can be wrong with a configuration. Problems are collected, so that one run shows them all.

use std::fmt;

use crate::origin::{Origin, one_line};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    /// The file cannot be read.
    #[error("{name}: cannot be read: {error}")]
    Unreadable {
        /// The file.
        name: String,
        /// The system's words.
        error: String,
    },
    /// The file is not TOML. Nothing more is known of it, so other problems in it show once this one is mended.
    #[error("{at}: not valid TOML: {error}")]
    Syntax {
        /// The line.
        at: Origin,
        /// The parser's words.
        error: String,
    },
    /// A key that does not exist, in the file or a flag.
    #[error("{at}: unknown key `{}`{}", one_line(key), suggestion(nearest.as_deref()))]
    UnknownKey {
        /// Where.
        at: Origin,
        /// The key.
        key: String,
        /// The most similar key, if one is similar.
        nearest: Option<String>,
    },
    /// A `FOREBAY_…` variable that stands for no key.
    #[error("unknown environment variable {}{}", one_line(variable), suggestion(nearest.as_deref()))]
    UnknownVariable {
        /// The variable.
        variable: String,
        /// The most similar one, if one is similar.
        nearest: Option<String>,
    },
    /// A value given to a name that has keys below it.
    #[error("{at}: `{section}` is a section, not a key: its keys start with `{section}.`, as in `{example}`")]
    Section {
        /// Where.
        at: Origin,
        /// The name.
        section: String,
        /// A key in that section.
        example: &'static str,
    },
    /// A value that the key does not take.
    #[error("{at}: bad value for `{key}`: {}", one_line(why))]
    BadValue {
        /// Where.
        at: Origin,
        /// The key.
        key: &'static str,
        /// What is wrong and what would be right.
        why: String,
    },
    /// A property of another system that cannot be taken over.
    #[error("{at}: {}", one_line(why))]
    Property {
        /// Where.
        at: Origin,
        /// What is wrong and what would be right.
        why: String,
    },
    /// A flag without `=`.
    #[error("flag -o {}: write it as `-o key=value`, as in `-o worker.memory.size=4GiB`", one_line(flag))]
    FlagForm {
        /// What followed `-o`.
        flag: String,
    },
    /// Values that are good each but not together.
    #[error("{why}: {}", with_origins(settings))]
    Conflict {
        /// The rule, in words.
        why: &'static str,
        /// Each key, its value and where that came from.
        settings: Vec<(&'static str, String, Origin)>,
    },
}

fn suggestion(nearest: Option<&str>) -> String {
    match nearest {
        Some(name) => format!(": did you mean `{name}`?"),
        // Whoever shows this says where all of them are.
        None => String::new(),
    }
}

fn with_origins(settings: &[(&str, String, Origin)]) -> String {
    let parts: Vec<String> = settings.iter().map(|(key, value, at)| format!("`{key}` is {value} ({at})")).collect();
    parts.join(", ")
}

/// Everything that is wrong with a configuration; never empty. Shown one problem a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(Vec<Problem>);

impl ConfigErrors {
    /// `Ok` when there are no problems.
    ///
    /// # Errors
    /// All of `problems`.
    pub(crate) fn check(problems: Vec<Problem>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self(problems)) }
    }

    /// The problems: those of the file first, then the environment's, the flags' and the conflicts.
    #[must_use]
    pub fn problems(&self) -> &[Problem] {
        &self.0
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
