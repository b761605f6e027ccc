//! A key of the table, by its name.

use crate::keys::{Config, KEYS};
use crate::table::KeyOf;

/// One key of the table.
pub type Key = KeyOf<Config>;

impl Key {
    /// The key called `name`.
    #[must_use]
    pub fn find(name: &str) -> Option<&'static Self> {
        KEYS.iter().find(|key| key.name == name)
    }
}
