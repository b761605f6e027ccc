//! The documented example file: every key, commented out, with its default.
//!
//! Keys are written in full and not under `[headings]`, so that one line can be uncommented, searched for, or given to
//! `-o`, by itself.

use crate::keys::KEYS;

const INTRODUCTION: &str = "\
# Forebay's configuration. Made from the program's own table of keys: do not edit, see crates/forebay-config.
#
# Every key is here with its default, commented out: uncomment a line to change it. Tables may be nested too:
# `[worker.memory]` and `size = \"4GiB\"`.
#
# Each key is also an environment variable, `worker.memory.size` being FOREBAY_WORKER_MEMORY_SIZE, and a flag,
# `-o worker.memory.size=4GiB`. Flags win over the environment, the environment over this file.
#
# Sizes: 512KiB, 4MiB, 1.5TiB (1024-based), 4MB (1000-based), a bare number is bytes. Durations: 500ms, 30s, 5m, 1h.
# Lists: [\"a\", \"b\"] here, \"a,b\" elsewhere. Empty text unsets what may be unset.
# `forebay conf show` prints what is in effect and where each value came from.
";

/// The content of `docs/forebay.example.toml`.
#[must_use]
pub fn example_toml() -> String {
    let mut out = INTRODUCTION.to_owned();
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            section = key.section;
            out += &format!("\n\n# ---- {section}\n");
        }
        out.push('\n');
        for line in key.doc {
            out += &format!("# {}\n", line.trim());
        }
        let default = key.default_toml();
        let unset = match default.as_deref() {
            None => "; unset by default",
            Some("[]") => "; empty by default",
            Some(_) => "",
        };
        out += &format!("# ({}{unset})\n", key.form());
        let shown = if unset.is_empty() { default.as_deref() } else { key.example };
        out += &format!("#{} = {}\n", key.name, shown.unwrap_or_default());
    }
    out
}
