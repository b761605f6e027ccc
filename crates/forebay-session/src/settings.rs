//! What a session is made from: text only, so that it can go to another process and make a session there.

use std::borrow::Cow;
use std::path::PathBuf;

use forebay_config::{Config, KEYS, Key, Loaded, Sources};
use forebay_node::error::Exit;
use forebay_node::{Node, NodeBuilder, UserError, origin};

use crate::error::Error;

/// What a session is made from.
///
/// Below it are the file that `FOREBAY_CONFIG` names (or `/etc/forebay/forebay.toml`) and the environment, as for the program `forebay`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The etcd servers of a cluster.
    pub etcd: Vec<String>,
    /// The workers of a fixed list, `[NAME=]HOST:PORT`.
    pub workers: Vec<String>,
    /// The origin of a worker in this process: a URL or a directory.
    pub up: Option<String>,
    /// A configuration file in the place of the machine's.
    pub file: Option<PathBuf>,
    /// Further settings: the dotted name of a key, or the same with `_` for `.`, and its value.
    pub more: Vec<(String, String)>,
}

/// What they come to.
pub(crate) struct Checked {
    pub(crate) builder: NodeBuilder,
    pub(crate) config: Config,
}

impl Settings {
    /// The node that they describe.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(crate) fn check(&self) -> Result<Checked, Error> {
        let sources = [!self.etcd.is_empty(), !self.workers.is_empty(), self.up.is_some()];
        if sources.into_iter().filter(|is_named| *is_named).count() > 1 {
            let next = "name one of `etcd`, `workers` and `up`";
            return Err(Error::argument("more than one place to read from", next));
        }
        let loaded = self.load()?;
        let config = loaded.config.clone();
        let builder = Node::builder().config(loaded);
        let builder = match &self.up {
            Some(up) => {
                let alone =
                    builder.standalone(origin::url_of(up).map_err(|error| Error::from(UserError::from(&error)))?);
                // Nobody would read a state of its own, nor remove it when the process is killed; that of the machine is a coordinator's.
                if self.names_state() { alone } else { alone.state_in_memory() }
            }
            None => builder.client(),
        };
        Ok(Checked { builder, config })
    }

    /// Whether the caller itself says where the state of the coordinator is to be.
    fn names_state(&self) -> bool {
        self.more.iter().any(|(name, _)| key_named(name) == "coordinator.state_dir")
    }

    fn load(&self) -> Result<Loaded, Error> {
        let loaded = Config::load(&Sources::of_machine(self.file.clone()).flags(self.flags()));
        loaded.map_err(|errors| {
            let next = "`forebay conf show` lists every key and where its value comes from";
            Error::from(UserError { exit: Exit::Usage, what: errors.to_string(), next: Some(next.to_owned()) })
        })
    }

    fn flags(&self) -> Vec<String> {
        let etcd = (!self.etcd.is_empty()).then(|| format!("cluster.etcd.endpoints={}", self.etcd.join(",")));
        let workers = (!self.workers.is_empty()).then(|| format!("cluster.workers={}", self.workers.join(",")));
        let more = self.more.iter().map(|(name, value)| format!("{}={value}", key_named(name)));
        etcd.into_iter().chain(workers).chain(more).collect()
    }
}

/// The dotted name of the key that is meant; of none, one that is refused with the nearest.
fn key_named(name: &str) -> Cow<'_, str> {
    let flat = |key: &Key| key.name.replace(['.', '-'], "_");
    if name.contains('.') || Key::find(name).is_some() {
        return name.into();
    }
    let found = KEYS.iter().find(|key| flat(key) == name);
    found.map_or_else(|| name.replace('_', ".").into(), |key| key.name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_named_with_dots_or_as_a_languages_identifier() {
        assert_eq!(key_named("worker.memory.size"), "worker.memory.size");
        assert_eq!(key_named("worker_memory_size"), "worker.memory.size");
        assert_eq!(key_named("worker_memry_size"), "worker.memry.size");
    }

    #[test]
    fn a_coordinators_state_is_in_memory_unless_its_place_is_named() {
        let named = |name: &str| {
            Settings { more: vec![(name.to_owned(), "/srv".to_owned())], ..Settings::default() }.names_state()
        };
        assert!(named("coordinator.state_dir") && named("coordinator_state_dir") && !named("staging_dir"));
    }

    #[test]
    fn no_two_keys_are_the_same_identifier() {
        for key in KEYS {
            assert_eq!(key_named(&key.name.replace(['.', '-'], "_")), key.name);
        }
    }

    #[test]
    fn settings_that_make_no_sense_say_what_to_write() {
        let refused = |settings: Settings| settings.check().err().expect("an error").to_string();
        let both = Settings { workers: vec!["a:1".into()], up: Some("file:///".into()), ..Settings::default() };
        assert!(refused(both).contains("name one of"));
        let more = vec![("client_memry_size".to_owned(), "1GiB".to_owned())];
        let misspelt = Settings { workers: vec!["a:1".into()], more, ..Settings::default() };
        assert!(refused(misspelt).contains("did you mean `client.memory.size`"));
        let nowhere = Settings { up: Some("/no/such/directory".into()), ..Settings::default() };
        assert!(refused(nowhere).contains("neither a URL nor a directory"));
    }
}
