//! What becomes of a configuration of another system: a file of ours, and what a person should know about the way there.

/// What became of a configuration of another system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// A `forebay.toml` that means the same. What is unknown is in it as comments.
    pub toml: String,
    /// What has no counterpart here, in the file's order.
    pub unknown: Vec<Unknown>,
    /// Where Forebay differs in a way that the user should know, in the file's order.
    pub notes: Vec<Note>,
}

/// A property or an option without a counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// Its line, from 1.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// The most similar known one, if one is similar.
    pub nearest: Option<&'static str>,
}

/// A remark on a line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The line, from 1.
    pub line: usize,
    /// The remark.
    pub text: String,
}
