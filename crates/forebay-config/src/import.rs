//! Taking over the configuration of other systems: an `alluxio-site.properties` becomes the `forebay.toml` that means
//! the same.
//!
//! `import/properties.rs` reads the file's syntax, `import/alluxio.rs` knows which property is which key and how its
//! value is written. What is not known is listed, never dropped in silence.

mod alluxio;
mod properties;

use std::collections::{BTreeMap, BTreeSet};

use crate::error::{ConfigErrors, Problem};
use crate::keys::{Config, KEYS, Key};
use crate::nearest::nearest;
use crate::origin::Origin;
use crate::rules;
use crate::value::Raw;
use alluxio::Meaning;
use properties::Property;

/// What became of a properties file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// A `forebay.toml` that means the same. The unknown properties are in it as comments.
    pub toml: String,
    /// The properties that have no counterpart here, in the file's order.
    pub unknown: Vec<UnknownProperty>,
    /// Where Forebay differs in a way that someone should know, in the file's order.
    pub notes: Vec<Note>,
}

/// A property without a counterpart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownProperty {
    /// Its line, from 1.
    pub line: usize,
    /// Its name.
    pub name: String,
    /// The most similar known one, if one is similar.
    pub nearest: Option<&'static str>,
}

/// A remark on a line of the properties file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The line, from 1.
    pub line: usize,
    /// The remark.
    pub text: String,
}

/// Translates the Alluxio properties in `text`, a file that errors call `name`. The result is one that
/// [`Config::load`] accepts.
///
/// # Errors
/// Every property whose value is bad or cannot be kept, with its line.
pub fn alluxio_properties(name: &str, text: &str) -> Result<Import, ConfigErrors> {
    let mut translation = Translation::new(name);
    match properties::parse(text) {
        Ok(properties) => properties.iter().for_each(|property| translation.property(property)),
        Err(bad) => bad.into_iter().for_each(|(line, why)| translation.problem(line, why)),
    }
    translation.finish()
}

struct Translation<'a> {
    file: &'a str,
    config: Config,
    /// The lines and properties that keys come from.
    sources: BTreeMap<&'static str, (usize, &'static str)>,
    /// The line that each property was last set on.
    seen: BTreeMap<String, usize>,
    unknown: Vec<UnknownProperty>,
    notes: Vec<Note>,
    problems: Vec<Problem>,
}

impl<'a> Translation<'a> {
    fn new(file: &'a str) -> Self {
        Self {
            file,
            config: Config::default(),
            sources: BTreeMap::new(),
            seen: BTreeMap::new(),
            unknown: Vec::new(),
            notes: Vec::new(),
            problems: Vec::new(),
        }
    }

    fn property(&mut self, property: &Property) {
        let Property { line, name, value } = property;
        if let Some(earlier) = self.seen.insert(name.clone(), *line) {
            self.note(*line, format!("{} is also set on line {earlier}: the later one counts", name.escape_debug()));
        }
        let Some((known, meaning)) = alluxio::find(name) else {
            let nearest = nearest(name, alluxio::names());
            self.unknown.push(UnknownProperty { line: *line, name: name.clone(), nearest });
            return;
        };
        let value = value.trim();
        if value.is_empty() {
            self.note(*line, format!("{known} is empty: left at its default"));
            return;
        }
        if value.contains("${") {
            self.problem(
                *line,
                format!("{known} refers to another property: write its value out instead of {value:?}"),
            );
            return;
        }
        match meaning {
            Meaning::Key { key, written } => {
                let translated = written.translate(value);
                self.set(*line, known, key, translated);
            }
            Meaning::WriteType => self.write_type(*line, known, value),
            Meaning::MountOptions => self.mount_options(*line, known, value),
        }
    }

    fn set(&mut self, line: usize, property: &'static str, key: &'static str, value: Result<String, String>) {
        let written = value.and_then(|text| match Key::find(key) {
            Some(key) => (key.write)(&mut self.config, &Raw::Text(text)),
            None => Err(format!("there is no key `{key}`")),
        });
        match written {
            Ok(()) => {
                self.sources.insert(key, (line, property));
            }
            Err(why) => self.problem(line, format!("bad value for {property}: {why}")),
        }
    }

    fn write_type(&mut self, line: usize, property: &'static str, value: &str) {
        match alluxio::write_type(value) {
            Ok(difference) => {
                // A mount that is read-only stays so.
                if !self.sources.contains_key("write.mode") {
                    self.set(line, property, "write.mode", Ok("through".to_owned()));
                }
                if let Some(difference) = difference {
                    self.note(line, format!("{property}={value}: {difference}"));
                }
            }
            Err(why) => self.problem(line, format!("bad value for {property}: {why}")),
        }
    }

    fn mount_options(&mut self, line: usize, property: &'static str, value: &str) {
        for option in value.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            match alluxio::mount_option(option) {
                Ok((key, value)) => self.set(line, property, key, Ok(value.to_owned())),
                Err(remark) => self.note(line, format!("mount option {option:?}: {remark}")),
            }
        }
    }

    fn note(&mut self, line: usize, text: String) {
        self.notes.push(Note { line, text });
    }

    fn at(&self, line: usize) -> Origin {
        Origin::File { name: self.file.to_owned(), line }
    }

    fn problem(&mut self, line: usize, why: String) {
        let at = self.at(line);
        self.problems.push(Problem::Property { at, why });
    }

    fn finish(mut self) -> Result<Import, ConfigErrors> {
        if self.config.network_rdma_data_enabled
            && let Some((line, property)) = self.sources.get("network.rdma.data.enabled").copied()
        {
            self.set(line, property, "network.rdma.data.fallback", Ok("never".to_owned()));
            let remark = "Alluxio's RDMA never falls back to TCP, so network.rdma.data.fallback is \"never\"; \
                          remove that line for Forebay's default, which does";
            self.note(line, remark.to_owned());
        }
        // Together with a refused value, rules would judge a default.
        if self.problems.is_empty() {
            let origin_of = |key: &str| self.sources.get(key).map_or(Origin::Default, |(line, _)| self.at(*line));
            self.problems = rules::conflicts(&self.config, origin_of, &BTreeSet::new());
        }
        let toml = self.toml();
        ConfigErrors::check(self.problems)?;
        Ok(Import { toml, unknown: self.unknown, notes: self.notes })
    }

    fn toml(&self) -> String {
        let mut out = "# From Alluxio's properties. Keys that are not here have Forebay's defaults.\n".to_owned();
        for key in KEYS {
            let Some((_, property)) = self.sources.get(key.name) else { continue };
            let value = key.value_toml(&self.config).unwrap_or_default();
            out += &format!("{} = {value} # {property}\n", key.name);
        }
        if !self.unknown.is_empty() {
            out += "\n# Properties without a counterpart:\n";
        }
        for UnknownProperty { line, name, .. } in &self.unknown {
            out += &format!("#   line {line}: {}\n", name.escape_debug());
        }
        out
    }
}
