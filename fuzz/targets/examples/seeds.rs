//! Writes the seeds that are made: `cargo run -p forebay-fuzz-targets --example seeds`. Files that fuzzers found stay.

use std::fs;
use std::path::Path;

use forebay_fuzz_targets::TARGETS;

fn main() -> std::io::Result<()> {
    let seeds = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../seeds"));
    for target in TARGETS {
        let folder = seeds.join(target.name);
        fs::create_dir_all(&folder)?;
        for (name, bytes) in (target.seeds)() {
            fs::write(folder.join(name), bytes)?;
        }
    }
    Ok(())
}
