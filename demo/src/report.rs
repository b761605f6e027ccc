//! What the demo prints.

use crate::counters::Counters;
use crate::passes::Pass;

/// A headline.
pub(crate) fn step(text: &str) {
    println!("\n==> {text}");
}

/// A size as people say it.
pub(crate) fn size(bytes: u64) -> String {
    indicatif::BinaryBytes(bytes).to_string()
}

/// The table at the end.
pub(crate) fn table(passes: &[(&str, Pass, Counters)]) {
    println!(
        "\n{:<6} {:>7} {:>12} {:>8} {:>9} {:>9}   bytes from memory / disk / origin",
        "pass", "files", "bytes", "seconds", "MB/s", "hit ratio"
    );
    for (name, pass, counters) in passes {
        let seconds = pass.took.as_secs_f64();
        // What had to come from the origin during the pass, ahead of readers or for them, was not a hit.
        let hits = 1.0 - (counters.origin as f64 / pass.bytes.max(1) as f64).min(1.0);
        println!(
            "{name:<6} {:>7} {:>12} {seconds:>8.2} {:>9.0} {:>8.1}%   {} / {} / {}",
            pass.files,
            size(pass.bytes),
            pass.bytes as f64 / 1e6 / seconds,
            hits * 100.0,
            size(counters.memory),
            size(counters.disk),
            size(counters.origin),
        );
    }
    println!();
}
