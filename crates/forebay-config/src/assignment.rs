//! What all sources come down to: a value for a key, or a name that is none.

use crate::error::Problem;
use crate::key::Key;
use crate::keys::KEYS;
use crate::nearest::nearest;
use crate::origin::Origin;
use crate::value::Raw;

/// A value for a key, from some source.
pub(crate) struct Assignment {
    pub(crate) key: &'static Key,
    pub(crate) raw: Raw,
    pub(crate) at: Origin,
}

/// Whether keys start with `name` and a dot.
pub(crate) fn is_section(name: &str) -> bool {
    first_key_in(name).is_some()
}

fn first_key_in(section: &str) -> Option<&'static str> {
    KEYS.iter().map(|key| key.name).find(|name| name.strip_prefix(section).is_some_and(|rest| rest.starts_with('.')))
}

/// The problem with a name that is no key.
pub(crate) fn unknown_key(at: Origin, name: &str) -> Problem {
    match first_key_in(name) {
        Some(example) => Problem::Section { at, section: name.to_owned(), example },
        None => {
            let nearest = nearest(name, KEYS.iter().map(|key| key.name)).map(str::to_owned);
            Problem::UnknownKey { at, key: name.to_owned(), nearest }
        }
    }
}
