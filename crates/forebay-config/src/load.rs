//! Putting the sources together, in rising precedence: default, file, environment, flags.
//!
//! Every value is checked, also one that a later source overrides: a file should not be wrong in secret.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::assignment::{Assignment, unknown_key};
use crate::error::{ConfigErrors, Problem};
use crate::key::Key;
use crate::keys::{Config, KEYS};
use crate::origin::Origin;
use crate::value::Raw;
use crate::{defaults, environment, file, rules};

/// Where the configuration is looked for when neither an option nor the variable names it.
const SYSTEM_FILE: &str = "/etc/forebay/forebay.toml";
/// The variable that names the configuration.
const FILE_VARIABLE: &str = "FOREBAY_CONFIG";

/// Where settings come from. Empty at first: everything at its default.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    file: Option<File>,
    environment: Vec<(OsString, OsString)>,
    flags: Vec<String>,
}

#[derive(Clone, Debug)]
enum File {
    Path(PathBuf),
    Text { name: String, text: String },
}

impl Sources {
    /// No source at all.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What a program on this machine goes by: the file at `named`, or else the one that the variable `FOREBAY_CONFIG` names, or else
    /// `/etc/forebay/forebay.toml` if it is there; and the environment.
    #[must_use]
    pub fn of_machine(named: Option<PathBuf>) -> Self {
        let named = named.or_else(|| std::env::var_os(FILE_VARIABLE).map(PathBuf::from));
        let file = named.or_else(|| Path::new(SYSTEM_FILE).exists().then(|| PathBuf::from(SYSTEM_FILE)));
        file.into_iter().fold(Self::new(), Self::file).environment(std::env::vars_os())
    }

    /// Reads the file at `path`, which must be there.
    #[must_use]
    pub fn file(mut self, path: impl Into<PathBuf>) -> Self {
        self.file = Some(File::Path(path.into()));
        self
    }

    /// Takes `text` for the content of a file that errors call `name`.
    #[must_use]
    pub fn text(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.file = Some(File::Text { name: name.into(), text: text.into() });
        self
    }

    /// Adds environment variables, as from [`std::env::vars_os`]. Those of other programs are ignored.
    #[must_use]
    pub fn environment<N, V>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Self
    where
        N: Into<OsString>,
        V: Into<OsString>,
    {
        self.environment.extend(variables.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Adds flags of the form `key=value`; of two for one key the later counts.
    #[must_use]
    pub fn flags<F: Into<String>>(mut self, flags: impl IntoIterator<Item = F>) -> Self {
        self.flags.extend(flags.into_iter().map(Into::into));
        self
    }
}

/// A configuration, and where each value came from.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// The settings.
    pub config: Config,
    origins: BTreeMap<&'static str, Origin>,
}

/// A line of `forebay conf show`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: &'static str,
    /// Its value as a TOML literal; `None` when unset.
    pub value: Option<String>,
    /// Where the value came from.
    pub origin: Origin,
}

impl Config {
    /// Reads `sources` over the defaults.
    ///
    /// ```
    /// use forebay_config::{Config, Sources};
    ///
    /// let sources = Sources::new().text("forebay.toml", "worker.memory.size = \"64GiB\"").flags(["worker.rpc.port=0"]);
    /// let loaded = Config::load(&sources).unwrap();
    /// assert_eq!((loaded.config.worker_memory_size.as_u64(), loaded.config.worker_rpc_port), (64 << 30, 0));
    /// assert_eq!(loaded.origin("worker.memory.size").to_string(), "forebay.toml:1");
    ///
    /// let error = Config::load(&Sources::new().flags(["worker.memry.size=1GiB"])).unwrap_err().to_string();
    /// assert!(error.contains("did you mean `worker.memory.size`?"), "{error}");
    /// ```
    ///
    /// # Errors
    /// Everything that is wrong with them, in [`ConfigErrors`].
    pub fn load(sources: &Sources) -> Result<Loaded, ConfigErrors> {
        let mut assignments = Vec::new();
        let mut problems = Vec::new();
        match &sources.file {
            Some(File::Text { name, text }) => file::assignments(name, text, &mut assignments, &mut problems),
            Some(File::Path(path)) => {
                let name = path.display().to_string();
                match std::fs::read_to_string(path) {
                    Ok(text) => file::assignments(&name, &text, &mut assignments, &mut problems),
                    Err(error) => problems.push(Problem::Unreadable { name, error: error.to_string() }),
                }
            }
            None => {}
        }
        environment::assignments(&sources.environment, &mut assignments, &mut problems);
        flag_assignments(&sources.flags, &mut assignments, &mut problems);
        apply(assignments, problems)
    }

    /// Checks the file at `path` by itself, without environment and flags.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn check(path: &Path) -> Result<Loaded, ConfigErrors> {
        Self::load(&Sources::new().file(path))
    }
}

fn flag_assignments(flags: &[String], assignments: &mut Vec<Assignment>, problems: &mut Vec<Problem>) {
    for flag in flags {
        let Some((name, value)) = flag.split_once('=') else {
            problems.push(Problem::FlagForm { flag: flag.clone() });
            continue;
        };
        let at = Origin::Flag { text: flag.clone() };
        match Key::find(name.trim()) {
            Some(key) => assignments.push(Assignment { key, raw: Raw::Text(value.to_owned()), at }),
            None => problems.push(unknown_key(at, name.trim())),
        }
    }
}

fn apply(assignments: Vec<Assignment>, mut problems: Vec<Problem>) -> Result<Loaded, ConfigErrors> {
    let mut config = Config::default();
    let mut origins = BTreeMap::new();
    let mut bad_keys = BTreeSet::new();
    for Assignment { key, raw, at } in assignments {
        match (key.write)(&mut config, &raw) {
            Ok(()) => {
                origins.insert(key.name, at);
            }
            Err(why) => {
                bad_keys.insert(key.name);
                problems.push(Problem::BadValue { at, key: key.name, why });
            }
        }
    }
    defaults::give_way(&mut config, |key| !origins.contains_key(key));
    let loaded = Loaded { config, origins };
    problems.extend(rules::conflicts(&loaded.config, |key| loaded.origin(key), &bad_keys));
    ConfigErrors::check(problems)?;
    Ok(loaded)
}

impl Loaded {
    /// Where the value of `key` came from.
    #[must_use]
    pub fn origin(&self, key: &str) -> Origin {
        self.origins.get(key).cloned().unwrap_or(Origin::Default)
    }

    /// Every key with its value and where that came from, in the table's order.
    #[must_use]
    pub fn show(&self) -> Vec<Row> {
        KEYS.iter()
            .map(|key| Row { key: key.name, value: key.value_toml(&self.config), origin: self.origin(key.name) })
            .collect()
    }
}
