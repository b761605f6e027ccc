//! What an import collects: keys and the lines that they come from, remarks, problems; and the file that it writes of them.

use std::collections::{BTreeMap, BTreeSet};

use super::outcome::{Import, Note, Unknown};
use crate::error::{ConfigErrors, Problem};
use crate::key::Key;
use crate::keys::{Config, KEYS};
use crate::nearest::nearest;
use crate::origin::Origin;
use crate::rules;
use crate::value::Raw;

/// Where a key comes from.
#[derive(Clone, Debug)]
struct Source {
    line: usize,
    /// The property or option.
    name: String,
    /// Its value, as written there.
    value: String,
}

pub(super) struct Translation<'a> {
    file: &'a str,
    /// The first line of what is written.
    heading: &'static str,
    /// What the other system calls a key of ours.
    name_of: fn(&str) -> Option<&'static str>,
    config: Config,
    sources: BTreeMap<&'static str, Source>,
    unknown: Vec<Unknown>,
    notes: Vec<Note>,
    problems: Vec<Problem>,
    /// Comments below the heading.
    comments: Vec<String>,
}

impl<'a> Translation<'a> {
    pub(super) fn new(file: &'a str, heading: &'static str, name_of: fn(&str) -> Option<&'static str>) -> Self {
        Self {
            file,
            heading,
            name_of,
            config: Config::default(),
            sources: BTreeMap::new(),
            unknown: Vec::new(),
            notes: Vec::new(),
            problems: Vec::new(),
            comments: Vec::new(),
        }
    }

    /// Sets a key to what `name`, written as `value` on `line`, stands for.
    pub(super) fn set(
        &mut self,
        line: usize,
        (name, value): (&str, &str),
        key: &'static str,
        ours: Result<String, String>,
    ) {
        let written = ours.and_then(|text| match Key::find(key) {
            Some(key) => (key.write)(&mut self.config, &Raw::Text(text)),
            None => Err(format!("there is no key `{key}`")),
        });
        match written {
            Ok(()) => {
                self.sources.insert(key, Source { line, name: name.to_owned(), value: value.to_owned() });
            }
            Err(why) => self.problem(line, format!("bad value for {name}: {why}")),
        }
    }

    /// The line that a key was set on.
    pub(super) fn line_of(&self, key: &str) -> Option<usize> {
        self.sources.get(key).map(|source| source.line)
    }

    /// That line, and what is written there.
    pub(super) fn source_of(&self, key: &str) -> Option<(usize, String)> {
        self.sources.get(key).map(|source| (source.line, source.name.clone()))
    }

    /// What has been set so far.
    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn note(&mut self, line: usize, text: String) {
        self.notes.push(Note { line, text });
    }

    /// A comment in what is written.
    pub(super) fn comment(&mut self, text: String) {
        self.comments.push(text);
    }

    /// Something that is not among the `known` names.
    pub(super) fn unknown(&mut self, line: usize, name: &str, known: impl Iterator<Item = &'static str>) {
        self.unknown.push(Unknown { line, name: name.to_owned(), nearest: nearest(name, known) });
    }

    pub(super) fn problem(&mut self, line: usize, why: String) {
        let at = Origin::File { name: self.file.to_owned(), line };
        self.problems.push(Problem::Property { at, why });
    }

    pub(super) fn finish(mut self) -> Result<Import, ConfigErrors> {
        // Together with a refused value, rules would judge a default.
        if self.problems.is_empty() {
            for conflict in rules::conflicts(&self.config, |_| Origin::Default, &BTreeSet::new()) {
                self.conflict(conflict);
            }
        }
        let toml = self.toml();
        ConfigErrors::check(self.problems)?;
        Ok(Import { toml, unknown: self.unknown, notes: self.notes })
    }

    /// A conflict in the other system's words, at the first line that it comes from.
    fn conflict(&mut self, conflict: Problem) {
        let Problem::Conflict { why, settings } = conflict else { return self.problems.push(conflict) };
        let lines = settings.iter().filter_map(|(key, ..)| self.line_of(key));
        let line = lines.min().unwrap_or(1);
        let parts: Vec<String> = settings
            .iter()
            .map(|(key, value, _)| match (self.sources.get(key), (self.name_of)(key)) {
                (Some(source), _) => format!("{} is {} (line {})", source.name, source.value, source.line),
                (None, Some(name)) => format!("{name} is not set, which means {value}"),
                (None, None) => format!("`{key}` is {value}, Forebay's default"),
            })
            .collect();
        self.problem(line, format!("{why}: {}", parts.join(", ")));
    }

    fn toml(&self) -> String {
        let mut out = format!("{}\n", self.heading);
        for comment in &self.comments {
            out += &format!("# {}\n", printable(comment));
        }
        for key in KEYS {
            let Some(source) = self.sources.get(key.name) else { continue };
            let value = key.value_toml(&self.config).unwrap_or_default();
            out += &format!("{} = {value} # {}\n", key.name, printable(&source.name));
        }
        if !self.unknown.is_empty() {
            out += "\n# Without a counterpart:\n";
        }
        for Unknown { line, name, .. } in &self.unknown {
            out += &format!("#   line {line}: {}\n", name.escape_debug());
        }
        out
    }
}

/// Text of the other file that is quoted in a comment. A line that ended in it would begin a setting, and with a
/// character that TOML does not allow the file could not be read.
fn printable(text: &str) -> String {
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(shown).collect()
}
