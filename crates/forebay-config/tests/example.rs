//! The example file is the table's own words, and works.

use std::path::Path;

use forebay_config::{Config, KEYS, Loaded, Sources, example_toml};

fn path() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/forebay.example.toml"))
}

/// Drops the `#` before settings, which no space follows; comments have one.
fn uncommented() -> String {
    let lines = example_toml();
    let lines = lines.lines().map(|line| match line.strip_prefix('#') {
        Some(setting) if setting.starts_with(|c: char| c.is_ascii_lowercase()) => setting,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn load(text: String) -> Loaded {
    Config::load(&Sources::new().text("forebay.example.toml", text)).unwrap_or_else(|errors| panic!("{errors}"))
}

#[test]
fn the_example_file_is_up_to_date() {
    let example = example_toml();
    if std::env::var_os("FOREBAY_BLESS").is_some() {
        std::fs::create_dir_all(path().parent().unwrap()).unwrap();
        std::fs::write(path(), &example).unwrap();
    }
    let checked_in = std::fs::read_to_string(path()).unwrap_or_default();
    assert!(
        checked_in == example,
        "docs/forebay.example.toml differs from the table of keys: \
         renew it with `FOREBAY_BLESS=1 cargo test -p forebay-config --test example`"
    );
}

#[test]
fn the_example_changes_nothing_as_it_is() {
    assert_eq!(load(example_toml()).config, Config::default());
}

#[test]
fn every_setting_of_the_example_loads_when_uncommented() {
    let loaded = load(uncommented());
    for key in KEYS {
        assert!(loaded.origin(key.name).to_string().starts_with("forebay.example.toml:"), "{}", key.name);
        if key.example.is_none() {
            assert_eq!(key.value_toml(&loaded.config), key.default_toml(), "{}", key.name);
        }
    }
}

#[test]
fn no_line_of_the_example_is_too_long_to_read() {
    for line in example_toml().lines() {
        assert!(line.chars().count() <= 120, "{line}");
    }
}
