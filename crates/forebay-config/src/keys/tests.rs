//! What holds of every key of the table.

use std::collections::BTreeSet;

use super::*;
use crate::key::Key;

#[test]
fn a_field_is_named_like_its_key_so_every_key_is_read_and_no_variable_is_ambiguous() {
    for key in KEYS {
        assert_eq!(key.field, key.name.replace(['.', '-'], "_"));
    }
    let variables: BTreeSet<String> = KEYS.iter().map(Key::variable).collect();
    assert_eq!(variables.len(), KEYS.len());
}

#[test]
fn no_key_is_a_section_of_another() {
    for key in KEYS {
        let below = KEYS.iter().find(|other| other.name.starts_with(&format!("{}.", key.name)));
        assert!(below.is_none(), "{} and {:?}", key.name, below);
    }
}

#[test]
fn every_default_is_within_its_limits_and_reads_back_as_itself() {
    let mut config = Config::default();
    for key in KEYS {
        let Some(literal) = key.default_toml() else { continue };
        let raw = crate::value::Raw::of(&literal.parse().unwrap());
        assert_eq!((key.write)(&mut config, &raw), Ok(()), "{}", key.name);
    }
    assert_eq!(config, Config::default());
}

#[test]
fn every_key_without_a_default_has_an_example_that_changes_that_key_alone() {
    for key in KEYS {
        if !matches!(key.default_toml().as_deref(), None | Some("[]")) {
            continue;
        }
        let example = key.example.unwrap_or_else(|| panic!("{} has no example", key.name));
        let mut config = Config::default();
        (key.write)(&mut config, &crate::value::Raw::of(&example.parse().unwrap())).unwrap();
        let changed: Vec<&str> =
            KEYS.iter().filter(|key| key.value_toml(&config) != key.default_toml()).map(|key| key.name).collect();
        assert_eq!(changed, [key.name]);
    }
}
