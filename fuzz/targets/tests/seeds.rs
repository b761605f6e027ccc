//! Every seed in `fuzz/seeds/`, and every input that once broke something, with every `make test`: without libFuzzer, and with the
//! compiler that builds the product.

use std::path::PathBuf;
use std::{fs, panic};

use forebay_fuzz_targets::TARGETS;

fn seeds_of(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../seeds")).join(target);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), fs::read(path).unwrap())).collect()
}

#[test]
fn what_is_committed_breaks_no_target() {
    let mut broken = Vec::new();
    for target in TARGETS {
        let seeds = seeds_of(target.name);
        assert!(!seeds.is_empty(), "{} has no seeds: see CONTRIBUTING.md", target.name);
        for (path, seed) in seeds {
            if panic::catch_unwind(|| (target.run)(&seed)).is_err() {
                broken.push(format!("{}: {}", target.name, path.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn no_target_needs_more_than_nothing_or_minds_noise() {
    for target in TARGETS {
        (target.run)(b"");
        for fill in [0, 1, 0x7f, 0xff] {
            (target.run)(&[fill; 300]);
        }
        let noise: Vec<u8> = (0..2000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        (target.run)(&noise);
    }
}

#[test]
fn there_is_a_program_and_a_row_for_each_target() {
    let read = |path: &str| fs::read_to_string(PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path));
    let (manifest, document) = (read("fuzz/Cargo.toml").unwrap(), read("docs/VERIFICATION.md").unwrap());
    for target in TARGETS {
        let name = target.name;
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} is not in fuzz/Cargo.toml");
        assert!(document.contains(&format!("| `{name}` |")), "{name} is not in docs/VERIFICATION.md");
        let program = read(&format!("fuzz/fuzz_targets/{name}.rs")).unwrap();
        assert!(program.contains(&format!("::run::{name}(bytes)")), "{name}'s program runs another target");
    }
    assert_eq!(manifest.matches("[[bin]]").count(), TARGETS.len(), "a program without a target");
}
