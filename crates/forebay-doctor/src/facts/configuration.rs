//! The configuration as the report shows it. The checks take it as [`forebay_config::Config`].

use forebay_config::{Loaded, Origin};
use serde::{Deserialize, Serialize};

use crate::text::without_passwords;

/// The configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// What is wrong with it. The verdicts are then those of the defaults.
    pub problems: Vec<String>,
    /// What is not at its default.
    pub settings: Vec<Setting>,
}

/// A key that is not at its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// Where that comes from.
    pub from: String,
}

impl Configuration {
    /// That of a configuration which is right.
    #[must_use]
    pub fn of(loaded: &Loaded) -> Self {
        let rows = loaded.show().into_iter().filter(|row| row.origin != Origin::Default);
        let setting = |row: forebay_config::Row| Setting {
            key: row.key.to_owned(),
            value: without_passwords(&row.value.unwrap_or_default()),
            from: row.origin.to_string(),
        };
        Self { problems: Vec::new(), settings: rows.map(setting).collect() }
    }
}
