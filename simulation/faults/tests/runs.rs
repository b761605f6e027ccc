//! The program, run as `make simulate-faults` runs it: one seed is one run, and every invariant holds.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// What the program says, and whether it says that all is well.
fn run(arguments: &[&str]) -> (bool, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_forebay-simulate-faults")).args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), said)
}

fn holds(seed: u64, hours: &str) -> String {
    let (is_well, said) = run(&["--seed", &seed.to_string(), "--hours", hours]);
    assert!(is_well, "{said}");
    said
}

fn fingerprint(said: &str) -> &str {
    said.lines().find(|line| line.contains("fingerprint")).unwrap()
}

#[test]
fn what_a_simulation_asks_of_the_system_follows_from_its_seed() {
    let told = |seed: &str| run(&["--seed", seed, "--probe"]);
    let (is_well, first) = told("5");
    assert!(is_well && first.contains("real time passes unseen: 0ns 0ns"), "{first}");
    assert!(first.contains("an hour is 3600"), "{first}");
    assert_eq!(told("5").1, first);
    let (_, other) = told("6");
    for beginning in ["wall clock", "order", "chosen"] {
        let line = |said: &str| said.lines().find(|line| line.starts_with(beginning)).map(str::to_owned);
        assert_ne!(line(&first), line(&other), "{beginning}");
    }
}

#[test]
fn one_seed_is_one_run() {
    let first = holds(7, "0.25");
    assert_eq!(fingerprint(&first), fingerprint(&holds(7, "0.25")));
    assert_ne!(fingerprint(&first), fingerprint(&holds(8, "0.25")));
}

/// A number of the summary.
fn counted(said: &str, name: &str) -> u64 {
    let after = said.split(&format!("{name}: ")).nth(1).unwrap_or_else(|| panic!("no {name} in {said}"));
    after.split(|letter: char| !letter.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// So that no run in which it never happens is taken for a proof.
#[test]
fn answers_overtake_each_other_and_disks_hang() {
    let said = holds(500, "0.25");
    assert!(counted(&said, "overtaken") > 0, "{said}");
    // One seed of some ten has a disk that hangs while something is asked of it.
    let hangs = (501..600).map(|seed| holds(seed, "0.5")).any(|said| counted(&said, "hung") > 0);
    assert!(hangs, "no disk ever hung");
}

#[test]
fn every_invariant_holds_with_a_seed_that_nobody_has_tried() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64 % 1_000_000_007;
    println!("seed {seed}");
    holds(seed, "0.4");
}
